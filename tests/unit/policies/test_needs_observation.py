"""Who reads every observation says so; policies with a queue go through the contract of all policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mimetic.policies.base import Policy
from mimetic.policies.smolvla.config import RTCConfig
from mimetic.policies.smolvla.policy import SmolVLAPolicy
from mimetic.testing.act import tiny_act
from mimetic.testing.frame_policy import FramePolicy
from mimetic.testing.smolvla import tiny_smolvla_config, write_tiny_vlm


def test_a_policy_that_does_not_know_is_given_everything():
    assert FramePolicy.needs_observation is Policy.needs_observation
    assert Policy.needs_observation(object())


def test_temporal_ensembling_reads_every_observation():
    policy = tiny_act(n_action_steps=1, temporal_ensemble_coeff=0.01)
    batch = {key: torch.zeros(1, *feature.shape) for key, feature in (policy.config.input_features or {}).items()}
    policy.reset()
    for _ in range(3):
        assert policy.needs_observation()
        policy.select_action(batch)


@pytest.mark.parametrize("enabled", [True, False])
def test_real_time_chunking_has_no_queue(tmp_path, enabled):
    config = tiny_smolvla_config(write_tiny_vlm(tmp_path / "vlm"))
    policy = SmolVLAPolicy(replace(config, rtc_config=RTCConfig(enabled=enabled)))
    policy._queue.append(None)
    assert policy.needs_observation() is enabled
