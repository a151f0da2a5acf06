"""A dataclass of settings, seen as flags: dotted names, types, defaults, help.

Three kinds of node: a leaf has a value; a group is a nested dataclass; a choice is a nested dataclass whose class is
picked by name from a catalog (`--policy.type=act`).
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mimetic.catalog import Catalog, load_object
from mimetic.fields import Layer

Choices = Mapping[str, type]
"""Dotted name of a choice -> the configuration class that was picked for it."""


@dataclass(frozen=True)
class Setting:
    """One field of a settings dataclass.

    Args:
        name: dotted name, without dashes.
        node: leaf, group or choice.
        hint: resolved annotation.
        help: one sentence.
        group_class: class of a group; None for leaves and choices.
        catalog_target: "module:NAME" of a choice's catalog.
        choices: allowed words of a text leaf; empty when free.
        layer: who knows the setting.
        is_flag: False when only files may set it.
        unit: unit of a number.
        not_yet: why only the default is accepted; empty when all values are.
    """

    name: str
    node: Literal["leaf", "group", "choice"]
    hint: Any
    help: str
    group_class: type | None
    catalog_target: str
    choices: tuple[str, ...]
    layer: Layer
    is_flag: bool
    unit: str
    not_yet: str
    _default: Any
    _factory: Any

    @property
    def key(self) -> str:
        """Last part of the dotted name: the field's own name."""
        return self.name.rpartition(".")[2]

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self._default is MISSING and self._factory is MISSING

    @property
    def is_optional(self) -> bool:
        """Whether null is allowed."""
        return types.NoneType in _members(self.hint)

    @property
    def catalog(self) -> Catalog:
        """Names that a choice can take."""
        catalog = load_object(self.catalog_target)
        assert isinstance(catalog, Catalog)
        return catalog

    @property
    def kind(self) -> Any:
        """The type that values are converted to; a whole-number field whose default is a bool takes both."""
        return bool | int if self.hint is int and isinstance(self._default, bool) else self.hint

    def default(self) -> Any:
        """A fresh default value; MISSING when required."""
        return self._factory() if self._factory is not MISSING else self._default


@cache
def settings_of(cls: type, prefix: str = "") -> tuple[Setting, ...]:
    """The fields of a settings dataclass, in declaration order, without descending.

    Args:
        cls: a dataclass.
        prefix: dotted name of the group that holds it; empty at the top.
    """
    hints = get_type_hints(cls)
    return tuple(
        _setting(item, hints[item.name], prefix) for item in fields(cls) if not item.metadata.get("carried", False)
    )


def _setting(item: Any, hint: Any, prefix: str) -> Setting:
    data = item.metadata
    catalog = data.get("catalog", "")
    group = next((member for member in _members(hint) if _is_group(member)), None)
    node: Literal["leaf", "group", "choice"] = "choice" if catalog else "group" if group is not None else "leaf"
    return Setting(
        name=f"{prefix}.{item.name}" if prefix else item.name,
        node=node,
        hint=hint,
        help=data.get("help", ""),
        group_class=group if node == "group" else None,
        catalog_target=catalog,
        choices=data.get("choices", ()),
        layer=data.get("layer", "lerobot"),
        is_flag=data.get("flag", True),
        unit=data.get("unit", ""),
        not_yet=data.get("not_yet", ""),
        _default=item.default,
        _factory=item.default_factory,
    )


def walk(cls: type, chosen: Choices, prefix: str = "") -> Iterator[Setting]:
    """All settings in declaration order, groups before their members; choices descend into the class in `chosen`."""
    for setting in settings_of(cls, prefix):
        yield setting
        inner = inner_class(setting, chosen)
        if inner is not None:
            yield from walk(inner, chosen, setting.name)


def inner_class(setting: Setting, chosen: Choices) -> type | None:
    """The class whose fields a group or a picked choice has; None for leaves and open choices."""
    return chosen.get(setting.name) if setting.node == "choice" else setting.group_class


def find(cls: type, name: str, chosen: Choices, prefix: str = "") -> Setting | None:
    """The setting with this dotted name, if there is one."""
    for setting in settings_of(cls, prefix):
        if setting.name == name:
            return setting
        if name.startswith(setting.name + "."):
            inner = inner_class(setting, chosen)
            return find(inner, name, chosen, setting.name) if inner is not None else None
    return None


def choices_of(cls: type, prefix: str = "") -> Iterator[Setting]:
    """The choices of a settings dataclass, also those inside groups."""
    for setting in settings_of(cls, prefix):
        if setting.node == "choice":
            yield setting
        elif setting.group_class is not None:
            yield from choices_of(setting.group_class, setting.name)


def type_text(hint: Any) -> str:
    """A type as LeRobot's users know it: `int | null`, `dict[str, str]`, `tuple[float, float]`."""
    if hint is Any:
        return "any"
    if hint is types.NoneType:
        return "null"
    if hint is Ellipsis:
        return "..."
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(member) for member in args)
    if origin is Literal:
        return " | ".join(str(item) for item in args)
    if origin is not None and args:
        if origin is dict and args == (str, Any):
            return "dict"
        return f"{origin.__name__}[{', '.join(type_text(item) for item in args)}]"
    return str(getattr(hint, "__name__", hint))


def is_enum(hint: Any) -> bool:
    """Whether a type is an Enum."""
    return isinstance(hint, type) and issubclass(hint, Enum)


def is_path(hint: Any) -> bool:
    """Whether a type is a file-system path, possibly optional."""
    return Path in _members(hint)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)
