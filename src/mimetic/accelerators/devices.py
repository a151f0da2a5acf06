"""Which device computes, and why: one table, one decision, one sentence (spec/training.md 18).

A device that was asked for and is not there is an error that lists what is there; nothing falls back in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mimetic.catalog import closest_hint
from mimetic.errors import DeviceError


@dataclass(frozen=True)
class DeviceKind:
    """One row of the table.

    Args:
        name: device type as torch and `--policy.device` spell it.
        is_available: whether this torch build finds such a device now.
        count: number of devices of this type.
        absent_because: why there is none, one sentence.
    """

    name: str
    is_available: Callable[[], bool]
    count: Callable[[], int]
    absent_because: Callable[[], str]


def _cuda_absent() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA and ROCm"
    return "torch finds no NVIDIA or AMD device (driver missing, too old, or device hidden)"


def _mps_absent() -> str:
    return "no Apple GPU, or macOS too old" if torch.backends.mps.is_built() else "this torch is built without MPS"


KINDS: tuple[DeviceKind, ...] = (
    DeviceKind("cuda", lambda: torch.cuda.is_available(), lambda: torch.cuda.device_count(), _cuda_absent),
    DeviceKind("mps", lambda: torch.backends.mps.is_available(), lambda: 1, _mps_absent),
    DeviceKind(
        "xpu", lambda: torch.xpu.is_available(), lambda: torch.xpu.device_count(), lambda: "torch finds no Intel GPU"
    ),
    DeviceKind("cpu", lambda: True, lambda: 1, lambda: ""),
)
"""In the order of automatic detection."""


def choose_device(wanted: str | None) -> tuple[torch.device, str]:
    """Decide on a device.

    Args:
        wanted: `--policy.device`, such as "cpu", "cuda", "cuda:1", "mps" or "xpu"; None detects one.

    Returns:
        The device, and the reason as a sentence without a full stop.

    Raises:
        DeviceError: the name is unknown, or the device is not there.
    """
    if wanted is None:
        for kind in KINDS:
            if kind.is_available():
                reason = "no accelerator found" if kind.name == "cpu" else "the first available of cuda, mps, xpu, cpu"
                return torch.device(kind.name), reason
    assert wanted is not None
    name, _, index = wanted.partition(":")
    kind_by_name = {kind.name: kind for kind in KINDS}
    if name not in kind_by_name or (index and not index.isdigit()):
        hint = "NVIDIA and AMD GPUs are `cuda`" if name in ("gpu", "nvidia", "amd", "rocm", "hip") else ""
        raise DeviceError(
            f"`--policy.device={wanted}` is not a device",
            hint or closest_hint(name, kind_by_name) or _what_is_there(),
        )
    kind = kind_by_name[name]
    if not kind.is_available():
        raise DeviceError(
            f"`--policy.device={wanted}`: {kind.absent_because()}",
            f"{_what_is_there()}; leave `--policy.device` out to take the first",
        )
    if index and int(index) >= kind.count():
        raise DeviceError(
            f"`--policy.device={wanted}`: there are only {kind.count()} of them",
            f"count from 0: `{name}:0` to `{name}:{kind.count() - 1}`",
        )
    return torch.device(wanted), "as asked"


def _what_is_there() -> str:
    there = [
        kind.name if kind.name in ("cpu", "mps") else f"{kind.name}:0-{kind.count() - 1}"
        for kind in KINDS
        if kind.is_available()
    ]
    return f"available here: {', '.join(there)}"


def device_name(device: torch.device) -> str:
    """Name of a device for messages, such as "NVIDIA H200" or "16 threads"."""
    if device.type == "cuda":
        name = str(torch.cuda.get_device_name(device))
        return f"{name} (ROCm {torch.version.hip})" if torch.version.hip else name
    if device.type == "xpu":
        return str(torch.xpu.get_device_name(device))
    if device.type == "mps":
        return "Apple GPU"
    return f"{torch.get_num_threads()} threads"


def describe_devices() -> list[dict[str, Any]]:
    """One row a device type for `mimetic info`: name, availability, reason, and the devices with memory [GiB]."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        available = kind.is_available()
        row: dict[str, Any] = {
            "type": kind.name,
            "available": available,
            "reason": "" if available else kind.absent_because(),
            "devices": [],
        }
        if available and kind.name == "cuda":
            for index in range(kind.count()):
                properties = torch.cuda.get_device_properties(index)
                row["devices"].append(
                    {
                        "name": properties.name,
                        "memory_gib": round(properties.total_memory / 2**30, 1),
                        "capability": f"{properties.major}.{properties.minor}",
                    }
                )
        elif available and kind.name == "cpu":
            row["devices"].append({"name": f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"})
        elif available:
            row["devices"].append({"name": device_name(torch.device(kind.name))})
        rows.append(row)
    return rows
