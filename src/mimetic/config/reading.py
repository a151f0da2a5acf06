"""Text to plain data, the first step of the grammar of values.

Text is JSON if it is JSON, else a bracketed YAML collection, else one scalar. Scalars without quotes become `Plain`
and are given a meaning by `values.convert`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from mimetic.config.values import Mismatch, Plain


def read_text(text: str, hint: Any) -> Any:
    """Turn the text of a flag into plain data for `convert`.

    Args:
        text: what was typed after `=`.
        hint: type of the setting; text settings receive the text as typed.

    Returns:
        None, bool, str (quoted), Plain (not quoted), or lists and dicts of these.

    Raises:
        Mismatch: brackets or quotes are not closed, or a name stands twice in a mapping.
    """
    members = _members(hint)
    if any(_is_text(member) for member in members):
        has_collection = any(not _is_text(member) and _is_collection(member) for member in members)
        if not (has_collection and text.lstrip()[:1] in ("[", "{")):
            return _unquoted(text)
    return read_value(text)


def read_value(text: str) -> Any:
    """Turn text into plain data without regard to a type: JSON, else a bracketed collection, else one scalar.

    Raises:
        Mismatch: brackets or quotes are not closed, or a name stands twice in a mapping.
    """
    try:
        return read_json(text)
    except ValueError:
        pass
    except RecursionError:
        raise Mismatch("a value that is nested less deeply") from None
    stripped = text.strip()
    if stripped[:1] in ("[", "{", "'", '"'):
        from mimetic.config.flow import read_flow

        return read_flow(stripped)
    return Plain(stripped)


def read_json(text: str) -> Any:
    """Parse JSON; numbers stay `Plain`, so that they keep their spelling.

    Raises:
        ValueError: not JSON (json.JSONDecodeError with the position).
        Mismatch: a name stands twice in an object.
    """
    return json.loads(text, parse_int=Plain, parse_float=Plain, parse_constant=Plain, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Mismatch(f"each name once, and `{key}` stands twice")
        found[key] = value
    return found


def _unquoted(text: str) -> Any:
    """The text inside quotes as str; text without quotes as Plain, untouched."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            value = json.loads(text)
        except ValueError:
            return Plain(text)
        return value if isinstance(value, str) else Plain(text)
    if len(text) >= 2 and text[0] == text[-1] == "'" and "'" not in text[1:-1].replace("''", ""):
        return text[1:-1].replace("''", "'")
    return Plain(text)


def _members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return get_args(hint)
    return (hint,)


def _is_text(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return True
    return isinstance(hint, type) and (issubclass(hint, (str, Path, Enum)))


def _is_collection(hint: Any) -> bool:
    return hint is Any or (get_origin(hint) or hint) in (list, tuple, dict, Sequence, Mapping) or is_dataclass(hint)
