"""The packages' part of `mimetic info`: versions, extras and console scripts, all from package metadata."""

from __future__ import annotations

import re
from importlib import metadata

MISSING = "N/A"
PACKAGES = ("av", "pyarrow", "safetensors", "tokenizers", "torchvision")


def version(package: str) -> str | None:
    """Version of an installed package from its metadata; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def scripts() -> list[str]:
    """Console scripts of mimetic and of the LeRobot aliases, sorted."""
    points = metadata.entry_points(group="console_scripts")
    ours = ("mimetic.", "lerobot.", "lerobot_cli_mimetic:")
    return sorted({point.name for point in points if point.value.startswith(ours)})


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
