"""Drivers, device files and torch's build, found without importing torch.

torch only says whether it finds a device. Why it finds none stands in the driver's version, the device files, their
rights and the environment. Every probe looks through a `Host`, so that tests can show it another machine.
AMD's side is in `rocm.py`; what follows from all of it is in `machine.py`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RUN_TIMEOUT_S = 3.0
"""nvidia-smi hangs where a driver is broken; the other facts matter all the more then."""

# Lowest driver that runs programs built for any CUDA of a major version. Source: NVIDIA, "CUDA Compatibility", chapter
# "Minor Version Compatibility", table 1 (13.x: 580, 12.x: 525, 11.x: 450, with the note on 450.80.02 and 452.39). The
# digits after 525, and 528.33 for Windows, stand in secondary sources only.
_FLOORS = {11: "450.80.02", 12: "525.60.13", 13: "580"}
_FLOORS_WINDOWS = {11: "452.39", 12: "528.33", 13: "580"}

# The newest CUDA of each major version that torch is built for, and the last torch with it. Source: PyTorch, issue
# 147383 (11.8 ends with torch 2.7) and issue 190385 (12.6 is kept until torch 2.14).
_OLDER_BUILDS = {11: ("11.8", "2.7"), 12: ("12.6", "2.14")}

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}


def run_program(command: Sequence[str]) -> str:
    """Standard output of a program; empty when it is missing, fails, or takes longer than `RUN_TIMEOUT_S`."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def may_use(path: Path) -> bool:
    """Whether this process may read and write a device file."""
    return os.access(path, os.R_OK | os.W_OK)


@dataclass(frozen=True)
class Host:
    """How to look at a machine; the defaults look at this one.

    Args:
        root: folder that stands for `/`.
        environment: environment variables; None takes this process's.
        run: runs a program and returns its standard output, empty on any failure.
        may_use: whether a device file can be read and written.
        system: as `sys.platform` spells it.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] | None = None
    run: Callable[[Sequence[str]], str] = run_program
    may_use: Callable[[Path], bool] = may_use
    system: str = sys.platform

    def path(self, name: str) -> Path:
        """A path of the machine, such as `/dev/kfd`, below `root`."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """Text of a file without surrounding white space; empty when it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def names(self, folder: str, pattern: str) -> list[str]:
        """Sorted names in a folder that match; none when there is no such folder."""
        try:
            return sorted(path.name for path in self.path(folder).glob(pattern))
        except OSError:
            return []

    def variable(self, name: str) -> str | None:
        """Value of an environment variable; None when it is not set."""
        return (os.environ if self.environment is None else self.environment).get(name)

    @property
    def is_windows_driver(self) -> bool:
        """Whether NVIDIA's driver is the one of Windows, which counts differently; WSL uses it too."""
        return self.system == "win32" or "microsoft" in self.read("/proc/version").lower()


