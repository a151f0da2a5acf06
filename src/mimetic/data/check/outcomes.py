"""Whether demonstrations succeeded: labels in the rows, or what `mimetic demo record` noted beside the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimetic.data.check.source import CheckSource
from mimetic.data.jsonfile import parse_json
from mimetic.data.layout import require_inside
from mimetic.errors import DatasetError
from mimetic.names import SIMULATION_JSON

_LABELS = ("next.success", "success", "next.is_success")
_MOST_BYTES = 1 << 24


def outcomes(source: CheckSource) -> tuple[dict[int, bool], str]:
    """Success by episode, and where it is written; nothing and why not where nobody has written it.

    Args:
        source: the dataset, with its rows.
    """
    rows = source.rows
    key = next((name for name in _LABELS if rows is not None and name in rows.columns), None)
    if rows is None or key is None:
        return _noted(source)
    found = {}
    for episode in source.episodes.tolist():
        bounds = source.bounds(episode)
        if bounds is not None:
            found[episode] = bool(rows.columns[key][bounds[0] : bounds[1]].any())
    return found, key


def _noted(source: CheckSource) -> tuple[dict[int, bool], str]:
    path = source.root / SIMULATION_JSON
    try:
        require_inside(source.root, path)
        if not path.is_file():
            return {}, "episodes carry no label of success (`next.success`)"
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        entries = _entries(parse_json(path.read_text(encoding="utf-8")))
    except (DatasetError, OSError, UnicodeDecodeError, ValueError) as error:
        return {}, f"`{SIMULATION_JSON}` cannot be read: {error}"
    # Lengths tell whether the notes are those of these episodes.
    if [length for length, _ in entries] != source.lengths.tolist():
        return {}, f"`{SIMULATION_JSON}` is about other episodes than the dataset has"
    return dict(zip(source.episodes.tolist(), (success for _, success in entries), strict=True)), SIMULATION_JSON


def _entries(noted: Any) -> list[tuple[int, bool]]:
    """Length and success of each episode."""
    episodes = noted.get("episodes") if isinstance(noted, Mapping) else None
    if not isinstance(episodes, list):
        raise ValueError("it has no list of episodes")
    found = []
    for number, one in enumerate(episodes):
        length, success = (one.get("length"), one.get("success")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(length, int) or not isinstance(success, bool):
            raise ValueError(f"episode {number} has no length or no success")
        found.append((length, success))
    return found
