"""How much room kept frames may take, when nobody says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

AUTO_SHARE = 0.25
"""Share of what is free that may be taken without being asked for."""
MEMORY_SHARE = 0.8
"""Share of the free memory that may be taken when it is asked for: the run itself needs some."""
_RESERVE_BYTES, _RESERVE_SHARE = 5 * 2**30, 0.1
_CGROUP = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def free_disk(folder: Path) -> int:
    """Bytes that files below a folder may still take, with a tenth of the disk (5 GiB at most) to spare.

    Args:
        folder: it need not exist yet.

    Raises:
        OSError: the place cannot be looked at.
    """
    usage = shutil.disk_usage(_existing(folder))
    return max(0, usage.free - min(_RESERVE_BYTES, int(usage.total * _RESERVE_SHARE)))


def is_writable(folder: Path) -> bool:
    """Whether files can be made there."""
    place = _existing(folder)
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def free_memory() -> int:
    """Bytes of memory that this process may still take; a container's limit counts."""
    free = [_available()]
    for limit, used in _CGROUP:
        most, now = _number(limit), _number(used)
        if most is not None and now is not None and most < 1 << 60:
            free.append(max(0, most - now + _reclaimable(used.with_name("memory.stat"))))
    return min(free)


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # half of what the machine has: other systems do not say what is free
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return 4 * 2**30


def _reclaimable(path: Path) -> int:
    """Bytes of file contents that a container's usage counts and the system gives up when memory is needed."""
    try:
        words = dict(line.split()[:2] for line in path.read_text(encoding="ascii").splitlines())
        return int(words.get("total_inactive_file") or words.get("inactive_file") or 0)
    except (OSError, ValueError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place
