"""The one grammar of values, for flags and for config files: from plain data to typed values.

`reading` turns text into plain data. A scalar that was not quoted arrives as `Plain`: what it means is decided here by
`convert`, which knows the type of the setting. So `on` is true for a bool and text for a str, `007` is 7 for an int
and "007" for a str, and there are no octal numbers, base-60 numbers, comments or includes.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mimetic.catalog import closest_hint


class Plain(str):
    """A scalar as typed, without quotes: its meaning depends on the setting that receives it."""

    __slots__ = ()


class Mismatch(Exception):
    """A value does not fit the type of its setting.

    Args:
        expected: what would fit, such as "a whole number".
        hint: how to write it, may be empty.
        where: place inside the value, such as "item 2"; empty for the whole.
    """

    def __init__(self, expected: str, hint: str = "", where: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.hint = hint
        self.where = where

    def inside(self, place: str) -> Mismatch:
        """The same mismatch, seen from one level further out."""
        return Mismatch(self.expected, self.hint, f"{place}, {self.where}" if self.where else place)

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}" if self.where else f"expected {self.expected}"


_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}
_NULL = {"null", "none", "~"}
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_HEX = re.compile(r"[-+]?0[xX][0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.?(inf|infinity|nan)", re.IGNORECASE)
_MAX_DIGITS = 300


def convert(raw: Any, hint: Any) -> Any:
    """Turn plain data into a value of the type `hint`.

    Args:
        raw: plain data from `read_text`, a config file or JSON.
        hint: a resolved annotation.

    Raises:
        Mismatch: the data does not fit; the text says what would.
    """
    if hint is Any:
        return plain_data(raw)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(raw, get_args(hint))
    if origin is Literal:
        return _convert_choice(raw, [str(item) for item in get_args(hint)])
    if hint in _SCALARS:
        return _SCALARS[hint](raw)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _convert_enum(raw, hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _convert_record(raw, hint)
    container = origin or hint
    if container in (list, tuple, Sequence):
        return _convert_sequence(raw, hint)
    if container in (dict, Mapping):
        return _convert_mapping(raw, get_args(hint))
    raise TypeError(f"a setting cannot have the type {hint!r}")


def is_null(raw: Any) -> bool:
    """Whether plain data means "nothing": null, None (in any case) or ~."""
    return raw is None or (isinstance(raw, Plain) and raw.strip().lower() in _NULL)


def _convert_union(raw: Any, members: tuple[Any, ...]) -> Any:
    if types.NoneType in members and is_null(raw):
        return None
    # Collections first and text last: text accepts every scalar.
    order = sorted((m for m in members if m is not types.NoneType), key=lambda m: 2 if m is str else 0)
    mismatches = []
    for member in order:
        try:
            return convert(raw, member)
        except Mismatch as mismatch:
            mismatches.append(mismatch)
    if len(mismatches) == 1:
        raise mismatches[0]
    raise Mismatch(" or ".join(mismatch.expected for mismatch in mismatches), mismatches[0].hint)


def _convert_bool(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        word = raw.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise Mismatch("true or false")


def _convert_int(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        text = raw.strip()
        if _INT.fullmatch(text) and len(text) <= _MAX_DIGITS:
            return int(text)
        if _HEX.fullmatch(text) and len(text) <= _MAX_DIGITS:
            return int(text, 16)
    raise Mismatch("a whole number", _whole_number_hint(raw))


def _whole_number_hint(raw: Any) -> str:
    """`1e5` and `1000.` are no whole numbers in LeRobot's grammar either; say how to write them."""
    try:
        number = _convert_float(raw)
    except Mismatch:
        return ""
    return f"write it as `{int(number)}`" if number.is_integer() and abs(number) < 1e15 else ""


def _convert_float(raw: Any) -> float:
    if isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(raw, str):
        text = raw.strip()
        if _FLOAT.fullmatch(text) and len(text) <= _MAX_DIGITS:
            return float(text)
        special = _SPECIAL.fullmatch(text)
        if special:
            return float(special[1] + special[2])
        if _HEX.fullmatch(text) and len(text) <= 32:
            return float(int(text, 16))
    raise Mismatch("a number")


def _convert_str(raw: Any) -> str:
    if isinstance(raw, str):
        return str(raw)
    if isinstance(raw, (bool, int, float)):
        return json.dumps(raw)
    if raw is None:
        raise Mismatch("text", 'null is not allowed here; write `"null"` in quotes for the word')
    raise Mismatch("text")


