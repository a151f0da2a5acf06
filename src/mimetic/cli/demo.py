"""`mimetic demo`: record, check, plan, train and evaluate in the simulated cell, every step shown as it is typed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mimetic.cli import output
from mimetic.cli.places import require_writable
from mimetic.demo.config import DemoConfig

SUMMARY = "Record, check, plan, train and evaluate in the simulated cell, in minutes"
_SWITCHES = {"yes": "true", "open": "true", "resume": "true", "real_size": "act"}
"""Flags that may stand without a value -> the value that is then meant."""


def main(argv: list[str], *, debug: bool) -> int:
    """Run the demo, or go on with it.

    Args:
        argv: flags after `mimetic demo`.
        debug: not used here.

    Returns:
        0.

    Raises:
        MimeticError: anything that the user can mend.
        Interrupted: Ctrl-C; the same command goes on.
    """
    from mimetic.config.parse import parse

    config: DemoConfig = parse(DemoConfig, with_values(argv), prog="mimetic demo").value
    require_writable(config.output_dir)
    from mimetic.demo.device import require_device
    from mimetic.demo.recipes import require_task
    from mimetic.demo.run import Voice, run_demo

    require_task(config)
    require_device(config)
    outcome = run_demo(config, Voice(_say, _title, _table), typed=shlex.join(["mimetic", "demo", *_again(argv)]))
    if outcome.page is not None and (config.open if config.open is not None else _has_display()):
        _open(outcome.page)
    return 0


def with_values(argv: Sequence[str]) -> list[str]:
    """The words with bare switches written out, and `--no-open` as `--open=false`."""
    words = []
    for number, word in enumerate(argv):
        name = word.removeprefix("--").replace("-", "_")
        is_bare = number + 1 == len(argv) or argv[number + 1].startswith("--")
        if word in ("--no-open", "--no_open"):
            word = "--open=false"
        elif word.startswith("--") and is_bare and name in _SWITCHES:
            word = f"{word}={_SWITCHES[name]}"
        words.append(word)
    return words


def _again(argv: Sequence[str]) -> list[str]:
    """The words that go on with what these began: without the one that moved an older demo aside."""
    words = with_values(argv)
    return [
        word
        for number, word in enumerate(words)
        if word.partition("=")[0] != "--resume" and (number == 0 or words[number - 1] != "--resume")
    ]


def _say(text: str) -> None:
    output.say(text)
    sys.stdout.flush()  # a command that writes to the same place follows


def _title(text: str) -> None:
    _say("")
    _say(output.paint(text, "bold", sys.stdout))


def _table(headers: Sequence[str], rows: Sequence[Sequence[str | None]]) -> None:
    output.say_table(headers, rows)
    sys.stdout.flush()


def _has_display() -> bool:
    """Whether a browser would open where the user sees it."""
    if not sys.stdout.isatty() or os.environ.get("CI") or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        output.note(f"note: no browser could be opened; the report is {page}")
