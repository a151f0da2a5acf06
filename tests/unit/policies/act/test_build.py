"""make_policy: features from the dataset, checks before building."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from mimetic.errors import ConfigError, DeviceError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.build import make_policy


def camera(*shape):
    return PolicyFeature(FeatureType.VISUAL, shape or (3, 32, 32))


def state(n=6):
    return PolicyFeature(FeatureType.STATE, (n,))


ACTION = {"action": PolicyFeature(FeatureType.ACTION, (4,))}


@pytest.fixture
def empty(make_config):
    return replace(make_config(), input_features={}, output_features={})


def test_features_are_taken_from_the_dataset_in_its_order(empty):
    inputs = {"observation.images.wrist": camera(), "observation.state": state(), "observation.images.front": camera()}
    policy = make_policy(empty, input_features=inputs, output_features=ACTION)
    assert isinstance(policy, ACTPolicy)
    assert list(policy.config.input_features) == list(inputs)
    assert list(policy.config.image_features) == ["observation.images.wrist", "observation.images.front"]
    assert policy.config.output_features == ACTION
    assert policy.config.device == "cpu"
    assert policy.device == torch.device("cpu")


def test_outputs_of_the_dataset_win_and_inputs_of_the_config_win(make_config):
    config = make_config(cameras=[(3, 32, 32)])
    inputs = {"observation.images.extra": camera(), **config.input_features}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (7,))}
    policy = make_policy(config, input_features=inputs, output_features=outputs)
    assert list(policy.config.input_features) == list(config.input_features)
    assert policy.model.action_head.out_features == 7


def test_unused_cameras_of_the_dataset_are_mentioned(make_config, caplog):
    config = make_config(cameras=[(3, 32, 32)])
    with caplog.at_level(logging.INFO, logger="mimetic"):
        make_policy(config, input_features={**config.input_features, "observation.images.extra": camera()})
    assert "cameras that the policy does not use: observation.images.extra" in caplog.messages


def test_cameras_of_other_names_are_refused_with_the_rename(make_config):
    config = make_config(cameras=[(3, 32, 32)] * 2)
    offered = {"observation.state": state(), "observation.images.cam0": camera(), "observation.images.front": camera()}
    with pytest.raises(ConfigError) as caught:
        make_policy(config, input_features=offered, output_features=ACTION)
    assert "`observation.images.cam1` missing, `observation.images.front` not known" in caught.value.message
    assert """--rename_map='{"observation.images.front": "observation.images.cam1"}'""" in caught.value.hint


def test_a_camera_less_than_the_policy_reads_is_refused_before_training(make_config):
    config = make_config(cameras=[(3, 32, 32)] * 2)
    offered = {"observation.state": state(), "observation.images.cam0": camera()}
    with pytest.raises(ConfigError, match=r"the policy reads `observation\.images\.cam1`, which the dataset"):
        make_policy(config, input_features=offered, output_features=ACTION)


def test_all_inputs_of_another_shape_are_named_at_once(make_config):
    config = make_config(cameras=[(3, 32, 32)])
    offered = {"observation.state": state(7), "observation.images.cam0": camera(3, 48, 64)}
    with pytest.raises(ConfigError) as caught:
        make_policy(config, input_features=offered, output_features=ACTION)
    assert "`observation.state` has shape (7,) in the dataset and (6,) in the policy" in caught.value.message
    assert "`observation.images.cam0` has shape (3, 48, 64) in the dataset and (3, 32, 32)" in caught.value.message


def test_states_of_other_names_are_not_read_and_need_not_be_there(make_config):
    config = make_config(cameras=[(3, 32, 32)], env=5)
    extra = {**config.input_features, "observation.effort": state()}
    assert config.unread_inputs == []
    made = make_policy(replace(config, input_features={}), input_features=extra, output_features=ACTION).config
    assert made.unread_inputs == ["observation.effort"]
    make_policy(made, input_features=config.input_features, output_features=ACTION)


def test_problems_of_the_settings_are_reported_before_anything_is_built(make_config):
    with pytest.raises(ConfigError) as caught:
        make_policy(make_config(env=5, n_action_steps=20, n_obs_steps=2))
    assert "n_action_steps=20" in caught.value.message
    assert "n_obs_steps=2" in caught.value.message


def test_an_absent_device_is_refused(make_config):
    with pytest.raises(DeviceError):
        make_policy(make_config(env=5), device="cuda:99")


def test_building_draws_as_the_policy_does_and_seeds_nothing(make_config):
    torch.manual_seed(1)
    first = make_policy(make_config(env=5))
    second = make_policy(make_config(env=5))
    assert not torch.equal(first.model.action_head.weight, second.model.action_head.weight)
