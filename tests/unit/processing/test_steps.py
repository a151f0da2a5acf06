"""Each step, and the way of a batch through a pipeline."""

from __future__ import annotations

import logging

import pytest
import torch

from mimetic import log
from mimetic.errors import ConfigError, DeviceError, ShapeError, StatsError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.standard import standard_pipelines
from mimetic.processing.steps.device import MoveToDevice
from mimetic.processing.steps.normalizer import Normalizer
from mimetic.processing.steps.rename_observations import RenameObservations
from mimetic.processing.steps.to_batch import ToBatch
from mimetic.processing.steps.unnormalizer import Unnormalizer
from mimetic.processing.transition import Transition, join_batch, split_batch

STATE = PolicyFeature(FeatureType.STATE, (2,))
CAMERA = PolicyFeature(FeatureType.VISUAL, (3, 4, 4))
ACTION = PolicyFeature(FeatureType.ACTION, (2,))
MODES = dict.fromkeys(("STATE", "ACTION", "VISUAL"), NormalizationMode.MEAN_STD)


def stats(n, mean=1.0, std=2.0):
    return {"mean": torch.full((n,), mean), "std": torch.full((n,), std)}


def test_a_batch_keeps_exactly_the_keys_of_the_format():
    batch = {
        "observation.state": 1, "action": None, "action_is_pad": 2, "task": ["x"], "index": 3, "task_index": 4,
        "episode_index": 5, "timestamp": 6, "frame_index": 7, "robot_type": "so101", "subtask": "y", "next.reward": 8,
    }  # fmt: skip
    result = join_batch(split_batch(batch))
    assert set(batch) - set(result) == {"frame_index", "robot_type", "subtask"}
    assert set(result) - set(batch) == {"next.done", "next.truncated", "info"}
    assert result["next.reward"] == 8
    # An observation alone comes out with the defaults, `action` among them, as from LeRobot.
    assert join_batch(split_batch({"task": ["x"]})) == {
        "action": None, "next.reward": 0.0, "next.done": False, "next.truncated": False, "info": {}, "task": ["x"],
    }  # fmt: skip


def test_untouched_tensors_are_passed_on_without_a_copy():
    pipeline = Pipeline("p", [RenameObservations(), ToBatch(), MoveToDevice("cpu")])
    batch = {"observation.state": torch.zeros(3, 2), "action_is_pad": torch.zeros(3, 4, dtype=torch.bool)}
    result = pipeline(batch)
    assert all(result[key] is value for key, value in batch.items())


def test_renaming_moves_companions_and_keeps_the_order():
    step = RenameObservations({"observation.images.front": "observation.images.top"})
    transition = split_batch(
        {"observation.images.front": 1, "observation.images.front_is_pad": 2,
         "observation.images.front_padding_mask": 3, "observation.images.front_left": 4}
    )  # fmt: skip
    step(transition)
    assert transition.observation == {
        "observation.images.top": 1, "observation.images.top_is_pad": 2, "observation.images.top_padding_mask": 3,
        "observation.images.front_left": 4,
    }  # fmt: skip
    assert next(iter(transition.observation)) == "observation.images.top"


def test_cached_features_are_renamed_with_their_camera():
    step = RenameObservations({"observation.images.front": "observation.images.top", "observation.a": "observation.b"})
    transition = split_batch(
        {"observation.features.images.front": 1, "observation.features.images.front_is_pad": 2,
         "observation.features.images.front_left": 3, "observation.features.a": 4}
    )  # fmt: skip
    step(transition)
    assert transition.observation == {
        "observation.features.images.top": 1, "observation.features.images.top_is_pad": 2,
        "observation.features.images.front_left": 3, "observation.features.b": 4,
    }  # fmt: skip


def test_cached_features_of_one_sample_get_a_batch_axis_and_those_of_a_batch_stay():
    pipeline = Pipeline("p", [ToBatch()])
    key = "observation.features.images.front"
    assert pipeline({key: torch.zeros(64, 960)})[key].shape == (1, 64, 960)
    for shape in ((3, 64, 960), (1, 64, 960)):
        batch = {key: torch.zeros(shape)}
        assert pipeline(batch)[key] is batch[key]


def test_a_swap_of_two_names_works_and_a_collision_is_refused():
    swap = RenameObservations({"observation.a": "observation.b", "observation.b": "observation.a"})
    transition = split_batch({"observation.a": 1, "observation.b": 2})
    swap(transition)
    assert transition.observation == {"observation.b": 1, "observation.a": 2}
    with pytest.raises(ConfigError, match=r"`observation.b`, which is already there"):
        RenameObservations({"observation.a": "observation.b"})(split_batch({"observation.a": 1, "observation.b": 2}))
    with pytest.raises(ConfigError, match="two features the same name"):
        RenameObservations({"observation.a": "observation.c", "observation.b": "observation.c"})


def test_a_single_sample_becomes_a_batch_of_one_and_a_batch_stays():
    sample = {
        "observation.state": torch.zeros(2), "observation.environment_state": torch.zeros(5),
        "observation.images.top": torch.zeros(3, 4, 4), "observation.image": torch.zeros(3, 4, 4),
        "action": torch.zeros(2), "task": "pick", "index": torch.tensor(3), "task_index": torch.tensor(0),
        "language_events": [1], "language_persistent": [2], "messages": [{"role": "user"}],
    }  # fmt: skip
    pipeline = Pipeline("p", [ToBatch()])
    once = pipeline(sample)
    assert {key: tuple(value.shape) for key, value in once.items() if isinstance(value, torch.Tensor)} == {
        "action": (1, 2), "index": (1,), "task_index": (1,), "observation.state": (1, 2),
        "observation.environment_state": (1, 5), "observation.images.top": (1, 3, 4, 4),
        "observation.image": (1, 3, 4, 4),
    }  # fmt: skip
    assert once["task"] == ["pick"]
    assert once["messages"] == [[{"role": "user"}]]
    assert not {"language_events", "language_persistent"} & once.keys()
    twice = pipeline(once)
    assert all(twice[key] is value for key, value in once.items() if isinstance(value, torch.Tensor))


