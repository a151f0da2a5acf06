"""The table of episodes, looked up by episode number and never by position (spec/dataset.md 6, 20.21)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.layout import require_inside
from mimetic.data.parquet import Truncated, read_footer, read_table
from mimetic.errors import DatasetFormatError, EpisodeError
from mimetic.names import EPISODES_DIR

logger = logging.getLogger(__name__)

_MOST_GAPS = 1000

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Episode:
    """One row of the table.

    Args:
        episode_index: number of the episode.
        length: frames.
        tasks: distinct tasks, in the table's order.
    """

    episode_index: int
    length: int
    tasks: tuple[str, ...]

    @property
    def first_task(self) -> str:
        """The first task, or an empty text."""
        return self.tasks[0] if self.tasks else ""


@dataclass(frozen=True)
class VideoSpans:
    """Where the frames of every episode lie in one camera's files; arrays of shape (E,) in table order.

    Args:
        chunk: chunk number of the file.
        file: number of the file (v2.x: the episode).
        from_s: time of the first frame in the file [s].
        to_s: time after the last frame in the file [s].
    """

    chunk: Ints
    file: Ints
    from_s: Floats
    to_s: Floats


@dataclass(frozen=True)
class Episodes:
    """All episodes of a dataset; arrays of shape (E,) in table order.

    Args:
        index: episode numbers.
        length: frames of each.
        tasks: tasks of each.
        data_chunk: declared chunk of the data file, or -1.
        data_file: declared number of the data file, or -1.
        from_index: declared first global index, or -1.
        to_index: declared global index after the last, or -1.
        videos: spans by camera key.
    """

    index: Ints
    length: Ints
    tasks: tuple[tuple[str, ...], ...]
    data_chunk: Ints
    data_file: Ints
    from_index: Ints
    to_index: Ints
    videos: Mapping[str, VideoSpans] = field(default_factory=dict)

    def __post_init__(self) -> None:
        numbers, counts = np.unique(self.index, return_counts=True)
        if (counts > 1).any():
            raise EpisodeError(
                f"the table of episodes has more than one row for episodes {listed(numbers[counts > 1])}",
                "remove the rows that are wrong from meta/episodes",
            )
        for name, values in (("episode_index", self.index), ("length", self.length)):
            if len(values) and values.min() < 0:
                raise EpisodeError(f"the table of episodes has the {name} {values.min()}")
        object.__setattr__(self, "_order", np.argsort(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[Episode]:
        return (self._at(position) for position in range(len(self)))

    def __contains__(self, episode: object) -> bool:
        return isinstance(episode, (int, np.integer)) and bool((self.index == episode).any())

    def __getitem__(self, episode: int) -> Episode:
        """The episode with this number.

        Raises:
            EpisodeError: there is none.
        """
        position = int(self.positions(np.asarray([episode]))[0])
        if position < 0:
            raise EpisodeError(f"there is no episode {episode}; the dataset has {self.described()}")
        return self._at(position)

    def positions(self, episodes: Ints) -> Ints:
        """Rows of the given episode numbers in the table, -1 for those that are not in it."""
        wanted = np.asarray(episodes, dtype=np.int64)
        if not len(self):
            return np.full(wanted.shape, -1, dtype=np.int64)
        order: Ints = self._order  # type: ignore[attr-defined]
        found = order[np.minimum(np.searchsorted(self.index, wanted, sorter=order), len(self) - 1)]
        return np.asarray(np.where(self.index[found] == wanted, found, -1), dtype=np.int64)

    @property
    def gaps(self) -> list[int]:
        """Numbers that are missing between 0 and the largest episode, the first thousand of them."""
        if not len(self):
            return []
        known = np.unique(np.append(self.index, -1))
        before = np.flatnonzero(np.diff(known) > 1)
        missing: list[int] = []
        for number, following in zip(known[before].tolist(), known[before + 1].tolist(), strict=True):
            missing += range(number + 1, min(following, number + 1 + _MOST_GAPS - len(missing)))
            if len(missing) >= _MOST_GAPS:  # a damaged number may leave a gap of any size
                break
        return missing

    def described(self) -> str:
        """Short text on the numbers in use, such as "episodes 0 to 5"."""
        if not len(self):
            return "no episodes"
        gaps = self.gaps
        text = f"episodes {self.index.min()} to {self.index.max()}"
        return f"{text} without {listed(gaps)}" if gaps else text

    def _at(self, position: int) -> Episode:
        return Episode(int(self.index[position]), int(self.length[position]), self.tasks[position])


def listed(numbers: Sequence[int] | npt.NDArray[Any], limit: int = 8) -> str:
    """Numbers for a message, the first few of many."""
    shown = ", ".join(str(number) for number in list(numbers)[:limit])
    return f"{shown} and {len(numbers) - limit} more" if len(numbers) > limit else shown


def read_episodes(root: Path, video_keys: Sequence[str]) -> Episodes:
    """Read meta/episodes, without its statistics.

    Args:
        root: folder of the dataset.
        video_keys: cameras whose spans are needed.

    Raises:
        DatasetFormatError: files are missing or damaged, or a column is missing.
        EpisodeError: an episode stands in it twice.
    """
    folder = root / EPISODES_DIR
    paths = [require_inside(root, path) for path in sorted(folder.glob("**/*.parquet"))]
    if not paths:
        raise DatasetFormatError(
            f"`{folder}` has no Parquet file, so no episode of this dataset is complete",
            "the recorder was stopped before it closed the dataset, or the files were not copied; restore this folder",
        )
    tables: list[Any] = []
    for path in paths:
        try:
            footer = read_footer(path)
        except Truncated as error:
            complete = sum(table.num_rows for table in tables)
            raise DatasetFormatError(
                f"{error.message}; the files before it describe {complete} complete episodes",
                "restore this file from a copy, or move it away to use the complete episodes only",
            ) from error
        names = [name for name in footer.schema.to_arrow_schema().names if not name.startswith("stats/")]
        tables.append(read_table(path, names, footer))
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DatasetFormatError(f"the files in `{folder}` have different columns: {error!s:.200}") from error
    return _from_table(table, video_keys, where=str(folder))


def _from_table(table: Any, video_keys: Sequence[str], *, where: str) -> Episodes:
    needed = ["episode_index", "length"]
    needed += [f"videos/{key}/{name}" for key in video_keys for name in ("chunk_index", "file_index", "from_timestamp")]
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise DatasetFormatError(f"`{where}` lacks the columns {', '.join(f'`{name}`' for name in missing)}")

    def ints(name: str) -> Ints:
        if name not in table.column_names:
            return np.full(table.num_rows, -1, dtype=np.int64)
        values = _numbers(table[name], name, where)
        if values.dtype.kind in "fu" and ((np.abs(values) >= 2.0**63) | (values != np.trunc(values))).any():
            raise DatasetFormatError(f"`{name}` in `{where}` holds {values.max():g}, which is not a whole number")
        return values.astype(np.int64)

    def floats(name: str, default: Floats) -> Floats:
        if name not in table.column_names:
            return default
        return _numbers(table[name], name, where).astype(np.float64)

    tasks = table["tasks"].to_pylist() if "tasks" in table.column_names else [[]] * table.num_rows
    if not all(names is None or isinstance(names, list) for names in tasks):
        raise DatasetFormatError(f"`tasks` in `{where}` holds {table['tasks'].type} instead of lists of texts")
    length = ints("length")
    videos = {}
    for key in video_keys:
        start = floats(f"videos/{key}/from_timestamp", np.zeros(table.num_rows))
        end = floats(f"videos/{key}/to_timestamp", start)
        videos[key] = VideoSpans(ints(f"videos/{key}/chunk_index"), ints(f"videos/{key}/file_index"), start, end)
    return Episodes(
        index=ints("episode_index"),
        length=length,
        tasks=tuple(tuple(str(task) for task in (names or [])) for names in tasks),
        data_chunk=ints("data/chunk_index"),
        data_file=ints("data/file_index"),
        from_index=ints("dataset_from_index"),
        to_index=ints("dataset_to_index"),
        videos=videos,
    )


def _numbers(column: Any, name: str, where: str) -> npt.NDArray[Any]:
    if column.null_count:
        raise DatasetFormatError(f"`{name}` in `{where}` has {column.null_count} rows without a value")
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise DatasetFormatError(f"`{name}` in `{where}` holds values that are not numbers")
    return values
