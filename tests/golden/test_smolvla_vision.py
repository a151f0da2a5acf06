"""Vision tower and connector against LeRobot 0.6.1 with the same weights and frames (fixtures/smolvla).

Tolerance of its README: 1e-5 absolute on image embeddings in float32. In bfloat16 the tower's embeddings reach about
3, where one rounding is 2**-7; the reference kernels are within one rounding (equal bits on the fixtures' machine), the
fast ones within two.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from smolvla_cases import SMOLVLA

from mimetic.policies.smolvla.vision import Connector, VisionTower
from mimetic.testing.smolvla import TINY_BACKBONE

PREFIX = "model.vlm_with_expert.vlm.model."
SIZES = replace(TINY_BACKBONE, text_hidden=48, vision_hidden=32, vision_heads=4, vision_mlp=64)
SIZES = replace(SIZES, vision_eps=1e-6, image_size=64, patch_size=8, scale_factor=4)  # fixtures/smolvla/vlm_tiny
FRAMES = [("tiny_cross", "cross_b3", 0), ("tiny_cross", "cross_b3", 1), ("tiny_self", "self_b3", 0)]


def load(checkpoint, dtype):
    state = load_file(SMOLVLA / checkpoint / "model.safetensors")
    n_layers = sum(key.startswith(f"{PREFIX}vision_model.") and key.endswith("layer_norm1.bias") for key in state)
    sizes = replace(SIZES, vision_layers=n_layers)
    parts = {"vision_model": VisionTower(sizes), "connector": Connector(sizes)}
    for name, part in parts.items():
        start = f"{PREFIX}{name}."
        part.load_state_dict({key[len(start) :]: value for key, value in state.items() if key.startswith(start)})
        part.to(dtype)
    return parts["vision_model"], parts["connector"]


def golden(name, camera):
    expected = load_file(SMOLVLA / "cases" / name / "expected.safetensors")
    frame = expected[f"image_prepared_first_sample.{camera}"]
    return frame.view(1, *frame.shape[-3:]), expected[f"image_embedding.{camera}"][:1]


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize(("checkpoint", "name", "camera"), FRAMES)
def test_float32(checkpoint, name, camera, with_grad, reference):
    tower, connector = load(checkpoint, torch.float32)
    if reference:
        tower.keep_reference_kernels()
    frame, embedding = golden(name, camera)
    with torch.set_grad_enabled(with_grad):
        found = connector(tower(frame))
    torch.testing.assert_close(found, embedding, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("reference", "roundings"), [(True, 1), (False, 2)])
@torch.no_grad()
def test_bfloat16(reference, roundings):
    tower, connector = load("tiny_bf16", torch.bfloat16)
    if reference:
        tower.keep_reference_kernels()
    frame, embedding = golden("bf16_b3", 0)
    found = connector(tower(frame))
    assert found.dtype is embedding.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), embedding.float(), rtol=0, atol=roundings * 2**-7)