def _convert_path(raw: Any) -> Path:
    if isinstance(raw, Path):
        return raw
    text = _convert_str(raw)
    if not text or "\0" in text:
        raise Mismatch("a path")
    # A shell leaves the tilde of `--output_dir=~/runs` alone; a folder named `~` is never meant.
    try:
        return Path(text).expanduser()
    except RuntimeError:  # `~name` of nobody, or no home
        return Path(text)


def _convert_none(raw: Any) -> None:
    if not is_null(raw):
        raise Mismatch("null")


_SCALARS: dict[Any, typing.Callable[[Any], Any]] = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
    Path: _convert_path,
    types.NoneType: _convert_none,
}


def _convert_choice(raw: Any, allowed: list[str]) -> str:
    text = _convert_str(raw)
    if text not in allowed:
        raise Mismatch(one_of(allowed), closest_hint(text, allowed))
    return text


def one_of(names: Sequence[str]) -> str:
    """`a`, `b` or `c`."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]


def _convert_enum(raw: Any, cls: type[Enum]) -> Enum:
    if isinstance(raw, cls):
        return raw
    text = raw if isinstance(raw, str) else ""
    for member in cls:
        if text in (member.name, str(member.value)):
            return member
    names = [member.name for member in cls]
    raise Mismatch(one_of(names), closest_hint(text.upper(), names))


def _convert_record(raw: Any, cls: type) -> Any:
    """A dataclass inside a dict or list, such as one feature or one image transform."""
    if isinstance(raw, cls):
        return raw
    if not isinstance(raw, Mapping):
        raise Mismatch(f"a mapping with {', '.join(f'`{item.name}`' for item in fields(cls))}", _mapping_hint(raw))
    hints = get_type_hints(cls)
    values = {}
    for key, value in raw.items():
        if key not in hints:
            raise Mismatch(f"one of {', '.join(hints)}, and got `{key}`", closest_hint(str(key), hints))
        values[key] = _at(f"`{key}`", value, hints[key])
    for item in fields(cls):
        if item.name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise Mismatch(f"`{item.name}` in it")
    return cls(**values)


def _convert_sequence(raw: Any, hint: Any) -> list[Any] | tuple[Any, ...]:
    container, args = get_origin(hint) or hint, get_args(hint)
    if not isinstance(raw, (list, tuple)):
        is_flat = isinstance(raw, (str, int, float)) and "{" not in str(raw)
        raise Mismatch("a list in brackets", f"write `[{raw}]`" if is_flat and str(raw) else "write `[a, b]`")
    if container is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_at(f"item {i + 1}", item, args[0]) for i, item in enumerate(raw))
        if args and len(args) != len(raw):
            raise Mismatch(f"a list of {len(args)} values, and got {len(raw)}")
        kinds = args or (Any,) * len(raw)
        return tuple(_at(f"item {i + 1}", item, kind) for i, (item, kind) in enumerate(zip(raw, kinds, strict=True)))
    return [_at(f"item {i + 1}", item, args[0] if args else Any) for i, item in enumerate(raw)]


def _convert_mapping(raw: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    if not isinstance(raw, Mapping):
        raise Mismatch("a mapping in braces", _mapping_hint(raw))
    key_hint, value_hint = args or (str, Any)
    return {_at("name", key, key_hint): _at(f"`{key}`", value, value_hint) for key, value in raw.items()}


def _mapping_hint(raw: Any) -> str:
    return "write `{name: value}`"


def _at(place: str, raw: Any, hint: Any) -> Any:
    try:
        return convert(raw, hint)
    except Mismatch as mismatch:
        raise mismatch.inside(place) from None


def plain_data(raw: Any) -> Any:
    """Plain data where no type says what is meant: YAML 1.2 core scalars (null, true, false, numbers, else text)."""
    if isinstance(raw, Plain):
        word = raw.strip().lower()
        if word in _NULL:
            return None
        if word in ("true", "false"):
            return word == "true"
        for read in (_convert_int, _convert_float):
            try:
                return read(raw)
            except Mismatch:
                continue
        return str(raw)
    if isinstance(raw, Mapping):
        return {str(key): plain_data(value) for key, value in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [plain_data(item) for item in raw]
    return raw
