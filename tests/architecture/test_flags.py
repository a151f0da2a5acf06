"""The flags of every command are public: this list changes on purpose only.

After a change that is meant: `python tests/architecture/test_flags.py` writes the lists again; read the difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

import pytest

from mimetic.catalog import load_object
from mimetic.cli.app import COMMANDS
from mimetic.config.codec import encode
from mimetic.config.schema import Setting, choices_of, type_text, walk

FROZEN = Path(__file__).parent / "flags"


def lines(command: str) -> Iterator[str]:
    """One flag a line: name, type, default, in declaration order; types of choices after the command's own."""
    cls = load_object(COMMANDS[command].config)
    for setting in walk(cls, {}):
        if setting.node == "choice":
            yield f"--{setting.name}.type | {', '.join(setting.catalog.available()) or '(none yet)'}"
        elif setting.node == "leaf" and setting.is_flag:
            yield line(setting)
    for choice in choices_of(cls):
        for name in choice.catalog.available():
            for setting in walk(choice.catalog.load_config(name), {}, choice.name):
                if setting.node == "leaf" and setting.is_flag:
                    yield f"[{choice.name}={name}] {line(setting)}"


def line(setting: Setting) -> str:
    default = setting.default()
    shown = "(required)" if default is MISSING else json.dumps(encode(default))
    words = f" | one of {', '.join(setting.choices)}" if setting.choices else ""
    not_yet = " | not yet" if setting.not_yet else ""
    return f"--{setting.name} | {type_text(setting.hint)} | {shown}{words}{not_yet}"


def path(command: str) -> Path:
    return FROZEN / f"{command.replace(' ', '_')}.txt"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_flags_are_the_frozen_ones(command: str) -> None:
    assert list(lines(command)) == path(command).read_text().splitlines()


def test_there_is_no_list_of_a_command_that_is_gone() -> None:
    assert {file.name for file in FROZEN.iterdir()} == {path(command).name for command in COMMANDS}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_no_flag_stands_twice(command: str) -> None:
    names = [text.partition(" | ")[0] for text in lines(command)]
    assert len(names) == len(set(names))


if __name__ == "__main__":
    FROZEN.mkdir(exist_ok=True)
    for each in COMMANDS:
        path(each).write_text("\n".join(lines(each)) + "\n")
