"""Where the files of a stream come from: a folder on this machine, or a repository on the hub, file by file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from mimetic.data.in_use import FilesInUse
from mimetic.data.layout import Layout
from mimetic.errors import OfflineError

logger = logging.getLogger(__name__)

_AHEAD = 2
PAUSES_S = (1.0, 5.0, 25.0)
"""How long to wait before another attempt, when the hub was not reached [s]."""


class StreamFiles:
    """Fetches files when they are needed, and the next ones in the meantime; safe to use from several threads.

    Args:
        layout: names of the files.
        units: files of each group, in the order of the groups' numbers.
        fetch: gets one file by its name in the repository; None: all files lie in the folder already.
    """

    def __init__(
        self, layout: Layout, units: Sequence[Sequence[Path]], fetch: Callable[[str], None] | None = None
    ) -> None:
        self._layout = layout
        self._units = units
        self._fetch = fetch
        self._unit_of = _first_units(units)
        self._plan: list[int] = []
        self._place: Mapping[int, int] = {}
        self._coming: dict[Path, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.in_use = FilesInUse()

    @property
    def is_remote(self) -> bool:
        """Whether files may have to be fetched."""
        return self._fetch is not None

    def announce(self, plan: Sequence[int]) -> None:
        """Say in which order the groups of files will be needed, and begin with the first."""
        if self._fetch is None:
            return
        with self._lock:
            self._plan = list(plan)
            self._place = {unit: place for place, unit in enumerate(self._plan)}
        self._prefetch(self._plan[:1])

    def require(self, path: Path) -> None:
        """Wait until a file is here; those that will be needed next are fetched in the meantime.

        Raises:
            HubError: the hub cannot be reached, or refuses.
        """
        if self._fetch is None:
            return
        unit = self._unit_of.get(path)
        place = self._place.get(unit, -1) if unit is not None else -1
        if place >= 0:
            self._prefetch(self._plan[place + 1 : place + 1 + _AHEAD])
        with self._lock:
            coming = self._coming.get(path)
        if path.is_file() and (coming is None or coming.done()):
            return
        with self.in_use.reading(path):
            self._submit(path).result()

    def close(self) -> None:
        """Fetch nothing more; what is on its way is finished."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._coming.clear()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def _prefetch(self, units: Sequence[int]) -> None:
        for unit in units:
            for path in self._units[unit]:
                if not path.is_file():
                    self._submit(path)

    def _submit(self, path: Path) -> Future[None]:
        with self._lock:
            known = self._coming.get(path)
            if known is not None and not (known.done() and known.exception() is not None):
                return known  # one that failed is tried again
            if self._pool is None:
                self._pool = ThreadPoolExecutor(2, "mimetic-fetch")
            self._coming[path] = self._pool.submit(self._get, path)
            return self._coming[path]

    def _get(self, path: Path) -> None:
        assert self._fetch is not None
        if path.is_file():
            return
        name = self._layout.relative(path)
        logger.info("stream: fetching %s", name)
        for pause in PAUSES_S:
            try:
                return self._fetch(name)
            except OfflineError as error:
                logger.warning("%s; trying again in %.0f s", error.message, pause)
                time.sleep(pause)
        return self._fetch(name)


def _first_units(units: Sequence[Sequence[Path]]) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for number, paths in enumerate(units):
        for path in paths:
            found.setdefault(path, number)
    return found
