"""Logging set-up and the JSON-lines sink for metrics.

Logs go to stderr, data to stdout. Every module logs through `logging.getLogger(__name__)`; only `set_up` touches
handlers.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

LOGGER = logging.getLogger("mimetic")
_said: set[str] = set()


def set_up(*, debug: bool = False, stream: Any = None) -> None:
    """Send mimetic's log records to stderr in LeRobot's line format (spec/training.md 12).

    Args:
        debug: show DEBUG records.
        stream: other text stream than stderr.
    """
    handler = logging.StreamHandler(stream) if stream is not None else _StderrHandler()
    handler.setFormatter(_LineFormatter())
    for old in list(LOGGER.handlers):
        LOGGER.removeHandler(old)
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)
    LOGGER.propagate = False


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to whatever stderr is now: a progress bar replaces it while it draws."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        """The current stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None: ...


class _LineFormatter(logging.Formatter):
    """`LEVEL YYYY-MM-DD HH:MM:SS <last 15 characters of path:line> message`."""

    def format(self, record: logging.LogRecord) -> str:
        place = f"{record.pathname}:{record.lineno}"[-15:]
        time = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        line = f"{record.levelname} {time} {place} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def once(logger: logging.Logger, level: int, message: str, *args: object) -> None:
    """Log a message the first time it is seen in this process."""
    text = message % args if args else message
    if text not in _said:
        _said.add(text)
        logger.log(level, "%s", text, stacklevel=2)


class JsonLines:
    """Append-only file of one JSON object a line; NaN and infinities are written as null.

    Args:
        path: file to append to; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one record and hand it to the operating system."""
        self._file.write(json.dumps(_finite(record), separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; further writes fail."""
        self._file.close()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
