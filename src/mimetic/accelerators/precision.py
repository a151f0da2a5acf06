"""What precision forward and backward run in, and why (spec/training.md 17).

Weights and optimiser state stay float32; bfloat16 is autocast around the forward pass only.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from mimetic.accelerators.devices import device_name
from mimetic.errors import PrecisionError


@dataclass(frozen=True)
class Precision:
    """The decision on precision.

    Args:
        device: where the computation runs.
        autocast_dtype: dtype of autocast regions; None computes in the dtype of the weights.
        reason: one line for the log.
    """

    device: torch.device
    autocast_dtype: torch.dtype | None
    reason: str

    def autocast(self) -> AbstractContextManager[object]:
        """Context for a forward pass; reusable every step."""
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)


def choose_precision(mixed_precision: str, device: torch.device) -> Precision:
    """Decide how `--accelerator.mixed_precision` runs on a device.

    Args:
        mixed_precision: "no", "bf16" or "fp16".
        device: where the computation runs.

    Raises:
        PrecisionError: the device cannot train in that precision, or mimetic cannot yet.
    """
    place = f"{device} ({device_name(device)})"
    if mixed_precision == "no":
        return Precision(device, None, f"precision: float32 on {place}")
    if mixed_precision == "fp16":
        if device.type == "cpu":
            raise PrecisionError(
                "`--accelerator.mixed_precision=fp16` needs an accelerator, and the device is `cpu`: "
                "no loss scaler exists there and the run would silently be float32",
                "use `bf16` or `no`, or choose a device with `--policy.device`",
            )
        raise PrecisionError(
            "`--accelerator.mixed_precision=fp16`: loss scaling is not part of mimetic yet", "use `bf16` or `no`"
        )
    if mixed_precision != "bf16":
        raise PrecisionError(
            f"`--accelerator.mixed_precision={mixed_precision}` is not a precision", "use `bf16` or `no`"
        )
    if device.type == "cuda" and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise PrecisionError(
                f"`--accelerator.mixed_precision=bf16`: {device_name(device)} has compute capability {major}.{minor} "
                "and no bfloat16 units (8.0 or newer has); it would run emulated and slowly",
                "use `--accelerator.mixed_precision=no`",
            )
    return Precision(device, torch.bfloat16, f"precision: bf16 autocast, float32 weights on {place}")
