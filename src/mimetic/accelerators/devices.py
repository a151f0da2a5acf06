"""Which device computes, and why: one table, one decision, one sentence (spec/training.md 18).

A device that was asked for and is not there is an error that lists what is there; nothing falls back in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mimetic.accelerators.capabilities import Capabilities, of_cpu, of_cuda, of_mps, of_xpu
from mimetic.accelerators.probe import TORCH, DeviceFacts, TorchProbe
from mimetic.catalog import closest_hint
from mimetic.errors import DeviceError


@dataclass(frozen=True)
class DeviceKind:
    """One row of the table.

    Args:
        name: device type as torch and `--policy.device` spell it.
        absent_because: why there is none, a clause.
        capabilities: what a device of this kind can do.
    """

    name: str
    absent_because: Callable[[TorchProbe], str]
    capabilities: Callable[[TorchProbe, DeviceFacts], Capabilities]


def _cuda_absent(probe: TorchProbe) -> str:
    if not probe.is_built("cuda"):
        return f"this torch ({probe.torch_version}) is built without CUDA and ROCm"
    is_amd = probe.hip_version is not None
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        value = probe.environment(name)
        if value is not None and (is_amd or name.startswith("CUDA")) and value.strip() in ("", "-1", "NoDevFiles"):
            return f"{name}={value} hides every device"
    if is_amd:
        return "torch finds no AMD device (driver missing, or no rights on /dev/kfd and /dev/dri)"
    return "torch finds no NVIDIA device (no card, or its driver is missing or too old)"


def _mps_absent(probe: TorchProbe) -> str:
    if not probe.is_built("mps"):
        return f"this torch ({probe.torch_version}) is built without MPS"
    return f"no Apple GPU that this torch can use on macOS {probe.macos_version}"


def _xpu_absent(probe: TorchProbe) -> str:
    if not probe.is_built("xpu"):
        return f"this torch ({probe.torch_version}) is built without XPU"
    return "torch finds no Intel GPU (no card, its driver is missing, or ZE_AFFINITY_MASK hides it)"


KINDS: tuple[DeviceKind, ...] = (
    DeviceKind("cuda", _cuda_absent, of_cuda),
    DeviceKind("mps", _mps_absent, of_mps),
    DeviceKind("xpu", _xpu_absent, of_xpu),
    DeviceKind("cpu", lambda probe: "", of_cpu),
)
"""In the order of automatic detection; AMD's GPUs are `cuda` to torch."""

_BY_NAME = {kind.name: kind for kind in KINDS}


def choose_device(wanted: str | None, probe: TorchProbe = TORCH) -> tuple[torch.device, str]:
    """Decide on a device.

    Args:
        wanted: `--policy.device`, such as "cpu", "cuda", "cuda:1", "mps" or "xpu"; None detects one.
        probe: whom to ask.

    Returns:
        The device, and the reason as a sentence without a full stop.

    Raises:
        DeviceError: the name is unknown, or the device is not there.
    """
    if wanted is None:
        name = next(kind.name for kind in KINDS if probe.is_available(kind.name))
        reason = "no accelerator found" if name == "cpu" else "the first available of cuda, mps, xpu, cpu"
        return torch.device(name), reason
    name, colon, index = wanted.partition(":")
    if name not in _BY_NAME or (colon and not (index.isascii() and index.isdigit())):
        raise DeviceError(f"`--policy.device={wanted}` is not a device", _hint(name, probe))
    if not probe.is_available(name):
        problem, remedy = _why_absent(name, probe)
        others = f"{_what_is_there(probe)}; leave `--policy.device` out to take the first"
        hint = "\n".join(part for part in (remedy, others) if part)
        raise DeviceError(f"`--policy.device={wanted}`: {problem}", hint)
    if not colon:
        return torch.device(name), "as asked"
    count = probe.count(name)
    if int(index) >= count:
        here = "there is only one of them" if count == 1 else f"there are only {count} of them"
        last = f" to `{name}:{count - 1}`" if count > 1 else ""
        raise DeviceError(f"`--policy.device={wanted}`: {here}", f"count from 0: `{name}:0`{last}")
    return torch.device(name, int(index)), "as asked"


