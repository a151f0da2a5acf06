"""Tiny ACT configs and batches."""

from __future__ import annotations

import pytest
import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig

TINY = {
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


@pytest.fixture
def make_config():
    """config(state=6, env=None, cameras=[(3, 32, 64)], **settings)."""

    def make(*, state=6, env=None, cameras=(), **settings):
        inputs = {}
        if state:
            inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (state,))
        if env:
            inputs["observation.environment_state"] = PolicyFeature(FeatureType.ENV, (env,))
        for i, shape in enumerate(cameras):
            inputs[f"observation.images.cam{i}"] = PolicyFeature(FeatureType.VISUAL, shape)
        outputs = {"action": PolicyFeature(FeatureType.ACTION, (4,))}
        return ACTConfig(input_features=inputs, output_features=outputs, **{**TINY, **settings})

    return make


@pytest.fixture
def make_batch():
    """batch(config, size=3): preprocessed, with padded actions in the second and third sample."""

    def make(config, size=3):
        generator = torch.Generator().manual_seed(3)
        batch = {k: torch.randn(size, *f.shape, generator=generator) for k, f in config.input_features.items()}
        chunk = config.chunk_size
        batch["action"] = torch.randn(size, chunk, 4, generator=generator)
        lengths = torch.tensor([chunk, chunk - 2, 1] + [chunk] * size)[:size]
        batch["action_is_pad"] = torch.arange(chunk).expand(size, chunk) >= lengths[:, None]
        return batch

    return make


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
