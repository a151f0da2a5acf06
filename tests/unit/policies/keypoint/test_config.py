"""What the settings of the keypoint policy refuse, and its presets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.optim.config import CosineAnnealingWithWarmupConfig
from mimetic.policies.build import make_policy
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.keypoint.policy import KeypointPolicy
from mimetic.train.needs import policy_needs


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"n_obs_steps": 2}, "`--policy.n_obs_steps=2`: this policy reads pictures of one frame, so it must be 1"),
        ({"n_action_steps": 9}, "`--policy.n_action_steps=9` is larger than `--policy.chunk_size=8`"),
        ({"n_action_steps": 0}, "`--policy.n_action_steps=0` must be at least 1"),
        ({"n_keypoints": 0}, "`--policy.n_keypoints=0` must be at least 1"),
        ({"dim_hidden": -1}, "`--policy.dim_hidden=-1` must be at least 1"),
        ({"n_channels": 7}, "`--policy.n_channels=7` must be even: the first layer has half of it"),
        ({"image_shift": -1}, "`--policy.image_shift=-1` is negative"),
        ({"color_jitter": -0.1}, "`--policy.color_jitter=-0.1` is negative"),
        ({"color_jitter": 1.0}, "`--policy.color_jitter=1.0` must be below 1, which leaves one colour"),
        ({"state_noise": -0.5}, "`--policy.state_noise=-0.5` is negative"),
        (
            {"cameras": [(3, 15, 64)]},
            "`observation.images.cam0` has shape (3, 15, 64); the keypoint policy reads pictures (channels, height, "
            "width) of at least 16 pixels",
        ),
        ({"cameras": ()}, "the keypoint policy needs at least one camera among its inputs"),
    ],
)
def test_a_problem_is_one_sentence_with_the_flag_and_its_value(make_config, settings, problem):
    config = make_config(**settings)
    assert config.check() == [problem]
    with pytest.raises(ConfigError) as caught:
        make_policy(config)
    assert caught.value.message == problem
    assert "`--policy.type` is keypoint" in caught.value.hint


def test_all_problems_are_listed_at_once(make_config):
    assert len(make_config(n_obs_steps=3, n_channels=0, chunk_size=0, n_action_steps=0, image_shift=-2).check()) == 5


def test_the_defaults_have_no_problem_and_the_smallest_picture_is_taken(make_config):
    assert KeypointConfig().check() == []
    assert make_config(cameras=[(3, 16, 16)]).check() == []


@pytest.mark.parametrize("missing", ["camera", "action"])
def test_without_a_camera_or_an_action_nothing_is_built(missing):
    inputs = {"observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 32, 32))}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (4,))}
    config = KeypointConfig(
        input_features={} if missing == "camera" else inputs, output_features={} if missing == "action" else outputs
    )
    with pytest.raises(ConfigError, match=missing):
        KeypointPolicy(config)


def test_it_asks_for_the_whole_chunk_and_one_frame():
    config = KeypointConfig(chunk_size=12, n_action_steps=4)
    assert config.action_delta_indices == list(range(12))
    assert config.observation_delta_indices is None
    assert config.reads_instructions is False


def offered(config, **changes):
    """What a dataset with the policy's own inputs has, with changes; None: without it."""
    found = {**config.input_features, **{f"observation.{name}": feature for name, feature in changes.items()}}
    return {key: feature for key, feature in found.items() if feature is not None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": None}, "the policy reads `observation.state`, which the dataset does not have"),
        (
            {"state": PolicyFeature(FeatureType.STATE, (7,))},
            "`observation.state` has shape (7,) in the dataset and (4,) in the policy",
        ),
        ({"images.cam1": None}, "the policy reads `observation.images.cam1`, which the dataset does not have"),
        (
            {"images.cam0": PolicyFeature(FeatureType.VISUAL, (3, 48, 64))},
            "`observation.images.cam0` has shape (3, 48, 64) in the dataset and (3, 32, 48) in the policy",
        ),
    ],
)
def test_a_dataset_that_cannot_feed_a_trained_policy_is_refused_before_training(make_config, changes, words):
    config = make_config(cameras=[(3, 32, 48)] * 2)
    make_policy(config, input_features=offered(config))
    with pytest.raises(ConfigError) as caught:
        make_policy(config, input_features=offered(config, **changes))
    assert caught.value.message == f"feature mismatch: {words}"


def test_inputs_that_are_not_read_are_told_when_it_is_made_for_training_and_need_not_be_there(make_config, caplog):
    config = make_config()
    extra = {
        "environment_state": PolicyFeature(FeatureType.ENV, (5,)),
        "effort": PolicyFeature(FeatureType.STATE, (6,)),
    }
    made = make_policy(replace(config, input_features={}), input_features=offered(config, **extra)).config
    assert made.unread_inputs == ["observation.environment_state", "observation.effort"]
    (message,) = caplog.messages
    assert message == "inputs that the policy does not read: observation.environment_state, observation.effort"
    assert made.input_problems(config.input_features) == []
    assert policy_needs(made, {}, name="the policy").inputs.keys() == config.input_features.keys()
    caplog.clear()
    make_policy(made)
    make_policy(config, input_features=offered(config, **extra))
    assert caplog.messages == []


def test_presets_follow_their_settings():
    config = KeypointConfig(optimizer_lr=2e-3, optimizer_weight_decay=0.7, scheduler_warmup_steps=9)
    assert (config.optimizer_preset().lr, config.optimizer_preset().weight_decay) == (2e-3, 0.7)
    assert config.scheduler_preset() == CosineAnnealingWithWarmupConfig(num_warmup_steps=9)
