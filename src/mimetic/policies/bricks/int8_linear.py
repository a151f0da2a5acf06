"""Linear layers in 8-bit integers, for inference on a CPU: about twice the rate of bfloat16, with a rounding error.

Weights are quantised once, symmetrically for each output; activations at every call, symmetrically with one scale, so
that bias and GELU are applied before the result leaves the cache. torch keeps the integer product to its compiler's own
operators, which have no public name, so they are probed first.

Shapes: (..., I) inputs, (..., O) outputs, (O, I) weights.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_ACTIVATIONS = {"none": ("none", ""), "gelu_tanh": ("gelu", "tanh")}
_LARGEST = 126.0
"""One less than fits, because a product rounded to bfloat16 may overshoot by half a step."""
_ZERO = 128
"""Activations are stored as unsigned bytes around this; products of signed bytes have no fast path."""


@dataclass(frozen=True)
class Int8Weight:
    """A weight in 8-bit integers.

    Args:
        packed: (O, I) in the layout of the CPU's kernel.
        scales: (O,) float32; the weight is the integers times these.
        zeros: (O,) zeros, which the operator asks for.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor


def quantise(weight: Tensor, rows: int) -> Int8Weight:
    """Round a weight (O, I) of any floating dtype to 8-bit integers; `rows` of the products to come are a hint."""
    wide = weight.detach().float()
    scales = wide.abs().amax(dim=1).clamp(min=1e-12) / _LARGEST
    integers = (wide / scales[:, None]).round().to(torch.int8)
    packed: Tensor = torch.ops.onednn.qlinear_prepack(integers, [rows, weight.shape[1]])
    return Int8Weight(packed, scales, torch.zeros(weight.shape[0], dtype=torch.int64))


def int8_linear(
    x: Tensor, weight: Int8Weight, bias: Tensor | None = None, activation: Literal["none", "gelu_tanh"] = "none"
) -> Tensor:
    """activation(x W^T + bias).

    Args:
        x: (..., I), float32 or bfloat16, on the CPU.
        weight: of `quantise`.
        bias: (O,).
        activation: applied to the float32 sum.

    Returns:
        (..., O) in the dtype of x.
    """
    rows = x.flatten(0, -2)
    scale = max(float(rows.abs().max()), 1e-12) / _LARGEST
    # Signed bytes and the flipped top bit, because torch converts to unsigned ones six times slower.
    integers = (rows * (1.0 / scale)).round_().to(torch.int8).view(torch.uint8).bitwise_xor_(_ZERO)
    name, algorithm = _ACTIVATIONS[activation]
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        integers,
        scale,
        _ZERO,
        weight.packed,
        weight.scales,
        weight.zeros,
        None if bias is None else bias.float(),
        1.0,
        0,
        x.dtype,
        name,
        [],
        algorithm,
    )
    return product.view(*x.shape[:-1], -1)


@functools.cache
def int8_works() -> bool:
    """Whether this torch and this CPU have the operators, and they agree with the plain product."""
    try:
        weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).sin()
        x = torch.linspace(-3, 3, 5 * 64).view(5, 64).cos()
        found = int8_linear(x, quantise(weight, 5))
    # As in `packed_linear`; whoever asked for 8 bits gets an error from `set_int8`, never another precision silently.
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    wanted = F.linear(x, weight)
    return bool((found - wanted).norm() < 0.02 * wanted.norm())
