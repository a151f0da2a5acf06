"""Settings to JSON and back, in the layout of `config.json` and `train_config.json`.

Fields stand in declaration order; a choice starts with its name under `type`; enums are written by value, paths as
text, tuples as lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from mimetic.catalog import Catalog
from mimetic.config.layers import FileReader, build
from mimetic.config.problems import Problems
from mimetic.config.schema import choices_of, settings_of
from mimetic.errors import ConfigError
from mimetic.fields import Layer

T = TypeVar("T")
ALL_LAYERS: tuple[Layer, ...] = ("lerobot", "next", "mimetic")


def encode(value: Any, *, layers: Sequence[Layer] = ALL_LAYERS, full: bool = False) -> Any:
    """Turn settings into JSON data.

    Args:
        value: a settings dataclass, or anything that a field can hold.
        layers: whose settings are written; `("lerobot", "next")` is what `train_config.json` holds.
        full: write settings of the layer "next" also when they have their defaults (LeRobot 0.6.1 refuses keys that it
            does not know, so its files hold them only when they matter).

    Returns:
        Dicts, lists, text, numbers, bools and None.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_settings(value, layers, full)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item, layers=layers, full=full) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, layers=layers, full=full) for item in value]
    return value


def _encode_settings(value: Any, layers: Sequence[Layer], full: bool) -> dict[str, Any]:
    cls: Any = type(value)
    data: dict[str, Any] = {}
    if getattr(cls, "type_name", ""):
        data["type"] = cls.type_name
    for setting in settings_of(cls):
        item = getattr(value, setting.key)
        is_newer = setting.layer == "next" and not full
        if setting.layer not in layers or (is_newer and item == setting.default()):
            continue
        encoded = encode(item, layers=layers, full=full)
        if setting.node == "choice" and item is not None and "type" not in encoded:
            encoded = {"type": choice_name(item, setting.catalog), **encoded}
        data[setting.key] = encoded
    return data


def choice_name(value: Any, catalog: Catalog | None = None) -> str:
    """Name of a choice: the class's own `type_name`, else the catalog's entry for the class.

    Raises:
        ConfigError: neither names it.
    """
    cls = type(value)
    own = getattr(cls, "type_name", "")
    if own:
        return str(own)
    target = f"{cls.__module__}:{cls.__qualname__}"
    for name in catalog.available() if catalog is not None else ():
        assert catalog is not None
        if catalog[name].config == target:
            return name
    raise ConfigError(f"`{target}` stands in no catalog of mimetic and has no name of its own")


def decode(
    cls: type[T], data: Mapping[str, Any], *, where: str, on_unknown: Callable[[str, Any], None] | None = None
) -> T:
    """Make settings from JSON data; what is absent takes its default.

    Args:
        cls: a settings dataclass; a `type` in the data must be its `type_name`.
        data: nested JSON data.
        where: name of the file, for messages.
        on_unknown: called with dotted name and value of each unknown field; without it they are errors. Fields of newer
            LeRobot versions at values that change nothing are dropped in any case.

    Raises:
        ConfigError: fields that are unknown, missing or of the wrong type, all in one message.
    """
    problems = Problems()
    reader = FileReader(where, f"file {where}", problems, on_unknown)
    flat = reader.read(cls, data)
    problems.raise_if_any()
    chosen = {}
    for setting in choices_of(cls):
        picked = flat.get(f"{setting.name}.type")
        if picked is not None:
            chosen[setting.name] = setting.catalog.load_config(picked.value)
    made = build(cls, flat, chosen, problems, where=where)
    problems.raise_if_any()
    assert isinstance(made, cls)
    return made


def decode_choice(
    catalog: Catalog, data: Mapping[str, Any], *, where: str, on_unknown: Callable[[str, Any], None] | None = None
) -> Any:
    """Make the settings whose class `data["type"]` names, such as a policy's `config.json`.

    Args:
        catalog: names and classes.
        data: nested JSON data with `type`.
        where: name of the file, for messages.
        on_unknown: as in `decode`.

    Raises:
        ConfigError: `type` is missing, unknown, or not part of mimetic yet; or as in `decode`.
    """
    if not isinstance(data.get("type"), str):
        raise ConfigError(f"{where} has no `type`, so it is not known what it configures", f"expected a {catalog.kind}")
    try:
        cls = catalog.load_config(data["type"])
    except ConfigError as error:
        raise ConfigError(f"{error.message} (in {where})", error.hint) from None
    rest = {key: value for key, value in data.items() if key != "type"}
    return decode(cls, rest, where=where, on_unknown=on_unknown)
