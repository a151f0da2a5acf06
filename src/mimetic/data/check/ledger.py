"""The table of episodes as it stands, faults and all: what reading would refuse, a check has to describe.

`mimetic.data.episodes` reads the same files for use, and refuses tables that contradict themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mimetic.data.check.unreadable import Part, Unreadable, unreadable
from mimetic.data.episodes import VideoSpans
from mimetic.data.info import Info
from mimetic.data.layout import require_inside
from mimetic.data.parquet import read_footer, read_table
from mimetic.data.tasks import read_json_lines
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.names import EPISODES_DIR

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOT_THERE = -1
_MOST_VALUES = 20_000_000
"""Most values of one column of the table; a table of a million episodes has fewer."""
_NEEDED = ("episode_index", "length")
_OFTEN = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """One row an episode, arrays of shape (E,) in the order of the files; -1 stands for what is not there.

    Args:
        index: `episode_index`; may have gaps, repeats and any order.
        length: frames.
        tasks: task strings.
        data_chunk: declared chunk of the data file.
        data_file: declared number of the data file.
        from_index: declared first global index.
        to_index: declared global index after the last.
        videos: spans by camera key; NaN for times that are not there.
        counts: frames that each feature's statistics of the episode count, by feature.
        missing: columns that every table has and this one lacks.
    """

    index: Ints
    length: Ints
    tasks: Sequence[tuple[str, ...]]
    data_chunk: Ints
    data_file: Ints
    from_index: Ints
    to_index: Ints
    videos: Mapping[str, VideoSpans] = field(default_factory=dict)
    counts: Mapping[str, Ints] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    @property
    def is_unique(self) -> bool:
        """Whether no episode stands in it twice."""
        return len(np.unique(self.index)) == len(self.index)

    def row_of(self, episode: int) -> int:
        """First row of an episode, or -1."""
        rows = np.flatnonzero(self.index == episode)
        return int(rows[0]) if len(rows) else NOT_THERE


def read_ledger(root: Path, video_keys: Sequence[str]) -> tuple[Ledger | None, list[Unreadable]]:
    """Read meta/episodes of a v3.0 dataset, as far as it can be read.

    Args:
        root: folder of the dataset.
        video_keys: cameras whose spans are wanted.

    Returns:
        The table, None when nothing of it can be read; and the files that cannot be read.
    """
    tables: list[Any] = []
    broken: list[Unreadable] = []
    paths = sorted((root / EPISODES_DIR).glob("**/*.parquet"))
    for path in paths:
        try:
            tables.append(_read_file(require_inside(root, path)))
        except DatasetError as error:
            broken.append(unreadable(Part.EPISODES, path, error))
    if not paths:
        reason = "no Parquet file; the recorder was stopped before it closed the dataset, or the files were not copied"
        broken.append(Unreadable(Part.EPISODES, root / EPISODES_DIR, reason, is_missing=True))
    if not tables:
        return None, broken
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
        return _from_table(table, video_keys), broken
    except (pa.ArrowException, DatasetError) as error:
        broken.append(unreadable(Part.EPISODES, root / EPISODES_DIR, error))
        return None, broken


def _read_file(path: Path) -> Any:
    footer = read_footer(path)
    names = footer.schema.to_arrow_schema().names
    wanted = [name for name in names if not name.startswith("stats/") or name.endswith("/count")]
    require_values(footer, wanted, _MOST_VALUES, path)
    return read_table(path, wanted, footer)


def require_values(footer: Any, names: Sequence[str], most: int, path: Path) -> None:
    """Refuse columns that hold more values than any dataset has, before memory is taken for them.

    Args:
        footer: metadata of the Parquet file.
        names: columns that will be read.
        most: values of one column at most.
        path: the file, for the message.

    Raises:
        DatasetFormatError: a column says that it holds more.
    """
    totals: dict[str, int] = {}
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            totals[column.path_in_schema] = totals.get(column.path_in_schema, 0) + column.num_values
    for name, total in totals.items():
        column_name = next((wanted for wanted in names if name == wanted or name.startswith(wanted + ".")), None)
        if column_name is not None and (total > most or total < 0):
            raise DatasetFormatError(f"`{path}` says that `{column_name}` holds {total} values, more than can be right")


def _from_table(table: Any, video_keys: Sequence[str]) -> Ledger:
    rows = table.num_rows
    names = set(table.column_names)
    if not set(_NEEDED) <= names:
        lacking = ", ".join(f"`{name}`" for name in _NEEDED if name not in names)
        raise DatasetFormatError(f"the table of episodes lacks the columns {lacking}")

    def ints(name: str) -> Ints:
        values = _numbers(table[name], name) if name in names else np.full(rows, np.nan)
        with np.errstate(invalid="ignore"):
            usable = np.isfinite(values) & (np.abs(values) < 2.0**62)
        return np.where(usable, np.where(usable, values, 0).astype(np.int64), NOT_THERE)

    videos = {}
    for key in video_keys:
        start, end = (
            _numbers(table[name], name) if name in names else np.full(rows, np.nan)
            for name in (f"videos/{key}/from_timestamp", f"videos/{key}/to_timestamp")
        )
        chunk, file = ints(f"videos/{key}/chunk_index"), ints(f"videos/{key}/file_index")
        videos[key] = VideoSpans(chunk, file, start, end)
    often = (*_OFTEN, *(f"videos/{key}/{name}" for key in video_keys for name in ("file_index", "from_timestamp")))
    counts = {
        name.removeprefix("stats/").removesuffix("/count"): _first_of_lists(table[name])
        for name in table.column_names
        if name.startswith("stats/")
    }
    return Ledger(
        index=ints("episode_index"),
        length=ints("length"),
        tasks=_tasks(table["tasks"]) if "tasks" in names else [()] * rows,
        data_chunk=ints("data/chunk_index"),
        data_file=ints("data/file_index"),
        from_index=ints("dataset_from_index"),
        to_index=ints("dataset_to_index"),
        videos=videos,
        counts=counts,
        missing=tuple(name for name in often if name not in names),
    )


def _numbers(column: Any, name: str) -> Floats:
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DatasetFormatError(f"`{name}` of the table of episodes holds {kind} instead of numbers")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _tasks(column: Any) -> list[tuple[str, ...]]:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return [()] * len(column)
    return [tuple(str(task) for task in names or ()) for names in column.to_pylist()]


def _first_of_lists(column: Any) -> Ints:
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        return np.full(len(column), NOT_THERE, dtype=np.int64)
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    first = np.full(len(column), NOT_THERE, dtype=np.int64)
    for row in np.flatnonzero(np.nan_to_num(lengths) == 1) if not (lengths == 1).all() else ():
        first[row] = column[int(row)].as_py()[0] or NOT_THERE
    if len(lengths) and (lengths == 1).all():
        first = pc.list_flatten(column).fill_null(NOT_THERE).to_numpy().astype(np.int64)
    return first


def read_legacy_ledger(root: Path, info: Info, video_keys: Sequence[str]) -> tuple[Ledger | None, list[Unreadable]]:
    """Read meta/episodes.jsonl of a v2.x dataset; it knows no offsets."""
    path = root / "meta" / "episodes.jsonl"
    try:
        rows = read_json_lines(path)
        index = np.asarray([int(row["episode_index"]) for row in rows], dtype=np.int64)
        length = np.asarray([int(row["length"]) for row in rows], dtype=np.int64)
        tasks = [tuple(str(task) for task in row.get("tasks") or ()) for row in rows]
    except DatasetError as error:
        return None, [unreadable(Part.EPISODES, path, error)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, json.JSONDecodeError):
        reason = "a line lacks `episode_index` or `length`"
        return None, [Unreadable(Part.EPISODES, path, reason)]
    chunk, absent = index // info.chunks_size, np.full(len(index), NOT_THERE, dtype=np.int64)
    spans = VideoSpans(chunk, index, np.zeros(len(index)), length / info.fps)
    return Ledger(
        index=index,
        length=length,
        tasks=tasks,
        data_chunk=chunk,
        data_file=index,
        from_index=absent,
        to_index=absent,
        videos=dict.fromkeys(video_keys, spans),
    ), []
