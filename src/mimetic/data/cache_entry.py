"""What lies at the place of one cached array, and which of its rows are there (layout: `cache_folder`)."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.cache_folder import HEADER, MARKS, read_header


def entry_problem(path: Path, identity: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """Why what lies at an entry's place cannot be used; empty when it can, or when nothing is there.

    Args:
        path: folder of the entry.
        identity: what its header must say.
        sizes: bytes that each of its files must have.
    """
    if not path.exists():
        return ""
    header = read_header(path / HEADER)
    if not header:
        return f"{HEADER} cannot be read"
    for name, value in identity.items():
        if header.get(name) != value:
            return f"`{name}` in {HEADER} is {str(header.get(name))[:40]!r} instead of {str(value)[:40]!r}"
    for name, size in sizes.items():
        try:
            status = (path / name).stat()
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return f"{name} has {status.st_size} bytes instead of {size}"
    return ""


def read_marks(path: Path, rows: int, *, usable: bool) -> npt.NDArray[np.uint32]:
    """(rows,) mark of each row of an entry; 0 for rows that are not there, also when nothing usable is.

    Args:
        path: folder of the entry.
        rows: rows that it is made for.
        usable: whether `entry_problem` found nothing.
    """
    none = np.zeros(rows, dtype=np.uint32)
    if not usable or not path.exists():
        return none
    try:
        found = np.fromfile(path / MARKS, dtype="<u4").astype(np.uint32)
    except OSError:  # it has gone meanwhile
        return none
    return found if len(found) == len(none) else none
