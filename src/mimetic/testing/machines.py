"""Machines that are not here, as torch would describe them: for tests of devices and precisions.

choose_device("cuda", nvidia("NVIDIA H200", (9, 0)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mimetic.accelerators.probe import DeviceFacts

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A made-up machine with a made-up build of torch; a `TorchProbe`.

    Args:
        torch_version: such as "2.13.0+cu130".
        cuda_version: CUDA that torch was built for.
        hip_version: HIP that torch was built for.
        macos_version: empty on other systems.
        cpu_has_bfloat16: whether the processor multiplies bfloat16.
        built: kinds of device besides the CPU that torch contains code for.
        devices: what is there, by kind; the CPU always is.
        variables: environment.
        current: index of the device that is used when none is named.
    """

    torch_version: str = "2.13.0+cpu"
    cuda_version: str | None = None
    hip_version: str | None = None
    macos_version: str = ""
    cpu_has_bfloat16: bool = True
    built: tuple[str, ...] = ()
    devices: Mapping[str, tuple[DeviceFacts, ...]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    current: int = 0

    def is_built(self, kind: str) -> bool:
        """See `TorchProbe`."""
        return kind == "cpu" or kind in self.built

    def is_available(self, kind: str) -> bool:
        """See `TorchProbe`."""
        return self.count(kind) > 0

    def count(self, kind: str) -> int:
        """See `TorchProbe`."""
        return 1 if kind == "cpu" else len(self.devices.get(kind, ()))

    def facts(self, kind: str, index: int | None) -> DeviceFacts:
        """See `TorchProbe`."""
        if kind == "cpu":
            return DeviceFacts("16 threads")
        return self.devices[kind][self.current if index is None else index]

    def environment(self, name: str) -> str | None:
        """See `TorchProbe`."""
        return self.variables.get(name)


def cpu_only(*, bfloat16: bool = True) -> Machine:
    """A machine without an accelerator, with the CPU build of torch."""
    return Machine(cpu_has_bfloat16=bfloat16)


def nvidia(name: str, capability: tuple[int, int], count: int = 1) -> Machine:
    """A machine with NVIDIA GPUs of one kind."""
    card = DeviceFacts(name, memory=80 * _GIB, capability=capability)
    return Machine(
        torch_version="2.13.0+cu130", cuda_version="13.0", built=("cuda",), devices={"cuda": (card,) * count}
    )


def amd(name: str, gcn_arch: str, count: int = 1) -> Machine:
    """A machine with AMD GPUs of one kind, which torch shows as `cuda`."""
    card = DeviceFacts(name, memory=192 * _GIB, gcn_arch=gcn_arch)
    return Machine(
        torch_version="2.13.0+rocm7.0", hip_version="7.0", built=("cuda",), devices={"cuda": (card,) * count}
    )


def apple(macos: str = "14.5", torch_version: str = "2.13.0") -> Machine:
    """A Mac with an Apple GPU."""
    chip = DeviceFacts("Apple GPU", has_float64=False)
    return Machine(torch_version=torch_version, macos_version=macos, built=("mps",), devices={"mps": (chip,)})


def intel(name: str, *, has_float64: bool = True) -> Machine:
    """A machine with an Intel GPU."""
    card = DeviceFacts(name, memory=16 * _GIB, has_float64=has_float64)
    return Machine(torch_version="2.13.0+xpu", built=("xpu",), devices={"xpu": (card,)})
