"""Old checkpoints (statistics among the weights) against LeRobot's own migration, where that is right."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
from safetensors.torch import load_file, save_file

from mimetic import log
from mimetic.errors import CheckpointError, StatsError
from mimetic.names import WEIGHTS
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, read_config
from mimetic.policies.migrate import migrate

LEGACY = "act/legacy_migration/legacy_checkpoint"


def as_legacy(folder, target, *, compiled=False, dataset=""):
    """An old form of a checkpoint: pipelines gone, statistics (mean and std) and random weights in one file."""
    target.mkdir()
    shutil.copy(folder / "config.json", target)
    state_file = next(folder.glob("policy_preprocessor_step_3_*"))
    stats = {key: value for key, value in load_file(state_file).items() if key.endswith((".mean", ".std"))}
    mark = "._orig_mod" if compiled else ""
    weights = make_policy(read_config(folder), init_backbone=False).state_dict()
    tensors = {key.replace("model.", f"model{mark}.", 1): value.contiguous() for key, value in weights.items()}
    for key, value in stats.items():
        feature, _, stat = key.rpartition(".")
        for role in ("normalize_targets", "unnormalize_outputs") if feature == "action" else ("normalize_inputs",):
            tensors[f"{role}.{dataset}buffer_{feature.replace('.', '_')}.{stat}"] = value.clone()
    save_file(tensors, target / WEIGHTS)
    return weights, stats


def test_an_old_checkpoint_becomes_the_new_one_byte_for_byte(fixtures, tmp_path):
    migrate(fixtures / LEGACY, tmp_path / "new")
    fresh = fixtures / "act/state_env/checkpoint"
    assert (tmp_path / "new" / WEIGHTS).read_bytes() == (fresh / WEIGHTS).read_bytes()
    for name in (
        "policy_preprocessor_step_3_normalizer_processor",
        "policy_postprocessor_step_0_unnormalizer_processor",
    ):
        wanted = {k: v for k, v in load_file(fresh / f"{name}.safetensors").items() if k.endswith((".mean", ".std"))}
        found = load_file(tmp_path / "new" / f"{name}.safetensors")
        assert found.keys() == wanted.keys()
        assert all(found[key].equal(wanted[key]) for key in wanted)
    pipeline = json.loads((tmp_path / "new/policy_preprocessor.json").read_text())
    assert pipeline["steps"][3]["config"]["norm_map"]["ENV"] == "MEAN_STD"
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["normalization_mapping"]["ENV"] == "MEAN_STD"
    again = load_pretrained(tmp_path / "new")
    assert again.preprocessor.steps[3].stats.keys() == {
        "action",
        "observation.environment_state",
        "observation.state",
    }


def test_an_old_checkpoint_loads_in_memory_with_one_warning(fixtures, caplog, monkeypatch):
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(log.LOGGER, "propagate", True)
    with caplog.at_level(logging.WARNING, "mimetic"):
        loaded = load_pretrained(fixtures / LEGACY)
        load_pretrained(fixtures / LEGACY)
    warnings = [record.getMessage() for record in caplog.records if "--migrate_to" in record.getMessage()]
    assert len(warnings) == 1
    assert len(loaded.report.matched) == len(loaded.policy.state_dict())
    assert not loaded.report.unexpected


@pytest.mark.parametrize("case", ["single_image_novae", "vision"])
def test_pipelines_of_a_migrated_checkpoint_equal_lerobots_where_those_are_right(fixtures, tmp_path, case):
    as_legacy(fixtures / "act" / case / "checkpoint", tmp_path / "old")
    migrate(tmp_path / "old", tmp_path / "new")
    for path in (fixtures / f"act/legacy_migration/lerobot_result_{case}").iterdir():
        if path.name == "summary.json":
            continue
        if path.suffix == ".safetensors" and case == "vision":
            found, theirs = load_file(tmp_path / "new" / path.name), load_file(path)
            right = {key.replace("wrist.left", "wrist_left"): value for key, value in theirs.items()}
            assert right.keys() != theirs.keys()  # LeRobot's fault is in the file
            assert found.keys() == right.keys()
            assert all(found[key].equal(right[key]) for key in right)
        else:
            assert (tmp_path / "new" / path.name).read_bytes() == path.read_bytes(), path.name


def test_lerobots_faulty_result_is_refused_with_the_nearest_name(fixtures):
    folder = fixtures / "act/legacy_migration/lerobot_result_vision"
    with pytest.raises(StatsError, match=r"no statistics for `observation.images.wrist_left`") as error:
        load_pretrained(folder)
    assert "`observation.images.wrist.left`" in error.value.hint
    assert "--migrate_to" in error.value.hint


def test_compiled_old_weights_load_under_their_plain_names(fixtures, tmp_path):
    weights, _ = as_legacy(fixtures / "act/state_env/checkpoint", tmp_path / "old", compiled=True)
    loaded = load_pretrained(tmp_path / "old").policy.state_dict()
    assert loaded.keys() == weights.keys()
    assert all(loaded[key].equal(weights[key]) for key in weights)


def test_statistics_of_one_dataset_are_taken_by_its_prefix(fixtures, tmp_path):
    _, stats = as_legacy(fixtures / "act/vision/checkpoint", tmp_path / "old", dataset="so100_")
    pipeline = load_pretrained(tmp_path / "old").preprocessor
    assert pipeline.steps[3].state().keys() == stats.keys()
    assert (
        load_pretrained(tmp_path / "old", stats_dataset="so100").postprocessor.steps[0].state().keys() == stats.keys()
    )
    with pytest.raises(StatsError, match="`nobody`"):
        load_pretrained(tmp_path / "old", stats_dataset="nobody")


def test_old_copies_of_a_statistic_that_differ_are_refused(fixtures, tmp_path):
    as_legacy(fixtures / "act/state_env/checkpoint", tmp_path / "old")
    tensors = load_file(tmp_path / "old" / WEIGHTS)
    tensors["normalize_targets.buffer_action.mean"] += 1
    save_file(tensors, tmp_path / "old" / WEIGHTS)
    with pytest.raises(StatsError, match="two different values of the mean of `action`"):
        load_pretrained(tmp_path / "old")


def test_statistics_that_were_never_set_are_refused(fixtures, tmp_path):
    as_legacy(fixtures / "act/state_env/checkpoint", tmp_path / "old")
    tensors = load_file(tmp_path / "old" / WEIGHTS)
    tensors["normalize_inputs.buffer_observation_state.mean"].fill_(float("inf"))
    save_file(tensors, tmp_path / "old" / WEIGHTS)
    with pytest.raises(StatsError, match="mean that is not finite"):
        load_pretrained(tmp_path / "old")


def test_only_old_checkpoints_are_migrated_and_only_into_empty_folders(fixtures, tmp_path):
    with pytest.raises(CheckpointError, match="nothing to migrate"):
        migrate(fixtures / "act/state_env/checkpoint", tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(CheckpointError, match="is not empty"):
        migrate(fixtures / LEGACY, tmp_path / "full")
