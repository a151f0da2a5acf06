"""The accelerators' part of `mimetic info`: torch's build, drivers, devices, and what stands in the way.

Builds, drivers and obstacles are found without torch; torch is imported for the devices only.
"""

from __future__ import annotations

import warnings as python_warnings
from dataclasses import asdict
from typing import Any

from mimetic.accelerators.drivers import TorchBuild
from mimetic.accelerators.machine import Finding, Machine, lowest_driver_here, warnings, why_absent
from mimetic.accelerators.rocm import KFD, override_name
from mimetic.cli.info_packages import MISSING

NOT_ASKED = "not asked (--devices=false)"
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
Devices = list[dict[str, Any]]


def lerobot_facts(build: TorchBuild | None, devices: Devices | str | None) -> dict[str, Any]:
    """LeRobot's three bullets on the GPU.

    Args:
        build: the installed torch.
        devices: what torch found; a sentence when it cannot be imported; None when it was not asked.
    """
    rows = devices if isinstance(devices, list) else []
    names = [str(gpu.get("name")) for row in rows if row.get("type") != "cpu" for gpu in row.get("devices", [])]
    return {
        "Is PyTorch built with CUDA support?": bool(build and build.cuda),
        "Cuda version": (build and build.cuda) or MISSING,
        "GPU model": NOT_ASKED if devices is None else ", ".join(names) or MISSING,
    }


def build_facts(build: TorchBuild | None, machine: Machine, devices: Devices | str | None) -> dict[str, Any]:
    """What torch is built for, beyond LeRobot's bullets."""
    text = build.text if build else MISSING
    if build and build.target == "cpu" and machine.macos:
        text = "CPU and MPS" if machine.processor == "arm64" else text
    facts: dict[str, Any] = {
        "PyTorch build": text,
        "HIP version": (build and build.hip) or MISSING,
    }
    if isinstance(devices, list):
        import torch

        facts["Torch threads"] = torch.get_num_threads()
    return facts


def driver_facts(build: TorchBuild | None, machine: Machine) -> dict[str, Any]:
    """Drivers and cards as the system shows them, and the variables that choose among cards."""
    return {
        "NVIDIA driver": _nvidia(build, machine),
        "AMD driver": _amd(machine),
        "Intel GPU": {node.name: "usable" if node.usable else "no right to open it" for node in machine.intel}
        or "none found",
        "Apple GPU": f"macOS {machine.macos} on {machine.processor}" if machine.macos else "not macOS",
        "Visible devices": _visible(build, machine),
    }


def find_devices(build: TorchBuild | None, machine: Machine) -> Devices | str:
    """One row a device type, with the reason and the remedy for those that torch does not find.

    Args:
        build: the installed torch.
        machine: what the system shows.

    Returns:
        The rows of `describe_devices`, with `reason` and `remedy` of ours; a sentence when torch cannot be imported.
    """
    said: list[str] = []
    try:
        from mimetic.accelerators.devices import describe_devices

        # What torch warns of, such as an old driver, belongs into the list and not between its lines.
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always")
            rows = describe_devices()
        said = [str(one.message).strip().partition("\n")[0] for one in caught]
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        # A broken torch is what this command is asked about; the other facts matter all the more then. What is left of
        # a half removed torch can be imported and lacks attributes.
        what = "cannot be imported" if not isinstance(error, RuntimeError) else "fails when asked for devices"
        return f"torch {what}: {str(error).strip().partition(chr(10))[0]}"
    for row in rows:
        if not row.get("available") and row.get("type") in ("cuda", "mps", "xpu"):
            reason = why_absent(str(row["type"]), build, machine)
            row |= {"reason": reason.problem, "remedy": reason.remedy}
        if row.get("type") == "cuda" and said:
            row["torch says"] = " / ".join(said)
    return rows


