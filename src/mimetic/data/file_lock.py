"""A lock between processes, which the operating system releases when its owner dies."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class FileLock:
    """While active, no other process holds the lock on the same file.

    The file stays behind, since removing it would let two processes lock two files of the same name.

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
        self._handle = -1

    def __enter__(self) -> FileLock:
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._wait()
            os.ftruncate(self._handle, 0)
            os.write(self._handle, str(os.getpid()).encode())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _wait(self) -> None:
        has_told = False
        while not self._try():
            if not has_told:
                has_told = True
                owner = self.path.read_bytes().decode(errors="replace") if sys.platform != "win32" else ""
                logger.info(
                    "another run%s is %s; waiting for it", f" (process {owner})" if owner else "", self._purpose
                )
            self._give_up()
            time.sleep(_PAUSE_S)

    def _try(self) -> bool:
        try:
            _lock(self._handle)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise CacheError(
                f"`{self.path}` cannot be locked: {error.strerror or error}",
                "two runs could damage each other's features there: choose a folder on another file system with "
                "`--cache.folder=FOLDER`, or `--cache.features=off`",
            ) from error
        return True

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)  # which also unlocks it
            self._handle = -1


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        # Far beyond the end, so that the file's text can still be read.
        os.lseek(handle, 1 << 30, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
