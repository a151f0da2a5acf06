"""JSON from files that may come from anywhere: every fault is a ValueError, nesting is bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64


def parse_json(text: str) -> Any:
    """Decode a JSON text; NaN and infinities are let pass, as LeRobot writes them.

    Raises:
        ValueError: not JSON, or nested deeper than `MAX_DEPTH` (code that walks through values would run out of stack).
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _inside(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [child for child in children if isinstance(child, (dict, list))]
