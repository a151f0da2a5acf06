"""Which class fills a choice (`--policy.type`, `--policy.path`), and the values that come with it before the flags.

The same four inputs mean the same wherever they stand: `type` or `path`, as a flag or in a config file. Values are
laid over each other in this order: defaults of the class, the checkpoint behind `path`, the config file, flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.config.layers import PRESENT, FileReader, Flat, Given, lay_over, load_choice, put
from mimetic.config.problems import Problems
from mimetic.config.reading import read_value
from mimetic.config.schema import Setting, settings_of
from mimetic.config.sources import find_policy
from mimetic.config.tokens import Token
from mimetic.config.unknown import has_path
from mimetic.config.values import Mismatch, convert, is_null
from mimetic.errors import ConfigError, MimeticError
from mimetic.names import CONFIG_JSON

DEFAULT_TYPES = {"optimizer": "adam"}
"""Kinds whose flags need no `type`; LeRobot has the same default."""
_NOT_KEPT = frozenset({"pretrained_path", "pretrained_revision", "input_features", "output_features"})
"""Never carried from one type to another: they describe the old weights."""

LoadPolicy = Callable[[str, str | None], Mapping[str, Any]]


@dataclass
class Picked:
    """Outcome for one choice.

    Args:
        cls: its configuration class; None when the choice is empty or could not be made.
        flat: values below the flags.
        is_failed: whether a problem was noted, so that its flags need no further messages.
        notes: decisions that the user should hear of.
    """

    cls: type | None = None
    flat: Flat = field(default_factory=dict)
    is_failed: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass
class _Wish:
    """What the flags say about the choice as a whole, read in their order."""

    type: str | None = None
    path: str | None = None
    revision: str | None = None
    is_null: bool = False
    replaces_file: bool = False
    has_fields: bool = False


def pick(
    choice: Setting,
    tokens: Sequence[Token],
    section: Any,
    where: str,
    load_policy: LoadPolicy,
    problems: Problems,
) -> Picked:
    """Decide on the class of a choice and gather what checkpoint and config file say about it.

    Args:
        choice: the choice.
        tokens: all flags.
        section: what the config file holds for it: a mapping, None for null, or PRESENT for nothing.
        where: path of the config file.
        load_policy: gives the config of a checkpoint from its path and revision.
        problems: where problems are noted.
    """
    wish = _read_wish(choice, tokens)
    if wish.is_null or (is_null(section) and not (wish.type or wish.path or wish.has_fields)):
        return Picked(flat={choice.name: Given(None, "flag" if wish.is_null else f"file {where}")})
    if wish.replaces_file or section is PRESENT or is_null(section):
        section = {}
    if not isinstance(section, Mapping):
        problems.add(
            f"`{choice.name}` is `{section}` in {where}: expected a mapping", f"`{choice.name}: {{type: {section}}}`"
        )
        return Picked(is_failed=True)
    if not (section or wish.type or wish.path or wish.has_fields):
        return Picked()
    if not choice.catalog.available():
        return _refuse_kind(choice, tokens, section, where, problems)
    return _Picker(choice, wish, dict(section), where, load_policy, problems).run()


def _refuse_kind(
    choice: Setting, tokens: Sequence[Token], section: Mapping[str, Any], where: str, problems: Problems
) -> Picked:
    mine = [token.name for token in tokens if token.name == choice.name or token.name.startswith(choice.name + ".")]
    for name in mine:
        problems.add(f"flag `--{name}` is LeRobot's and not part of mimetic yet", "leave it out")
    if section:
        load_choice(choice, section.get("type"), where, problems)
    return Picked(is_failed=True)


def _read_wish(choice: Setting, tokens: Sequence[Token]) -> _Wish:
    wish = _Wish()
    for token in tokens:
        key = token.name.removeprefix(choice.name + ".")
        if token.text is None:
            continue
        if token.name == choice.name:
            data = _whole_value(token.text)
            if is_null(data):
                wish = _Wish(is_null=True)
            elif isinstance(data, Mapping):
                found = {key: str(data[key]) for key in ("type", "path", "pretrained_revision") if key in data}
                wish = _Wish(found.get("type"), found.get("path"), found.get("pretrained_revision"))
                wish.replaces_file = wish.has_fields = True
            else:
                wish.has_fields = True
        elif key == token.name:
            continue
        elif key == "type":
            wish.type, wish.is_null = token.text, False
        elif key == "path" and has_path(choice):
            wish.path, wish.is_null = token.text, False
        else:
            wish.has_fields, wish.is_null = True, False
            if key == "pretrained_revision":
                wish.revision = token.text
    return wish


def _whole_value(text: str) -> Any:
    """The data of a flag that sets a whole group; text that cannot be read stays text."""
    try:
        return read_value(text)
    except Mismatch:
        return text


@dataclass
class _Picker:
    choice: Setting
    wish: _Wish
    section: dict[str, Any]
    where: str
    load_policy: LoadPolicy
    problems: Problems
    picked: Picked = field(default_factory=Picked)

    def run(self) -> Picked:
        in_file = self.section.pop("path", None)
        path = self.wish.path or (None if is_null(in_file) else in_file and str(in_file))
        if path and self.wish.type is not None:
            return self._fail(
                f"`--{self.choice.name}.type={self.wish.type}` and `{self.choice.name}.path` exclude each other: "
                f"the type stands in `{path}`",
                f"leave `--{self.choice.name}.type` out",
            )
        base: Flat = {}
        type_name = self.wish.type or self._file_type() or DEFAULT_TYPES.get(self.choice.catalog.kind)
        if path:
            loaded = self._load(path)
            if loaded is None:
                return self._fail()
            type_name, base = loaded
            if not self._fits(path, type_name):
                return self._fail()
        elif type_name is None:
            # Flags alone do not say which class they mean; the flag itself gets the message.
            if self.section:
                load_choice(self.choice, None, self.where, self.problems)
                return self._fail()
            return self.picked
        cls = self._class(type_name)
        if cls is None:
            return self._fail()
        self._read_section(cls, type_name)
        lay_over(base, self.picked.flat)
        put(base, self.choice.name, Given(PRESENT, self._origin()))
        put(base, f"{self.choice.name}.type", Given(type_name, self._type_origin(path)))
        if path:
            origin = "flag" if self.wish.path else f"file {self.where}"
            put(base, f"{self.choice.name}.pretrained_path", Given(_folder(path), origin))
        return Picked(cls, base, notes=self.picked.notes)

    def _file_type(self) -> str | None:
        found = self.section.get("type")
        return None if is_null(found) else str(found)

    def _origin(self) -> str:
        return f"file {self.where}" if self.section else "flag"

    def _type_origin(self, path: str | None) -> str:
        if path:
            return f"checkpoint {path}"
        if self.wish.type:
            return "flag"
        return f"file {self.where}" if self._file_type() else "default"

    def _fail(self, message: str = "", hint: str = "") -> Picked:
        if message:
            self.problems.add(message, hint)
        return Picked(is_failed=True)

    def _load(self, path: str) -> tuple[str, Flat] | None:
        """Type and values of the checkpoint behind `path`."""
        if self.problems.found and find_policy(path) is None:
            return None  # the command must change anyhow: nothing is asked of the hub for it
        revision = self.wish.revision or self.section.get("pretrained_revision")
        try:
            config = dict(self.load_policy(path, None if is_null(revision) else str(revision)))
        except MimeticError as error:
            if not isinstance(error, ValueError):
                raise
            self.problems.add(error.message, error.hint)
            return None
        type_name = config.pop("type", None)
        place = str(Path(_folder(path)) / CONFIG_JSON)
        cls = load_choice(self.choice, type_name, place, self.problems)
        if cls is None:
            return None
        reader = FileReader(place, f"checkpoint {path}", self.problems)
        return str(type_name), reader.read(cls, config, self.choice.name)

    def _fits(self, path: str, type_name: str) -> bool:
        """Settle what the file's own `type` means beside a `path`."""
        in_file = self._file_type()
        if in_file is None:
            return True
        if self.wish.path:
            # The file describes another policy as a whole (a run's train_config.json); the flag replaces it.
            self.picked.notes.append(
                f"`--{self.choice.name}.path={path}` replaces the {self.choice.catalog.kind} of {self.where}"
            )
            self.section = {}
            return True
        if in_file != type_name:
            self.problems.add(
                f"`{self.choice.name}.type` is `{in_file}` in {self.where}, and `{path}` is of type `{type_name}`",
                "remove `type` from the file",
            )
            return False
        return True

    def _class(self, type_name: str) -> type | None:
        where = self.where if self.wish.type is None else ""
        if where:
            return load_choice(self.choice, type_name, where, self.problems)
        try:
            return self.choice.catalog.load_config(type_name)
        except ConfigError as error:
            self.problems.add(f"`--{self.choice.name}.type={type_name}`: {error.message}", error.hint)
            return None

    def _read_section(self, cls: type, type_name: str) -> None:
        """Values of the config file; those of another type only as far as the user had set them."""
        in_file = self._file_type()
        data = {key: value for key, value in self.section.items() if key != "type"}
        if in_file is not None and in_file != type_name:
            data = self._kept(cls, type_name, in_file, data)
        reader = FileReader(self.where, f"file {self.where}", self.problems)
        self.picked.flat = reader.read(cls, data, self.choice.name)

    def _kept(self, cls: type, type_name: str, old_name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Fields of the old type that the new one has too and that differ from the old defaults."""
        catalog = self.choice.catalog
        old = catalog.load_config(old_name) if old_name in catalog.available() else None
        known = {setting.key for setting in settings_of(cls)} - _NOT_KEPT
        defaults = {setting.key: setting for setting in settings_of(old if old is not None else cls)}
        kept = {}
        for key, raw in data.items():
            if key in known and key in defaults:
                try:
                    is_set = convert(raw, defaults[key].kind) != defaults[key].default()
                except Mismatch:
                    is_set = True
                if is_set:
                    kept[key] = raw
        names = ", ".join(f"`{key}`" for key in kept) or "nothing"
        self.picked.notes.append(
            f"`--{self.choice.name}.type={type_name}` over `{old_name}` in {self.where}: "
            f"starting from the defaults of `{type_name}`, keeping {names}"
        )
        return kept


def _folder(path: str) -> str:
    """A local path that stands for a folder inside it (a run, a checkpoint) becomes that folder."""
    folder = find_policy(path)
    return path if folder is None else str(folder)
