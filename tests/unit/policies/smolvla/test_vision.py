"""Vision tower and connector: places of patches, layout of the connector, and that fast kernels change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mimetic.policies.smolvla.vision import Connector, VisionTower, pixel_shuffle
from mimetic.testing.smolvla import TINY_BACKBONE

SIZES = replace(TINY_BACKBONE, vision_hidden=32, vision_layers=2, vision_heads=4, vision_mlp=64)
SIZES = replace(SIZES, image_size=64, patch_size=8, scale_factor=4)


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    tower = VisionTower(SIZES)
    for name, parameter in tower.named_parameters():
        if parameter.dim() == 1 and "norm" not in name:
            torch.nn.init.normal_(parameter)  # a bias that is forgotten must show
    return tower


@pytest.fixture(scope="module")
def frames():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1


def copies(tower, dtype):
    """The same weights, rounded to a dtype: fast kernels, and the reference's."""
    pair = []
    for reference in (False, True):
        other = VisionTower(SIZES)
        other.load_state_dict(tower.state_dict())
        if reference:
            other.keep_reference_kernels()
        pair.append(other.to(dtype))
    return pair


def test_shapes(tower, frames):
    connector = Connector(SIZES)
    features = tower(frames)
    assert features.shape == (2, 64, SIZES.vision_hidden)
    assert connector(features).shape == (2, SIZES.image_tokens, SIZES.text_hidden)


def test_fast_kernels_equal_the_reference_s_in_float32(tower, frames):
    fast, reference = copies(tower, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(fast(frames), reference(frames), rtol=0, atol=1e-5)  # sums in another order


def test_fast_kernels_round_no_more_than_the_reference_s_in_bfloat16(tower, frames):
    fast, reference = copies(tower, torch.bfloat16)
    exact = copies(reference, torch.float32)[1]  # the rounded weights, so that only the arithmetic differs
    with torch.no_grad():
        truth = exact(frames)
        error, reference_error = ((each(frames).float() - truth).norm() for each in (fast, reference))
    # 1.5: both are sums of independent roundings; the fast kernels round logits, and spare other roundings.
    assert 0 < error <= 1.5 * reference_error


def test_gradients_equal_the_reference_s(tower, frames):
    gradients = []
    for each in copies(tower, torch.float32):
        each(frames).square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in each.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6, msg=name)


def test_frames_do_not_influence_each_other(tower, frames):
    with torch.no_grad():
        both, first = tower(frames), tower(frames[:1])
    torch.testing.assert_close(both[:1], first, rtol=0, atol=1e-5)


def test_a_patch_is_projected_row_by_row_and_placed(tower, frames):
    embeddings = tower.embeddings
    with torch.no_grad():
        found = embeddings(frames)
        patch = frames[1, :, 16:24, 40:48]  # row 2, column 5 of the 8 x 8 grid
        weight, bias = embeddings.patch_embedding.weight, embeddings.patch_embedding.bias
        expected = (weight * patch).sum(dim=(1, 2, 3)) + bias + embeddings.position_embedding.weight[2 * 8 + 5]
    torch.testing.assert_close(found[1, 2 * 8 + 5], expected, rtol=0, atol=1e-5)


def test_a_smaller_grid_takes_places_spread_over_the_native_one(tower):
    small = tower.embeddings._positions(4)
    ids = [(2 * row) * 8 + 2 * column for row in range(4) for column in range(4)]
    assert torch.equal(small, tower.embeddings.position_embedding.weight[ids])
    assert tower(torch.zeros(1, 3, 32, 32)).shape[1] == 16


def test_pixel_shuffle_packs_blocks_row_first():
    side, factor, width = 6, 2, 3
    features = torch.arange(side * side * width).view(1, side * side, width)
    found = pixel_shuffle(features, factor)
    grid = features.view(side, side, width)
    for row in range(3):
        for column in range(3):
            block = grid[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(found[0, row * 3 + column], block.flatten())


@pytest.mark.parametrize("n_patches", [35, 25])
def test_patches_that_make_no_whole_blocks_are_refused(n_patches):
    with pytest.raises(ValueError, match=f"{n_patches} patches"):
        pixel_shuffle(torch.zeros(1, n_patches, 3), 2)


def test_names_are_the_checkpoint_s():
    names = set(VisionTower(replace(SIZES, vision_layers=1)).state_dict())
    layer = "encoder.layers.0."
    parts = [f"self_attn.{part}_proj" for part in "kvq"] + ["self_attn.out_proj", "mlp.fc1", "mlp.fc2"]
    parts += ["layer_norm1", "layer_norm2"]
    modules = [layer + part for part in parts] + ["post_layernorm", "embeddings.patch_embedding"]
    expected = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}
    assert names == expected | {"embeddings.position_embedding.weight"}
    assert set(Connector(SIZES).state_dict()) == {"modality_projection.proj.weight"}
