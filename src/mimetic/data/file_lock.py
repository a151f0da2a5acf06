"""A lock between processes, which the operating system releases when its owner dies."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_open: weakref.WeakSet[LockFile] = weakref.WeakSet()


class LockFile:
    """An open file that one holder at a time can lock; its text says who that is.

    The file stays behind, since removing it would let two processes lock two files of the same name. Two handles
    of the same process exclude each other too.

    Args:
        path: file to lock; made when it is not there.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._has_lock = False
        _open.add(self)

    def try_lock(self) -> bool:
        """Lock the file unless somebody else holds it; returns whether it is ours now.

        Raises:
            OSError: the file system has no locks.
        """
        try:
            _lock(self._handle)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        self._has_lock = True
        return True

    def fileno(self) -> int:
        """The open handle, for a child process that shall hold the lock as well."""
        return self._handle

    def is_in_place(self) -> bool:
        """Whether the file that is open still has its name; a holder who is done may have removed it."""
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.stat())
        except OSError:
            return False

    def text(self) -> str:
        """What the last holder wrote; empty where it cannot be read."""
        try:
            return self.path.read_bytes().decode(errors="replace")
        except OSError:  # Windows, when a holder of another program has locked these bytes
            return ""

    def write(self, text: str) -> None:
        """Replace the text.

        Raises:
            OSError: the disk is full or fails.
        """
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, text.encode())

    def close(self) -> None:
        """Release the lock, if it is ours, and close the file; may be called again."""
        if self._handle < 0:
            return
        if self._has_lock:
            _unlock(self._handle)
        self.forget()

    def forget(self) -> None:
        """Close the file without releasing the lock, as a forked child must do whose parent still holds it."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._has_lock = -1, False


def _forget_all() -> None:
    for file in list(_open):
        file.forget()


if hasattr(os, "register_at_fork"):
    # A child that outlives a killed parent must not keep what the parent had locked.
    os.register_at_fork(after_in_child=_forget_all)


class FileLock:
    """While active, no other process holds the lock on the same file; waits for one that does.

    Args:
        path: file to lock; made when it is not there. It names its owner, for messages.
        purpose: what the owner does, for the message of one who waits.
        give_up: called while waiting; raises to stop that.

    Raises:
        CacheError: the file system has no locks.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, *, purpose: str, give_up: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._purpose = purpose
        self._give_up = give_up
        self._file: LockFile | None = None

    def __enter__(self) -> FileLock:
        self._file = LockFile(self.path)
        try:
            self._wait(self._file)
            self._file.write(str(os.getpid()))
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _wait(self, file: LockFile) -> None:
        has_told = False
        while not self._try(file):
            if not has_told:
                has_told = True
                owner = file.text() if sys.platform != "win32" else ""
                logger.info(
                    "another run%s is %s; waiting for it", f" (process {owner})" if owner else "", self._purpose
                )
            self._give_up()
            time.sleep(_PAUSE_S)

    def _try(self, file: LockFile) -> bool:
        try:
            return file.try_lock()
        except OSError as error:
            raise CacheError(
                f"`{self.path}` cannot be locked: {error.strerror or error}",
                "two runs could damage each other's features there: choose a folder on another file system with "
                "`--cache.folder=FOLDER`, or `--cache.features=off`",
            ) from error


if sys.platform == "win32":
    import msvcrt

    # Far beyond the end, so that the file's text can still be read.
    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 30, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        os.lseek(handle, 1 << 30, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)
