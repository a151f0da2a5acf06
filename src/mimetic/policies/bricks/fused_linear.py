"""Linear layers that apply a GELU or add a residual before their result leaves the cache, for inference on a CPU.

The fused operators are oneDNN's, which torch keeps under private names (torch.compile emits them). They are used only
after a probe has found them and seen them agree with the plain layers; everything else (a GPU, a gradient, autocast,
tracing, a wrapped or hooked layer, another dtype) runs the plain layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.bricks.int8_linear import Int8Weight, int8_linear
from mimetic.policies.bricks.master_weights import MasterLinear

logger = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16)


def linear(x: Tensor, layer: nn.Module, *, may_drop_bias: bool = False) -> Tensor:
    """layer(x).

    Args:
        x: (..., width in).
        layer: a linear layer; one that is not a plain `nn.Linear` is called as it is.
        may_drop_bias: whether the caller does not need the bias; the fused path then leaves it out.

    Returns:
        (..., width out).
    """
    weight = _kernel_weight(x, layer)
    if weight is not None:
        bias = None if may_drop_bias else layer.bias
        out: Tensor = _pointwise()(x, weight, bias, "none", [], "")
    else:
        out = layer(x)
    return out


def linear_gelu(x: Tensor, layer: nn.Module) -> Tensor:
    """GELU (tanh approximation) of layer(x); fused, the GELU sees the float32 sum before it is rounded.

    Args:
        x: (..., width in).
        layer: see `linear`.

    Returns:
        (..., width out).
    """
    weight = _kernel_weight(x, layer)
    if weight is not None:
        out: Tensor = _pointwise()(x, weight, layer.bias, "gelu", [], "tanh")
    elif isinstance(layer, MasterLinear) and (ready := layer.int8_weight(x)) is not None:
        out = int8_linear(x.to(layer.dtype), ready, layer.bias, "gelu_tanh")
    else:
        out = F.gelu(layer(x), approximate="tanh")
    return out


def linear_add(x: Tensor, layer: nn.Module, residual: Tensor) -> Tensor:
    """residual + layer(x); fused, the sum is rounded once.

    Args:
        x: (..., width in).
        layer: see `linear`.
        residual: (..., width out).

    Returns:
        (..., width out).
    """
    weight = _kernel_weight(x, layer) if residual.dtype == x.dtype and not _needs_grad(residual) else None
    if weight is not None:
        out: Tensor = _pointwise().binary(x, residual, weight, layer.bias, "add")
    else:
        out = residual + layer(x)
    return out


def _kernel_weight(x: Tensor, layer: nn.Module) -> Tensor | None:
    """The weight for the fused operators; None where the layer has to be called."""
    if not isinstance(layer, nn.Linear) or type(layer) not in (nn.Linear, MasterLinear) or not _can_fuse(x, layer):
        return None
    if not isinstance(layer, MasterLinear):
        return layer.weight
    if layer.dtype != x.dtype:  # master weights: the layer casts
        return None
    if layer.training or torch.is_grad_enabled():
        return layer.weight
    ready, _ = layer.ready_weight(rows=x.numel() // x.shape[-1])
    return None if isinstance(ready, Int8Weight) else ready


def _can_fuse(x: Tensor, layer: nn.Linear) -> bool:
    return (
        x.device.type == "cpu" == layer.weight.device.type
        and x.dtype in _DTYPES
        and x.dtype == layer.weight.dtype
        and type(layer.weight.data) is Tensor
        and not _needs_grad(x, layer.weight, layer.bias)
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and fused_operators_work(x.dtype)
    )


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _pointwise() -> Any:
    return torch.ops.mkldnn._linear_pointwise


@cache
def fused_operators_work(dtype: torch.dtype) -> bool:
    """Whether this torch has the operators for a dtype and they agree with the plain layers (probed once)."""
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        return _agrees(dtype)
    # A private operator may be missing, have another signature, or refuse the processor: any of it means "plain".
    except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
        logger.debug("oneDNN's fused linear operators are not used for %s: %s", dtype, error)
        return False


@torch.no_grad()
def _agrees(dtype: torch.dtype) -> bool:
    steps = torch.arange(3 * 40, dtype=torch.float32)
    x = steps.sin().view(1, 3, 40).to(dtype)
    weight = (torch.arange(24 * 40, dtype=torch.float32) * 0.7).cos().view(24, 40).to(dtype)
    bias, residual = weight[:, 0].clone(), x[..., :24].contiguous()
    plain = F.linear(x.float(), weight.float(), bias.float())
    fused: list[tuple[Callable[[], Tensor], Tensor]] = [
        (lambda: _pointwise()(x, weight, bias, "none", [], ""), plain),
        (lambda: _pointwise()(x, weight, bias, "gelu", [], "tanh"), F.gelu(plain, approximate="tanh")),
        (lambda: _pointwise().binary(x, residual, weight, bias, "add"), residual.float() + plain),
    ]
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    return all(
        torch.allclose(compute().float(), expected, rtol=tolerance, atol=tolerance) for compute, expected in fused
    )
