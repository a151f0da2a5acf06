"""Rows of one episode out of a data file, as they go into another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.edit.data_task import native_column, pictures
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_table
from mimetic.errors import EpisodeError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX


@dataclass(frozen=True, kw_only=True)
class EpisodeRows:
    """Where the rows of an episode are, and their numbers in the result.

    Args:
        path: data file.
        episode: its number in that file.
        length: frames.
        number: its number in the result.
        first: `index` of its first frame in the result.
        tasks: `task_index` in the file to that in the result.
    """

    path: Path
    episode: int
    length: int
    number: int
    first: int
    tasks: Mapping[int, int]


def read_episode(rows: EpisodeRows, features: Mapping[str, DatasetFeature], table: Any = None) -> dict[str, Any]:
    """The columns of an episode with the numbers of the result, for `episode_table`.

    Args:
        rows: which.
        features: declared features; videos have no column.
        table: the file's content, when it is read already.

    Raises:
        DatasetFormatError: the file is damaged, or a picture has no bytes.
        EpisodeError: rows of other episodes, frames that are missing or out of order, unknown task numbers.
    """
    stored = {name: feature for name, feature in features.items() if feature.dtype != "video"}
    if table is None:
        table = read_table(rows.path, list(stored))
    columns = {name: _values(table[name], feature, name=name, where=f"{rows.path}") for name, feature in stored.items()}
    frames = np.arange(rows.length, dtype=np.int64)
    where = f"episode {rows.episode} in `{rows.path}`"
    if table.num_rows != rows.length:
        raise EpisodeError(f"{where} has {table.num_rows} rows; the table of episodes says {rows.length}")
    if (columns[EPISODE_INDEX] != rows.episode).any():
        raise EpisodeError(f"{where} holds rows of episode {int(columns[EPISODE_INDEX].max())}")
    if not np.array_equal(columns[FRAME_INDEX], frames):
        wrong = int(np.flatnonzero(columns[FRAME_INDEX] != frames)[0])
        raise EpisodeError(
            f"row {wrong} of {where} has the frame_index {int(columns[FRAME_INDEX][wrong])}",
            "`mimetic dataset check` lists what is wrong with a dataset",
        )
    unknown = sorted(set(np.unique(columns[TASK_INDEX]).tolist()) - set(rows.tasks))
    if unknown:
        raise EpisodeError(f"{where} has the task_index {unknown[0]}, which the table of tasks does not have")
    columns[EPISODE_INDEX] = np.full(rows.length, rows.number, dtype=np.int64)
    columns[INDEX] = rows.first + frames
    columns[TASK_INDEX] = np.asarray([rows.tasks[int(task)] for task in columns[TASK_INDEX]], dtype=np.int64)
    return columns


def task_order(columns: Mapping[str, Any]) -> list[int]:
    """Task numbers of an episode in the order of their first frame."""
    return list(dict.fromkeys(columns[TASK_INDEX].tolist()))


def same_columns(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first column that differs; empty when all are equal, bit for bit but for the kinds of not-a-number."""
    for name, values in one.items():
        if isinstance(values, np.ndarray):
            is_float = values.dtype.kind == "f"
            if not np.array_equal(values, other[name], equal_nan=is_float):
                return name
        elif not _same_cells(values, other[name]):
            return name
    return ""


def _same_cells(one: Any, other: Any) -> bool:
    """Whether pictures have equal bytes, and texts are equal."""
    if len(one) != len(other):
        return False
    return all(
        mine[0] == theirs[0] if isinstance(mine, tuple) else mine == theirs
        for mine, theirs in zip(one, other, strict=True)
    )


def _values(column: Any, feature: DatasetFeature, *, name: str, where: str) -> Any:
    if feature.dtype == "image":
        return pictures(column, name=name, where=where)
    if not feature.is_numeric:
        return column.to_pylist()
    return native_column(column, feature, name=name, where=where)
