"""The command line to settings: one parser, one order of precedence, and a recorded origin for every value.

Defaults, then the checkpoint of `--policy.path`, then `--config_path`, then flags; the last of repeated flags wins.
Every mistake in the command is found before anything is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mimetic.config import sources
from mimetic.config.check import find_problems
from mimetic.config.choose import LoadPolicy, Picked, pick
from mimetic.config.layers import PRESENT, FileReader, Flat, Given, build, check_word, lay_over, put
from mimetic.config.problems import Problem, Problems
from mimetic.config.reading import read_text, read_value
from mimetic.config.schema import Setting, choices_of, find, inner_class, settings_of, type_text
from mimetic.config.tokens import Token, read_tokens
from mimetic.config.unknown import has_path, report_unknown
from mimetic.config.values import Mismatch, convert, is_null
from mimetic.errors import ConfigError

LoadFile = Callable[[str], tuple[Mapping[str, Any], str]]


@dataclass(frozen=True)
class Parsed:
    """Settings, and where each comes from.

    Args:
        value: the settings dataclass.
        origins: dotted name -> "default", "file PATH", "checkpoint PATH" or "flag", for every setting in `value`.
        notes: decisions of the parser that the user should hear of.
        config_path: the file that `--config_path` stands for; None without one.
    """

    value: Any
    origins: dict[str, str]
    notes: tuple[str, ...] = ()
    config_path: str | None = None


def parse(
    cls: type,
    argv: Sequence[str],
    *,
    prog: str,
    load_file: LoadFile = sources.load_file,
    load_policy: LoadPolicy = sources.load_policy,
    check: Callable[[Parsed], list[str]] | None = None,
    is_checked: bool = True,
) -> Parsed:
    """Read the flags of a command.

    Args:
        cls: settings dataclass of the command.
        argv: words after the command's name.
        prog: the command for messages, such as "mimetic train".
        load_file: gives data and path of `--config_path`.
        load_policy: gives the config of a checkpoint from its path and revision.
        check: further problems of the finished settings, as sentences.
        is_checked: False leaves out `check` and the settings' own checks.

    Raises:
        ConfigError: everything that is wrong with names and values; else everything required that is missing; else all
            problems of the settings' checks.
    """
    return _Parser(cls, prog, load_policy).run(argv, load_file, check, is_checked)


@dataclass
class _Parser:
    cls: type
    prog: str
    load_policy: LoadPolicy
    problems: Problems = field(default_factory=Problems)
    chosen: dict[str, type] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        load_file: LoadFile,
        check: Callable[[Parsed], list[str]] | None,
        is_checked: bool,
    ) -> Parsed:
        tokens = read_tokens(argv, self.problems)
        config_path = next((token.text for token in reversed(tokens) if token.name == "config_path"), None)
        data: Mapping[str, Any] = {}
        where = ""
        if config_path is not None:
            from mimetic.config.legacy import migrate

            data, where = load_file(config_path)
            data = migrate(data)
        flat = self._read_below_flags(tokens, data, where)
        self._read_flags(flat, tokens)
        self.problems.raise_if_any()
        value = build(self.cls, flat, self.chosen, self.problems)
        self._raise_missing()
        parsed = Parsed(value, self._origins(flat), tuple(self.notes), where or None)
        if is_checked:
            found = find_problems(value)
            found += [Problem(sentence) for sentence in check(parsed)] if check is not None else []
            Problems(list(dict.fromkeys(found))).raise_if_any()
        return parsed

    def _read_below_flags(self, tokens: list[Token], data: Mapping[str, Any], where: str) -> Flat:
        """Checkpoints and the config file; picks the class of every choice on the way."""
        rest = dict(data)
        picks: list[Picked] = []
        for choice in choices_of(self.cls):
            section = rest.pop(choice.name, PRESENT) if "." not in choice.name else PRESENT
            picked = pick(choice, tokens, section, where, self.load_policy, self.problems)
            if picked.cls is not None:
                self.chosen[choice.name] = picked.cls
            if picked.is_failed:
                self.failed.add(choice.name)
            self.notes += picked.notes
            picks.append(picked)
        flat = FileReader(where, f"file {where}", self.problems).read(self.cls, rest)
        for picked in picks:
            lay_over(flat, picked.flat)
        return flat

    def _read_flags(self, flat: Flat, tokens: list[Token]) -> None:
        choices = {choice.name: choice for choice in choices_of(self.cls)}
        for token in tokens:
            group, _, key = token.name.rpartition(".")
            is_special = token.name == "config_path" or (
                group in choices and (key == "type" or (key == "path" and has_path(choices[group])))
            )
            if is_special and token.text is None:
                self._report_no_value(token.name, None)
            if is_special or any(token.name == name or token.name.startswith(name + ".") for name in self.failed):
                continue
            setting = find(self.cls, token.name, self.chosen)
            if setting is None:
                unpicked = report_unknown(self.cls, token.name, token.value, self.chosen, self.problems, self.prog)
                if unpicked:  # one message is enough for all flags of the choice
                    self.failed.add(unpicked)
            elif token.text is None:
                self._report_no_value(token.name, setting)
            elif not setting.is_flag:
                self.problems.add(f"`--{token.name}` is written by mimetic and cannot be set", "leave it out")
            elif setting.node == "leaf":
                self._read_leaf(flat, setting, token)
            else:
                self._read_whole_group(flat, setting, token)

    def _report_no_value(self, name: str, setting: Setting | None) -> None:
        default = setting.default() if setting is not None and setting.node == "leaf" else None
        example = "true" if isinstance(default, bool) else default if isinstance(default, (int, float)) else "..."
        self.problems.add(f"flag `--{name}` needs a value", f"write `--{name}={example}`")

    def _read_leaf(self, flat: Flat, setting: Setting, token: Token) -> None:
        try:
            value = check_word(setting, convert(read_text(token.value, setting.kind), setting.kind))
        except Mismatch as mismatch:
            see = f"see `{self.prog} --help {setting.key}`"
            if mismatch.hint.endswith("?"):
                hint = f"{mismatch.hint} See `{self.prog} --help {setting.key}`"
            else:
                hint = f"{mismatch.hint}; {see}" if mismatch.hint else f"{see} (type {type_text(setting.hint)})"
            text = token.value if len(token.value) <= 80 else token.value[:77] + "..."
            self.problems.add(f"`--{token.name}={text}`: {mismatch}", hint)
        else:
            put(flat, setting.name, Given(value, "flag"))

    def _read_whole_group(self, flat: Flat, setting: Setting, token: Token) -> None:
        """`--env=null` or `--policy='{type: act}'`."""
        try:
            data = read_value(token.value)
        except Mismatch as mismatch:
            self.problems.add(f"`--{token.name}={token.text}`: {mismatch}", mismatch.hint)
            return
        if is_null(data):
            if setting.is_optional:
                # A later flag of the same choice revives it; then the choice was picked and is not null.
                if setting.name not in self.chosen:
                    put(flat, setting.name, Given(None, "flag"))
            else:
                self.problems.add(f"`--{token.name}=null`: this group cannot be null", "leave it out")
        elif isinstance(data, Mapping):
            inner = inner_class(setting, self.chosen)
            if inner is None:
                self.problems.add(
                    f"`--{token.name}` has no `type`", f"available: {', '.join(setting.catalog.available())}"
                )
                return
            special = ("type", "path") if setting.node == "choice" else ()
            values = {key: value for key, value in data.items() if key not in special}
            reader = FileReader(f"`--{token.name}`", "flag", self.problems)
            put(flat, setting.name, Given(PRESENT, "flag"))
            lay_over(flat, reader.read(inner, values, setting.name, self.chosen))
        elif setting.node == "choice":
            self.problems.add(
                f"`--{token.name}={token.text}`: expected a mapping or null",
                f"did you mean `--{token.name}.type={token.text}`?",
            )
        else:
            self.problems.add(
                f"`--{token.name}={token.text}`: `{token.name}` is a group of flags",
                f"see `{self.prog} --help {token.name}.`",
            )

    def _raise_missing(self) -> None:
        if not self.problems.found:
            return
        names = [item.message.split("`")[1] for item in self.problems.found]
        verb = "is" if len(names) == 1 else "are"
        hint = f"add {' '.join(f'`{name}=...`' for name in names)}; `{self.prog} --help` shows an example"
        raise ConfigError(f"{', '.join(f'`{name}`' for name in names)} {verb} required", hint)

    def _origins(self, flat: Flat) -> dict[str, str]:
        """Origin of every leaf and every picked type; a group that is null has one entry, its own name."""
        origins: dict[str, str] = {}

        def visit(cls: type, prefix: str) -> None:
            for setting in settings_of(cls, prefix):
                inner = inner_class(setting, self.chosen)
                if setting.node == "leaf" or inner is None or _is_null(setting, flat):
                    origins[setting.name] = flat[setting.name].origin if setting.name in flat else "default"
                    continue
                if setting.node == "choice":
                    origins[f"{setting.name}.type"] = flat[f"{setting.name}.type"].origin
                visit(inner, setting.name)

        visit(self.cls, "")
        return origins


def _is_null(group: Setting, flat: Flat) -> bool:
    """Whether an optional group has no value."""
    if group.name in flat:
        return flat[group.name].value is None
    return group.default() is None and not any(name.startswith(group.name + ".") for name in flat)
