"""One data file of the output: rows of source episodes with new numbers, other columns, other tasks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.features import DatasetFeature, parse_features
from mimetic.data.parquet import fill_from_column, read_table
from mimetic.data.statistics import columns_stats
from mimetic.data.stats import Stats
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.schema import episode_table
from mimetic.errors import DatasetFormatError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP


@dataclass(frozen=True, kw_only=True)
class RowsPart:
    """Rows that become one output episode.

    Args:
        path: source data file.
        start: first row in it.
        count: rows.
        episode: output number.
        first: output `index` of the first row.
        tasks: source task_index -> output task_index.
        is_moved: whether frames before the first were cut away, so that times begin anew.
    """

    path: Path
    start: int
    count: int
    episode: int
    first: int
    tasks: Mapping[int, int]
    is_moved: bool = False


@dataclass(frozen=True, kw_only=True)
class DataTask:
    """One data file to write.

    Args:
        out: its path.
        features: declarations of the output, in column order.
        columns: output column -> source column.
        parts: its episodes in order.
        fps: frame rate [Hz].
        added: new column -> `.npy` file with values of all output frames.
        copied: source file to take as it is, instead of writing.
    """

    out: Path
    features: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, str]
    parts: tuple[RowsPart, ...]
    fps: int
    added: Mapping[str, Path] = field(default_factory=dict)
    copied: Path | None = None


def write_data_file(task: DataTask) -> list[Stats]:
    """Write (or copy) the file.

    Returns:
        Statistics of the numeric features of each episode in it.

    Raises:
        DatasetFormatError: a source file is damaged, or a picture has no bytes (spec/dataset.md 20.6).
    """
    features = parse_features(task.features, where=f"`{task.out}`")
    source = _Source(task)
    found: list[Stats] = []
    task.out.parent.mkdir(parents=True, exist_ok=True)
    if task.copied is not None:
        # Never a link: LeRobot's editor writes into data files, and the other dataset (a backup!) would change too.
        shutil.copyfile(task.copied, task.out)
        return [columns_stats(features, source.columns(part, features, with_pictures=False)) for part in task.parts]
    with DataFileWriter(task.out, features) as writer:
        for part in task.parts:
            columns = source.columns(part, features)
            writer.write(episode_table(features, columns))
            found.append(columns_stats(features, columns))
    return found


class _Source:
    """Rows of source files; the last file is kept, since neighbours come from the same one."""

    def __init__(self, task: DataTask) -> None:
        self._task = task
        self._held: tuple[Path, Any] | None = None

    def columns(
        self, part: RowsPart, features: Mapping[str, DatasetFeature], *, with_pictures: bool = True
    ) -> dict[str, Any]:
        """All columns of one output episode, as `episode_table` takes them."""
        table = self._table(part.path, with_pictures, features).slice(part.start, part.count)
        where = str(part.path)
        columns: dict[str, Any] = {}
        for name, feature in features.items():
            if name in self._task.added:
                values = np.load(self._task.added[name], mmap_mode="r", allow_pickle=False)
                rows = values[part.first : part.first + part.count]
                columns[name] = rows.tolist() if feature.dtype == "string" else np.asarray(rows)
            elif name in self._task.columns:
                origin = self._task.columns[name]
                if feature.dtype == "image" and not with_pictures:
                    continue
                if origin not in table.column_names:
                    raise DatasetFormatError(f"`{where}` lacks the declared column `{origin}`")
                columns[name] = _values(table[origin], feature, name=origin, where=where)
        self._renumber(columns, part)
        return {name: columns[name] for name in features if name in columns}

    def _renumber(self, columns: dict[str, Any], part: RowsPart) -> None:
        frames = np.arange(part.count, dtype=np.int64)
        columns[FRAME_INDEX] = frames
        columns[EPISODE_INDEX] = np.full(part.count, part.episode, dtype=np.int64)
        columns[INDEX] = part.first + frames
        old = columns[TASK_INDEX]
        columns[TASK_INDEX] = np.asarray([part.tasks[int(number)] for number in old], dtype=np.int64)
        if part.is_moved:
            columns[TIMESTAMP] = (frames / self._task.fps).astype(np.float32)

    def _table(self, path: Path, with_pictures: bool, features: Mapping[str, DatasetFeature]) -> Any:
        if self._held is None or self._held[0] != path:
            names = None
            if not with_pictures:
                names = [self._task.columns[name] for name in self._task.columns if features[name].dtype != "image"]
            self._held = (path, read_table(path, names))
        return self._held[1]


def _values(column: Any, feature: DatasetFeature, *, name: str, where: str) -> Any:
    if feature.dtype == "image":
        return pictures(column, name=name, where=where)
    if not feature.is_numeric:
        return column.to_pylist()
    return native_column(column, feature, name=name, where=where)


def native_column(column: Any, feature: DatasetFeature, *, name: str, where: str) -> npt.NDArray[Any]:
    """A numeric Arrow column as an array (rows, *shape) of the declared dtype; shape (1,) gives (rows,)."""
    dtype = np.dtype(feature.dtype)
    wide = np.dtype(np.int64) if dtype.kind in "iu" else dtype
    out = np.empty((len(column), *feature.value_shape), dtype=wide)
    fill_from_column(out, column, name=name, where=where)
    return out.astype(dtype, copy=False)


def pictures(column: Any, *, name: str, where: str) -> list[tuple[bytes, str | None]]:
    """Encoded pictures of an image column with their names; a cell that only names a file is refused, not opened.

    Raises:
        DatasetFormatError: a cell without bytes.
    """
    cells: list[tuple[bytes, str | None]] = []
    is_struct = pa.types.is_struct(column.type)
    for row, cell in enumerate(column.to_pylist()):
        data, path = (cell.get("bytes"), cell.get("path")) if is_struct and cell is not None else (cell, None)
        if not isinstance(data, bytes):
            raise DatasetFormatError(
                f"`{name}` in row {row} of an episode in `{where}` has no picture"
                + (f", only the path {path!r}, which is not opened" if path else ""),
                "store the pictures as bytes inside the data files",
            )
        # The base name only: a full path says where somebody keeps his files.
        cells.append((data, Path(path).name if isinstance(path, str) else None))
    return cells


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where the file system cannot link; the original is never written to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    real = Path(os.path.realpath(source))  # a hub snapshot holds links
    try:
        os.link(real, target)
    except OSError:
        shutil.copyfile(real, target)
