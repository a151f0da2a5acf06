"""Tiny keypoint configs and batches."""

from __future__ import annotations

import pytest
import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.keypoint.config import KeypointConfig

TINY = {"chunk_size": 8, "n_action_steps": 3, "n_keypoints": 4, "n_channels": 8, "dim_hidden": 16, "motion_frames": 0}
STILL = {"image_shift": 0, "color_jitter": 0.0, "state_noise": 0.0}


@pytest.fixture
def make_config():
    """config(state=4, cameras=[(3, 32, 48)], action=4, still=False, **settings); still: nothing is drawn in training."""

    def make(*, state=4, cameras=((3, 32, 48),), action=4, still=False, **settings):
        inputs = {f"observation.images.cam{i}": PolicyFeature(FeatureType.VISUAL, s) for i, s in enumerate(cameras)}
        if state:
            inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (state,))
        outputs = {"action": PolicyFeature(FeatureType.ACTION, (action,))}
        more = STILL if still else {}
        return KeypointConfig(input_features=inputs, output_features=outputs, **{**TINY, **more, **settings})

    return make


@pytest.fixture
def make_batch():
    """batch(config, size=3): preprocessed, with padded actions in the second and third sample."""

    def make(config, size=3):
        generator = torch.Generator().manual_seed(3)
        batch = {k: torch.randn(size, *f.shape, generator=generator) for k, f in config.input_features.items()}
        if config.motion_frames and config.robot_state_feature is not None:
            batch["observation.state"] = torch.randn(size, 2, *config.robot_state_feature.shape, generator=generator)
        chunk = config.chunk_size
        batch["action"] = torch.randn(size, chunk, *config.action_feature.shape, generator=generator)
        lengths = torch.tensor([chunk, chunk - 2, 1] + [chunk] * size)[:size]
        batch["action_is_pad"] = torch.arange(chunk).expand(size, chunk) >= lengths[:, None]
        return batch

    return make


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
