"""`last` and `best`: names that lead to a checkpoint beside them (spec/training.md 15.1 and 24.3).

A name is a relative symbolic link, as in LeRobot, or where links are not allowed (Windows without the right to make
them, some network disks) a text file `<name>.txt` that holds the folder's name. It is replaced by one rename: at
every instant it leads to the former checkpoint or to the new one.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

BEST = "best"
_SAVING = ".saving-"


def point(parent: Path, link: str, name: str) -> None:
    """Make `link` lead to the folder `name`.

    Args:
        parent: `checkpoints/`.
        link: `last` or `best`.
        name: name of a folder in `parent`.

    Raises:
        OSError: the disk refused, or a real folder or file has the link's name; nothing has changed then.
    """
    place, note = parent / link, parent / f"{link}.txt"
    temporary = parent / f"{_SAVING}{link}-{os.getpid()}"
    if place.exists() and not place.is_symlink():
        raise FileExistsError(f"{place} is there, and is not a link")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(name, target_is_directory=True)
        temporary.replace(place)
        note.unlink(missing_ok=True)
    except (OSError, NotImplementedError) as error:
        temporary.unlink(missing_ok=True)
        logger.debug("no symbolic links here (%s), writing %s", error, note.name)
        written = parent / f"{_SAVING}{note.name}-{os.getpid()}"
        try:
            written.write_text(name + "\n", encoding="utf-8")
            written.replace(note)
        except OSError:
            written.unlink(missing_ok=True)
            raise
        if place.is_symlink():
            place.unlink()
    flush_folder(parent)


def named(parent: Path, link: str) -> Path | None:
    """Where `link` leads, whether or not that is there; None when there is no link, or it leads out of `parent`."""
    place, note = parent / link, parent / f"{link}.txt"
    if place.is_symlink():
        target = parent / place.readlink()
    elif note.is_file():
        target = parent / note.read_text(encoding="utf-8").strip()
    else:
        return None
    return target if target.resolve().parent == parent.resolve() else None


def unlink(parent: Path, link: str) -> None:
    """Take `link` away; a real folder or file of that name stays.

    Raises:
        OSError: the disk refused.
    """
    place = parent / link
    if place.is_symlink():
        place.unlink()
    (parent / f"{link}.txt").unlink(missing_ok=True)
    flush_folder(parent)


def flush_folder(folder: Path) -> None:
    """Make a folder's entries durable where the system allows it (Windows has no such call)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
