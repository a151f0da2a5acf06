"""The same work on one process, a pool of processes or a Ray cluster (docs/concepts/datasets_at_scale.md).

A task is a plain value (paths, numbers, frozen dataclasses) and the work a function of a module, so that both can be
sent to another process or machine. Work writes its files under temporary names and renames them: a task may then be
broken off at any moment, and done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.pool import guarded, run_in_pool
from mimetic.data.engine.ray_cluster import run_on_ray
from mimetic.errors import MimeticError

logger = logging.getLogger(__name__)

_POOL_PAYS_S = 8.0
"""Work that one process does in less is not divided: each worker needs a second or two to start."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    config: EngineConfig | None = None,
    *,
    on_done: Callable[[int, Result], None] | None = None,
    name: Callable[[Task], str] | None = None,
    expected_s: float | None = None,
) -> list[Result]:
    """Do all tasks.

    Args:
        work: function of a module (no lambda, no method); called once for each task.
        tasks: plain values.
        config: who works; one process when absent.
        on_done: called in this process with the position of a task and its result as soon as it is there, in the
            order in which tasks end.
        name: how a message calls a task, such as "episode 3"; put before what a failed task says.
        expected_s: about how long one process would work [s], where that can be told; short work is not worth the start
            of a pool (`--engine=auto`).

    Returns:
        The results in the order of the tasks, whoever did them.

    Raises:
        MimeticError: a task failed; of several that fail, the first that was noticed. Tasks that have not begun are
            dropped, and workers are stopped.
        KeyboardInterrupt: the user interrupted; workers are stopped first.
    """
    config = config or EngineConfig(engine="serial")
    results: dict[int, Result] = {}
    engine, workers = choose(config, len(tasks), expected_s)
    logger.debug("%d tasks: engine %s, %d workers", len(tasks), engine, workers)
    for position, outcome in _outcomes(engine, work, tasks, workers, config):
        if isinstance(outcome, BaseException):
            raise _named(outcome, name(tasks[position]) if name is not None else "")
        results[position] = outcome
        if on_done is not None:
            on_done(position, outcome)
    return [results[position] for position in range(len(tasks))]


def choose(config: EngineConfig, n_tasks: int, expected_s: float | None = None) -> tuple[str, int]:
    """The engine, with `auto` decided, and how many tasks it works on at once (ray: 0 leaves it to the cluster)."""
    if config.engine == "serial" or n_tasks == 0:
        return "serial", 1
    if config.engine == "ray":
        return "ray", config.num_workers
    workers = min(config.num_workers or usable_cores(), n_tasks)
    is_short = expected_s is not None and expected_s < _POOL_PAYS_S
    if config.engine == "auto" and (workers < 2 or is_short):
        return "serial", 1
    return "pool", workers


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _outcomes(
    engine: str, work: Callable[[Any], Any], tasks: Sequence[Any], workers: int, config: EngineConfig
) -> Iterable[tuple[int, Any]]:
    """Position and result (or the exception) of each task as it ends."""
    if engine == "ray":
        return run_on_ray(work, tasks, limit=workers, address=config.address)
    if engine == "pool":
        return run_in_pool(work, tasks, workers)
    return _run_here(work, tasks)


def _run_here(work: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    for position, task in enumerate(tasks):
        yield position, guarded(work, task)


def _named(error: BaseException, name: str) -> BaseException:
    """The error of a task, with the task's name where the message does not hold it."""
    if not name or name in str(error):
        return error
    if isinstance(error, MimeticError):  # in place: some hold more than a message and a hint
        error.message = f"{name}: {error.message}"
        return error
    error.add_note(f"while mimetic worked on {name}")
    return error
