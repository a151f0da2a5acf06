"""`mimetic info`: this machine in a form that can be pasted into an issue.

Versions come from package metadata, so nothing heavy is imported; torch is imported for the device part only.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mimetic.cli import output
from mimetic.fields import setting

SUMMARY = "Show versions, devices and decoders of this machine, ready to paste into an issue"
MISSING = "N/A"
_PACKAGES = ("av", "pyarrow", "safetensors", "tokenizers", "torchvision")


@dataclass(frozen=True, kw_only=True)
class InfoConfig:
    """Settings of `mimetic info`."""

    json: bool = setting(False, "Print JSON instead of a list", layer="mimetic")
    devices: bool = setting(True, "Ask torch for devices, which takes some seconds", layer="mimetic")


def main(argv: list[str], *, debug: bool) -> int:
    """Print the facts to stdout.

    Args:
        argv: flags.
        debug: not used here.

    Returns:
        0.
    """
    from mimetic.config.parse import parse

    config: InfoConfig = parse(InfoConfig, argv, prog="mimetic info").value
    facts = gather(with_devices=config.devices)
    if config.json:
        output.say_json(facts)
    else:
        for name, value in facts.items():
            output.say(f"- {name}: {_text(value)}")
    return 0


def gather(*, with_devices: bool) -> dict[str, Any]:
    """All facts in the order of the list: LeRobot's bullets first, then mimetic's own.

    Args:
        with_devices: import torch and ask it for devices.
    """
    devices = _devices() if with_devices else None
    facts: dict[str, Any] = {"mimetic version": version("mimetic") or MISSING}
    facts |= {
        "LeRobot version": version("lerobot") or MISSING,
        "Platform": platform.platform(),
        "Python version": platform.python_version(),
        "Huggingface Hub version": version("huggingface_hub") or MISSING,
        "Transformers version": version("transformers") or MISSING,
        "Datasets version": version("datasets") or MISSING,
        "Numpy version": version("numpy") or MISSING,
        "FFmpeg version": _ffmpeg(),
        "PyTorch version": version("torch") or MISSING,
        "Torchcodec version": version("torchcodec") or MISSING,
    }
    facts |= _torch_facts(devices)
    facts["Using GPU in script?"] = "<fill in>"
    facts["mimetic scripts"] = scripts()
    facts |= _machine()
    facts["Packages"] = {name: version(name) or MISSING for name in _PACKAGES}
    facts["Video decoders"] = _decoders()
    facts["Kept features"] = kept_features()
    facts["Extras"] = extras()
    if devices is not None:
        facts["Devices"] = devices
    return facts


def version(package: str) -> str | None:
    """Version of an installed package from its metadata; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def scripts() -> list[str]:
    """Console scripts of mimetic and of the LeRobot aliases, sorted."""
    points = metadata.entry_points(group="console_scripts")
    return sorted({point.name for point in points if point.value.startswith(("mimetic.", "lerobot."))})


def extras() -> dict[str, str]:
    """Optional extras of mimetic: "installed", or the command that installs what is missing."""
    try:
        requirements = metadata.requires("mimetic") or []
        names = metadata.metadata("mimetic").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    needs: dict[str, list[str]] = {name: [] for name in names}
    for requirement in requirements:
        extra = re.search(r"extra == ['\"]([^'\"]+)['\"]", requirement)
        package = re.match(r"[A-Za-z0-9._-]+", requirement)
        if extra and package and extra[1] in needs:
            needs[extra[1]].append(package[0])
    found = {}
    for name, packages in needs.items():
        absent = [package for package in packages if version(package) is None]
        found[name] = f"missing {', '.join(absent)}: pip install 'mimetic[{name}]'" if absent else "installed"
    return found


def kept_features() -> str:
    """Number and size of the arrays in the folder of `--cache.features`, and where it is."""
    from mimetic.data.cache_folder import default_cache_folder, list_caches

    try:
        folder = default_cache_folder()
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


def _devices() -> list[dict[str, Any]] | str:
    try:
        from mimetic.accelerators.devices import describe_devices

        return describe_devices()
    except (ImportError, OSError) as error:
        # A broken torch is what this command is asked about; the other facts matter all the more then.
        return f"torch cannot be imported: {error}"


def _torch_facts(devices: list[dict[str, Any]] | str | None) -> dict[str, Any]:
    names = ("Is PyTorch built with CUDA support?", "Cuda version", "GPU model")
    if not isinstance(devices, list):
        return dict.fromkeys(names, MISSING if devices is not None else "not asked (--devices=false)")
    import torch

    gpus = [str(gpu.get("name")) for row in devices if row.get("type") != "cpu" for gpu in row.get("devices", [])]
    facts: dict[str, Any] = {
        names[0]: torch.version.cuda is not None,
        names[1]: torch.version.cuda or MISSING,
        names[2]: ", ".join(gpus) or MISSING,
        "HIP version": torch.version.hip or MISSING,
        "Torch threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["Precisions of the GPU"] = {
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
            "fp16": True,
            "tf32": torch.cuda.get_device_capability()[0] >= 8 and torch.version.hip is None,
        }
    return facts


def _machine() -> dict[str, Any]:
    place = Path.cwd()
    return {
        "Processor": _processor(),
        "Cores": f"{_usable_cores()} usable of {os.cpu_count()}",
        "Memory": _memory(),
        "Free disk": f"{shutil.disk_usage(place).free / 2**30:.1f} GiB in the current folder",
    }


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


def _ffmpeg() -> str:
    """Version of the ffmpeg program; PyAV brings its own libraries and needs none."""
    program = shutil.which("ffmpeg")
    if program is None:
        return MISSING
    import subprocess

    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return MISSING
    found = re.match(r"ffmpeg version (\S+)", done.stdout)
    return found[1] if found else MISSING


def _decoders() -> dict[str, str]:
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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return "".join(f"\n  - {_device(row)}" for row in value)
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _device(row: dict[str, Any]) -> str:
    if not row.get("available"):
        return f"{row.get('type')}: not here ({row.get('reason')})"
    parts = []
    for device in row.get("devices", []):
        name, rest = device.get("name", ""), {key: item for key, item in device.items() if key != "name"}
        facts = ", ".join(
            f"{key.replace('_gib', '')} {item}{' GiB' if '_gib' in key else ''}" for key, item in rest.items()
        )
        parts.append(f"{name} ({facts})" if facts else str(name))
    return f"{row.get('type')}: {'; '.join(parts) or 'available'}"
