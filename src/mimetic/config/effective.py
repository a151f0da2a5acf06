"""The effective configuration: every setting with its value and where it comes from.

One table for the screen (`--print_config`), for `mimetic.json` and for reports. A command that decides more (presets,
device, rescaled schedule) passes its changed settings and the origins that it added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimetic.config.codec import choice_name, encode
from mimetic.config.schema import settings_of


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        flag: dotted name, without dashes.
        value: as JSON data.
        origin: "default", "file PATH", "checkpoint PATH", "flag", or what a command says ("preset", "resolved").
    """

    flag: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """The value as it can be typed after `=`."""
        if isinstance(self.value, str) and self.value and self.value.lower() not in ("null", "none", "~"):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)


def effective(value: Any, origins: Mapping[str, str]) -> list[Row]:
    """The table of a settings dataclass, in declaration order.

    Args:
        value: settings as they are used.
        origins: dotted name -> origin, as in `Parsed.origins`; absent names are defaults.
    """
    return list(_rows(value, origins, ""))


def as_json(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """The table for `mimetic.json`: flag -> {"value", "origin"}."""
    return {row.flag: {"value": row.value, "origin": row.origin} for row in rows}


def _rows(value: Any, origins: Mapping[str, str], prefix: str) -> Iterator[Row]:
    cls: type = type(value)
    for setting in settings_of(cls, prefix):
        item = getattr(value, setting.key)
        if setting.node == "leaf" or item is None:
            yield Row(setting.name, encode(item), origins.get(setting.name, "default"))
            continue
        if setting.node == "choice":
            name = f"{setting.name}.type"
            yield Row(name, choice_name(item, setting.catalog), origins.get(name, "default"))
        yield from _rows(item, origins, setting.name)
