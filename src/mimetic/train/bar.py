"""The bar that shows how far a long task is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def progress_bar(title: str, unit: str, total: int, done: int = 0) -> AbstractContextManager[Callable[[int], None]]:
    """A bar on stderr when that is a terminal; updates at most ten times a second.

    Args:
        title: what goes on.
        unit: what is counted.
        total: how many there are.
        done: how many are done already.

    Returns:
        A context, which gives the function to call with the number that is done.
    """
    if not sys.stderr.isatty():
        return nullcontext(lambda step: None)
    return _Bar(title, unit, total, done)


class _Bar:
    def __init__(self, title: str, unit: str, total: int, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            redirect_stderr=True,
            redirect_stdout=True,
        )
        self._task = self._progress.add_task("", total=total, completed=done)
        self._next = 0.0

    def __enter__(self) -> Callable[[int], None]:
        self._progress.__enter__()
        return self._advance

    def __exit__(self, *details: Any) -> None:
        self._progress.__exit__(*details)

    def _advance(self, step: int) -> None:
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + 0.1
            self._progress.update(self._task, completed=step)
