"""One run a folder: a lock that the operating system releases with its owner, however that ends.

The lock file stays in the run's folder. Its text names the owner while one is alive, and is empty after a run that
ended in order, so that it also tells of a run that was killed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from mimetic.data.file_lock import LockFile
from mimetic.errors import TrainingError

logger = logging.getLogger(__name__)

RUN_LOCK = "run.lock"


@dataclass(frozen=True)
class Owner:
    """The process that holds, or held, a run's folder.

    Args:
        pid: process number on that machine.
        host: name of the machine.
        since: local time there when the run took the folder, as text; only ever shown, since clocks jump.
    """

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class RunLock:
    """While active, this run is the only one that writes into a folder.

    On a file system without locks a warning says that nobody watches over that, and the run goes on.

    Args:
        folder: folder of the run; must exist.

    Raises:
        TrainingError: another run is alive in the folder, or the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: LockFile | None = None

    def __enter__(self) -> RunLock:
        try:
            file = LockFile(self.folder / RUN_LOCK)
        except OSError as error:
            raise TrainingError(
                f"the run's folder {self.folder} cannot be written: {error.strerror or error}",
                "choose another place with `--output_dir`",
            ) from error
        try:
            is_ours = file.try_lock()
        except OSError as error:
            file.close()
            logger.warning(
                "%s is on a file system without locks (%s): make sure that no other run uses this folder, two would "
                "damage each other's checkpoints",
                self.folder,
                error.strerror or error,
            )
            return self
        if not is_ours:
            owner = _owner(file.text())
            file.close()
            raise self._refusal(owner)
        former = _owner(file.text())
        if former is not None:
            logger.info("The former run in this folder (%s) was killed or crashed; its lock is free", former)
        with contextlib.suppress(OSError):  # a full disk; the lock holds without its text
            file.write(json.dumps(asdict(_ourselves())))
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a failing disk has been reported where it was met
            self._file.write("")
        self._file.close()
        self._file = None

    def _refusal(self, owner: Owner | None) -> TrainingError:
        other = "choose another folder with `--output_dir`"
        if owner is None:
            return TrainingError(f"another run is writing to {self.folder}", f"wait for its end, or {other}")
        where = "" if owner.host == socket.gethostname() else f" on {owner.host}"
        return TrainingError(
            f"another run is writing to {self.folder}: {owner}",
            f"wait for its end, stop it with `kill {owner.pid}`{where} (it saves a checkpoint first), or {other}",
        )


def _ourselves() -> Owner:
    now = datetime.datetime.now().astimezone()
    return Owner(os.getpid(), socket.gethostname(), f"{now:%Y-%m-%d %H:%M:%S %z}")


def _owner(text: str) -> Owner | None:
    """Who a lock file names; None for one that is empty, or half-written."""
    try:
        fields = json.loads(text)
        return Owner(int(fields["pid"]), str(fields["host"]), str(fields["since"]))
    except (ValueError, TypeError, KeyError):
        return None
