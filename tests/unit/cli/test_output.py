"""What the user sees."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stderr, redirect_stdout

import pytest

from mimetic.cli import output
from mimetic.errors import ConfigError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_colour_is_for_terminals_and_never_alone(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stderr(terminal):
        output.print_error(ConfigError("a", "b"))
    assert terminal.getvalue() == "\033[31merror:\033[0m a\n\033[36mhint:\033[0m b\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.use_color(terminal)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not output.use_color(terminal)
    assert not output.use_color(io.StringIO())


def test_a_table_is_aligned_text_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_table(("name", "n"), [("long name", 1), ("x", None)], title="Things")
    assert capsys.readouterr().out == "Things\nname       n\nlong name  1\nx          -\n"


def test_a_table_on_a_terminal_holds_the_same_cells(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        output.say_table(("name", "n"), [("[bold]x[/bold]", 1)])
    assert "[bold]x[/bold]" in terminal.getvalue()


def test_json_is_valid_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    output.say_json({"a": math.nan, "b": [math.inf, 1.5], "c": "ü", "d": (1,)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": "ü", "d": [1]}
