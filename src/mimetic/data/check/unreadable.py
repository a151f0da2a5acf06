"""Parts of a dataset that could not be read, so that rules can say what they could not check, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from mimetic.errors import MimeticError


class Part(enum.StrEnum):
    """What a file holds."""

    INFO = "info.json"
    TASKS = "the table of tasks"
    EPISODES = "the table of episodes"
    STATS = "the statistics"
    DATA = "data"
    CLOCKS = "measured clocks"
    EXPECTED = "expected findings"


@dataclass(frozen=True)
class Unreadable:
    """One file that could not be read.

    Args:
        part: what it holds.
        path: the file or folder.
        reason: why, without the path where possible.
        is_missing: it is not there at all.
    """

    part: Part
    path: Path
    reason: str
    is_missing: bool = False


def unreadable(part: Part, path: Path, error: Exception) -> Unreadable:
    """What an error says about a file, shortened."""
    text = error.message if isinstance(error, MimeticError) else str(error)
    return Unreadable(part, path, text[:400], is_missing=not path.exists())
