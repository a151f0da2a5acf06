"""Tasks (language instructions) by number: meta/tasks.parquet, and tasks.jsonl of v2.x (spec/dataset.md 5, 16.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from mimetic.data.jsonfile import parse_json
from mimetic.data.parquet import read_table
from mimetic.errors import DatasetFormatError
from mimetic.names import TASKS_PARQUET


def read_tasks(root: Path) -> dict[int, str]:
    """Read the task strings of a v3.0 dataset by task index; an absent file means none.

    Raises:
        DatasetFormatError: damaged, no text column, or a number twice.
    """
    path = root / TASKS_PARQUET
    if not path.is_file():
        return {}
    table = read_table(path)
    name = _text_column(table.schema)
    if name is None or "task_index" not in table.column_names:
        raise DatasetFormatError(
            f"`{path}` has the columns {table.column_names}; `task_index` and one text column are needed"
        )
    return _by_number(table["task_index"].to_pylist(), table[name].to_pylist(), path)


def read_legacy_tasks(root: Path) -> dict[int, str]:
    """Read meta/tasks.jsonl of a v2.x dataset (same errors as `read_tasks`)."""
    path = root / "meta" / "tasks.jsonl"
    rows = read_json_lines(path) if path.is_file() else []
    try:
        return _by_number([int(row["task_index"]) for row in rows], [str(row["task"]) for row in rows], path)
    except DatasetFormatError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatasetFormatError(f"`{path}` has a line without `task_index` and `task`") from error


def read_json_lines(path: Path) -> list[Any]:
    """Read a file of one JSON value a line.

    Raises:
        DatasetFormatError: missing, or a line is not JSON; the line is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetFormatError(f"`{path}` cannot be read: {error}", "restore this file from a copy") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                raise DatasetFormatError(
                    f"line {number} of `{path}` is not JSON: {error}; {len(rows)} lines before it are complete"
                ) from error
    return rows


def _text_column(schema: Any) -> str | None:
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    raw = (schema.metadata or {}).get(b"pandas")
    if raw:
        try:
            named = [str(name) for name in json.loads(raw)["index_columns"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            named = []
        for name in named:
            if name in texts:
                return name
    return texts[0] if len(texts) == 1 else None


def _by_number(numbers: list[Any], texts: list[Any], path: Path) -> dict[int, str]:
    for number, text in zip(numbers, texts, strict=True):
        if not isinstance(number, int) or isinstance(number, bool) or not isinstance(text, str):
            raise DatasetFormatError(f"`{path}` gives the task {text!r:.60} the number {number!r:.60}")
    tasks = dict(zip(numbers, texts, strict=True))
    if len(tasks) != len(numbers):
        raise DatasetFormatError(f"`{path}` gives two tasks the same number")
    return {number: tasks[number] for number in sorted(tasks)}
