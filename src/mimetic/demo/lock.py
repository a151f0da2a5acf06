"""One demo a folder. The lock is shared with the command that runs, so that it holds while either of the two lives."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
from pathlib import Path
from types import TracebackType

from mimetic.data.file_lock import LockFile
from mimetic.errors import MimeticError

logger = logging.getLogger(__name__)
LOCK = "demo.lock"


class DemoLock:
    """While active, no other demo works in the folder.

    On a file system without locks a warning says so, and the demo goes on.

    Args:
        folder: of the demo; it exists.

    Raises:
        MimeticError: another demo, or a command that one began, is at work there.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: LockFile | None = None

    def __enter__(self) -> DemoLock:
        file = LockFile(self.folder / LOCK)
        try:
            is_ours = file.try_lock()
        except OSError as error:
            file.close()
            logger.warning(
                "%s is on a file system without locks (%s): make sure that no other demo uses it", self.folder, error
            )
            return self
        if not is_ours:
            text = file.text()
            file.close()
            raise _refusal(self.folder, text)
        self._file = file
        self.tell(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a failing disk has been reported where it was met
                self._file.write("")
            self._file.close()
            self._file = None

    @property
    def handles(self) -> tuple[int, ...]:
        """File handles that a command of this demo inherits, with which it holds the lock, too."""
        return () if self._file is None or os.name == "nt" else (self._file.fileno(),)

    def tell(self, child: int | None) -> None:
        """Note who is at work.

        Args:
            child: process number of the command that runs; None when none does.
        """
        if self._file is None:
            return
        now = datetime.datetime.now().astimezone()
        owner = {"pid": os.getpid(), "child": child, "host": socket.gethostname(), "since": f"{now:%Y-%m-%d %H:%M:%S}"}
        with contextlib.suppress(OSError):  # a full disk; the lock holds without its text
            self._file.write(json.dumps(owner))


def _refusal(folder: Path, text: str) -> MimeticError:
    other = "choose another folder with `--output_dir`"
    try:
        owner = json.loads(text)
        numbers = [int(number) for number in (owner["pid"], owner["child"]) if number]
        who = f"process {' or its command '.join(map(str, numbers))} on {owner['host']}, since {owner['since']}"
        stop = f"stop it with `kill -INT {numbers[-1]}`, after which it can go on, or "
    except (ValueError, TypeError, KeyError):
        return MimeticError(f"another demo is at work in {folder}", f"wait for its end, or {other}")
    return MimeticError(f"another demo is at work in {folder}: {who}", f"wait for its end, {stop}{other}")
