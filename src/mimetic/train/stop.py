"""Turning Ctrl-C and a scheduler's signals into an orderly end of the run (spec/training.md 24.3).

SIGTERM is what schedulers, containers and service managers send; SIGUSR1 is the warning that SLURM (`--signal`), Grid
Engine (`s_rt`) and LSF (`-wa`) can be told to send before the time is up; SIGBREAK is Ctrl-Break on Windows.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, ModuleType, TracebackType

from mimetic.errors import Interrupted

EXIT_TERMINATED = 143
"""128 plus 15, what a shell reports for a process that SIGTERM ended; after SIGUSR1 and SIGBREAK too."""
EXIT_CTRL_C = 130

_Handler = Callable[[int, FrameType | None], None]


def scheduler_signals(module: ModuleType = signal) -> list[signal.Signals]:
    """The signals, besides Ctrl-C, that ask a run to end; those that this platform has."""
    return [getattr(module, name) for name in ("SIGTERM", "SIGUSR1", "SIGBREAK") if hasattr(module, name)]


def reason_text(number: int) -> str:
    """A signal's name as a user knows it: "Ctrl-C", "SIGTERM"."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class StopRequest:
    """While active, the first signal is remembered for the loop to see; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._handlers = _Handlers([signal.SIGINT, *scheduler_signals()], self._remember)

    @property
    def requested(self) -> bool:
        """Whether the run shall end after the current step."""
        return self.signal is not None

    @property
    def reason(self) -> str:
        """Who asked: "Ctrl-C", "SIGTERM", "SIGUSR1", "SIGBREAK"; empty when nobody did."""
        return "" if self.signal is None else reason_text(self.signal)

    def exit_code(self, saved: bool, requeue: int) -> int:
        """Exit code of the run that ends now.

        Args:
            saved: whether a checkpoint of the last step is on the disk, so that nothing is lost.
            requeue: code that makes the scheduler queue the job again (`--requeue_exit_code`).

        Returns:
            130 after Ctrl-C; after another signal `requeue` when all is saved, else 143.
        """
        if self.signal is None or self.signal == signal.SIGINT:
            return EXIT_CTRL_C
        return requeue if saved else EXIT_TERMINATED

    def __enter__(self) -> StopRequest:
        self._handlers.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.give_back()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


class StartUp:
    """While active, a scheduler's signal ends the program at once: there is nothing to save yet.

    Ctrl-C does that without our help. A `StopRequest` that becomes active in the meantime goes first.

    Raises:
        Interrupted: at the end of the block that the signal broke off; its exit code is 143.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._handlers = _Handlers(scheduler_signals(), self._end)

    def over(self) -> None:
        """Say that starting up is done; signals mean again what they meant before.

        Raises:
            Interrupted: a signal came, and some code on the way (a destructor, a callback) has dropped its exception.
        """
        self._handlers.give_back()
        if self._number is not None:
            raise self._interrupted(self._number)

    def __enter__(self) -> StartUp:
        self._handlers.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.give_back()
        if self._number is not None and not isinstance(error, Interrupted):
            raise self._interrupted(self._number) from error

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        raise KeyboardInterrupt  # and not our own error, which an `except Exception` on the way would catch

    def _interrupted(self, number: int) -> Interrupted:
        error = Interrupted(
            f"{reason_text(number)} came before the first step; nothing was trained yet, so nothing is lost",
            "the same command starts again",
        )
        error.exit_code = EXIT_TERMINATED
        return error


class _Handlers:
    """Signal handlers that are put in place and taken away together; only the main thread may do that."""

    def __init__(self, numbers: list[signal.Signals], handler: _Handler) -> None:
        self._numbers = numbers
        self._handler = handler
        self._former: dict[signal.Signals, object] = {}

    def take(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._former[number] = signal.signal(number, self._handler)

    def give_back(self) -> None:
        for number, handler in self._former.items():
            # None stands for a handler that was not set from Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
        self._former.clear()
