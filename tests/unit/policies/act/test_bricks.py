"""Attention kernels, positions and the ResNet."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mimetic.errors import ConfigError
from mimetic.policies.bricks.attention import MultiheadAttention, attend, choose_kernel, padding_bias
from mimetic.policies.bricks.positions import sine_map, sinusoid_table
from mimetic.policies.bricks.resnet import ARCHITECTURES, FrozenBatchNorm2d, ResNet, conv_norm
from mimetic.testing.act import plain_backbone


def randomise_norms(module):
    for norm in module.modules():
        if isinstance(norm, FrozenBatchNorm2d):
            norm.weight.uniform_(0.8, 1.2)
            norm.bias.normal_(std=0.1)
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 1.5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(5, 9), (1, 40), (33, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_agree_in_values_and_gradients(masked, n_queries, n_keys, dtype):
    batch, heads, width = 3, 2, 8
    bias = None
    if masked:
        padding = torch.arange(n_keys).expand(batch, n_keys) >= torch.tensor([n_keys, n_keys - 1, 1])[:, None]
        bias = padding_bias(padding, heads, dtype)
    results = []
    for kernel in ("plain", "fused"):
        torch.manual_seed(1)
        q, k, v = (torch.randn(batch * heads, n, width).to(dtype).requires_grad_() for n in (n_queries, n_keys, n_keys))
        out = attend(q, k, v, n_heads=heads, bias=bias, kernel=kernel)
        out.float().square().sum().backward()
        results.append([out.detach(), q.grad, k.grad, v.grad])
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(plain, fused, **tolerance)


def test_kernel_is_chosen_by_device_length_gradient_and_dropout():
    assert choose_kernel("cpu", n_keys=511, needs_grad=True) == "plain"
    assert choose_kernel("cpu", n_keys=512, needs_grad=True) == "fused"
    assert choose_kernel("cpu", n_keys=299, needs_grad=False) == "plain"
    assert choose_kernel("cpu", n_keys=300, needs_grad=False) == "fused"
    assert choose_kernel("cuda", n_keys=10, needs_grad=True) == "fused"
    assert choose_kernel("cuda", n_keys=1000, needs_grad=True, dropout=0.1) == "plain"


@pytest.mark.parametrize("training", [False, True])
def test_attention_equals_torchs_module_bit_for_bit(training):
    torch.manual_seed(2)
    ours = MultiheadAttention(16, 4, dropout=0.3)
    torch.manual_seed(2)
    theirs = nn.MultiheadAttention(16, 4, dropout=0.3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    q, k, v = torch.randn(5, 3, 16), torch.randn(7, 3, 16), torch.randn(7, 3, 16)
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 4:] = True
    ours.train(training)
    theirs.train(training)
    torch.manual_seed(4)
    expected, _ = theirs(q, k, v, key_padding_mask=padding, need_weights=True)
    torch.manual_seed(4)
    assert torch.equal(ours(q, k, v, padding_bias(padding, 4, torch.float32)), expected)


def test_attention_over_equal_values_has_the_closed_form():
    attention = MultiheadAttention(16, 4).eval()
    nn.init.normal_(attention.in_proj_bias)
    value = torch.randn(16)
    q = torch.randn(5, 3, 16)
    expected = attention(q, q, value.expand(5, 3, 16))
    torch.testing.assert_close(attention.constant(value).expand(5, 3, 16), expected, rtol=1e-5, atol=1e-6)


def test_sinusoid_table_follows_its_formula():
    table = sinusoid_table(4, 6)
    assert table.dtype is torch.float32
    for p in range(4):
        for j in range(6):
            angle = p / 10000 ** (2 * (j // 2) / 6)
            assert table[p, j].item() == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-7)


def test_sine_map_follows_its_formula():
    height, width, dim = 3, 5, 8
    actual = sine_map(height, width, dim, torch.float32, torch.device("cpu"))
    assert actual.shape == (1, dim, height, width)
    for y in range(height):
        for x in range(width):
            for channel in range(dim):
                j, position, last = (channel, y, height) if channel < 4 else (channel - 4, x, width)
                angle = (position + 1) / (last + 1e-6) * 2 * math.pi / 10000 ** (2 * (j // 2) / 4)
                expected = math.cos(angle) if j % 2 else math.sin(angle)
                assert actual[0, channel, y, x].item() == pytest.approx(expected, abs=2e-6)


def test_sine_map_is_made_once_and_usable_in_training_after_inference():
    with torch.inference_mode():
        first = sine_map(4, 6, 12, torch.float32, torch.device("cpu"))
    assert sine_map(4, 6, 12, torch.float32, torch.device("cpu")) is first
    weight = torch.ones_like(first, requires_grad=True)
    (first * weight).sum().backward()
    assert torch.equal(weight.grad, first)


def test_frozen_norm_is_batch_norm_in_evaluation_mode():
    frozen = FrozenBatchNorm2d(5)
    randomise_norms(frozen)
    x = torch.randn(2, 5, 3, 3)
    expected = F.batch_norm(x, frozen.running_mean, frozen.running_var, frozen.weight, frozen.bias, eps=1e-5)
    torch.testing.assert_close(frozen(x), expected, rtol=1e-5, atol=1e-6)


def test_folded_convolution_equals_convolution_then_norm():
    conv, norm = nn.Conv2d(4, 6, 3, 2, 1, bias=False), FrozenBatchNorm2d(6)
    randomise_norms(norm)
    results = []
    for run in (lambda x: conv_norm(x, conv, norm), lambda x: norm(conv(x))):
        x = torch.randn(2, 4, 9, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
        conv.weight.grad = None
        out = run(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad, conv.weight.grad))
    for folded, plain in zip(*results, strict=True):
        torch.testing.assert_close(folded, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "dilate"), [("resnet18", False), ("resnet34", False), ("resnet50", True)])
def test_fast_backbone_equals_the_plain_one(name, dilate):
    backbone = ResNet(name, dilate_last=dilate)
    randomise_norms(backbone)
    image = torch.randn(1, 3, 40, 72)
    with torch.no_grad():
        fast, plain = backbone(image), plain_backbone(backbone, image)
    assert fast.shape == (1, backbone.n_channels, *((3, 5) if dilate else (2, 3)))
    torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-4 * plain.abs().max().item())


def test_gradients_keep_the_layout_of_contiguous_weights():
    backbone = ResNet("resnet18")
    backbone(torch.randn(1, 3, 32, 32)).sum().backward()
    for parameter in backbone.parameters():
        assert parameter.is_contiguous()
        assert parameter.grad.stride() == parameter.stride()


def test_dilating_basic_blocks_is_refused():
    with pytest.raises(ConfigError, match="cannot be dilated"):
        ResNet("resnet18", dilate_last=True)


def test_unknown_resnet_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        ResNet("resnet20")
    assert "resnet18, resnet34" in caught.value.hint


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_initial_weights_and_outputs_equal_torchvisions(name):
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision")
    torch.manual_seed(5)
    ours = ResNet(name, dilate_last=name not in ("resnet18", "resnet34"))
    after = torch.get_rng_state()
    torch.manual_seed(5)
    theirs = getattr(torchvision.models, name)(
        weights=None,
        norm_layer=torchvision.ops.misc.FrozenBatchNorm2d,
        replace_stride_with_dilation=[False, False, name not in ("resnet18", "resnet34")],
    )
    assert torch.equal(after, torch.get_rng_state())
    expected = {key: value for key, value in theirs.state_dict().items() if not key.startswith("fc.")}
    state = ours.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    image = torch.randn(1, 3, 64, 64)
    kept = nn.Sequential(*[child for key, child in theirs.named_children() if key not in ("avgpool", "fc")])
    with torch.no_grad():
        reference = kept(image)
        torch.testing.assert_close(ours(image), reference, rtol=1e-3, atol=1e-4 * reference.abs().max().item())
