"""The loader's threads: started together, waited for without silence, ended with a word when they do not come back.

A thread that reads from a network file system, or a decoder that never returns, cannot be ended from outside. What can
be done is to say which batch and which files it is about, again and again with growing pauses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from mimetic.errors import ConfigError, TrainingError

Job = TypeVar("Job")
Result = TypeVar("Result")

LOOK_S = 0.5
"""How often somebody who waits looks up [s]."""


@dataclass
class Task(Generic[Job, Result]):
    """A job in the hands of the threads.

    Args:
        job: what is made.
        future: its result.
        thread: who makes it; None while nobody has begun.
        begun: when that was, on the monotonic clock [s].
    """

    job: Job
    future: Future[Result] = field(default_factory=Future)
    thread: threading.Thread | None = None
    begun: float | None = None


class LoaderThreads(Generic[Job, Result]):
    """A fixed number of threads in which torch computes single-threaded.

    Workers are the parallelism; a team of OpenMP threads for each would fight with the training step. Besides, sums
    split over another number of threads may round differently, and batches must not depend on the machine's cores.
    The threads are joined by Python itself when the interpreter ends, so an interrupted run does not hang.

    Args:
        num_workers: number of threads.
        make: job -> result, called in the threads.
        overdue: told about a task that has been waited for too long, and for how long [s].
        patience_s: when it is told first; then after twice that time, four times, and so on.

    Raises:
        ConfigError: the system does not give that many threads.
    """

    def __init__(
        self,
        num_workers: int,
        make: Callable[[Job], Result],
        overdue: Callable[[Task[Job, Result], float], None],
        patience_s: float,
    ) -> None:
        self._make = make
        self._overdue = overdue
        self._patience_s = patience_s
        before = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(num_workers, "mimetic-loader", initializer=_compute_in_one_thread)
        self._threads = _started_together(self._pool, num_workers)
        torch.set_num_threads(before)

    def submit(self, job: Job) -> Task[Job, Result]:
        """Hand a job to the threads.

        Raises:
            TrainingError: the threads have ended.
        """
        task = Task[Job, Result](job)
        try:
            task.future = self._pool.submit(self._run, task)
        except BrokenExecutor as error:
            raise _ended() from error
        return task

    def result(self, task: Task[Job, Result], on_wait: Callable[[], None] | None = None) -> Result:
        """Wait for a task; return or raise what it gave.

        Args:
            task: what `submit` returned.
            on_wait: called about twice a second meanwhile; what it raises ends the waiting.

        Raises:
            TrainingError: the thread that made it has ended without a result.
        """
        asked, patience = time.monotonic(), self._patience_s
        while not wait([task.future], timeout=min(LOOK_S, self._patience_s)).done:
            if on_wait is not None:
                on_wait()
            if not self._is_alive(task) and not task.future.done():
                raise _ended()
            waited = time.monotonic() - asked
            if waited >= patience:
                self._overdue(task, waited)
                patience *= 2
        return task.future.result()

    def close(self, still_busy: Callable[[float], None]) -> None:
        """Drop what is not begun, and wait for what is.

        Args:
            still_busy: told, with growing pauses, that threads have not come back for so long [s].
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        began, patience = time.monotonic(), self._patience_s
        for thread in self._threads:
            while thread.is_alive():
                thread.join(timeout=max(0.0, began + patience - time.monotonic()))
                if thread.is_alive():
                    still_busy(time.monotonic() - began)
                    patience *= 2

    def _run(self, task: Task[Job, Result]) -> Result:
        task.thread, task.begun = threading.current_thread(), time.monotonic()
        return self._make(task.job)

    def _is_alive(self, task: Task[Job, Result]) -> bool:
        return task.thread.is_alive() if task.thread is not None else any(one.is_alive() for one in self._threads)


class Watch(Generic[Job]):
    """Tells about a job that takes long in the thread that asked for it, where nobody is waiting who could.

    Args:
        overdue: told about the job, and for how long it has been in the making [s].
        patience_s: when it is told first; then after twice that time, four times, and so on.
    """

    def __init__(self, overdue: Callable[[Job, float], None], patience_s: float) -> None:
        self._overdue = overdue
        self._patience_s = patience_s
        self._current: tuple[Job, float] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="mimetic-loader-watch", daemon=True)

    @contextmanager
    def making(self, job: Job) -> Iterator[None]:
        """While active, a job is made."""
        if not self._thread.is_alive() and not self._is_over.is_set():
            self._thread.start()
        self._current = (job, time.monotonic())
        try:
            yield
        finally:
            self._current = None

    def close(self) -> None:
        """End the watch."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        seen: tuple[Job, float] | None = None
        patience = self._patience_s
        while not self._is_over.wait(min(LOOK_S, self._patience_s)):
            current = self._current
            if current is not seen:
                seen, patience = current, self._patience_s
            if current is not None and time.monotonic() - current[1] >= patience:
                self._overdue(current[0], time.monotonic() - current[1])
                patience *= 2


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """While active, torch computes in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compute_in_one_thread() -> None:
    # Asking first matters: a thread's first question sets its count to the common one, undoing what was set before.
    torch.get_num_threads()
    torch.set_num_threads(1)


def _started_together(pool: ThreadPoolExecutor, num_workers: int) -> list[threading.Thread]:
    """All threads of a pool, each started: without the barrier, one that is fast would do the work of several."""
    together = threading.Barrier(num_workers)

    def meet() -> threading.Thread:
        together.wait()
        return threading.current_thread()

    started: list[Future[threading.Thread]] = []
    try:
        for _ in range(num_workers):
            started.append(pool.submit(meet))
    except RuntimeError as error:  # "can't start new thread"
        together.abort()
        pool.shutdown(wait=True, cancel_futures=True)
        raise ConfigError(
            f"the system gives {len(started)} of {num_workers} threads for loading: {error}",
            f"take fewer with `--num_workers={len(started) // 2}`, or raise the limit of this user or container "
            "(`ulimit -u`, `pids.max`)",
        ) from error
    return [one.result() for one in started]


def _ended() -> TrainingError:
    return TrainingError(
        f"the threads that load data have ended without a result (process {os.getpid()})",
        "start again; `--num_workers=0` loads without threads of its own and shows what happens there",
    )
