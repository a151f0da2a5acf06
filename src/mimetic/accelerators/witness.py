"""Which dtype matrix products really ran in: what is decided and what happens are not always the same.

A policy may cast on its own, a build of torch may lack a kernel, a wrapper may switch autocast off. So one training
step is watched.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mimetic.accelerators.precision import Precision
from mimetic.errors import PrecisionError

# Operator -> position of the operand whose dtype is that of the multiplication.
_OPERAND = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "addbmm": 1,
    "baddbmm": 1,
    "addmv": 1,
    "_addmm_activation": 1,
    "matmul": 0,
    "linear": 0,
    "linear_backward": 1,
    "_int_mm": 0,
    "_scaled_mm": 0,
    "_grouped_mm": 0,
    "_trilinear": 0,
    "convolution": 0,
    "_convolution": 0,
    "convolution_overrideable": 0,
    "convolution_backward": 0,
    "convolution_backward_overrideable": 0,
    "cudnn_convolution": 0,
    "cudnn_convolution_relu": 0,
    "cudnn_convolution_add_relu": 0,
    "miopen_convolution": 0,
    "mkldnn_convolution": 0,
    "_convolution_pointwise": 0,
    "_linear_pointwise": 0,
    "_mkl_linear": 0,
    "qlinear_pointwise": 0,
    "qlinear_dynamic": 0,
    "qconv_pointwise": 0,
}
_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention", "cudnn_attention", "flex_attention")


class MatmulWitness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the matrix products, convolutions and attention kernels of one training step by dtype.

    It sees operators below autocast and autograd, forward and backward, and changes nothing: neither results nor
    gradients nor generators, and it never waits for the device. Every operator costs a call of Python while it looks,
    so that it is for a single step. What torch.compile has compiled runs plain meanwhile; such a step has other
    rounding than the steps after it, so do not look at a step of a compiled run that must be repeatable.

        with MatmulWitness() as witness:
            stepper.forward_backward(batch)
        logger.info("precision: %s", witness.verdict(precision))
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first: tuple[str, torch.dtype] | None = None
        """Operator, such as "aten.addmm", and dtype of the first product; None before there was one."""
        self.by_dtype: Counter[torch.dtype] = Counter()
        """Products of each dtype."""
        self._plain: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Self:
        # A compiled function that is called below a mode for the first time would never be compiled afterwards.
        plain = _without_compiler()
        plain.__enter__()
        self._plain.append(plain)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._plain.pop().__exit__(kind, error, trace)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Look at the operator, then run it."""
        kwargs = kwargs or {}
        room, _, name = str(func.name()).partition("::")
        name = name.partition(".")[0]
        position = 0 if name.lstrip("_").startswith(_ATTENTION) else _OPERAND.get(name)
        if position is not None:
            dtype = _dtype(args, kwargs, position)
            if dtype is not None:
                self.by_dtype[dtype] += 1
                self.first = self.first or (f"{room}.{name}", dtype)
        return func(*args, **kwargs)

    def verdict(self, precision: Precision) -> str:
        """What ran, such as "first matrix product ran in bfloat16 (aten.addmm), 212 of 230 in bfloat16".

        Args:
            precision: the decision that the step was made under.

        Raises:
            PrecisionError: no product ran in the dtype of autocast, so that the run would silently have another
                precision than it says.
        """
        if self.first is None:
            return "no matrix product was seen"
        operator, dtype = self.first
        wanted = precision.autocast_dtype or dtype
        total, in_wanted = self.by_dtype.total(), self.by_dtype[wanted]
        if precision.autocast_dtype is not None and in_wanted == 0:
            raise PrecisionError(
                f"autocast is {_name(wanted)}, and none of the {total} matrix products of the first step ran in it "
                f"(the first, {operator}, ran in {_name(dtype)}): the policy or this torch switches autocast off",
                "use `--accelerator.mixed_precision=no`, and choose the precision by the policy's own settings",
            )
        others = [(other, count) for other, count in self.by_dtype.most_common() if other != wanted]
        rest = "".join(f", {count} in {_name(other)}" for other, count in others)
        head = f"first matrix product ran in {_name(dtype)} ({operator}), {in_wanted} of {total} in {_name(wanted)}"
        return head + rest


def _dtype(args: Sequence[Any], kwargs: Mapping[str, Any], position: int) -> torch.dtype | None:
    operand = args[position] if position < len(args) else None
    if not isinstance(operand, Tensor):
        operand = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
    return None if operand is None else operand.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _without_compiler() -> AbstractContextManager[Any]:
    set_stance: Callable[[str], AbstractContextManager[Any]] | None = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if set_stance is None else set_stance("force_eager")  # torch 2.6 and newer
