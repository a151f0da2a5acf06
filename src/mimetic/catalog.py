"""Tables of names: name -> "module:object", read without importing anything.

Each room that offers alternatives (policies, optimisers, processing steps, ...) holds one `Catalog`.
Third parties join by a package entry point in the group `mimetic.<kind>`, which is looked at only when a name is
not built in.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mimetic.errors import ConfigError, MissingExtra


@dataclass(frozen=True)
class Entry:
    """One row of a catalog.

    Args:
        target: "module:object" of the implementation; empty when the name is known but not built yet.
        config: "module:Class" of the configuration dataclass; empty when there is none.
        extra: name of the pip extra it needs, empty for none.
        summary: one sentence for listings.
    """

    target: str = ""
    config: str = ""
    extra: str = ""
    summary: str = ""

    @property
    def is_available(self) -> bool:
        """Whether this release of mimetic implements the name."""
        return bool(self.target or self.config)


class Catalog(Mapping[str, Entry]):
    """Names of one kind of thing, with closest-match errors.

    Args:
        kind: singular noun for messages ("policy", "optimizer").
        entries: name -> Entry, in the order for listings.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry]) -> None:
        self.kind = kind
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Entry:
        entry = self._entries.get(name) or self._plugin(name)
        if entry is None:
            raise ConfigError(
                f"unknown {self.kind} `{name}`",
                closest_hint(name, self.available()) or self._listing(),
            )
        if not entry.is_available:
            raise ConfigError(
                f"{self.kind} `{name}` is known from LeRobot but not part of mimetic yet"
                + (f" ({entry.summary})" if entry.summary else ""),
                self._listing(),
            )
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def available(self) -> list[str]:
        """Names that this release implements."""
        return [name for name, entry in self._entries.items() if entry.is_available]

    def _listing(self) -> str:
        names = self.available()
        return f"available: {', '.join(names)}" if names else "none is available yet"

    def load(self, name: str) -> Any:
        """Import and return the implementation behind `name`.

        Raises:
            ConfigError: the name is unknown or not built yet.
            MissingExtra: a package that it needs is not installed.
        """
        entry = self[name]
        return load_object(entry.target, extra=entry.extra)

    def load_config(self, name: str) -> type:
        """Import and return the configuration class behind `name` (same errors as `load`)."""
        config: type = load_object(self[name].config)
        return config

    def _plugin(self, name: str) -> Entry | None:
        from importlib.metadata import entry_points

        for point in entry_points(group=f"mimetic.{self.kind}"):
            if point.name == name:
                entry = point.load()
                if isinstance(entry, Entry):
                    return entry
        return None


def load_object(target: str, *, extra: str = "") -> Any:
    """Import "module:object".

    Args:
        target: module path and attribute, separated by a colon.
        extra: pip extra named in the message when a third-party package is missing.

    Raises:
        MissingExtra: a package outside mimetic is not installed.
    """
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not error.name.startswith("mimetic") and extra:
            raise missing_extra(error.name, extra) from error
        raise
    return getattr(module, attribute)


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an optional package that is not installed."""
    return MissingExtra(f"`{package}` is not installed", f"`pip install 'mimetic[{extra}]'`")


def closest(name: str, known: Iterable[str], n: int = 1) -> list[str]:
    """Known names that resemble `name`, best first."""
    return difflib.get_close_matches(name, list(known), n=n, cutoff=0.5)


def closest_hint(name: str, known: Iterable[str]) -> str:
    """Return "did you mean `x`?", or an empty text when nothing resembles the name."""
    found = closest(name, known)
    return f"did you mean `{found[0]}`?" if found else ""