def test_the_device_step_casts_only_floats():
    step = MoveToDevice("cpu", "bfloat16")
    transition = split_batch(
        {"observation.state": torch.zeros(2), "index": torch.tensor([1]), "action": torch.zeros(1, 2)}
    )
    step(transition)
    assert transition.observation["observation.state"].dtype == torch.bfloat16
    assert transition.action.dtype == torch.bfloat16
    assert transition.complementary["index"].dtype == torch.int64
    assert step.config() == {"device": "cpu", "float_dtype": "bfloat16"}
    with pytest.raises(ConfigError, match="float_dtype=float23"):
        MoveToDevice("cpu", "float23")


def test_a_stored_device_that_is_absent_is_replaced_with_one_note(caplog, monkeypatch):
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(log.LOGGER, "propagate", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO, "mimetic"):
        steps = [MoveToDevice.build({"device": "cuda", "float_dtype": None}, {}) for _ in range(2)]
    assert steps[0].device.type != "cuda"
    assert len([record for record in caplog.records if "`cuda`, which is not here" in record.getMessage()]) == 1
    with pytest.raises(DeviceError):  # the caller's word is no hint
        MoveToDevice.build({"device": "cpu"}, {"device": "cuda"})


def test_normalisation_goes_through_observations_and_action_and_back():
    features = {"observation.state": STATE, "observation.images.top": CAMERA}
    numbers = {"observation.state": stats(2), "observation.images.top": stats(3), "action": stats(2)}
    before, after = standard_pipelines(
        input_features=features, output_features={"action": ACTION}, norm_map=MODES, stats=numbers
    )
    batch = {
        "observation.state": torch.full((1, 2), 5.0),
        "observation.images.top": torch.full((1, 3, 4, 4), 255, dtype=torch.uint8),
        "observation.images.other": torch.zeros(1, 3, 4, 4),
        "action": torch.full((1, 4, 2), 5.0),
    }
    result = before(batch)
    assert torch.equal(result["observation.state"], torch.full((1, 2), 2.0))
    assert torch.equal(result["observation.images.top"], torch.zeros(1, 3, 4, 4))
    assert result["observation.images.other"] is batch["observation.images.other"]
    assert torch.equal(after.run_action(result["action"]), batch["action"])
    assert before.steps[3].state()["observation.images.top.mean"].shape == (3, 1, 1)


def test_only_listed_observations_are_normalised():
    features = {"observation.state": STATE, "observation.goal": STATE}
    step = Normalizer(
        features, MODES, {"observation.state": stats(2)}, normalize_observation_keys=["observation.state"]
    )
    step.check("here")
    transition = split_batch({"observation.state": torch.ones(1, 2), "observation.goal": torch.ones(1, 2)})
    step(transition)
    assert torch.equal(transition.observation["observation.state"], torch.zeros(1, 2))
    assert torch.equal(transition.observation["observation.goal"], torch.ones(1, 2))
    assert step.config()["normalize_observation_keys"] == ["observation.state"]


def test_an_action_without_statistics_is_never_passed_through():
    step = Unnormalizer({}, MODES, {"so100.buffer.action": stats(2)})
    with pytest.raises(StatsError, match="must normalise `action` and has no statistics"):
        step(Transition(action=torch.zeros(1, 2)))


def test_standard_pipelines_refuse_incomplete_statistics_and_rename_them():
    arguments = {
        "input_features": {"observation.state": STATE},
        "output_features": {"action": ACTION},
        "norm_map": MODES,
    }
    with pytest.raises(StatsError, match=r"`observation.state`"):
        standard_pipelines(**arguments, stats={"observation.joints": stats(2), "action": stats(2)})
    before, _ = standard_pipelines(
        **arguments,
        stats={"observation.joints": stats(2), "action": stats(2)},
        rename_map={"observation.joints": "observation.state"},
    )
    assert torch.equal(before({"observation.joints": torch.ones(1, 2)})["observation.state"], torch.zeros(1, 2))


def test_a_postprocessor_wants_an_action_tensor():
    with pytest.raises(ShapeError, match="given a dict"):
        Pipeline("policy_postprocessor", []).run_action({"action": torch.zeros(1)})


@pytest.mark.parametrize("kind", [Normalizer, Unnormalizer])
def test_the_choice_of_observations_never_concerns_the_action(kind):
    features = {"observation.state": STATE, "observation.other": STATE, "action": ACTION}
    all_stats = dict.fromkeys(features, stats(2))
    step = kind(features, MODES, all_stats, normalize_observation_keys=["observation.state"])
    batch = {"observation.state": torch.zeros(1, 2), "observation.other": torch.zeros(1, 2)}
    transition = split_batch({**batch, "action": torch.zeros(1, 2)})
    step(transition)
    changed = transition.observation["observation.state"]
    assert not torch.equal(changed, torch.zeros(1, 2))
    assert torch.equal(transition.observation["observation.other"], torch.zeros(1, 2))
    assert torch.equal(transition.action, changed)
