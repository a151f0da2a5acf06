"""Changing several files of a dataset at once, so that a kill or power cut leaves all of the change or nothing of it.

New contents are written under working names in a folder beside the data and flushed to the disk. Then one small file,
the journal, lists which of them get which final names and which old files go; writing it is the moment at which the
change counts. Whoever opens the dataset afterwards (`recover`) completes a change whose journal is there, and removes
working files without one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mimetic.data.file_lock import LockFile
from mimetic.data.layout import require_inside
from mimetic.data.store.atomic import flush_file, flush_folder, read_json, write_json
from mimetic.errors import DatasetError, DatasetFormatError

logger = logging.getLogger(__name__)

WORK_DIR = ".mimetic-recording"
"""Folder in a dataset that is being recorded; nothing in it is part of the dataset."""
_JOURNAL = "journal.json"
_LOCK = "lock"
_VERSION = 1
_ATTEMPTS = 5


class WorkFolder:
    """The folder of unfinished files of one dataset, and the right to change the dataset.

    Args:
        root: folder of the dataset; must exist.

    Raises:
        DatasetError: another process records into the dataset, or the folder cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / WORK_DIR
        self.has_committed = False
        """Whether the last `commit` counts, even when it was interrupted."""
        self.is_unfinished = False
        """Whether a change counts whose files could not all get their names: nothing more can be done here."""
        self._lock: LockFile | None = _take(self.path)

    def file(self, name: str) -> Path:
        """Path of a working file."""
        return self.path / name

    def link(self, path: Path, name: str) -> Path:
        """A second name of a file of the dataset, among the working files; a copy where there are no links."""
        working = self.path / name
        try:
            working.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, working)
        return working

    def commit(self, what: str, renames: Sequence[tuple[Path, Path]], deletes: Iterable[Path] = ()) -> None:
        """Make a change: all of it, whatever happens from now on.

        Args:
            what: for messages, such as "episode 7 was saved".
            renames: (working file, final file) in the order in which they appear; existing files are replaced.
            deletes: files of the dataset that go.

        Raises:
            OSError: the journal could not be written: nothing has changed.
            DatasetError: it was written, and a file could not get its name: the next opening completes the change.
        """
        assert all(working.parent == self.path for working, _ in renames), "only working files get names"
        final = [name for _, name in renames]
        for working, _ in renames:
            flush_file(working)
        flush_folder(self.path)
        content = {
            "version": _VERSION,
            "what": what,
            "renames": [[self._relative(working), self._relative(name)] for working, name in renames],
            "deletes": [self._relative(path) for path in deletes if path not in final],
        }
        self.has_committed = False
        journal = self.path / _JOURNAL
        try:
            write_json(journal, content)
        except BaseException:
            if not journal.is_file():
                raise
        self.has_committed = True
        try:
            _apply(self.root, content)
        except BaseException as error:
            self._finish(content, error)

    def _finish(self, content: Mapping[str, Any], error: BaseException) -> None:
        """Complete a change that an interruption or the system stopped half-way."""
        try:
            _apply(self.root, content)
        except OSError as again:
            self.is_unfinished = True
            raise DatasetError(
                f"{content['what']}, but a file in `{self.root}` could not get its name: {again.strerror or again}",
                "nothing is lost: see to the disk and open the dataset again, which completes the change",
            ) from again
        if not isinstance(error, OSError):
            raise error

    def clear(self) -> list[str]:
        """Remove working files; returns the names of those that were there."""
        return [] if self.is_unfinished else _clear(self.path)

    def close(self, *, remove: bool) -> None:
        """Give the dataset free.

        Args:
            remove: also remove the folder, as after work that ended in order.
        """
        if self._lock is None:
            return
        if remove and not self.is_unfinished:
            _clear(self.path)
            with contextlib.suppress(OSError):
                (self.path / _LOCK).unlink(missing_ok=True)
                self.path.rmdir()
            flush_folder(self.root)
        self._lock.close()
        self._lock = None

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def recover(root: Path) -> list[str]:
    """Complete, or take back, what a killed recording left unfinished in a dataset.

    Costs one look when there is nothing to do. A dataset that a living process records into is left alone.

    Args:
        root: folder of the dataset.

    Returns:
        What was done, one sentence each; empty when nothing was.

    Raises:
        DatasetError: there is something to do and it cannot be done (rights, a full disk).
        DatasetFormatError: a journal that no mimetic wrote.
    """
    work = root / WORK_DIR
    if not work.is_dir() or work.is_symlink():
        return []
    try:
        folder = WorkFolder(root)
    except Recording:
        return []
    try:
        done = finish(folder)
    except OSError as error:
        folder.close(remove=False)
        raise DatasetError(
            f"the recording into `{root}` that was interrupted cannot be tidied: {error.strerror or error}",
            "look at the rights and the free space of the disk",
        ) from error
    except BaseException:
        folder.close(remove=False)
        raise
    folder.close(remove=True)
    return done


