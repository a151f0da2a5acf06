"""ACT through the contract of all policies: cameras and VAE, environment state without joint positions, pre-norm."""

from __future__ import annotations

import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.testing.policy import PolicyContract

SIZES = {
    "chunk_size": 8,
    "n_action_steps": 3,
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 32,
    "n_encoder_layers": 2,
    "n_vae_encoder_layers": 2,
    "latent_dim": 4,
    "pretrained_backbone_weights": None,
}
STATE = {"observation.state": PolicyFeature(FeatureType.STATE, (6,))}
ENVIRONMENT = {"observation.environment_state": PolicyFeature(FeatureType.ENV, (5,))}
ACTION = {"action": PolicyFeature(FeatureType.ACTION, (4,))}


def cameras(*shapes):
    return {f"observation.images.cam{i}": PolicyFeature(FeatureType.VISUAL, shape) for i, shape in enumerate(shapes)}


class ACTContract(PolicyContract):
    inputs: dict[str, PolicyFeature] = {}
    settings: dict[str, object] = {}

    def config(self):
        return ACTConfig(input_features=self.inputs, output_features=ACTION, **{**SIZES, **self.settings})

    def batch(self, size):
        generator = torch.Generator().manual_seed(3)
        batch = {key: torch.randn(size, *f.shape, generator=generator) for key, f in self.inputs.items()}
        batch["action"] = torch.randn(size, 8, 4, generator=generator)
        batch["action_is_pad"] = torch.arange(8).expand(size, 8) >= torch.tensor([8, 6, 4])[-size:, None]
        return batch


class TestTwoCamerasAndState(ACTContract):
    inputs = {**STATE, **cameras((3, 32, 64), (3, 32, 64))}


class TestCamerasOfDifferentSizeWithoutState(ACTContract):
    inputs = cameras((3, 32, 64), (3, 64, 32))


class TestEnvironmentStateOnly(ACTContract):
    """An ACT without `observation.state` cannot run in LeRobot 0.6.1 (spec/act.md, weak spot 1)."""

    inputs = ENVIRONMENT


class TestPreNormGeluTwoDecoderLayers(ACTContract):
    inputs = {**STATE, **ENVIRONMENT}
    settings = {"pre_norm": True, "feedforward_activation": "gelu", "n_decoder_layers": 2}


class TestWithoutVariationalEncoder(ACTContract):
    inputs = {**STATE, **ENVIRONMENT}
    settings = {"use_vae": False, "dropout": 0.0}
