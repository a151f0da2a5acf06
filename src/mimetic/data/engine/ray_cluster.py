"""Tasks on a Ray cluster: the same functions and values as in a pool, on other machines.

All machines must see the same files under the same paths, and have the same mimetic installed. What travels between
them is Ray's own matter; mimetic reads no pickle from anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mimetic.data.engine.pool import guarded
from mimetic.errors import MissingExtra, WorkerError

logger = logging.getLogger(__name__)

_AHEAD = 2
_PATIENCE_S = 10.0


def run_on_ray(
    work: Callable[[Any], Any], tasks: Sequence[Any], *, limit: int = 0, address: str | None = None
) -> Iterator[tuple[int, Any]]:
    """Do tasks on a cluster, one core each.

    Args:
        work: function of a module that the other machines have too.
        tasks: plain values.
        limit: most tasks handed out at once; 0: twice the cores of the cluster.
        address: of a running cluster; None: the one this process is connected to already, else a new one on this
            machine.

    Yields:
        Position and result of each task as it ends; an exception of the task is yielded in the place of its result.

    Raises:
        MissingExtra: Ray is not installed.
        WorkerError: there is no cluster at `address`, or a machine was lost more often than Ray repeats a task.
    """
    ray = _ray()
    if not ray.is_initialized():
        _connect(ray, address)  # until the process ends: a job has several rounds, and each start takes seconds
    running: dict[Any, int] = {}
    try:
        remote = ray.remote(num_cpus=1)(guarded)
        most = limit or max(2, int(_AHEAD * ray.cluster_resources().get("CPU", 1)))
        rest = iter(enumerate(tasks))
        while True:
            while len(running) < most and (following := next(rest, None)) is not None:
                position, task = following
                running[remote.remote(work, task)] = position
            if not running:
                break
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                yield running.pop(reference), _outcome(ray, reference)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("`--engine=ray` needs the package ray", 'pip install "mimetic[ray]"') from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        _require_answer(address or "")
        local = {} if address else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING, **local)
    except (ValueError, RuntimeError, OSError) as error:
        raise WorkerError(
            f"no Ray cluster could be reached at `{address or 'this machine'}`: {error}",
            "start one with `ray start --head` and give its address, or leave `--address` out",
        ) from error


def _require_answer(address: str) -> None:
    """Knock at `host:port`: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=_PATIENCE_S)):
            pass


def _outcome(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"a machine of the cluster was lost before its task was done: {error!s:.300}",
            "see the log of the cluster; what is finished is kept where the command can be continued",
        ) from error
