"""What LeRobot's older precision settings mean: `policy.use_amp`, and a policy's `dtype` (spec/training.md 17.1)."""

from __future__ import annotations

import torch

_OF_DTYPE = {"bfloat16": "bf16", "float16": "fp16", "float32": "no"}
OF_AMP = {"cuda": "fp16", "xpu": "fp16", "cpu": "bf16"}
"""What torch's autocast takes on a device unless it is told."""
_NEW = "--accelerator.mixed_precision"


def older_precision_flags(
    mixed_precision: str, *, is_given: bool, use_amp: bool, device: torch.device, dtype: str | None = None
) -> tuple[str, str | None]:
    """Combine the older settings with the flag that replaces them, which wins.

    As in LeRobot 0.6.1, a policy that has a dtype is trained in it, whatever `use_amp` says; and `use_amp` means the
    dtype that torch's autocast has by default on the device.

    Args:
        mixed_precision: `--accelerator.mixed_precision`.
        is_given: whether it was given (as a flag or in a file), and is not just the default.
        use_amp: `--policy.use_amp`.
        device: where the computation runs.
        dtype: the policy's own setting of that name; None when it has none, other texts than the dtypes of torch that
            autocast knows are the policy's business.

    Returns:
        The precision to use, and a note for the log; None when the older settings change nothing.
    """
    if dtype in _OF_DTYPE:
        assert dtype is not None
        older, meant = f"--policy.dtype={dtype}", _OF_DTYPE[dtype]
        if dtype == "float32" and not use_amp:
            return mixed_precision, None  # what every policy of that kind has unless it is told otherwise
    elif use_amp:
        older, meant = "--policy.use_amp=true", OF_AMP.get(device.type, "no")
    else:
        return mixed_precision, None
    if is_given:
        note = None if meant == mixed_precision else f"{older} has no effect: {_NEW}={mixed_precision} is given too"
        return mixed_precision, note
    if dtype == "float32":
        return meant, f"--policy.use_amp=true has no effect: {older} decides, as in LeRobot 0.6.1; use {_NEW}"
    if meant == "no":
        return meant, f"{older} has no effect on {device.type}, as in LeRobot 0.6.1; use {_NEW}"
    return meant, f"{older} is taken as {_NEW}={meant}, as in LeRobot 0.6.1 on {device.type}"
