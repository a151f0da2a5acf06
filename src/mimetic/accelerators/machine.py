"""What stands between a card in this machine and torch, as one sentence and the command that removes it.

Everything here is known without importing torch, from `drivers.py` and `rocm.py`.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from mimetic.accelerators.drivers import (
    Host,
    Nvidia,
    RenderNode,
    TorchBuild,
    find_nvidia,
    hides_all,
    is_older,
    lowest_driver,
    older_build,
    render_nodes,
)
from mimetic.accelerators.rocm import KFD, Amd, Visibility, find_amd, visibility

INDEX = "`INDEX` is the address that pytorch.org shows for it"
"""Ends a remedy that names an index: its address changes with the version and belongs to pytorch.org."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do.

    Args:
        problem: one sentence without a full stop.
        remedy: what to do, as a command where possible; "" when there is nothing to do.
    """

    problem: str
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found.

    Args:
        host: where it was looked for.
        nvidia: NVIDIA's driver and cards.
        amd: AMD's driver and cards.
        amd_visible: what the environment lets a ROCm torch see.
        nodes: render nodes of all vendors.
        macos: version of macOS; "" elsewhere.
        processor: such as "arm64" or "x86_64".
    """

    host: Host
    nvidia: Nvidia
    amd: Amd
    amd_visible: Visibility
    nodes: tuple[RenderNode, ...] = ()
    macos: str = ""
    processor: str = ""

    @property
    def intel(self) -> tuple[RenderNode, ...]:
        """Render nodes of Intel cards."""
        return tuple(node for node in self.nodes if node.vendor == "Intel")


def look(host: Host | None = None) -> Machine:
    """Look for the drivers and cards of every vendor; takes milliseconds, and `RUN_TIMEOUT_S` at worst.

    Args:
        host: the machine; None is this one.
    """
    host = host or Host()
    amd = find_amd(host)
    return Machine(
        host=host,
        nvidia=find_nvidia(host),
        amd=amd,
        amd_visible=visibility(host, len(amd.architectures)),
        nodes=tuple(render_nodes(host)),
        macos=platform.mac_ver()[0] if host.system == "darwin" else "",
        processor=platform.machine(),
    )


def obstacle(kind: str, build: TorchBuild | None, machine: Machine) -> Finding | None:
    """Why torch cannot use a kind of device, as far as it can be known without asking torch.

    Args:
        kind: "cuda" (NVIDIA and AMD), "xpu" or "mps".
        build: the installed torch; None when there is none.
        machine: what was found.

    Returns:
        The finding; None when nothing was found that stands in the way.
    """
    if build is None:
        return Finding("torch is not installed", "`pip install torch`")
    if kind == "cuda":
        return {"cuda": _nvidia_obstacle, "rocm": _amd_obstacle}.get(build.target, _other_build)(build, machine)
    return {"xpu": _xpu_obstacle, "mps": _mps_obstacle}[kind](build, machine)


def why_absent(kind: str, build: TorchBuild | None, machine: Machine) -> Finding:
    """Why torch finds no device of a kind, for a kind that torch has said it does not find."""
    found = obstacle(kind, build, machine)
    if found:
        return found
    if kind == "cuda" and build and build.target == "rocm":
        return Finding(
            "torch finds no AMD card although its driver is there", "`rocminfo` must list the card as an agent"
        )
    if kind == "cuda":
        return Finding(
            f"torch finds no NVIDIA card although driver {machine.nvidia.driver} is there",
            "`nvidia-smi` must list the card; after an update of the driver, restart the machine",
        )
    if kind == "xpu":
        return Finding(
            "torch finds no Intel GPU", "install Intel's compute runtime (Level Zero); `sycl-ls` must list it"
        )
    return Finding("torch finds no Apple GPU", "update macOS: MPS needs 12.3, and 14 for bf16")


def warnings(build: TorchBuild | None, machine: Machine, *, cuda_works: bool | None = None) -> list[Finding]:
    """What keeps a card that is in this machine from being used, or makes the choice of cards ambiguous.

    Args:
        build: the installed torch.
        machine: what was found.
        cuda_works: whether torch has found a `cuda` device; None when it was not asked.
    """
    found = []
    has_card = machine.nvidia.present or machine.amd.present
    reason = obstacle("cuda", build, machine) if has_card and not cuda_works else None
    if reason is None and has_card and cuda_works is False:
        reason = why_absent("cuda", build, machine)
    if reason:
        found.append(reason)
    visible = machine.amd_visible
    if build and build.target == "rocm" and visible.problem and (not reason or reason.problem != visible.problem):
        found.append(Finding(visible.problem, f"`{visible.remedy}`"))
    return found


def lowest_driver_here(build: TorchBuild, machine: Machine) -> str | None:
    """Lowest NVIDIA driver for the installed torch on this system; None for other builds and unknown CUDAs."""
    return lowest_driver(build.cuda, windows=machine.host.is_windows_driver) if build.cuda else None


def _other_build(build: TorchBuild, machine: Machine) -> Finding:
    problem = f"torch {build.version} is built for {'Intel GPUs' if build.target == 'xpu' else 'the CPU only'}"
    if machine.nvidia.present:
        return Finding(f"{problem}, and this machine has an NVIDIA card", _install("CUDA", machine))
    if machine.amd.present:
        return Finding(f"{problem}, and this machine has an AMD card", _install("ROCm", machine))
    return Finding(problem)


