"""A convolution as a matrix product is the convolution, forward and backward, and is taken only where it may be."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mimetic.policies.bricks.resnet import FrozenBatchNorm2d, ResNet, conv_norm
from mimetic.policies.bricks.small_map_conv import conv_as_product, suits

CHANNELS = 256


def made(size=(3, 3), *, n_out=20, kernel=3, stride=1, padding=1, batch=2, seed=0):
    """A convolution, its frozen norm and an input, all random."""
    generator = torch.Generator().manual_seed(seed)
    conv = nn.Conv2d(CHANNELS, n_out, kernel, stride, padding, bias=False)
    norm = FrozenBatchNorm2d(n_out)
    with torch.no_grad():
        conv.weight.normal_(0, 0.05, generator=generator)
        for buffer in (norm.weight, norm.bias, norm.running_mean):
            buffer.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2, generator=generator)
    x = torch.randn(batch, CHANNELS, *size, generator=generator).contiguous(memory_format=torch.channels_last)
    return conv, norm, x


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"size": (6, 6), "stride": 2},
        {"size": (5, 7), "stride": 2},
        {"size": (4, 2), "kernel": 5, "padding": 2},
        {"size": (4, 4), "padding": 0},
        {"size": (1, 1)},
        {"batch": 1},
    ],
)
def test_values_and_gradients_are_those_of_the_convolution_in_double_precision(case):
    conv, norm, x = made(**case)
    assert suits(x, conv)
    scale, shift = norm.affine()
    x.requires_grad_()
    out = conv_as_product(x, conv, scale, shift)
    weight, precise = conv.weight.detach().double().requires_grad_(), x.detach().double().requires_grad_()
    wanted = F.conv2d(precise, weight, None, conv.stride, conv.padding)
    wanted = wanted * scale.double()[:, None, None] + shift.double()[:, None, None]
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(out, (x, conv.weight), gradient)
    expected = torch.autograd.grad(wanted, (precise, weight), gradient.double())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    assert found[1].stride() == conv.weight.stride()


def test_the_result_may_be_changed_in_place_and_a_frozen_weight_gets_no_gradient():
    conv, norm, x = made()
    conv.weight.requires_grad_(False)
    x.requires_grad_()
    out = conv_norm(x, conv, norm)
    positive = (out > 0).float()
    out.relu_().sum().backward()
    assert conv.weight.grad is None
    (wanted,) = torch.autograd.grad((norm(F.conv2d(x, conv.weight, None, 1, 1)) * positive).sum(), x)
    torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-5)


def test_large_maps_few_channels_other_types_and_autocast_keep_the_convolution():
    conv, _, x = made()
    assert suits(x, conv)
    assert not suits(x.double(), conv)
    assert not suits(x.bfloat16(), conv)
    assert not suits(torch.randn(8, CHANNELS, 30, 30), conv)
    assert not suits(torch.randn(1, 64, 3, 3), nn.Conv2d(64, 8, 3, 1, 1, bias=False))
    assert not suits(x, nn.Conv2d(CHANNELS, 8, 1, bias=False))
    assert not suits(x, nn.Conv2d(CHANNELS, 8, 3, 1, 1, groups=2, bias=False))
    assert not suits(x, nn.Conv2d(CHANNELS, 8, 3, 1, 2, dilation=2, bias=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not suits(x, conv)


def test_a_resnet_gives_the_same_features_and_gradients_with_and_without_the_product(monkeypatch):
    torch.manual_seed(0)
    net = ResNet("resnet18")
    images = torch.randn(2, 3, 96, 96)

    def run():
        net.zero_grad()
        out = net(images)
        (out**2).mean().backward()
        return out.detach(), [p.grad.clone() for p in net.parameters()]

    with_product = run()
    monkeypatch.setattr("mimetic.policies.bricks.resnet.suits", lambda x, conv: False)
    without = run()
    torch.testing.assert_close(with_product[0], without[0], rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(with_product[1], without[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item())
