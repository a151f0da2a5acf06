"""One repair of a dataset at a time; and whether one is going on, or was broken off."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from mimetic.data.file_lock import LockFile
from mimetic.data.store.beside import living_builder
from mimetic.errors import DatasetError

logger = logging.getLogger(__name__)

WORK, JOURNAL = ".mimetic-repair", "journal.json"
"""Folder in the dataset in which a repair grows, and the file in it that says that the swap has begun."""
_LOCK = ".mimetic-repair.lock"
_ATTEMPTS = 20


@contextlib.contextmanager
def only_repair(root: Path) -> Iterator[None]:
    """While active, no other process repairs the dataset.

    Raises:
        DatasetError: one does, or replaces the dataset by an edited one; or nothing can be written there; or the files
            belong to the hub's cache, whose other users would not expect it.
    """
    if any(path.is_symlink() for folder in ("meta", "data") for path in (root / folder).rglob("*.*")):
        raise DatasetError(
            f"`{root}` is a copy that the hub's cache keeps; it cannot be repaired in its place",
            f"repair a copy of your own: `cp -rL {root} my_copy`",
        )
    editor = living_builder(root)
    if editor:
        raise DatasetError(f"process {editor} edits `{root}` just now", "wait until it has ended")
    lock = _take(root)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove an open file; it stays, empty of meaning
            lock.path.unlink()
        lock.close()


def require_no_repair(root: Path) -> None:
    """Refuse to read a dataset whose files are being swapped, or of which a kill left some old and some new.

    Raises:
        DatasetError: a repair goes on, or was broken off.
    """
    if (root / WORK / JOURNAL).is_file():
        raise DatasetError(
            f"a repair of `{root}` goes on, or was broken off",
            f"wait for it; or finish it: `mimetic dataset repair --root={root} --apply=true`",
        )


def _take(root: Path) -> LockFile:
    path = root / _LOCK
    if path.is_symlink():
        raise DatasetError(f"`{path}` is a link, which mimetic never makes", "remove it")
    for _ in range(_ATTEMPTS):
        try:
            lock = LockFile(path)
        except OSError as error:
            raise DatasetError(
                f"`{root}` cannot be repaired in its place: {error.strerror or error}",
                "a repair writes into the dataset: change its permissions, or repair a copy",
            ) from error
        try:
            is_ours = lock.try_lock()
        except OSError as error:
            logger.warning("%s has no locks (%s): see to it that one process alone repairs", root, error.strerror)
            is_ours = True
        if is_ours and lock.is_in_place():
            with contextlib.suppress(OSError):
                lock.write(str(os.getpid()))
            return lock
        owner = lock.text().strip()
        lock.close()
        if not is_ours:
            raise DatasetError(f"process {owner or '?'} repairs `{root}` just now", "wait until it has ended")
    raise DatasetError(f"`{path}` comes and goes: other processes repair the dataset", "try again when they have ended")