# --- torch's build --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchBuild:
    """What the installed torch was built for.

    Args:
        version: such as "2.13.0+cpu".
        cuda: CUDA version, such as "13.0".
        hip: HIP version, such as "7.0.51831".
        xpu: version of the SYCL compiler.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None

    @property
    def target(self) -> str:
        """ "cuda", "rocm", "xpu" or "cpu"; builds for macOS are "cpu", with MPS inside."""
        return "cuda" if self.cuda else "rocm" if self.hip else "xpu" if self.xpu else "cpu"

    @property
    def text(self) -> str:
        """The build for people, such as "CUDA 13.0" or "CPU only"."""
        names = {"cuda": f"CUDA {self.cuda}", "rocm": f"ROCm (HIP {self.hip})", "xpu": f"XPU (SYCL {self.xpu})"}
        return names.get(self.target, "CPU only")


def torch_build(folder: Path | None = None) -> TorchBuild | None:
    """Read what torch was built for from its version file, in milliseconds instead of the seconds of an import.

    Args:
        folder: torch's package folder; None looks it up.

    Returns:
        The build; None when torch is not installed or has no readable version file.
    """
    if folder is None:
        try:
            spec = importlib.util.find_spec("torch")
        except (ImportError, ValueError):
            return None
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = Path(spec.submodule_search_locations[0])
    try:
        text = (folder / "version.py").read_text(errors="replace")
    except OSError:
        return None
    found = dict(re.findall(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
    if "__version__" not in found:
        return None
    return TorchBuild(found["__version__"], *(found.get(name) or None for name in ("cuda", "hip", "xpu")))


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nvidia:
    """NVIDIA's driver and cards.

    Args:
        driver: version of the loaded driver; None when none was found.
        source: what told the version, "" when nothing did.
        cards: names of the cards, as far as the driver tells.
        files: device files of cards, such as "nvidia0".
        locked: those of them that this user may not open.
        needs_files: whether cards are used through device files (Linux, but not WSL).
    """

    driver: str | None = None
    source: str = ""
    cards: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    needs_files: bool = False

    @property
    def present(self) -> bool:
        """Whether there is a sign of an NVIDIA card."""
        return self.driver is not None or bool(self.files)


def find_nvidia(host: Host) -> Nvidia:
    """Look for NVIDIA's driver: the kernel's file first, which costs nothing, then `nvidia-smi`."""
    files = tuple(host.names("/dev", "nvidia[0-9]*"))
    locked = tuple(name for name in files if not host.may_use(host.path(f"/dev/{name}")))
    kernel = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", host.read("/proc/driver/nvidia/version") + "\n")
    if kernel:
        models = (
            re.search(r"^Model:\s*(.+)$", host.read(f"/proc/driver/nvidia/gpus/{name}/information"), re.MULTILINE)
            for name in host.names("/proc/driver/nvidia/gpus", "*")
        )
        cards = tuple(model[1].strip() for model in models if model)
        return Nvidia(kernel[1], "/proc/driver/nvidia/version", cards, files, locked, needs_files=True)
    rows = host.run(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]).splitlines()
    pairs = [row.partition(",") for row in rows if re.match(r"\d+\.\d+", row)]
    if not pairs:
        return Nvidia(files=files, locked=locked, needs_files=bool(files))
    return Nvidia(pairs[0][0].strip(), "nvidia-smi", tuple(name.strip() for _, _, name in pairs), files, locked)


def lowest_driver(cuda: str, *, windows: bool = False) -> str | None:
    """Lowest NVIDIA driver that runs a torch built for `cuda`, such as "12.8"; None for a CUDA not in the table."""
    major = cuda.partition(".")[0]
    return (_FLOORS_WINDOWS if windows else _FLOORS).get(int(major)) if major.isdigit() else None


def is_older(version: str, floor: str) -> bool:
    """Whether a driver version such as "535.129.03" is below `floor`; numbers are compared part by part."""
    return _parts(version) < _parts(floor)


def older_build(driver: str, *, windows: bool = False) -> tuple[str, str] | None:
    """The newest CUDA that `driver` runs and the last torch with builds for it; None when there is none."""
    fitting = [
        major for major, floor in (_FLOORS_WINDOWS if windows else _FLOORS).items() if not is_older(driver, floor)
    ]
    return _OLDER_BUILDS.get(max(fitting)) if fitting else None


def hides_all(value: str | None, n_cards: int = 0) -> bool:
    """Whether a list of visible devices leaves none: CUDA and HIP stop at the first entry that is no card.

    Args:
        value: such as "0,1"; None (not set) hides nothing.
        n_cards: number of cards, where known; 0 judges by the text alone.
    """
    if value is None:
        return False
    first = value.split(",")[0].strip()
    if first.lstrip("-").isdigit():
        return int(first) < 0 or (n_cards > 0 and int(first) >= n_cards)
    return first == "" or first.lower() in ("none", "nodevfiles", "void")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


# --- Intel ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderNode:
    """A render node of the kernel's graphics drivers.

    Args:
        name: such as "renderD128".
        vendor: "Intel", "AMD", "NVIDIA", or "" when the kernel does not tell.
        usable: whether this user may open it.
        group: the group that may.
    """

    name: str
    vendor: str
    usable: bool
    group: str


def render_nodes(host: Host) -> list[RenderNode]:
    """All render nodes with their vendors."""
    nodes = []
    for name in host.names("/dev/dri", "renderD*"):
        path = host.path(f"/dev/dri/{name}")
        vendor = _VENDORS.get(host.read(f"/sys/class/drm/{name}/device/vendor").lower(), "")
        nodes.append(RenderNode(name, vendor, host.may_use(path), owning_group(path)))
    return nodes


def owning_group(path: Path) -> str:
    """Group of a file, by number where the number has no name here (in a container); "" when it cannot be told."""
    try:
        return path.group()
    except KeyError:
        return str(path.stat().st_gid)
    except (OSError, NotImplementedError):
        return ""
