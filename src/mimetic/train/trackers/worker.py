"""A thread that talks to a tracker's package, so that the training never waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from mimetic.names import METRICS_JSONL

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long the end of a run that ended well waits for a tracker [s]."""
PATIENCE_AFTER_STOP_S = 10.0
"""The same after a failure or a stop: whoever stopped it is waiting, and a scheduler soon kills [s]."""


class Worker:
    """Does jobs in a thread of its own, one after the other, until one fails.

    Args:
        name: the tracker, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_deaf = False
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Queue a job; returns at once. After a failure it is dropped."""
        if not self._is_deaf:
            self._queue.put(job)

    def close(self, deadline: float, *, hint: str = "") -> bool:
        """Wait for what is queued.

        Args:
            deadline: when to stop waiting, by `time.monotonic` [s].
            hint: what a person can do when it is not done by then.

        Returns:
            Whether nothing is running any more. Ctrl-C ends the wait too.
        """
        self._queue.put(None)
        started = time.monotonic()
        try:
            self._thread.join(max(0.0, deadline - started))
        except KeyboardInterrupt:
            logger.info("%s: not waiting any longer, as asked", self._name)
        if not self._thread.is_alive():
            return True
        self._is_deaf = True
        waited = time.monotonic() - started
        logger.warning("%s has not taken everything after %.0f s%s", self._name, waited, f"; {hint}" if hint else "")
        return False

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._is_deaf:
                continue
            try:
                job()
            except Exception as error:  # whatever it is: a training is worth more than its copy
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._is_deaf:  # reported already
            return
        self._is_deaf = True
        reason = str(error) or type(error).__name__
        logger.warning(
            "%s failed and gets nothing more of this run: %s; %s has it all", self._name, reason, METRICS_JSONL
        )


def deadline_after(exit_code: int, *, longer_s: float = 0.0) -> float:
    """When the end of a run stops waiting for a tracker, by `time.monotonic` [s].

    Args:
        exit_code: 0 when the training ended well.
        longer_s: what a good end waits beyond the usual [s].
    """
    return time.monotonic() + (PATIENCE_S + longer_s if exit_code == 0 else PATIENCE_AFTER_STOP_S)
