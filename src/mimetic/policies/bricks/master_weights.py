"""Float32 master weights multiplied in a narrower dtype, at the memory of the narrow dtype.

Autograd alone would keep a narrow copy of every weight until the backward pass; here it is made again, which costs one
pass over the weights. In evaluation without gradients the copy is kept, in the layout that a CPU's kernel reads, and
made again when the weights have changed. Not every change leaves a trace: torch's fused optimisers and writes to
`weight.data` do not count as new versions. Copies are therefore dropped in training, and looked at whenever `eval()`
is called, which policies do before every chunk.

Shapes: (..., I) inputs, (..., O) outputs, (O, I) weights.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.bricks.int8_linear import Int8Weight, int8_linear, quantise
from mimetic.policies.bricks.packed_linear import can_pack, pack, packed_linear

_SAMPLED = 32


class MasterLinear(nn.Linear):
    """A linear layer whose weights may be wider than what they are multiplied in.

    Args:
        in_features: I.
        out_features: O.
        bias: whether there is a bias.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.compute_dtype: torch.dtype | None = None
        """Dtype of the multiplication and of the result; None: the dtype of the weights."""
        self.may_pack = True
        """Whether weights may take the layout of the CPU's kernel in evaluation, where sums may round otherwise."""
        self.int8 = False
        """Multiply 8-bit integers in evaluation on a CPU."""
        self._ready: tuple[tuple[object, ...], Tensor | Int8Weight, bool] | None = None
        self._sample: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the multiplication and of the result."""
        return self.compute_dtype or self.weight.dtype

    def train(self, mode: bool = True) -> Self:
        """Switch to training or evaluation; the kept copy is dropped, in evaluation only if the weights changed."""
        if mode or (self._ready is not None and not self._is_unchanged()):
            self._ready = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) in any floating dtype -> (..., O) in the dtype of the multiplication."""
        if is_autocast(x.device):  # which then decides on dtypes
            return F.linear(x, self.weight, self.bias)
        if (self.training or torch.is_grad_enabled()) and not torch.compiler.is_compiling():
            self._ready = None
        dtype = self.dtype
        x = x.to(dtype)
        stored: Tensor | None = self.bias
        bias = None if stored is None else stored.to(dtype)
        if torch.is_grad_enabled() and self.weight.dtype != dtype:
            product: Tensor = _NarrowProduct.apply(x, self.weight, dtype)  # type: ignore[no-untyped-call]
            return product if bias is None else product + bias
        if torch.compiler.is_compiling():
            kept = self._ready[1] if self._ready is not None and not torch.is_grad_enabled() else None
            return F.linear(x, kept if isinstance(kept, Tensor) else self.weight.to(dtype), bias)
        if torch.is_grad_enabled() or self.training:
            return F.linear(x, self.weight.to(dtype), bias)
        weight, is_packed = self.ready_weight(rows=x.numel() // x.shape[-1])
        if isinstance(weight, Int8Weight):
            return int8_linear(x, weight, bias)
        return packed_linear(x, weight, bias) if is_packed else F.linear(x, weight, bias)

    def ready_weight(self, rows: int) -> tuple[Tensor | Int8Weight, bool]:
        """The weights as the kernel of evaluation wants them, kept until they change, and whether they are packed.

        Args:
            rows: of the products to come, a hint.
        """
        weight, dtype = self.weight, self.dtype
        version = 0 if weight.is_inference() else weight._version
        state = (version, weight.data_ptr(), weight.device, dtype, self.int8, self.may_pack)
        if self._ready is None or self._ready[0] != state:
            self._sample = _sample(weight)
            narrow = weight.detach().to(dtype)
            if self.int8 and weight.device.type == "cpu":
                self._ready = (state, quantise(narrow, rows), False)
            else:
                is_packed = self.may_pack and can_pack(narrow)
                self._ready = (state, pack(narrow, rows) if is_packed else narrow, is_packed)
        return self._ready[1], self._ready[2]

    def _is_unchanged(self) -> bool:
        """Whether the weights still look as when the copy was made: 32 of them, enough for updates and averages."""
        if self.weight.device.type != "cpu":  # asking would wait for the device; a new copy does not
            return self.weight.dtype == self.dtype
        return self._sample is not None and torch.equal(self._sample, _sample(self.weight))

    def int8_weight(self, x: Tensor) -> Int8Weight | None:
        """The weights in 8-bit integers where this product is to be one of integers."""
        is_evaluation = not (torch.is_grad_enabled() or self.training or torch.compiler.is_compiling())
        if not self.int8 or not is_evaluation or is_autocast(x.device):
            return None
        ready, _ = self.ready_weight(rows=x.numel() // x.shape[-1])
        return ready if isinstance(ready, Int8Weight) else None

    def prepare_compiled(self) -> None:
        """Bring the copy that compiled evaluation reads up to date; it cannot look for changes by itself."""
        if self.weight.dtype == self.dtype:
            return
        self.may_pack = False
        self.ready_weight(rows=1)

    def __getstate__(self) -> dict[str, Any]:
        """Without the kept copy, which is derived from the weights."""
        return {**super().__getstate__(), "_ready": None, "_sample": None}  # type: ignore[no-untyped-call]


def is_autocast(device: torch.device) -> bool:
    """Whether autocast decides on dtypes; false for devices that it does not know (mps in torch 2.4)."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def _sample(weight: Tensor) -> Tensor:
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // _SAMPLED)].clone()


class _NarrowProduct(torch.autograd.Function):
    """x W^T, with W cast for the product and cast again for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dtype = dtype
        return F.linear(x, weight.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = grad.matmul(weight.to(ctx.dtype))
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(grad, x, weight.dtype)
        return grad_x, grad_weight, None


def _weight_gradient(grad: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.flatten(0, -2).t().matmul(x.flatten(0, -2)).to(dtype)


def gated_down(gate: Tensor, up: Tensor, down: nn.Module) -> Tensor:
    """down(silu(gate) * up), keeping only `gate` and `up` for the backward pass.

    Args:
        gate: (..., I).
        up: (..., I).
        down: I -> O, without a bias.
    """
    is_whole = type(down) is MasterLinear  # one with an adapter multiplies by more than its weight
    needs_grad = is_whole and (gate.requires_grad or up.requires_grad or down.weight.requires_grad)
    if not torch.is_grad_enabled() or not needs_grad or is_autocast(gate.device):
        plain: Tensor = down(F.silu(gate) * up)
        return plain
    result: Tensor = _GatedDown.apply(gate, up, down.weight, down.dtype)  # type: ignore[no-untyped-call]
    return result


class _GatedDown(torch.autograd.Function):
    """(silu(gate) * up) W^T; the product is formed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        ctx.dtype = dtype
        return F.linear((F.silu(gate) * up).to(dtype), weight.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        gate, up, weight = ctx.saved_tensors
        active = F.silu(gate)
        grad_weight = None
        if ctx.needs_input_grad[2]:
            grad_weight = _weight_gradient(grad, (active * up).to(ctx.dtype), weight.dtype)
        if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            return None, None, grad_weight, None
        grad_product = grad.matmul(weight.to(ctx.dtype)).to(gate.dtype)
        grad_gate = torch.ops.aten.silu_backward(grad_product * up, gate)
        return grad_gate, grad_product * active, grad_weight, None
