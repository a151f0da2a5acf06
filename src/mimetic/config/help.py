"""The text of `mimetic COMMAND --help`: one sentence a flag, grouped, at most 100 columns wide, filtered by words."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from mimetic.config.codec import encode
from mimetic.config.problems import Problems
from mimetic.config.schema import Setting, choices_of, inner_class, settings_of, type_text, walk
from mimetic.config.tokens import Token, read_tokens
from mimetic.config.unknown import available_classes, has_path

WIDTH = 100
_INDENT = 40
_GRAMMAR = (
    "Every flag takes a value, `--name=value` or `--name value`; the last of repeated flags wins. Yes or no is true or "
    "false, nothing is null, lists are [a,b], mappings are {name: value}. A value with spaces or brackets stands in "
    "quotes."
)


@dataclass(frozen=True)
class Line:
    """One flag in the help.

    Args:
        name: dotted name, without dashes.
        type: its type in short.
        help: one sentence, with default and marks.
    """

    name: str
    type: str
    help: str

    def matches(self, words: Sequence[str]) -> bool:
        """Whether every word stands in the name or the text, in any case."""
        text = f"--{self.name} {self.help}".lower()
        return all(word.lower() in text for word in words)


def format_help(
    cls: type, *, prog: str, summary: str, example: str = "", argv: Sequence[str] = (), words: Sequence[str] = ()
) -> str:
    """Write the help of a command.

    Args:
        cls: settings dataclass of the command.
        prog: the command, such as "mimetic train".
        summary: what it does, one sentence.
        example: flags of a typical call.
        argv: flags beside `--help`; `--policy.type=act` shows ACT's flags only.
        words: show only flags whose name or text holds all of them.
    """
    sections = _sections(cls, _types(argv))
    if words:
        found = {title: [line for line in lines if line.matches(words)] for title, lines in sections.items()}
        shown = {title: lines for title, lines in found.items() if lines}
        if not shown:
            return _nothing(sections, prog, words)
        return "\n\n".join(_section(title, lines) for title, lines in shown.items())
    parts = [f"Usage: {prog} [--FLAG=VALUE ...]", summary + "."]
    if example:
        parts.append("Example\n" + _wrap_command(f"{prog} {example}"))
    parts += [_fill(_GRAMMAR), _fill(f"`{prog} --help WORD ...` shows only the flags with these words.")]
    parts += [_section(title, lines) for title, lines in sections.items() if lines]
    return "\n\n".join(parts)


def _types(argv: Sequence[str]) -> dict[str, str]:
    """Values of the `type` flags among the words; anything else is of no interest to the help."""
    tokens: list[Token] = read_tokens(argv, Problems())
    return {token.name: token.value for token in tokens if token.name.endswith(".type")}


def _sections(cls: type, types: dict[str, str]) -> dict[str, list[Line]]:
    """Title -> flags: the top level first, then each group and choice."""
    general: list[Line] = []
    sections: dict[str, list[Line]] = {"General": general}
    if any(choices_of(cls)) or len(settings_of(cls)) > 5:
        general.append(
            Line("config_path", "path", "Settings from a .json, .yaml or .toml file, a checkpoint or a run; flags win")
        )
    for setting in settings_of(cls):
        if not setting.is_flag:
            continue
        if setting.node == "leaf":
            general.append(_line(setting))
        elif setting.node == "group":
            sections[_title(setting)] = _group_lines(setting)
        else:
            sections[_title(setting)] = _choice_lines(setting, types.get(f"{setting.name}.type"))
    return sections


def _title(setting: Setting) -> str:
    return f"{setting.name}: {setting.help}" if setting.help else setting.name


def _group_lines(setting: Setting, not_yet: bool = False) -> list[Line]:
    inner = inner_class(setting, {})
    assert inner is not None
    not_yet = not_yet or bool(setting.not_yet)
    lines: list[Line] = []
    for item in settings_of(inner, setting.name):
        if item.node == "group":
            lines += _group_lines(item, not_yet)
        elif item.is_flag:
            lines.append(_line(item, not_yet=not_yet))
    return lines


def _choice_lines(choice: Setting, wanted: str | None) -> list[Line]:
    classes = available_classes(choice)
    if not classes:
        return [Line(f"{choice.name}.type", "name", "(not yet) One of LeRobot's; leave it out")]
    if wanted in classes:
        classes = {wanted: classes[wanted]}
    catalog = choice.catalog
    names = ", ".join(f"{name} ({catalog[name].summary})" for name in classes)
    lines = [Line(f"{choice.name}.type", "name", f"Which one: {names}")]
    if has_path(choice):
        lines.append(Line(f"{choice.name}.path", "path", "Start from the checkpoint in this folder, or of this run"))
    merged: dict[str, dict[str, Setting]] = {}
    for type_name, inner in classes.items():
        for item in walk(inner, {}, choice.name):
            if item.is_flag and item.node == "leaf":
                merged.setdefault(item.name, {})[type_name] = item
    for owners in merged.values():
        lines.append(_merged_line(owners, len(classes)))
    return lines


def _merged_line(owners: dict[str, Setting], n_types: int) -> Line:
    """One flag that several types of a choice have; types are named where not all have it or defaults differ."""
    first = next(iter(owners.values()))
    defaults: dict[str, list[str]] = {}
    for type_name, setting in owners.items():
        defaults.setdefault(_default_text(setting), []).append(type_name)
    if len(defaults) == 1:
        default = next(iter(defaults))
    else:
        default = ", ".join(f"{text or 'none'} for {', '.join(names)}" for text, names in defaults.items())
    of = f" [{', '.join(owners)}]" if len(owners) < n_types else ""
    return _line(first, default=default, suffix=of)


def _line(setting: Setting, *, default: str | None = None, suffix: str = "", not_yet: bool = False) -> Line:
    text = setting.help
    if setting.not_yet or not_yet:
        text = f"(not yet) {text}"
    default = _default_text(setting) if default is None else default
    facts = [f"one of {', '.join(setting.choices)}"] if setting.choices else []
    if default and "(default" not in text:
        facts.append(f"default {default}")
    elif setting.is_required:
        facts.append("required")
    if facts:
        text += f" ({'; '.join(facts)})"
    return Line(setting.name, _short_type(setting), text + suffix)


def _default_text(setting: Setting) -> str:
    value: Any = setting.default()
    if value is MISSING or value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(encode(value), separators=(",", ":"))
    return text if len(text) <= 40 else ""


def _short_type(setting: Setting) -> str:
    names = {"str": "text", "Path": "path"}
    text = type_text(setting.hint)
    members = [names.get(member, member) for member in text.split(" | ") if member != "null"]
    short = "|".join(members)
    if short.startswith(("dict", "list", "tuple")) and "|" not in short:
        return {"dict": "{..}", "list": "[..]", "tuple": "[..]"}[short.partition("[")[0]]
    return short


def _section(title: str, lines: Sequence[Line]) -> str:
    return "\n".join([_fill(title), *(_format(line) for line in lines)])


def _format(line: Line) -> str:
    head = f"  --{line.name} {line.type}"
    body = textwrap.wrap(line.help, WIDTH - _INDENT, break_on_hyphens=False) or [""]
    if len(head) > _INDENT - 2:
        return "\n".join([head, *(" " * _INDENT + part for part in body)])
    return "\n".join([head.ljust(_INDENT) + body[0], *(" " * _INDENT + part for part in body[1:])])


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def _wrap_command(command: str) -> str:
    """A command over several lines, each but the last ending in a backslash."""
    lines = textwrap.wrap(command, WIDTH - 6, break_on_hyphens=False, break_long_words=False)
    return "\n".join(
        ("  " if i == 0 else "      ") + line + (" \\" if i < len(lines) - 1 else "") for i, line in enumerate(lines)
    )


def _nothing(sections: dict[str, list[Line]], prog: str, words: Sequence[str]) -> str:
    from mimetic.config.unknown import resembling

    names = [line.name for lines in sections.values() for line in lines]
    near = resembling(words[0], names)
    hint = f"did you mean `--{near[0]}`? " if near else ""
    return f"No flag of `{prog}` has {' and '.join(f'`{word}`' for word in words)}; {hint}`{prog} --help` lists all"
