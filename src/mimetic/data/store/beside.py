"""A dataset folder is built beside its final place and gets its name when it is complete (spec/dataset.md 20.2)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path
from types import TracebackType

from mimetic.data.store.atomic import flush_file, flush_folder, write_bytes
from mimetic.errors import DatasetError

logger = logging.getLogger(__name__)

BUILDING = ".building"
_MARK = ".mimetic-building.json"
"""In a folder that is being built: says whose it is. Only folders with it are ever removed."""


class FolderBuild:
    """Builds a folder that appears at `target` as a whole or not at all.

    Use it as a context: `with FolderBuild(target) as build: ...; build.commit()`. Without `commit`, or when the block
    fails, what was built is removed and everything else is as before.

    Args:
        target: final folder.
        replaces: the dataset that `target` holds and that the new one takes the place of; it is renamed to
            `<name>_old` (or `_old_2`, ...) and never deleted. None: `target` must not exist.

    Raises:
        DatasetError: `target` exists and is not `replaces`, or another program that is alive builds there.
    """

    def __init__(self, target: Path, *, replaces: Path | None = None) -> None:
        self._target = target
        self._replaces = replaces
        self.folder = target.with_name(f"{target.name}{BUILDING}")
        finish_interrupted(target)
        self._check_target()

    def __enter__(self) -> FolderBuild:
        self._clear_leftover()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claim()
        except FileExistsError as error:
            raise self._is_busy(_read_mark(self.folder)[0]) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (self.folder / _MARK).is_file():
            shutil.rmtree(self.folder, ignore_errors=True)

    def commit(self) -> Path | None:
        """Give the built folder its name.

        Everything in it is flushed to the disk first. A kill between the two renames leaves the old dataset as
        `<name>_old` and the new one complete under its working name; `finish_interrupted` gives it the right one.

        Returns:
            Where the replaced dataset is now; None when nothing was replaced.
        """
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                flush_file(path)
            elif path.is_dir():
                flush_folder(path)
        self._check_target()
        self._mark_complete()
        backup = None
        if self._target.exists():
            backup = free_name(self._target)
            self._target.rename(backup)
        try:
            self.folder.rename(self._target)
        except OSError:
            if backup is not None:
                backup.rename(self._target)
            raise
        (self._target / _MARK).unlink()
        flush_folder(self._target.parent)
        return backup

    def _claim(self) -> None:
        """Write the mark, which only one of two programs that begin at the same time can make."""
        mark = self.folder / _MARK
        with mark.open("xb") as file:
            try:
                file.write(_content(complete=False))
                file.flush()
            except BaseException:  # a full disk: without its mark nobody could tell later whose the folder is
                with contextlib.suppress(OSError):
                    mark.unlink()
                    self.folder.rmdir()
                raise

    def _mark_complete(self) -> None:
        write_bytes(self.folder / _MARK, _content(complete=True))

    def _is_busy(self, process: int) -> DatasetError:
        return DatasetError(
            f"process {process or '?'} is building `{self._target}` just now",
            f"wait until it has ended; if it is not mimetic, remove `{self.folder}`",
        )

    def _check_target(self) -> None:
        is_there = self._target.exists() or self._target.is_symlink()  # a link to nowhere is in the way too
        if not is_there or _same(self._target, self._replaces):
            return
        if self._target.is_dir() and not self._target.is_symlink() and not any(self._target.iterdir()):
            self._target.rmdir()
            return
        raise DatasetError(f"`{self._target}` exists already", "choose another folder, or move that one away")

    def _clear_leftover(self) -> None:
        """Remove what a killed build of ours left; anything else under that name is not ours to remove."""
        if self.folder.is_dir() and not self.folder.is_symlink() and not any(self.folder.iterdir()):
            return  # a kill came before the mark; there is nothing to lose
        if not self.folder.exists() and not self.folder.is_symlink():
            return
        if not (self.folder / _MARK).is_file():
            raise DatasetError(
                f"`{self.folder}` is in the way, and mimetic did not make it",
                "move it away; mimetic builds the new dataset there before it gets its name",
            )
        process = living_builder(self._target)
        if process:
            raise self._is_busy(process)
        shutil.rmtree(self.folder)


def finish_interrupted(target: Path) -> bool:
    """Give a complete build its name when a kill came between the two renames of `FolderBuild.commit`.

    Returns:
        Whether there was one.
    """
    if (target / _MARK).is_file():  # the kill came right after the rename
        (target / _MARK).unlink()
        return True
    built = target.with_name(f"{target.name}{BUILDING}")
    process, is_complete = _read_mark(built)
    if target.exists() or not is_complete or (process != os.getpid() and _is_alive(process)):
        return False
    built.rename(target)
    (target / _MARK).unlink()
    flush_folder(target.parent)
    logger.warning("%s was complete when an earlier command was killed; it has its name now", target)
    return True


def _content(*, complete: bool) -> bytes:
    return json.dumps({"process": os.getpid(), "complete": complete}).encode()


def living_builder(target: Path) -> int:
    """The process that builds what takes the place of a folder; 0 when there is none, or it is this one."""
    process, _ = _read_mark(target.with_name(f"{target.name}{BUILDING}"))
    return process if process and process != os.getpid() and _is_alive(process) else 0


def _read_mark(folder: Path) -> tuple[int, bool]:
    """Process that builds a folder (0: unknown), and whether it was complete."""
    try:
        content = json.loads((folder / _MARK).read_text(encoding="utf-8"))
        return int(content["process"]), content.get("complete") is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, False


def free_name(folder: Path) -> Path:
    """`<name>_old`, or the first of `<name>_old_2`, `<name>_old_3`, ... that does not exist."""
    number, name = 1, folder.with_name(f"{folder.name}_old")
    while name.exists() or name.is_symlink():
        number += 1
        name = folder.with_name(f"{folder.name}_old_{number}")
    return name


def _same(one: Path, other: Path | None) -> bool:
    return other is not None and os.path.realpath(one) == os.path.realpath(other)


def _is_alive(process: int) -> bool:
    if process <= 0 or os.name == "nt":  # os.kill would end it there
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
