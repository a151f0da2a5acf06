"""Where features of camera frames are kept, and what lies there; imports nothing heavy, for `mimetic info`.

    FOLDER/<camera>-<digest>/header.json     what the array is
                             features.bin    the array, one row a frame; rows that are not built are holes
                             marks.bin       one checksum a row, 0 for a row that is not built
    FOLDER/<camera>-<digest>.lock            held by the run that builds it

Everything can be deleted at any time while no run reads it; the next run builds what it needs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = "header.json"
FEATURES = "features.bin"
FRAMES = "frames.bin"
MARKS = "marks.bin"
_LARGEST_HEADER = 1_000_000
VARIABLE = "MIMETIC_CACHE"
"""Environment variable that names the folder of all of mimetic's caches."""


def default_cache_folder() -> Path:
    """Folder of feature caches: below `MIMETIC_CACHE`, `XDG_CACHE_HOME`, or the platform's place for caches.

    Raises:
        RuntimeError: there is no home folder.
    """
    for name, inner in ((VARIABLE, "features"), ("XDG_CACHE_HOME", "mimetic/features")):
        if os.environ.get(name):
            return Path(os.environ[name]).expanduser() / inner
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mimetic" / "features"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "mimetic" / "Cache" / "features"
    return Path.home() / ".cache" / "mimetic" / "features"


def default_frames_folder() -> Path:
    """Folder of kept frames (`data/frames/content`), beside that of features.

    Raises:
        RuntimeError: there is no home folder.
    """
    return default_cache_folder().with_name("frames")


@dataclass(frozen=True)
class CacheEntry:
    """One array of features, or of frames, on disk.

    Args:
        path: its folder.
        header: what it says about itself; empty when that cannot be read.
        n_bytes: space that it takes on the disk [bytes]; holes do not count.
    """

    path: Path
    header: Mapping[str, Any]
    n_bytes: int


def list_caches(folder: Path) -> list[CacheEntry]:
    """The arrays of features or frames in a folder, by name; none when there is no such folder."""
    found = []
    for header in sorted(folder.glob(f"*/{HEADER}")):
        n_bytes = sum(_space(header.parent / name) for name in (HEADER, FEATURES, FRAMES, MARKS))
        found.append(CacheEntry(header.parent, read_header(header), n_bytes))
    return found


def read_header(path: Path) -> Mapping[str, Any]:
    """What an array says about itself; empty when that cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_HEADER:
            return {}
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def _space(path: Path) -> int:
    try:
        status = path.stat()
    except OSError:
        return 0
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else int(blocks) * 512
