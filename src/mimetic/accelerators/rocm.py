"""AMD's driver, rights and environment variables, found without importing torch (spec/training.md 18).

torch for AMD shows its cards as `cuda`. What a user meets is a card that is there and cannot be opened (groups), a card
that a variable hides, or a torch of another vendor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mimetic.accelerators.drivers import Host, hides_all, owning_group, render_nodes

KFD = "/dev/kfd"
"""The compute interface that all AMD cards share."""


@dataclass(frozen=True)
class Amd:
    """AMD's driver and cards.

    Args:
        kfd: whether the compute interface is there.
        loaded: whether the kernel has the amdgpu driver.
        driver: its version; None for the one inside the kernel, which has none.
        locked: device files that this user may not open.
        groups: the groups that may, by name, or by number where the number has no name here.
        architectures: one a card, such as "gfx942", as the kernel tells.
    """

    kfd: bool = False
    loaded: bool = False
    driver: str | None = None
    locked: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """Whether there is an AMD card that could compute; `/dev/kfd` without one is a server's bare driver."""
        return self.kfd


def find_amd(host: Host) -> Amd:
    """Look for AMD's driver and cards."""
    files = [KFD] if host.path(KFD).exists() else []
    files += [f"/dev/dri/{node.name}" for node in render_nodes(host) if node.vendor == "AMD"]
    locked = [name for name in files if not host.may_use(host.path(name))]
    return Amd(
        kfd=KFD in files,
        loaded=host.path("/sys/module/amdgpu").is_dir(),
        driver=host.read("/sys/module/amdgpu/version") or None,
        locked=tuple(locked),
        groups=tuple(sorted({owning_group(host.path(name)) for name in locked} - {""})),
        architectures=_architectures(host),
    )


def gfx_name(target: int) -> str:
    """Architecture name of the kernel's number: 90402 is gfx942, 90010 gfx90a, 110000 gfx1100.

    Source: decimal pairs major, minor, stepping in the kernel; the last two are one hexadecimal digit each in the name.
    """
    return f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"


def override_name(version: str) -> str:
    """Architecture that HSA_OVERRIDE_GFX_VERSION stands for: "10.3.0" is gfx1030; "" when it cannot be read."""
    parts = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version.strip())
    return f"gfx{parts[1]}{int(parts[2]):x}{int(parts[3]):x}" if parts else ""


def _architectures(host: Host) -> tuple[str, ...]:
    found = []
    for node in host.names("/sys/class/kfd/kfd/topology/nodes", "*"):
        text = host.read(f"/sys/class/kfd/kfd/topology/nodes/{node}/properties")
        target = re.search(r"^gfx_target_version (\d+)$", text, re.MULTILINE)
        if target and int(target[1]) > 0:  # the processor is a node too, with 0
            found.append(gfx_name(int(target[1])))
    return tuple(found)


# --- which variable decides -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visibility:
    """Which cards the environment lets a ROCm torch see.

    Args:
        applied: the variables that count, in the order in which they are applied, with their values.
        ignored: the variables that are set and do not count.
        problem: why no card is left or the choice is ambiguous; "" when all is well.
        remedy: what to type then.
        hidden: whether no card is left.
    """

    applied: dict[str, str]
    ignored: dict[str, str]
    problem: str = ""
    remedy: str = ""
    hidden: bool = False


def visibility(host: Host, n_cards: int = 0) -> Visibility:
    """Apply AMD's rules: ROCR_VISIBLE_DEVICES first, then HIP_VISIBLE_DEVICES, else CUDA_VISIBLE_DEVICES.

    Args:
        host: whose environment.
        n_cards: number of cards, where known.

    Source: ROCm documentation, "GPU isolation techniques" (ROCR hides cards below HIP, which counts what is left from
    0); PyTorch, pull requests 129650 and 142292 (HIP_VISIBLE_DEVICES wins; an index beyond ROCR's list is an error).
    """
    rocr, hip, cuda = (host.variable(f"{name}_VISIBLE_DEVICES") for name in ("ROCR", "HIP", "CUDA"))
    name = "HIP_VISIBLE_DEVICES" if hip is not None else "CUDA_VISIBLE_DEVICES"
    value = hip if hip is not None else cuda
    applied = {} if rocr is None else {"ROCR_VISIBLE_DEVICES": rocr}
    if value is not None:
        applied[name] = value
    ignored = {"CUDA_VISIBLE_DEVICES": cuda} if hip is not None and cuda is not None else {}

    if hides_all(rocr, n_cards):
        text = f"`ROCR_VISIBLE_DEVICES={rocr}` hides every AMD card"
        return Visibility(applied, ignored, text, "unset ROCR_VISIBLE_DEVICES", hidden=True)
    left = n_cards if rocr is None else rocr.count(",") + 1
    if value is not None and rocr is not None and any(index >= left for index in _indices(value)):
        text = f"`{name}={value}` counts the {left} that `ROCR_VISIBLE_DEVICES={rocr}` leaves, from 0, and names others"
        return Visibility(applied, ignored, text, f"unset {name}", hidden=hides_all(value, left))
    if hides_all(value, left):
        return Visibility(applied, ignored, f"`{name}={value}` hides every AMD card", f"unset {name}", hidden=True)
    if ignored and hip != cuda:
        text = f"`HIP_VISIBLE_DEVICES={hip}` and `CUDA_VISIBLE_DEVICES={cuda}` disagree; the first counts"
        return Visibility(applied, ignored, text, "unset CUDA_VISIBLE_DEVICES")
    return Visibility(applied, ignored)


def _indices(value: str) -> list[int]:
    return [int(part) for part in value.split(",") if part.strip().isdigit()]
