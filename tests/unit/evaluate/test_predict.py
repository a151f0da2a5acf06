from types import SimpleNamespace

import pytest

from mimetic.errors import ConfigError
from mimetic.evaluate.predict import absent_cameras, input_names
from mimetic.features import FeatureType, PolicyFeature
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.steps.rename_observations import RenameObservations

STATE, CAMERA = "observation.state", "observation.images.camera{}"


def policy(*, has_camera_slots, rename_map=None, has_filler=False, unread=()):
    cameras = {CAMERA.format(i): PolicyFeature(FeatureType.VISUAL, (3, 8, 8)) for i in (1, 2, 3)}
    config = SimpleNamespace(
        input_features={STATE: PolicyFeature(FeatureType.STATE, (2,)), **cameras},
        image_features=cameras,
        has_camera_slots=has_camera_slots,
        unread_inputs=list(unread),
        filler_inputs={CAMERA.format(3): cameras[CAMERA.format(3)]} if has_filler else {},
    )
    return SimpleNamespace(config=config, preprocessor=Pipeline("p", [RenameObservations(rename_map or {})]))


def dataset(*cameras):
    features = {STATE: SimpleNamespace(shape=(2,), is_camera=False)}
    features |= {f"observation.images.{name}": SimpleNamespace(shape=(8, 8, 3), is_camera=True) for name in cameras}
    return SimpleNamespace(features=features)


def test_a_policy_with_slots_is_evaluated_with_the_cameras_that_are_there():
    renamed = policy(has_camera_slots=True, rename_map={"observation.images.top": CAMERA.format(2)})
    assert input_names(renamed, dataset("camera1", "top")) == {
        STATE: STATE,
        CAMERA.format(1): CAMERA.format(1),
        CAMERA.format(2): "observation.images.top",
    }


def test_what_the_policy_does_not_read_need_not_be_there():
    one = policy(has_camera_slots=False, unread=[STATE])
    cameras = dataset("camera1", "camera2", "camera3")
    del cameras.features[STATE]
    assert list(input_names(one, cameras)) == [CAMERA.format(i) for i in (1, 2, 3)]
    with pytest.raises(ConfigError, match=STATE):
        input_names(policy(has_camera_slots=False), cameras)


def test_without_any_camera_all_slots_are_named():
    with pytest.raises(ConfigError, match=r"reads `observation\.images\.camera1`, `observation\.images\.camera2`"):
        input_names(policy(has_camera_slots=True), dataset())


def test_a_policy_without_slots_needs_every_camera():
    with pytest.raises(ConfigError, match=r"reads `observation\.images\.camera3`, and the dataset has no such"):
        input_names(policy(has_camera_slots=False), dataset("camera1", "camera2"))


def test_the_proposed_map_is_whole_names_cameras_in_order_and_keeps_the_checkpoints_own():
    renamed = policy(has_camera_slots=False, rename_map={"observation.images.top": CAMERA.format(2)})
    with pytest.raises(ConfigError) as error:
        input_names(renamed, dataset("top", "b", "a"))
    assert error.value.hint == (
        'rename them: `--rename_map=\'{"observation.images.top": "observation.images.camera2", '
        '"observation.images.b": "observation.images.camera1", "observation.images.a": "observation.images.camera3"}\'`'
    )


def test_what_is_no_camera_is_never_proposed_for_one():
    with pytest.raises(ConfigError) as error:
        input_names(policy(has_camera_slots=True), dataset())
    assert "--rename_map" not in error.value.hint


@pytest.mark.parametrize(
    ("has_filler", "absent"), [(False, [CAMERA.format(2), CAMERA.format(3)]), (True, [CAMERA.format(2)])]
)
def test_cameras_that_are_left_out_are_listed_without_fillers(has_filler, absent):
    with_slots = policy(has_camera_slots=True, has_filler=has_filler)
    assert absent_cameras(with_slots, input_names(with_slots, dataset("camera1"))) == absent
