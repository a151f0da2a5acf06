"""The keypoint policy through the contract of all policies: two cameras with a state, one without, sizes that differ."""

from __future__ import annotations

import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.testing.policy import PolicyContract

SIZES = {"chunk_size": 8, "n_action_steps": 3, "n_keypoints": 4, "n_channels": 8, "dim_hidden": 16, "motion_frames": 0}
ACTION = {"action": PolicyFeature(FeatureType.ACTION, (4,))}


def state(size):
    return {"observation.state": PolicyFeature(FeatureType.STATE, (size,))}


def cameras(*shapes):
    return {f"observation.images.cam{i}": PolicyFeature(FeatureType.VISUAL, shape) for i, shape in enumerate(shapes)}


class KeypointContract(PolicyContract):
    inputs: dict[str, PolicyFeature] = {}
    settings: dict[str, object] = {}

    def config(self):
        return KeypointConfig(input_features=self.inputs, output_features=ACTION, **{**SIZES, **self.settings})

    def batch(self, size):
        generator = torch.Generator().manual_seed(3)
        batch = {key: torch.randn(size, *f.shape, generator=generator) for key, f in self.inputs.items()}
        batch["action"] = torch.randn(size, 8, 4, generator=generator)
        batch["action_is_pad"] = torch.arange(8).expand(size, 8) >= torch.tensor([8, 6, 4])[-size:, None]
        return batch


class TestTwoCamerasAndState(KeypointContract):
    inputs = {**state(4), **cameras((3, 32, 48), (3, 32, 48))}


class TestOneCameraWithoutState(KeypointContract):
    inputs = cameras((3, 32, 48))


class TestStateOfAnotherSizeThanActions(KeypointContract):
    inputs = {**state(7), **cameras((3, 32, 48))}


class TestCamerasOfDifferentSizeAndColours(KeypointContract):
    inputs = {**state(4), **cameras((3, 16, 40), (1, 33, 17))}


class TestWithoutAugmentation(KeypointContract):
    inputs = {**state(4), **cameras((3, 32, 48))}
    settings = {"image_shift": 0, "color_jitter": 0.0, "state_noise": 0.0}


class TestWithMotion(KeypointContract):
    """The joints stand still, so that the motion of both frames that the contract plays is known."""

    inputs = {**state(4), **cameras((3, 32, 48))}
    settings = {"motion_frames": 2}

    def batch(self, size):
        batch = super().batch(size)
        return batch | {"observation.state": batch["observation.state"][:, None].repeat(1, 2, 1)}

    def observation(self, batch):
        return batch | {"observation.state": batch["observation.state"][:, 1]}