def _why_absent(name: str, probe: TorchProbe) -> tuple[str, str]:
    """What keeps a device away, and what would help; empty where nothing is known."""
    if probe is not TORCH:
        return _BY_NAME[name].absent_because(probe), ""
    from mimetic.accelerators.drivers import torch_build
    from mimetic.accelerators.machine import look, why_absent

    found = why_absent(name, torch_build(), look())
    return found.problem, found.remedy


def _hint(name: str, probe: TorchProbe) -> str:
    if name.lower() in ("gpu", "nvidia", "amd", "rocm", "hip"):
        return "NVIDIA and AMD GPUs are `cuda`"
    return closest_hint(name.lower(), _BY_NAME) or _what_is_there(probe)


def _what_is_there(probe: TorchProbe) -> str:
    there = []
    for kind in KINDS:
        if probe.is_available(kind.name):
            count = probe.count(kind.name)
            there.append(f"{kind.name}:0-{count - 1}" if count > 1 else kind.name)
    return f"available here: {', '.join(there)}"


def capabilities(device: torch.device, probe: TorchProbe = TORCH) -> Capabilities:
    """What a device that is there can do.

    Raises:
        DeviceError: torch has this type of device, and mimetic does not compute on it.
    """
    kind = _BY_NAME.get(device.type)
    if kind is None:
        raise DeviceError(f"mimetic does not compute on `{device}`", _what_is_there(probe))
    return kind.capabilities(probe, probe.facts(device.type, device.index))


def device_name(device: torch.device, probe: TorchProbe = TORCH) -> str:
    """Name of a device for messages, such as "NVIDIA H200" or "16 threads"."""
    name = probe.facts(device.type, device.index).name
    return f"{name} (ROCm {probe.hip_version})" if device.type == "cuda" and probe.hip_version else name


def describe_device(device: torch.device, probe: TorchProbe = TORCH) -> str:
    """A device with what decides on its precisions, such as "NVIDIA H200, capability 9.0" or "cpu, 2 threads"."""
    facts = probe.facts(device.type, device.index)
    if device.type == "cpu":
        return f"cpu, {facts.name}"
    if device.type == "mps":
        return f"{facts.name}, macOS {probe.macos_version}"
    if facts.capability is not None:
        return f"{facts.name}, capability {facts.capability[0]}.{facts.capability[1]}"
    if device.type == "cuda" and probe.hip_version:
        return ", ".join(part for part in (facts.name, facts.gcn_arch, f"ROCm {probe.hip_version}") if part)
    return facts.name


def describe_devices(probe: TorchProbe = TORCH) -> list[dict[str, Any]]:
    """One row a device type for `mimetic info`: name, availability, reason, and the devices.

    A device has its name and, where they are known, `memory_gib` [GiB], `capability`, `architecture` (such as "sm_90"
    or "gfx942"), `supports` (feature -> bool) and `why_not` (feature -> reason).
    """
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        available = probe.is_available(kind.name)
        rows.append(
            {
                "type": kind.name,
                "available": available,
                "reason": "" if available else kind.absent_because(probe),
                "devices": [_row(kind, index, probe) for index in range(probe.count(kind.name))] if available else [],
            }
        )
    return rows


def _row(kind: DeviceKind, index: int, probe: TorchProbe) -> dict[str, Any]:
    facts = probe.facts(kind.name, index)
    can = kind.capabilities(probe, facts)
    row: dict[str, Any] = {"name": facts.name}
    if kind.name == "cpu":
        row["name"] = f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    if facts.memory is not None:
        row["memory_gib"] = round(facts.memory / 2**30, 1)
    if facts.capability is not None:
        row["capability"] = f"{facts.capability[0]}.{facts.capability[1]}"
        row["architecture"] = f"sm_{facts.capability[0]}{facts.capability[1]}"
    elif facts.gcn_arch:
        row["architecture"] = facts.gcn_arch
    row["supports"] = {name: bool(answer) for name, answer in can.items()}
    row["why_not"] = {name: answer.reason for name, answer in can.items() if not answer}
    return row
