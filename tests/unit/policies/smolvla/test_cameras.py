"""Cameras of a dataset matched to the slots of a loaded policy."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.build import check_inputs
from mimetic.policies.cameras import fit_inputs
from mimetic.policies.smolvla.config import SmolVLAConfig

STATE = "observation.state"
BASE = (3, 256, 256)


def cam(name):
    return f"observation.images.{name}"


def inputs(*cameras, state=6, shape=BASE):
    return {
        STATE: PolicyFeature(FeatureType.STATE, (state,)),
        **{cam(name): PolicyFeature(FeatureType.VISUAL, shape) for name in cameras},
    }


def base(*slots, **changes):
    return SmolVLAConfig(input_features=inputs(*(slots or ("camera1", "camera2", "camera3"))), **changes)


def fit(config, offered, rename_map=None, earlier=None):
    found = fit_inputs(config, offered, rename_map or {}, earlier)
    assert found is not None
    return found


def pairs(fitted):
    short = len(cam(""))
    return {old[short:]: new[short:] for old, new in fitted.rename_map.items()}


def test_two_cameras_take_the_first_two_of_three_slots_and_everything_is_told():
    found = fit(base(), inputs("top", "wrist"))
    assert pairs(found) == {"top": "camera1", "wrist": "camera2"}
    assert list(found.input_features) == [STATE, cam("camera1"), cam("camera2")]
    assert found.decisions == (
        "camera `observation.images.top` -> slot `observation.images.camera1`",
        "camera `observation.images.wrist` -> slot `observation.images.camera2`",
        "slot `observation.images.camera3` has no camera and leaves the policy's inputs",
        'to choose otherwise: `--rename_map=\'{"observation.images.top": "observation.images.camera1", '
        '"observation.images.wrist": "observation.images.camera2"}\'`',
    )


def test_names_that_fit_are_left_alone_and_nothing_is_said():
    found = fit(base(), inputs("camera1", "camera2", "camera3"))
    assert (found.rename_map, found.decisions) == ({}, ())
    assert found.input_features == base().input_features


def test_names_that_fit_in_part_are_kept_and_the_rest_fills_the_free_slots_in_order():
    found = fit(base(), inputs("side", "camera1", "top"))
    assert pairs(found) == {"side": "camera2", "top": "camera3"}
    assert list(found.input_features) == [STATE, cam("camera1"), cam("camera2"), cam("camera3")]


def test_the_order_of_the_slots_stays_whatever_the_order_of_the_cameras():
    found = fit(base("b", "a"), inputs("a", "x"))
    assert pairs(found) == {"x": "b"}
    assert list(found.input_features) == [STATE, cam("b"), cam("a")]


def test_shapes_become_those_of_the_dataset_and_that_is_told():
    offered = inputs("top", state=7) | {cam("top"): PolicyFeature(FeatureType.VISUAL, (3, 480, 640))}
    found = fit(base("camera1"), offered)
    assert found.input_features == {
        STATE: PolicyFeature(FeatureType.STATE, (7,)),
        cam("camera1"): PolicyFeature(FeatureType.VISUAL, (3, 480, 640)),
    }
    assert [line for line in found.decisions if "is [7] in the dataset and was [6] in the base policy" in line]
    assert [line for line in found.decisions if "`observation.images.camera1` is [3, 480, 640]" in line]


def test_more_cameras_than_slots_is_one_error_that_shows_how_to_choose():
    with pytest.raises(ConfigError) as error:
        fit(base("camera1", "camera2"), inputs("top", "wrist", "side"))
    assert "has slots for 2" in error.value.message
    assert "which of `observation.images.top`, `observation.images.wrist`, `observation.images.side`" in str(
        error.value
    )
    assert (
        '`--rename_map=\'{"observation.images.top": "observation.images.camera1", '
        '"observation.images.wrist": "observation.images.camera2"}\'`' in (error.value.hint or "")
    )


def test_when_every_slot_has_its_camera_the_others_are_not_read():
    found = fit(base("front", "wrist"), inputs("front", "wrist", "side"))
    assert found.rename_map == {}
    assert found.decisions == ("camera `observation.images.side` is not read: the policy has no slot of this name",)


def test_a_map_by_hand_is_followed_to_the_letter():
    by_hand = {cam("wrist"): cam("camera1"), STATE: STATE}
    found = fit(base(), inputs("top", "wrist"), by_hand)
    assert found.rename_map == by_hand
    assert list(found.input_features) == [STATE, cam("camera1")]
    assert found.decisions == (
        "camera `observation.images.top` is not read: the policy has no slot of this name",
        "slots `observation.images.camera2`, `observation.images.camera3` have no camera and leave the policy's inputs",
    )


@pytest.mark.parametrize(
    ("rename_map", "wanted"),
    [
        (
            {"top": "camera9"},
            "the policy has no camera slot `observation.images.camera9` (for `observation.images.top`)",
        ),
        ({"tpo": "camera1"}, "the dataset has no `observation.images.tpo`"),
        ({"top": "camera1", "wrist": "camera1"}, "slot `observation.images.camera1` gets"),
    ],
)
def test_a_map_by_hand_that_does_not_fit_is_one_error(rename_map, wanted):
    with pytest.raises(ConfigError) as error:
        fit(base(), inputs("top", "wrist"), {cam(old): cam(new) for old, new in rename_map.items()})
    assert error.value.message.startswith("`--rename_map` does not fit: ")
    assert wanted in error.value.message
    assert "the policy's slots `observation.images.camera1`" in (error.value.hint or "")


def test_a_map_by_hand_that_feeds_no_camera_is_refused():
    with pytest.raises(ConfigError, match="gives no slot a camera"):
        fit(base(), inputs("top"), {STATE: STATE})


def test_cameras_go_where_they_went_in_the_earlier_training():
    earlier = {cam("top"): cam("camera2"), cam("wrist"): cam("camera1"), cam("gone"): cam("camera3")}
    found = fit(base(), inputs("top", "side", "wrist"), earlier=earlier)
    assert pairs(found) == {"top": "camera2", "side": "camera3", "wrist": "camera1"}
    assert pairs(fit(base("camera1"), inputs("top"), earlier={cam("top"): cam("nowhere")})) == {"top": "camera1"}


def test_the_fillers_of_lerobot_are_no_slots_and_stay():
    config = base("camera1", "empty_camera_0", empty_cameras=1)
    found = fit(config, inputs("top"))
    assert pairs(found) == {"top": "camera1"}
    assert list(found.input_features) == [STATE, cam("camera1"), cam("empty_camera_0")]
    assert not [line for line in found.decisions if "empty_camera" in line]
    # Beside a camera that is not read, a filler that nobody offers is no mismatch of names.
    check_inputs(config, inputs("camera1", "side"))


def test_without_that_many_fillers_the_name_is_an_ordinary_slot():
    found = fit(base("camera1", "empty_camera_0"), inputs("top", "wrist"))
    assert pairs(found) == {"top": "camera1", "wrist": "empty_camera_0"}


@pytest.mark.parametrize(
    "config",
    [ACTConfig(input_features=inputs("camera1")), SmolVLAConfig(), SmolVLAConfig(input_features=inputs())],
    ids=["names matter", "a new policy", "no cameras"],
)
def test_other_policies_are_left_alone(config):
    assert fit_inputs(config, inputs("top"), {}) is None


def test_a_dataset_without_cameras_is_left_to_the_check_that_follows():
    assert fit_inputs(base(), inputs(), {}) is None


@dataclass(frozen=True, kw_only=True)
class _Slots(ACTConfig):
    @property
    def has_camera_slots(self):
        return True


def test_any_policy_can_have_slots():
    assert pairs(fit(_Slots(input_features=inputs("camera1")), inputs("top"))) == {"top": "camera1"}


@pytest.mark.parametrize(("joints", "told"), [(5, True), (6, False)])
def test_another_number_of_joints_to_move_is_told(joints, told):
    config = base("camera1", output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))})
    found = fit(config, inputs("camera1") | {"action": PolicyFeature(FeatureType.ACTION, (joints,))})
    line = "`action` is [5] in the dataset and was [6] in the base policy; the trained policy predicts [5]"
    assert (line in found.decisions) == told
    assert len(found.decisions) == told
