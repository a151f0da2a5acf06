"""Runs one command of the demo in a process of its own, on the same terminal, and passes signals on to it.

The command is the leader of its own process group: Ctrl-C reaches this process only, which hands it on once. Were both
in the terminal's group, a command that saves at the first Ctrl-C and gives up at the second would get two.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType

_FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: its exit code; below 0 the signal that killed it.
        seconds: that it took.
        memory_gb: most memory that its largest process held [GiB]; None where the system does not tell.
    """

    code: int
    seconds: float
    memory_gb: float | None


class Signals:
    """While active, Ctrl-C, SIGTERM and SIGHUP go to the command that runs; without one they interrupt this process.

    Stopping with Ctrl-Z stops the command as well.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._owed: signal.Signals | None = None
        self._child: int | None = None
        self._is_starting = False
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` wants it
                self._former[number] = signal.signal(number, self._pass_on)
        if hasattr(signal, "SIGTSTP"):
            self._former[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
            # The command is not in the terminal's foreground, and must be free to write there all the same.
            self._former[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._former.clear()

    def was_told(self) -> bool:
        """Whether a signal has come."""
        return self.received is not None

    def run(
        self, words: Sequence[str], *, keep: Sequence[int] = (), on_start: Callable[[int], None] = lambda pid: None
    ) -> Ended:
        """Run `mimetic` with these words and wait for its end.

        Args:
            words: after `mimetic`.
            keep: file handles that it inherits.
            on_start: called with its process number.

        Raises:
            KeyboardInterrupt: a signal came before it had begun.
            OSError: it cannot be started.
        """
        if self.was_told():
            raise KeyboardInterrupt
        begun = time.monotonic()
        self._is_starting = True
        try:
            process = _start(words, keep)
            self._child = process.pid
            self._send_owed()  # what came while it was being started
            on_start(process.pid)
            code, memory = _wait(process)
        finally:
            self._is_starting = False
            self._child = None
        return Ended(code, time.monotonic() - begun, memory)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.received = self._owed = signal.Signals(number)
        if self._child is not None:
            self._send_owed()
        elif not self._is_starting:
            raise KeyboardInterrupt

    def _send_owed(self) -> None:
        """Hand the signal on, unless it was already: to a command, a second one means to give up."""
        number, self._owed = self._owed, None
        # On Windows the console has told the command already.
        if number is not None and self._child is not None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        if sys.platform == "win32":
            return
        self._tell_group(signal.SIGSTOP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._pause)
        self._tell_group(signal.SIGCONT)

    def _tell_group(self, number: signal.Signals) -> None:
        if self._child is not None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, number)


def _start(words: Sequence[str], keep: Sequence[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mimetic", *words]
    if sys.platform == "win32":
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, pass_fds=tuple(keep))


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    if sys.platform == "win32":
        while True:
            try:
                return process.wait(), None
            except KeyboardInterrupt:  # the command has been told, too; it saves and ends
                continue
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
