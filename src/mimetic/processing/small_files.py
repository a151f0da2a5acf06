"""Reading files of a checkpoint that should be small, whoever made them; imports nothing heavy."""

from __future__ import annotations

import stat
from pathlib import Path

from mimetic.errors import CheckpointError

_LARGEST_JSON = 10_000_000
_DEEPEST_JSON = 64


def read_small(path: Path) -> bytes:
    """A file that should have a few kilobytes; nothing large is read, and no pipe or device is waited for.

    Raises:
        CheckpointError: it is larger than 10 MB, or no file.
        OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):  # reading a folder says what it is
        raise CheckpointError(f"`{path}` is no file", "copy the checkpoint again")
    if status.st_size > _LARGEST_JSON:
        raise CheckpointError(
            f"`{path}` has {status.st_size / 1e6:.0f} MB, where a few kilobytes are usual",
            "do not use this checkpoint unless you know where it comes from",
        )
    return path.read_bytes()


def require_shallow(content: object) -> None:
    """Refuse nesting that code which walks through the content could fail on.

    Raises:
        RecursionError: more than 64 levels.
    """
    level, deep = [content], 0
    while level:
        deep += 1
        if deep > _DEEPEST_JSON:
            raise RecursionError(f"it is nested more than {_DEEPEST_JSON} levels deep")
        parts = [part for part in level if isinstance(part, (dict, list))]
        level = [item for part in parts for item in (part.values() if isinstance(part, dict) else part)]
