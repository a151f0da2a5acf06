"""Packed and 8-bit products against float32."""

import pytest
import torch
from torch.nn import functional as F

from mimetic.policies.bricks import int8_linear, packed_linear

needs_int8 = pytest.mark.skipif(not int8_linear.int8_works(), reason="needs a CPU with fast 8-bit products")
needs_packing = pytest.mark.skipif(
    not packed_linear.can_pack(torch.zeros(2, 2, dtype=torch.bfloat16)), reason="needs oneDNN with bfloat16"
)


def case(rows=37, width=96, out=80):
    torch.manual_seed(3)
    return torch.randn(2, rows, width).bfloat16(), torch.randn(out, width).bfloat16(), torch.randn(out).bfloat16()


@needs_packing
@pytest.mark.parametrize("activation", ["none", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 37, 300])
def test_packed_product_is_rounded_once(rows, activation):
    x, weight, bias = case(rows)
    found = packed_linear.packed_linear(x, packed_linear.pack(weight, 5), bias, activation)
    wanted = F.linear(x.float(), weight.float(), bias.float())
    wanted = F.gelu(wanted, approximate="tanh") if activation != "none" else wanted
    # bfloat16 has 8 bits: one rounding is 2^-9 relative; the absolute part is for sums that cancel.
    torch.testing.assert_close(found.float(), wanted, rtol=2**-8, atol=2e-3)


@needs_packing
def test_packed_product_of_a_transposed_view():
    x, weight, _ = case()
    view = x.transpose(0, 1)
    assert torch.equal(
        packed_linear.packed_linear(view, packed_linear.pack(weight, 5)),
        packed_linear.packed_linear(view.contiguous(), packed_linear.pack(weight, 5)),
    )


def test_float32_is_not_packed():
    assert not packed_linear.can_pack(torch.zeros(2, 2))


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["none", "gelu_tanh"])
def test_int8_error_is_that_of_rounding_to_eight_bits(dtype, activation):
    x, weight, bias = case()
    x, bias = x.to(dtype), bias.to(dtype)
    found = int8_linear.int8_linear(x, int8_linear.quantise(weight, 5), bias, activation)
    wanted = F.linear(x.float(), weight.float(), bias.float())
    wanted = F.gelu(wanted, approximate="tanh") if activation != "none" else wanted
    assert found.dtype == dtype
    # Normal inputs of 4 sigma over 126 steps: rounding is 4/126/sqrt(12) = 0.9 % a factor, 1.3 % for both.
    assert (found.float() - wanted).norm() < 0.02 * wanted.norm()


@needs_int8
def test_int8_of_zeros_and_of_the_largest_value():
    _, weight, _ = case()
    quantised = int8_linear.quantise(weight, 5)
    assert torch.equal(int8_linear.int8_linear(torch.zeros(3, 96), quantised), torch.zeros(3, 80))
    # Every input at the limit: a step too far would wrap around and turn the sign.
    x = torch.full((3, 96), 3.7).bfloat16()
    wanted = F.linear(x.float(), weight.float())
    assert (int8_linear.int8_linear(x, quantised).float() - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize("error", [AttributeError, NotImplementedError, RuntimeError, TypeError])
def test_operators_that_are_gone_or_changed_mean_plain_products(monkeypatch, error):
    def changed(*args):
        raise error("another torch")

    monkeypatch.setattr(packed_linear, "pack", changed)
    monkeypatch.setattr(int8_linear, "quantise", changed)
    assert packed_linear._operators_work.__wrapped__() is False
    assert int8_linear.int8_works.__wrapped__() is False
