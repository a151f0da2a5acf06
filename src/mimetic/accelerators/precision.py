"""What precision forward and backward run in, and why (spec/training.md 17).

Weights and optimiser state stay float32; bfloat16 and float16 are autocast around the forward pass only, and float16
has its loss scaled before the backward pass (`loss_scaler.py`). What really ran is for `witness.py` to see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from mimetic.accelerators.capabilities import Support
from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.devices import capabilities, describe_device
from mimetic.accelerators.loss_scaler import describe_scaler
from mimetic.accelerators.probe import TORCH, TorchProbe
from mimetic.catalog import closest_hint
from mimetic.errors import PrecisionError

_AUTOCAST = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}
_FLAG = "--accelerator.mixed_precision"


@dataclass(frozen=True)
class Precision:
    """The decision on precision.

    Args:
        device: where the computation runs.
        autocast_dtype: dtype of autocast regions; None computes in the dtype of the weights.
        reason: one line for the log.
        scaler: whether the loss must be scaled before the backward pass; in float16 only.
    """

    device: torch.device
    autocast_dtype: torch.dtype | None
    reason: str
    scaler: bool = False

    def autocast(self) -> AbstractContextManager[object]:
        """Context for a forward pass; reusable every step."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)


def choose_precision(
    mixed_precision: str,
    device: torch.device,
    *,
    grad_scaler: GradScalerConfig | None = None,
    tf32: str = "",
    probe: TorchProbe = TORCH,
) -> Precision:
    """Decide how `--accelerator.mixed_precision` runs on a device.

    Args:
        mixed_precision: "no", "bf16" or "fp16".
        device: where the computation runs.
        grad_scaler: settings of the loss scaler; None: the defaults.
        tf32: what `apply_tf32` said, for the line in the log.
        probe: whom to ask about the device.

    Raises:
        PrecisionError: the device cannot train in that precision.
    """
    if mixed_precision not in _AUTOCAST:
        hint = closest_hint(mixed_precision, _AUTOCAST) or "use `no`, `bf16` or `fp16`"
        raise PrecisionError(f"`{_FLAG}={mixed_precision}` is not a precision", hint)
    settings = grad_scaler or GradScalerConfig()
    can = capabilities(device, probe)
    scaler = mixed_precision == "fp16" and settings.enabled
    parts, note = ["float32"], ""
    if mixed_precision == "bf16":
        _require(can.bf16, mixed_precision, device)
        parts, note = ["bf16 autocast", "float32 weights"], can.bf16.note
    elif mixed_precision == "fp16":
        _require(can.fp16, mixed_precision, device)
        if scaler:
            _require(can.scaler, mixed_precision, device)
        parts = ["fp16 autocast", "float32 weights", describe_scaler(settings) if scaler else "no loss scaling"]
    parts += [part for part in (tf32,) if part]
    place = ", ".join(part for part in (describe_device(device, probe), note) if part)
    return Precision(device, _AUTOCAST[mixed_precision], f"precision: {', '.join(parts)} ({place})", scaler)


def _require(support: Support, mixed_precision: str, device: torch.device) -> None:
    if support:
        return
    flag = f"`{_FLAG}={mixed_precision}`"
    if device.type == "cpu":
        raise PrecisionError(f"{flag} needs an accelerator, and the device is `cpu`: {support.reason}", support.hint)
    raise PrecisionError(f"{flag}: {support.reason}", support.hint)


def check_trainable_dtypes(named_parameters: Iterable[tuple[str, Tensor]], precision: Precision) -> None:
    """Refuse what the loss scaler cannot handle: trained weights that are themselves narrow.

    torch refuses to unscale float16 gradients, because what has underflowed cannot be scaled back, and has no kernel
    for bfloat16 ones on GPUs (issue 127176 of torch), which need no scaling either.

    Args:
        named_parameters: of the policy; only those that are trained count.
        precision: the decision.

    Raises:
        PrecisionError: a trained parameter is float16 or bfloat16 and the loss is scaled.
    """
    if not precision.scaler:
        return
    narrow = [
        (name, str(parameter.dtype).removeprefix("torch."))
        for name, parameter in named_parameters
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16)
    ]
    if narrow:
        shown = ", ".join(f"`{name}` ({dtype})" for name, dtype in narrow[:3])
        more = f" and {len(narrow) - 3} more" if len(narrow) > 3 else ""
        raise PrecisionError(
            f"`{_FLAG}=fp16` scales the loss, which needs float32 weights where they are trained: {shown}{more}",
            f"use `{_FLAG}=bf16` or `no`, or a policy setting that keeps trained weights in float32",
        )
