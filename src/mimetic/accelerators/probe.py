"""Everything that is asked of torch and of the system about devices, in one place that tests can replace.

`mimetic.testing.machines` answers for machines that are not here.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class DeviceFacts:
    """What torch tells about one device.

    Args:
        name: product name, such as "NVIDIA H200".
        memory: bytes; None when it is not known.
        capability: CUDA's compute capability, such as (9, 0); None on other devices.
        gcn_arch: AMD's architecture without feature flags, such as "gfx942"; empty on other devices.
        has_float64: whether it computes in double precision.
    """

    name: str
    memory: int | None = None
    capability: tuple[int, int] | None = None
    gcn_arch: str = ""
    has_float64: bool = True


class TorchProbe(Protocol):
    """Questions about this torch and this machine."""

    @property
    def torch_version(self) -> str:
        """Such as "2.13.0+cpu"."""

    @property
    def cuda_version(self) -> str | None:
        """CUDA that torch was built for; None: it was not."""

    @property
    def hip_version(self) -> str | None:
        """HIP (ROCm) that torch was built for; None: it was not."""

    @property
    def macos_version(self) -> str:
        """Such as "14.5"; empty on other systems."""

    @property
    def cpu_has_bfloat16(self) -> bool:
        """Whether the processor multiplies bfloat16 in hardware."""

    def is_built(self, kind: str) -> bool:
        """Whether this torch contains the code for "cuda", "mps" or "xpu"."""

    def is_available(self, kind: str) -> bool:
        """Whether torch finds a device of this kind now."""

    def count(self, kind: str) -> int:
        """Devices of this kind."""

    def facts(self, kind: str, index: int | None) -> DeviceFacts:
        """About one device that is there; None: the one that is used when no index is named."""

    def environment(self, name: str) -> str | None:
        """Value of an environment variable; None when it is not set."""


class InstalledTorch:
    """The answers of the torch that is installed."""

    @property
    def torch_version(self) -> str:
        """See `TorchProbe`."""
        return str(torch.__version__)

    @property
    def cuda_version(self) -> str | None:
        """See `TorchProbe`."""
        return torch.version.cuda

    @property
    def hip_version(self) -> str | None:
        """See `TorchProbe`."""
        return torch.version.hip

    @property
    def macos_version(self) -> str:
        """See `TorchProbe`."""
        return platform.mac_ver()[0]

    @property
    def cpu_has_bfloat16(self) -> bool:
        """See `TorchProbe`."""
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        if probe is not None and platform.machine().lower() in ("x86_64", "amd64"):
            return bool(probe())
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def is_built(self, kind: str) -> bool:
        """See `TorchProbe`."""
        if kind == "cuda":
            return torch.version.cuda is not None or torch.version.hip is not None
        if kind == "mps":
            return bool(torch.backends.mps.is_built())
        if kind == "xpu":
            return getattr(torch.version, "xpu", None) is not None
        return kind == "cpu"

    def is_available(self, kind: str) -> bool:
        """See `TorchProbe`."""
        if kind == "cuda":
            return torch.cuda.is_available()
        if kind == "mps":
            return torch.backends.mps.is_available()
        return torch.xpu.is_available() if kind == "xpu" else kind == "cpu"

    def count(self, kind: str) -> int:
        """See `TorchProbe`."""
        if kind == "cuda":
            return torch.cuda.device_count()
        return torch.xpu.device_count() if kind == "xpu" else int(self.is_available(kind))

    def facts(self, kind: str, index: int | None) -> DeviceFacts:
        """See `TorchProbe`."""
        if kind == "cuda":
            cuda = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
            is_amd = torch.version.hip is not None
            return DeviceFacts(
                cuda.name,
                memory=cuda.total_memory,
                capability=None if is_amd else (cuda.major, cuda.minor),
                gcn_arch=str(getattr(cuda, "gcnArchName", "")).partition(":")[0] if is_amd else "",
            )
        if kind == "xpu":
            xpu = torch.xpu.get_device_properties(torch.xpu.current_device() if index is None else index)
            return DeviceFacts(
                xpu.name,
                memory=getattr(xpu, "total_memory", None),
                has_float64=bool(getattr(xpu, "has_fp64", True)),
            )
        if kind == "mps":
            return DeviceFacts("Apple GPU", has_float64=False)
        return DeviceFacts(f"{torch.get_num_threads()} threads")

    def environment(self, name: str) -> str | None:
        """See `TorchProbe`."""
        return os.environ.get(name)


TORCH: TorchProbe = InstalledTorch()
"""What functions ask when they are not told otherwise."""


def version_pair(text: str) -> tuple[int, int]:
    """Major and minor number of a version such as "2.13.0+cpu", "2.10rc1" or "14"; what cannot be read counts as 0."""
    found = re.match(r"(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
