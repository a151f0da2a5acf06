"""Settings as a flat table, dotted name -> value and origin; tables are laid over each other, then become a dataclass.

Groups leave a mark of their own in the table: `PRESENT` ("there is such a group") or None ("there is none").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any

from mimetic.catalog import closest_hint
from mimetic.config.problems import Problems
from mimetic.config.schema import Choices, Setting, inner_class, settings_of
from mimetic.config.values import Mismatch, Plain, convert, is_null, one_of, plain_data
from mimetic.errors import MimeticError

PRESENT = object()
"""Mark of a group that is there, with the values that stand beside it."""


@dataclass(frozen=True)
class Given:
    """A value and where it comes from ("flag", "file PATH", "checkpoint PATH")."""

    value: Any
    origin: str


Flat = dict[str, Given]


def lay_over(lower: Flat, upper: Flat) -> None:
    """Put `upper` on top of `lower`, in place.

    A group that is null on top removes the members below; a member on top revives a group that is null below.
    """
    for name, given in upper.items():
        put(lower, name, given)


def put(flat: Flat, name: str, given: Given) -> None:
    """Set one entry of a table as `lay_over` does."""
    if given.value is None:
        remove_members(flat, name)
    parent = name.rpartition(".")[0]
    while parent:
        if parent in flat and flat[parent].value is None:
            del flat[parent]
        parent = parent.rpartition(".")[0]
    if given.value is PRESENT and name in flat and flat[name].value is None:
        del flat[name]
    flat[name] = given


def remove_members(flat: Flat, name: str) -> None:
    """Remove everything below a group."""
    for member in [member for member in flat if member.startswith(name + ".")]:
        del flat[member]


@dataclass(frozen=True)
class FileReader:
    """Turns a nested mapping (a config file, a checkpoint's config) into a table.

    Args:
        where: name of the file for messages.
        origin: origin of the values.
        problems: where problems are noted.
        on_unknown: called with name and value of a field that nobody knows, instead of noting a problem.
    """

    where: str
    origin: str
    problems: Problems
    on_unknown: Callable[[str, Any], None] | None = None

    def read(self, cls: type, data: Mapping[str, Any], prefix: str = "", chosen: Choices | None = None) -> Flat:
        """Read the fields of `cls`.

        Args:
            cls: a settings dataclass.
            data: nested plain data.
            prefix: dotted name of the group that `data` stands for.
            chosen: classes of choices that were picked elsewhere; the others are picked by their `type`.
        """
        flat: Flat = {}
        known = {setting.key: setting for setting in settings_of(cls, prefix)}
        for key, raw in data.items():
            if key in known:
                self._read_one(flat, known[key], raw, chosen or {})
            elif not (prefix == "" and key == "type" and str(raw) == getattr(cls, "type_name", "")):
                self._unknown(cls, f"{prefix}.{key}" if prefix else str(key), raw, known)
        return flat

    def _read_one(self, flat: Flat, setting: Setting, raw: Any, chosen: Choices) -> None:
        if setting.node == "leaf":
            try:
                flat[setting.name] = Given(check_word(setting, convert(raw, setting.kind)), self.origin)
            except Mismatch as mismatch:
                self.problems.add(f"`{setting.name}` is {show(raw)} in {self.where}: {mismatch}", mismatch.hint)
        elif is_null(raw):
            if setting.is_optional:
                flat[setting.name] = Given(None, self.origin)
            else:
                self.problems.add(f"`{setting.name}` is null in {self.where} and must not be", "leave it out")
        elif not isinstance(raw, Mapping):
            example = f"{{type: {raw}}}" if setting.node == "choice" else "{name: value}"
            self.problems.add(f"`{setting.name}` is {show(raw)} in {self.where}: expected a mapping", f"`{example}`")
        else:
            self._read_group(flat, setting, dict(raw), chosen)

    def _read_group(self, flat: Flat, setting: Setting, data: dict[str, Any], chosen: Choices) -> None:
        flat[setting.name] = Given(PRESENT, self.origin)
        inner = inner_class(setting, chosen)
        if setting.node == "choice":
            type_name = data.pop("type", None)
            if inner is None:
                inner = load_choice(setting, type_name, self.where, self.problems)
            if type_name is not None and inner is not None:
                flat[f"{setting.name}.type"] = Given(str(type_name), self.origin)
        if inner is not None:
            flat.update(self.read(inner, data, setting.name, chosen))

    def _unknown(self, cls: type, name: str, raw: Any, known: Mapping[str, Setting]) -> None:
        from mimetic.config.lerobot_flags import is_neutral, owners

        value = plain_data(raw)
        key = name.rpartition(".")[2]
        neutral = getattr(cls, "neutral_unknown", {})
        if (key in neutral and value == neutral[key]) or is_neutral(name, value):
            return
        if self.on_unknown is not None:
            self.on_unknown(name, value)
            return
        for leaf, item in _leaves(name, value):
            if is_neutral(leaf, item):
                continue
            if owners(leaf) is not None:
                self.problems.add(
                    f"`{leaf}` is {show(item)} in {self.where}, which is LeRobot's and not part of mimetic yet",
                    "remove it from the file",
                )
            else:
                self.problems.add(
                    f"unknown setting `{leaf}` in {self.where}", closest_hint(key, known) or "remove it from the file"
                )


def load_choice(setting: Setting, type_name: Any, where: str, problems: Problems) -> type | None:
    """The configuration class behind a choice's `type`; None after noting why there is none."""
    available = setting.catalog.available()
    if not available:
        kind = f"{setting.catalog.kind}s"
        problems.add(
            f"`{setting.name}` is set in {where}: {kind} are not part of mimetic yet", f"add `--{setting.name}=null`"
        )
        return None
    if type_name is None:
        problems.add(f"`{setting.name}` has no `type` in {where}", f"available: {', '.join(available)}")
        return None
    try:
        return setting.catalog.load_config(str(type_name))
    except MimeticError as error:
        leave_out = f"; `--{setting.name}=null` leaves it out" if setting.default() is None else ""
        problems.add(f"{error.message} (`{setting.name}.type` in {where})", f"{error.hint}{leave_out}")
        return None


def check_word(setting: Setting, value: Any) -> Any:
    """The value, if the setting allows it.

    Raises:
        Mismatch: the setting takes one of a few words, and this is another.
    """
    if setting.choices and isinstance(value, str) and value not in setting.choices:
        raise Mismatch(one_of(setting.choices), closest_hint(value, setting.choices))
    return value


def show(raw: Any) -> str:
    """A value for a message, shortened."""
    import json

    data = plain_data(raw)
    text = raw if isinstance(raw, Plain) else json.dumps(data, ensure_ascii=False, default=str)
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The members of an unknown setting; an unknown mapping counts as one unless LeRobot knows what is in it."""
    from mimetic.config.lerobot_flags import owners

    if isinstance(value, Mapping) and value and all(owners(f"{name}.{key}") is not None for key in value):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    else:
        yield name, value


def build(cls: type, flat: Flat, chosen: Choices, problems: Problems, *, prefix: str = "", where: str = "") -> Any:
    """Make the dataclass that a table describes.

    Args:
        cls: class to make.
        flat: table of values; what is absent takes its default.
        chosen: class of every choice that is present.
        problems: missing required settings are noted here.
        prefix: dotted name of the group.
        where: name of the file for messages; empty when flags are meant.

    Returns:
        The instance, or None when something required is missing.
    """
    values: dict[str, Any] = {}
    complete = True
    for setting in settings_of(cls, prefix):
        value = _value(setting, flat, chosen, problems, where)
        if value is MISSING:
            complete = False
        elif value is not PRESENT:
            values[setting.key] = value
    return cls(**values) if complete else None


def _value(setting: Setting, flat: Flat, chosen: Choices, problems: Problems, where: str) -> Any:
    """Value of a field; PRESENT means: leave it to the default, MISSING: a required one is absent."""
    given = flat.get(setting.name)
    if setting.node == "leaf":
        if given is not None:
            return given.value
    elif given is not None and given.value is None:
        return None
    elif given is not None or any(name.startswith(setting.name + ".") for name in flat):
        return _group(setting, flat, chosen, problems, where)
    if not setting.is_required:
        return PRESENT
    for name in _required(setting):
        problems.add(f"`{name}` is missing in {where}" if where else f"`--{name}` is required")
    return MISSING


def _group(setting: Setting, flat: Flat, chosen: Choices, problems: Problems, where: str) -> Any:
    inner = inner_class(setting, chosen)
    if inner is None:
        return MISSING
    default = MISSING if setting.node == "choice" else setting.default()
    if default is MISSING or default is None:
        made = build(inner, flat, chosen, problems, prefix=setting.name, where=where)
        return MISSING if made is None else made
    # A group's default may differ from the defaults of its class, so only what was given is replaced.
    values = {}
    for item in settings_of(inner, setting.name):
        value = _value(item, flat, chosen, problems, where)
        if value is MISSING:
            return MISSING
        if value is not PRESENT:
            values[item.key] = value
    return replace(default, **values)


def _required(setting: Setting) -> list[str]:
    if setting.group_class is None:
        return [setting.name]
    return [
        name for item in settings_of(setting.group_class, setting.name) if item.is_required for name in _required(item)
    ]