def finish(folder: WorkFolder) -> list[str]:
    """Complete a change whose journal is there, and remove other working files; see `recover`."""
    done = []
    journal = folder.path / _JOURNAL
    if journal.is_file():
        content = _read(folder.root, journal)
        _apply(folder.root, content)
        done.append(f"a change that was interrupted is complete now: {content['what']}")
    left = folder.clear()
    if left:
        done.append(
            f"removed {len(left)} working files of what was not finished: an episode in progress, or packing "
            f"({', '.join(left[:4])})"
        )
    return done


class Recording(DatasetError):
    """A living process records into the dataset."""


def _take(path: Path) -> LockFile:
    if path.is_symlink():
        raise DatasetError(f"`{path}` is a link, which mimetic never makes", "remove it")
    for _ in range(_ATTEMPTS):
        try:
            path.mkdir(exist_ok=True)
            lock = LockFile(path / _LOCK)
        except FileNotFoundError:  # another process has removed the folder just now
            continue
        except OSError as error:
            raise DatasetError(
                f"`{path}` cannot be made: {error.strerror or error}", "recording needs to write into the dataset"
            ) from error
        try:
            is_ours = lock.try_lock()
        except OSError as error:  # a file system without locks: recording is still possible
            logger.warning("%s has no locks (%s): see to it that one process alone records", path, error.strerror)
            is_ours = True
        if is_ours and lock.is_in_place():
            with contextlib.suppress(OSError):
                lock.write(str(os.getpid()))
            return lock
        owner = lock.text().strip()
        lock.close()
        if not is_ours:
            raise Recording(
                f"process {owner or 'unknown'} records into `{path.parent}` just now",
                "wait until it has ended, or end it",
            )
    raise DatasetError(f"`{path}` comes and goes: another process opens and closes the dataset", "try again")


def _apply(root: Path, content: Mapping[str, Any]) -> None:
    """Do what a journal says and remove it; may be done again after a kill at any point."""
    folders = set()
    for working, name in content["renames"]:
        source, target = root / working, root / name
        if source.exists():  # else an earlier attempt came as far as this
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
        folders.add(target.parent)
    for name in content["deletes"]:
        (root / name).unlink(missing_ok=True)
        folders.add((root / name).parent)
    for folder in sorted(folders):
        _flush_up(folder, root)
    (root / WORK_DIR / _JOURNAL).unlink(missing_ok=True)
    flush_folder(root / WORK_DIR)
    for folder in sorted(folders, reverse=True):
        _remove_empty(folder, root)


def _flush_up(folder: Path, root: Path) -> None:
    """Flush a folder and those that may have been made for it."""
    while folder != root and folder.is_relative_to(root):
        if folder.is_dir():
            flush_folder(folder)
        folder = folder.parent
    flush_folder(root)


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a chunk folder that packing emptied."""
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _read(root: Path, journal: Path) -> dict[str, Any]:
    """A journal's content; paths are checked, since a downloaded folder may hold any."""
    content = read_json(journal)
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        renames = [(str(working), str(name)) for working, name in content["renames"]]
        deletes = [str(name) for name in content["deletes"]]
        what = str(content["what"])
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetFormatError(
            f"`{journal}` is not a journal that this mimetic can follow: {error!s:.100}",
            f"if no recording is under way, move `{journal.parent}` out of the dataset",
        ) from error
    for name in (*deletes, *(part for pair in renames for part in pair)):
        if name.startswith(("/", "~")) or "\\" in name or ":" in name.split("/")[0] or ".." in name.split("/"):
            raise DatasetFormatError(f"`{journal}` names `{name}`, outside the dataset", "do not use this dataset")
        require_inside(root, root / name)
    return {"version": _VERSION, "what": what, "renames": renames, "deletes": deletes}


def _clear(path: Path) -> list[str]:
    found = []
    for entry in sorted(path.iterdir()) if path.is_dir() else ():
        if entry.name == _LOCK:
            continue
        found.append(entry.name)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    return found
