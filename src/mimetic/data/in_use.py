"""Which files are being read right now: what there is to say about a thread that does not come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FilesInUse:
    """Files that threads are reading, and for how long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_thread: dict[int, tuple[Path, float]] = {}

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """While active, this thread reads a file."""
        me = threading.get_ident()
        with self._lock:
            self._by_thread[me] = (path, time.monotonic())
        try:
            yield
        finally:
            with self._lock:
                self._by_thread.pop(me, None)

    def now(self) -> list[tuple[Path, float]]:
        """Files and seconds, the longest first."""
        with self._lock:
            entries = list(self._by_thread.values())
        return sorted(((path, time.monotonic() - since) for path, since in entries), key=lambda entry: -entry[1])
