"""The computer's part of `mimetic info`: processor, memory, disk, ffmpeg, decoders, kept features."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from mimetic.cli.info_packages import MISSING, version


def machine() -> dict[str, str]:
    """Processor, cores, memory and free disk of the current folder."""
    return {
        "Processor": _processor(),
        "Cores": f"{_usable_cores()} usable of {os.cpu_count()}",
        "Memory": _memory(),
        "Free disk": f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB in the current folder",
    }


def ffmpeg() -> str:
    """Version of the ffmpeg program; PyAV brings its own libraries and needs none."""
    from mimetic.accelerators.drivers import run_program

    found = re.match(r"ffmpeg version (\S+)", run_program(["ffmpeg", "-version"]))
    return found[1] if found else MISSING


def decoders() -> dict[str, str]:
    """Which video decoders can be loaded, with the reason when one cannot."""
    found = {}
    try:
        import av

        libraries = getattr(av, "library_versions", {})
        codec = ".".join(map(str, libraries.get("libavcodec", ())))
        names = [name for name in ("av1", "libdav1d", "h264", "hevc") if name in av.codecs_available]
        found["pyav"] = f"works, libavcodec {codec}, decodes {', '.join(names)}"
    except (ImportError, OSError) as error:
        found["pyav"] = f"broken: {error}"
    if version("torchcodec") is None:
        found["torchcodec"] = "not installed; not needed"
    else:
        found["torchcodec"] = "installed; `auto` tries it on the first video of a dataset"
    return found


def kept_features() -> str:
    """Number and size of the arrays in the folder of `--cache.features`, and where it is."""
    from mimetic.data.cache_folder import default_cache_folder

    return _kept(default_cache_folder)


def kept_frames() -> str:
    """Number and size of the arrays in the folder of `--dataset.cache=frames`, and where it is."""
    from mimetic.data.cache_folder import default_frames_folder

    return _kept(default_frames_folder)


def _kept(place_of: Callable[[], Path]) -> str:
    from mimetic.data.cache_folder import list_caches

    try:
        folder = place_of()
        found = list_caches(folder)
    except (OSError, RuntimeError) as error:
        return f"unknown: {error}"
    place = str(folder)
    try:
        place = f"~/{folder.relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):
        pass
    size = sum(entry.n_bytes for entry in found)
    text = f"{size / 1e9:.1f} GB" if size >= 5e7 else f"{size / 1e6:.1f} MB"
    return f"{len(found)} arrays, {text} in {place}" if found else f"none in {place}"


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    """Total and available memory; available is known on Linux only."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return MISSING
    text = f"{total / 2**30:.1f} GiB"
    info = Path("/proc/meminfo")
    if info.is_file():
        free = re.search(r"^MemAvailable:\s*(\d+) kB", info.read_text(), re.MULTILINE)
        if free:
            text += f", {int(free[1]) / 2**20:.1f} GiB available"
    return text