def find_warnings(build: TorchBuild | None, machine: Machine, devices: Devices | str | None) -> list[dict[str, str]]:
    """Cards that are there and cannot be used, and a torch that fails, each with the problem and the remedy."""
    rows = devices if isinstance(devices, list) else []
    works = next((bool(row.get("available")) for row in rows if row.get("type") == "cuda"), None)
    found = warnings(build, machine, cuda_works=works)
    if isinstance(devices, str) and build is not None:
        found.append(
            Finding(devices, "`python -c 'import torch'` shows all of it; a broken torch must be installed again")
        )
    if works:
        import torch

        built_for = torch.cuda.get_arch_list()
        for device in next(row for row in rows if row.get("type") == "cuda").get("devices", []):
            found += _without_kernels(device, built_for)
    return [asdict(finding) for finding in found]


def has_kernels(card: str, built_for: list[str]) -> bool:
    """Whether a torch runs on a card.

    Args:
        card: capability such as "8.6", or architecture such as "gfx942".
        built_for: torch's list, such as ["sm_80", "sm_90", "compute_90"] or ["gfx90a", "gfx942:xnack-"].

    Returns:
        True for the same architecture, for the same major capability with a lower minor one (binaries), and for any
        lower capability in a form that the driver compiles (`compute_`). True too when the list is empty: nothing is
        known.
        Source: NVIDIA, "CUDA C++ Programming Guide", sections on binary and PTX compatibility.
    """
    if not built_for:
        return True
    if card.startswith("gfx"):
        return card in {name.partition(":")[0] for name in built_for}
    major, _, minor = card.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return True
    own = (int(major), int(minor))
    for name in built_for:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():
            continue
        theirs = (int(digits[:-1]), int(digits[-1]))
        if theirs <= own and (kind == "compute" or theirs[0] == own[0]):
            return True
    return False


def _without_kernels(device: dict[str, Any], built_for: list[str]) -> list[Finding]:
    card = str(device.get("capability") or device.get("architecture") or "")
    if not card or has_kernels(card, built_for):
        return []
    what = card if card.startswith("gfx") else f"compute capability {card}"
    return [
        Finding(
            f"{device.get('name')} ({what}) is not among what this torch is built for ({', '.join(built_for)})",
            "install a torch with kernels for it; docs/guides/accelerators.md says which",
        )
    ]


def _nvidia(build: TorchBuild | None, machine: Machine) -> dict[str, Any] | str:
    nvidia = machine.nvidia
    if not nvidia.present:
        return "none found"
    facts: dict[str, Any] = {"version": nvidia.driver or "not loaded"}
    if nvidia.source:
        facts["from"] = nvidia.source
    if nvidia.cards:
        facts["cards"] = list(nvidia.cards)
    if build and build.cuda:
        facts[f"lowest for CUDA {build.cuda}"] = lowest_driver_here(build, machine) or "not known to mimetic"
    return facts


def _amd(machine: Machine) -> dict[str, Any] | str:
    amd, host = machine.amd, machine.host
    override = host.variable("HSA_OVERRIDE_GFX_VERSION")
    if not (amd.present or amd.loaded):
        return "none found"
    facts: dict[str, Any] = {
        "amdgpu": amd.driver or ("the kernel's own" if amd.loaded else "not loaded"),
        KFD: "missing" if not amd.kfd else "no right to open it" if KFD in amd.locked else "usable",
    }
    if amd.architectures:
        facts["cards"] = list(amd.architectures)
    if override is not None:
        shown = override_name(override)
        facts["HSA_OVERRIDE_GFX_VERSION"] = f"{override}, shown to programs as {shown}" if shown else override
    return facts


def _visible(build: TorchBuild | None, machine: Machine) -> dict[str, str] | str:
    """The variables that are set, each with its value, and whether it counts for this torch."""
    found: dict[str, str] = {}
    for name in _VARIABLES:
        value = machine.host.variable(name)
        if value is not None:
            found[name] = f"`{value}`"
    if build and build.target == "rocm":
        for name in machine.amd_visible.ignored:
            found[name] += " (ignored: HIP_VISIBLE_DEVICES is set)"
        if len(machine.amd_visible.applied) == 2:
            found["ROCR_VISIBLE_DEVICES"] += " (applied first)"
    return found or "all"