def _install(name: str, machine: Machine) -> str:
    if name == "ROCm":
        return f"`pip uninstall -y torch && pip install torch --index-url INDEX` with the ROCm build; {INDEX}"
    driver, windows = machine.nvidia.driver, machine.host.is_windows_driver
    if driver is None or not is_older(driver, lowest_driver("13", windows=windows) or ""):
        return f"`pip uninstall -y torch && pip install torch --index-url INDEX` with a CUDA build; {INDEX}"
    return _older_torch(driver, windows=windows) or f"update the NVIDIA driver ({driver} is too old for any torch)"


def _older_torch(driver: str, *, windows: bool) -> str:
    older = older_build(driver, windows=windows)
    if older is None:
        return ""
    cuda, last = older
    return (
        f"install a torch built for CUDA {cuda}, up to torch {last}: "
        f"`pip uninstall -y torch && pip install 'torch<={last}.99' --index-url INDEX`; {INDEX}"
    )


def _nvidia_obstacle(build: TorchBuild, machine: Machine) -> Finding | None:
    nvidia, host = machine.nvidia, machine.host
    if not nvidia.present:
        if machine.amd.present:
            problem = f"torch {build.version} is built for NVIDIA ({build.text}), and the card in this machine is AMD's"
            return Finding(problem, _install("ROCm", machine))
        return Finding(
            "no NVIDIA driver: neither /proc/driver/nvidia/version nor `nvidia-smi` answers",
            "install NVIDIA's driver; a container needs `docker run --gpus all`",
        )
    if nvidia.driver is None:
        return Finding(
            f"/dev/{nvidia.files[0]} is there, and no NVIDIA driver is loaded",
            "install NVIDIA's driver again, or restart after its update",
        )
    value = host.variable("CUDA_VISIBLE_DEVICES")
    if hides_all(value, len(nvidia.cards)):
        return Finding(f"`CUDA_VISIBLE_DEVICES={value}` hides every NVIDIA card", "`unset CUDA_VISIBLE_DEVICES`")
    windows = host.is_windows_driver
    floor = lowest_driver_here(build, machine)
    if floor and is_older(nvidia.driver, floor):
        other = _older_torch(nvidia.driver, windows=windows)
        needs = f"which torch {build.version} ({build.text}) needs"
        return Finding(
            f"the NVIDIA driver {nvidia.driver} is older than {floor}, {needs}",
            f"update the driver to {floor} or newer" + (f", or {other}" if other else ""),
        )
    if nvidia.needs_files and not nvidia.files:
        return Finding(
            f"the NVIDIA driver {nvidia.driver} is loaded, and there is no /dev/nvidia0",
            "`sudo nvidia-modprobe -u -c=0`; a container needs `docker run --gpus all`",
        )
    if nvidia.files and len(nvidia.locked) == len(nvidia.files):
        return Finding(
            f"this user may not open /dev/{nvidia.files[0]}", "`ls -l /dev/nvidia*` shows the group that may"
        )
    return None


def _amd_obstacle(build: TorchBuild, machine: Machine) -> Finding | None:
    amd = machine.amd
    if not amd.kfd:
        if machine.nvidia.present:
            problem = f"torch {build.version} is built for AMD ({build.text}), and the card in this machine is NVIDIA's"
            return Finding(problem, _install("CUDA", machine))
        why = "" if amd.loaded else ", and the kernel has no amdgpu driver loaded"
        return Finding(
            f"there is no {KFD}{why}",
            "install AMD's driver (`sudo modprobe amdgpu`); a container needs `--device=/dev/kfd --device=/dev/dri`",
        )
    if machine.amd_visible.hidden:
        return Finding(machine.amd_visible.problem, f"`{machine.amd_visible.remedy}`")
    if KFD in amd.locked or any("render" in name for name in amd.locked):
        groups = amd.groups or ("render", "video")
        numbers = " ".join(f"--group-add {group}" for group in groups)
        return Finding(
            f"this user may not open {', '.join(amd.locked)}",
            f"`sudo usermod -aG {','.join(groups)} $USER` and log in again; a container needs `{numbers}`",
        )
    return None


def _xpu_obstacle(build: TorchBuild, machine: Machine) -> Finding | None:
    if not build.xpu:
        return Finding(f"torch {build.version} is built without XPU")
    if not machine.intel and machine.host.system == "linux":
        return Finding("no Intel GPU: no render node of Intel's in /dev/dri", "a container needs `--device=/dev/dri`")
    if machine.intel and not any(node.usable for node in machine.intel):
        node = machine.intel[0]
        group = node.group or "render"
        return Finding(
            f"this user may not open /dev/dri/{node.name}", f"`sudo usermod -aG {group} $USER` and log in again"
        )
    return None


def _mps_obstacle(build: TorchBuild, machine: Machine) -> Finding | None:
    if machine.host.system != "darwin":
        return Finding("this is not macOS")
    if machine.processor != "arm64":
        return Finding(
            f"this Python runs on {machine.processor}; MPS needs an Apple processor",
            "on an Apple processor: use a Python for arm64 (`python -c 'import platform; print(platform.machine())'`)",
        )
    if machine.macos and tuple(map(int, re.findall(r"\d+", machine.macos)[:2])) < (12, 3):
        return Finding(f"macOS {machine.macos} is too old for MPS", "update macOS: MPS needs 12.3, and 14 for bf16")
    return None
