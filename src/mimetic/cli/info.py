"""`mimetic info`: this machine in a form that can be pasted into an issue.

Versions come from package metadata and drivers from the system's files, so nothing heavy is imported; torch is imported
for the devices only.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from mimetic.cli import output
from mimetic.cli.info_machine import decoders, ffmpeg, kept_features, kept_frames, machine
from mimetic.cli.info_packages import MISSING, PACKAGES, extras, scripts, version
from mimetic.fields import setting

SUMMARY = "Show versions, devices and decoders of this machine, ready to paste into an issue"


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
            text = _text(value)
            output.say(f"- {name}:{text}" if text.startswith("\n") else f"- {name}: {text}")
    return 0


def gather(*, with_devices: bool) -> dict[str, Any]:
    """All facts in the order of the list: LeRobot's bullets first, then mimetic's own.

    Args:
        with_devices: import torch and ask it for devices.
    """
    from mimetic.accelerators.drivers import torch_build
    from mimetic.accelerators.machine import look
    from mimetic.cli import info_accelerators as accelerators

    build, found = torch_build(), look()
    devices = accelerators.find_devices(build, found) if with_devices else None
    facts: dict[str, Any] = {"mimetic version": version("mimetic") or MISSING}
    facts |= {
        "LeRobot version": version("lerobot") or MISSING,
        "Platform": platform.platform(),
        "Python version": platform.python_version(),
        "Huggingface Hub version": version("huggingface_hub") or MISSING,
        "Transformers version": version("transformers") or MISSING,
        "Datasets version": version("datasets") or MISSING,
        "Numpy version": version("numpy") or MISSING,
        "FFmpeg version": ffmpeg(),
        "PyTorch version": (build and build.version) or version("torch") or MISSING,
        "Torchcodec version": version("torchcodec") or MISSING,
    }
    facts |= accelerators.lerobot_facts(build, devices)
    facts["Using GPU in script?"] = "<fill in>"
    facts["mimetic scripts"] = scripts()
    facts |= accelerators.build_facts(build, found, devices)
    facts |= accelerators.driver_facts(build, found)
    facts |= machine()
    facts["Packages"] = {name: version(name) or MISSING for name in PACKAGES}
    facts["Video decoders"] = decoders()
    facts["Kept features"] = kept_features()
    facts["Kept frames"] = kept_frames()
    facts["Extras"] = extras()
    if devices is not None:
        facts["Devices"] = devices
    facts["Warnings"] = accelerators.find_warnings(build, found, devices)
    return facts


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return "".join(f"\n  - {_row(row)}" for row in value)
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _row(row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"{row['problem']}: {row['remedy']}" if row["remedy"] else str(row["problem"])
    if not row.get("available"):
        remedy, said = row.get("remedy"), row.get("torch says")
        text = f"{row.get('type')}: not here ({row.get('reason')})" + (f": {remedy}" if remedy else "")
        return text + (f"; torch says: {said}" if said else "")
    parts = [_device(device) for device in row.get("devices", [])]
    return f"{row.get('type')}: {'; '.join(parts) or 'available'}"


def _device(device: dict[str, Any]) -> str:
    """Name, memory, architecture and precisions; JSON has the rest, such as why a precision is not there."""
    facts = {
        key.replace("_gib", ""): f"{_text(value)}{' GiB' if '_gib' in key else ''}" for key, value in device.items()
    }
    supports = device.get("supports")
    if isinstance(supports, dict):
        names = (("bf16", "bf16"), ("fp16", "fp16"), ("tf32", "TF32"))
        facts["precisions"] = " ".join(["float32", *(shown for name, shown in names if supports.get(name))])
    name = facts.pop("name", "")
    rest = ", ".join(f"{key} {text}" for key, text in facts.items() if key not in ("supports", "why_not"))
    return f"{name} ({rest})" if rest else name
