"""Statistics are complete or refused, and the message says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mimetic.errors import StatsError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.processing.stats import check_stats, flatten, rename_stats, select_dataset, tensor_stats, unflatten

ACTION = {"action": PolicyFeature(FeatureType.ACTION, (3,))}
STATE = {"observation.state": PolicyFeature(FeatureType.STATE, (6,))}
CAMERA = {"observation.images.wrist_left": PolicyFeature(FeatureType.VISUAL, (3, 8, 8))}
MEAN_STD = dict.fromkeys(("STATE", "ACTION", "VISUAL"), NormalizationMode.MEAN_STD)


def values(*shape, names=("mean", "std")):
    return {name: torch.ones(shape) for name in names}


def refused(features, stats, norm_map=MEAN_STD):
    with pytest.raises(StatsError) as error:
        check_stats(features, norm_map, stats, where="`here`")
    return error.value


def test_complete_statistics_pass_in_every_stored_shape():
    check_stats(ACTION, MEAN_STD, {"action": {"mean": np.zeros(3), "std": np.ones(3)}}, where="")
    for shape in ((3,), (3, 1, 1)):
        check_stats(CAMERA, MEAN_STD, {"observation.images.wrist_left": values(*shape)}, where="")


def test_features_that_are_not_normalised_need_no_statistics():
    check_stats(ACTION, {"ACTION": NormalizationMode.IDENTITY}, {}, where="")
    check_stats({"observation.environment_state": PolicyFeature(FeatureType.ENV, (2,))}, MEAN_STD, {}, where="")


def test_all_missing_features_are_named_at_once():
    error = refused({**ACTION, **STATE, **CAMERA}, {"observation.state": values(6)})
    assert "no statistics for `action` (ACTION is normalised by MEAN_STD)" in error.message
    assert "no statistics for `observation.images.wrist_left`" in error.message
    assert "observation.state`:" not in error.message
    assert error.message.startswith("`here`: ")


def test_statistics_of_several_datasets_are_listed_with_the_flag_that_selects_one():
    error = refused(ACTION, {"so100.buffer.action": values(3), "so100-red.buffer.action": values(3)})
    assert "`action`" in error.message
    assert "`so100.buffer.action`" in error.hint
    assert "`--stats_dataset=so100` or `--stats_dataset=so100-red`" in error.hint


def test_a_chosen_dataset_gives_its_numbers_and_drops_the_others():
    stored = {
        "so100.buffer.action": values(3),
        "so100-red.buffer.action": {"mean": torch.zeros(3), "std": torch.ones(3)},
    }
    chosen = select_dataset(stored, "so100-red", ["action"], where="")
    assert chosen.keys() == {"action"}
    assert torch.equal(chosen["action"]["mean"], torch.zeros(3))
    assert select_dataset(stored, None, ["action"], where="") is stored
    with pytest.raises(StatsError, match="`so101`") as error:
        select_dataset(stored, "so101", ["action"], where="")
    assert "so100" in error.value.hint


def test_the_only_dataset_is_taken_by_itself_where_plain_names_are_missing():
    stored = {"so100.buffer.action": values(3)}
    assert select_dataset(stored, None, ["action"], where="").keys() == {"action"}
    both = {**stored, "action": values(3)}
    assert select_dataset(both, None, ["action"], where="") is both


def test_the_nearest_name_is_shown():
    error = refused(CAMERA, {"observation.images.wrist.left": values(3, 1, 1)})
    assert "the nearest name is `observation.images.wrist.left`" in error.hint


def test_missing_quantiles_are_named_with_a_mode_that_works():
    error = refused(STATE, {"observation.state": values(6)}, {"STATE": NormalizationMode.QUANTILES})
    assert "lacks q01 and q99, which QUANTILES needs; it has mean, std" in error.message
    assert '{"STATE": "MEAN_STD"}' in error.hint


@pytest.mark.parametrize(
    ("features", "stats", "words"),
    [
        (STATE, {"observation.state": values(7)}, r"shape \(6,\) and its mean has shape \(7,\)"),
        (STATE, {"observation.state": values(1)}, r"its mean has shape \(1,\)"),
        (CAMERA, {"observation.images.wrist_left": values(1, 1, 1)}, r"its mean has shape \(1, 1, 1\)"),
        (
            STATE,
            {"observation.state": {"mean": torch.ones(6), "std": torch.full((6,), torch.nan)}},
            "std that is not finite",
        ),
        (STATE, {"observation.state": {"mean": torch.ones(6), "std": -torch.ones(6)}}, "negative std"),
    ],
)
def test_wrong_shapes_and_values_are_refused(features, stats, words):
    with pytest.raises(StatsError, match=words):
        check_stats(features, MEAN_STD, stats, where="")


def test_flat_names_are_split_at_the_last_dot():
    nested = {"observation.images.top": {"mean": torch.zeros(3)}, "action": {"std": torch.ones(2)}}
    assert flatten(nested).keys() == {"observation.images.top.mean", "action.std"}
    assert unflatten(flatten(nested)) == nested
    with pytest.raises(StatsError, match="`action`"):
        unflatten({"action": torch.zeros(1)})


def test_statistics_become_float32_copies_and_keep_their_shape():
    source = {"action": {"mean": np.zeros((3, 1, 1)), "count": np.array([7], dtype=np.int64)}}
    stats = tensor_stats(source)
    assert stats["action"]["mean"].shape == (3, 1, 1)
    assert {value.dtype for value in stats["action"].values()} == {torch.float32}
    source["action"]["mean"][:] = 5
    assert stats["action"]["mean"].max() == 0


def test_renamed_statistics_follow_their_feature():
    assert rename_stats({"a": {}, "b": {}}, {"a": "c"}).keys() == {"c", "b"}
