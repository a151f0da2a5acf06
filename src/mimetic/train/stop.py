"""Turning Ctrl-C and a scheduler's SIGTERM into an orderly end of the run."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class StopRequest:
    """While active, the first SIGINT or SIGTERM is remembered; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._former: dict[signal.Signals, object] = {}

    @property
    def requested(self) -> bool:
        """Whether the run shall end after the current step."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + int(self.signal or signal.SIGINT)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._former.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
