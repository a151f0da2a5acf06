"""Tasks on a pool of processes of this machine."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from mimetic import log
from mimetic.errors import MimeticError, WorkerError

_AHEAD = 2
"""Tasks handed out for each worker: the one at work and the next, so that none waits and few are dropped at a stop."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run_in_pool(work: Callable[[Any], Any], tasks: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Do tasks in `workers` fresh processes, each with one thread for computations.

    Yields:
        Position and result of each task as it ends; an exception of the task is yielded in the place of its result.

    Raises:
        WorkerError: a worker was killed from outside or by the system.
    """
    context = multiprocessing.get_context("spawn")  # fork would copy locks and threads of torch and PyAV
    before = {process.pid for process in multiprocessing.active_children()}
    level = log.LOGGER.level
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(level,))
    rest = iter(enumerate(tasks))
    running: dict[Future[Any], int] = {}
    is_over = False
    try:
        while True:
            while len(running) < workers * _AHEAD and (following := next(rest, None)) is not None:
                position, task = following
                running[executor.submit(guarded, work, task)] = position
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                position = running.pop(future)
                error = future.exception()
                if isinstance(error, BrokenProcessPool):
                    raise WorkerError(
                        "a worker process was ended from outside before its task was done",
                        "this is how a lack of memory looks: try fewer, such as `--num_workers=2`; what is finished "
                        'is kept. A script that calls mimetic needs `if __name__ == "__main__":` around its work',
                    ) from error
                yield position, error if error is not None else future.result()
        is_over = True
    finally:
        executor.shutdown(wait=is_over, cancel_futures=True)
        if not is_over:
            for process in multiprocessing.active_children():
                if process.pid not in before:
                    process.terminate()
                    process.join()


def guarded(work: Callable[[Any], Any], task: Any) -> Any:
    """The result of a task, or its exception as a value that every process can rebuild.

    Exceptions of other packages may not survive the way to another process; they arrive as a RuntimeError with the
    same text and the traceback as a note.
    """
    try:
        return work(task)
    except (MimeticError, OSError) as error:
        return error
    except Exception as error:
        plain = error if type(error).__module__ == "builtins" else RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(traceback.format_exc())
        return plain


def _begin_worker(level: int) -> None:
    """One thread a worker, records of the log to stderr, and no answer to Ctrl-C: the parent stops the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _THREADS:
        os.environ[name] = "1"
    if "torch" in sys.modules:  # a program's own main module may have imported it before
        sys.modules["torch"].set_num_threads(1)
    log.set_up(debug=0 < level <= logging.DEBUG)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed has nobody to work for, and would be in the way of the next start."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
