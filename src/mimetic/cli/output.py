"""What the user sees: errors and hints, tables, JSON. The only place that prints.

Data goes to stdout, everything else to stderr, so that `--json=true` can be piped. Colour appears on terminals only,
never alone, and not when NO_COLOR is set.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

from mimetic.errors import MimeticError

_STYLES = {"red": "31", "yellow": "33", "cyan": "36", "bold": "1"}


def say(text: str = "") -> None:
    """Print one piece of data to stdout."""
    print(text, file=sys.stdout)


def note(text: str) -> None:
    """Print one remark to stderr."""
    print(text, file=sys.stderr)


def say_json(data: Any) -> None:
    """Print a JSON document to stdout, indented by two spaces; NaN and infinities become null."""
    say(json.dumps(_finite(data), indent=2, ensure_ascii=False))


def print_error(error: MimeticError) -> None:
    """Print `error:` and `hint:` lines to stderr; the lines after the first of each are indented."""
    print_problem(error.message or type(error).__name__, error.hint)


def print_problem(message: str, hint: str = "") -> None:
    """Print an `error:` line and, when there is one, a `hint:` line to stderr."""
    note(paint("error:", "red", sys.stderr) + " " + message)
    if hint:
        note(paint("hint:", "cyan", sys.stderr) + " " + hint)


def use_color(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal that wants colour (NO_COLOR and TERM=dumb say no)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, style: str, stream: IO[str]) -> str:
    """Wrap `text` in a terminal style when `stream` shows colour."""
    return f"\033[{_STYLES[style]}m{text}\033[0m" if use_color(stream) else text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def say_table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table to stdout: with rich on a terminal, as aligned plain text elsewhere.

    Args:
        headers: column names.
        rows: one sequence of cells a row; None shows as a dash.
        title: line above the table.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if use_color(sys.stdout):
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left")
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    if title:
        say(title)
    say(format_table(headers, cells))


def format_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned plain text, two spaces between columns, no trailing spaces.

    Args:
        headers: column names.
        rows: one sequence of cells a row.
    """
    lines = [list(headers), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
