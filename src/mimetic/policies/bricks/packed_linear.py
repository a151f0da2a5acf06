"""Linear layers with weights in the layout that a CPU's matrix kernel reads, for inference.

oneDNN copies the weights of every product into that layout; for the fifty rows of an action chunk this costs up to a
third of the time. torch keeps the packed form to its compiler's own operators, which have no public name: they are
probed once, and where they are absent or differ nothing is packed.

Shapes: (..., I) inputs, (..., O) outputs, (O, I) weights.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

_ACTIVATIONS = {"none": ("none", ""), "gelu_tanh": ("gelu", "tanh")}


def can_pack(weight: Tensor) -> bool:
    """Whether a weight can be packed: bfloat16, on a CPU whose torch has the operators."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _operators_work()


def pack(weight: Tensor, rows: int) -> Tensor:
    """The weight in the kernel's layout; an opaque copy of the same size.

    Args:
        weight: (O, I); see `can_pack`.
        rows: of the products to come; the layout may depend on it, the result does not.
    """
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), rows)
    return packed


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """activation(x W^T + bias), rounded once.

    Args:
        x: (..., I) bfloat16.
        packed: of `pack`.
        bias: (O,) bfloat16.
        activation: "none" or "gelu_tanh".

    Returns:
        (..., O) bfloat16.
    """
    name, algorithm = _ACTIVATIONS[activation]
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, name, [], algorithm)
    return result


@functools.cache
def _operators_work() -> bool:
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight = torch.linspace(-1, 1, 32 * 48).view(32, 48).bfloat16()
        x = torch.linspace(-1, 1, 3 * 48).view(3, 48).bfloat16()
        bias = torch.linspace(-1, 1, 32).bfloat16()
        packed = pack(weight, 3)
        wanted = F.linear(x.float(), weight.float(), bias.float())
        plain = packed_linear(x, packed, bias)
        active = packed_linear(x, packed, bias, "gelu_tanh")
    # A private operator may be missing, have another signature, or refuse the processor: any of it means "not packed".
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    close = torch.allclose(plain.float(), wanted, rtol=1e-2, atol=1e-2)
    return close and torch.allclose(active.float(), F.gelu(wanted, approximate="tanh"), rtol=1e-2, atol=1e-2)
