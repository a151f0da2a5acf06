"""Rows of a stream: row groups of the data files, read when they are asked for and forgotten again.

A row's number is its place in file order, worked out from the table of episodes. Where it lies in its file is found by
the file's own `episode_index`, and what was read is checked as `reader.open_dataset` checks it.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mimetic.data.consistency import check_task_numbers, check_times
from mimetic.data.episodes import listed
from mimetic.data.in_use import FilesInUse
from mimetic.data.metadata import Metadata
from mimetic.data.parquet import fill_from_column, read_footer, read_groups, storage_dtype
from mimetic.data.runs import find_runs
from mimetic.data.table import Rows
from mimetic.errors import DatasetFormatError, EpisodeError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX

Ints = npt.NDArray[np.int64]
Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The values that were used last, up to a size; safe to use from several threads.

    Args:
        budget: sum of sizes that is kept; the newest value is kept in any case.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._values: OrderedDict[Any, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[Any, threading.Lock] = {}

    def get(self, key: Any, make: Callable[[], tuple[Value, int]]) -> Value:
        """The value of a key; made, with its size, when it is not there. Threads that want the same one wait."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key][0]
            try:
                value, size = make()
                with self._lock:
                    self._values[key] = value, size
                    self.size += size
                    while self.size > self.budget and len(self._values) > 1:
                        self.size -= self._values.popitem(last=False)[1][1]
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return value


@dataclass(frozen=True)
class Part:
    """Rows of one row group.

    Args:
        first: row in the file of the group's first row.
        columns: numeric columns.
        texts: string and language columns as Arrow arrays.
    """

    first: int
    columns: Mapping[str, npt.NDArray[Any]]
    texts: Mapping[str, Any]


@dataclass(frozen=True)
class FileMap:
    """What is where in a data file.

    Args:
        starts: row in the file of each episode's first row, by episode number.
        groups: (groups + 1,) first row of each row group, and the number of rows.
    """

    starts: Mapping[int, int]
    groups: Ints


@dataclass(frozen=True)
class Places:
    """Where some rows lie: one entry a row."""

    file: Ints
    row: Ints
    group: Ints


class StreamRows:
    """Rows of a stream, in the place of `table.Rows`; safe to use from several threads.

    Args:
        metadata: metadata of the dataset.
        files: data files, in order.
        file: (R,) number in `files` of each episode.
        episode: (R,) number of each episode, in file order.
        start: (R,) first row of each.
        length: (R,) rows of each.
        require: waits until a file is here.
        tolerance_s: allowed difference of a row's time [s].
        budget: bytes of rows that are kept in memory.
    """

    def __init__(
        self,
        metadata: Metadata,
        files: Sequence[Path],
        file: Ints,
        episode: Ints,
        start: Ints,
        length: Ints,
        *,
        require: Callable[[Path], None],
        tolerance_s: float,
        budget: int,
    ) -> None:
        self.files = files
        self.unreadable: Mapping[Path, DatasetFormatError] = {}
        self._metadata = metadata
        self._file, self._episode, self._start, self._length = file, episode, start, length
        self._count = int(length.sum())
        first = np.searchsorted(file, np.arange(len(files)))
        self.starts: Ints = np.append(start[first], self._count).astype(np.int64)
        self._require = require
        self._tolerance_s = tolerance_s
        self._maps: dict[int, FileMap] = {}
        self._first, self._group = (np.full(len(file), -1, dtype=np.int64) for _ in range(2))
        self._parts = Recent[Part](budget)
        self._here = threading.local()
        self.in_use = FilesInUse()
        features = metadata.features
        self._numeric = [key for key, feature in features.items() if feature.is_numeric]
        self._text = [key for key, feature in features.items() if feature.dtype in ("string", "language")]
        self.columns = {key: Column(self, key) for key in self._numeric}
        self.texts = {key: Text(self, key) for key in self._text}

    def __len__(self) -> int:
        return self._count

    def file_of(self, rows: Ints) -> Ints:
        """Number of the file in `files` that holds each row."""
        return self._file[self.run_of(rows)]

    def run_of(self, rows: Ints) -> Ints:
        """Place in file order of each row's episode."""
        return np.searchsorted(self._start, rows, side="right") - 1

    def frame_of(self, rows: Ints) -> Ints:
        """Frame number in its episode of each row; nothing is read."""
        return rows - self._start[self.run_of(rows)]

    def gather(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Values of a numeric column, (*rows.shape, ...).

        Raises:
            DatasetFormatError: a file is missing, damaged, or breaks the format.
            EpisodeError: an episode is not where the table says, or its rows are not in order.
        """
        feature = self._metadata.features[key]
        flat = rows.reshape(-1)
        out = np.empty((len(flat), *feature.value_shape), dtype=storage_dtype(feature))
        for part, chosen, places in self._split(flat):
            out[chosen] = part.columns[key][places]
        return out.reshape(*rows.shape, *feature.value_shape)

    def text(self, key: str, row: int) -> Any:
        """Value of a text column (errors as `gather`)."""
        places = self.places(np.asarray([row]))
        part = self.part(int(places.file[0]), int(places.group[0]))
        return part.texts[key][int(places.row[0]) - part.first]

    def places(self, rows: Ints) -> Places:
        """Where rows lie in their files (errors as `gather`)."""
        runs = self.run_of(rows)
        for run in np.unique(runs[self._first[runs] < 0]).tolist():
            self._note(run)
        row = rows - self._start[runs] + self._first[runs]
        group = self._group[runs]
        for run in np.unique(runs[group < 0]).tolist():  # an episode that goes over the end of a row group
            chosen = runs == run
            group[chosen] = np.searchsorted(self._find(run).groups, row[chosen], side="right") - 1
        return Places(self._file[runs], row, group)

    def part(self, file: int, group: int) -> Part:
        """A row group (errors as `gather`)."""
        return self._parts.get((file, group), lambda: self._read(file, group))

    def _note(self, run: int) -> None:
        """Remember where an episode begins in its file, and its row group if it lies in one."""
        found = self._find(run)
        first = found.starts[int(self._episode[run])]
        ends = np.searchsorted(found.groups, [first, first + max(int(self._length[run]), 1) - 1], side="right") - 1
        self._group[run] = ends[0] if ends[0] == ends[1] else -1
        self._first[run] = first  # last: other threads look at it

    def _split(self, rows: Ints) -> list[tuple[Part, Ints, Ints]]:
        """Rows by row group: the group, places in `rows`, and in the group; remembered for the next column."""
        last = getattr(self._here, "last", None)
        if last is not None and np.array_equal(last[0], rows):
            split: list[tuple[Part, Ints, Ints]] = last[1]
            return split
        places = self.places(rows)
        code = places.file * (1 << 32) + places.group
        order = np.argsort(code, kind="stable")
        bounds = [0, *(np.flatnonzero(np.diff(code[order])) + 1).tolist(), len(order)]
        split = []
        for start, end in itertools.pairwise(bounds):
            if start < end:
                chosen = order[start:end]
                part = self.part(*divmod(int(code[chosen[0]]), 1 << 32))
                split.append((part, chosen, places.row[chosen] - part.first))
        self._here.last = rows.copy(), split
        return split

    def _find(self, run: int) -> FileMap:
        """The map of an episode's file, which holds the whole episode."""
        file, episode = int(self._file[run]), int(self._episode[run])
        found = self._maps.get(file)
        if found is None:
            found = self._maps[file] = self._map(file)
        if episode not in found.starts:
            raise EpisodeError(
                f"episode {episode}: meta/episodes says that its rows are in "
                f"`{self._metadata.layout.relative(self.files[file])}`, which holds episodes "
                f"{listed(sorted(found.starts))}",
                "without `--dataset.streaming=true` rows are found by their own numbers; or leave it out with "
                f"`--dataset.exclude_episodes=[{episode}]`",
            )
        return found

    def _map(self, file: int) -> FileMap:
        path = self.files[file]
        self._require(path)
        if not path.is_file():
            missing = self._episode[self._file == file]
            raise DatasetFormatError(
                f"`{path}` is missing; episodes {listed(missing)} need it",
                "copy it here, or leave these episodes out with "
                f"`--dataset.exclude_episodes=[{','.join(map(str, missing[:50].tolist()))}]`",
            )
        with self.in_use.reading(path):
            footer = read_footer(path)
            names = footer.schema.to_arrow_schema().names
            lacking = [
                key for key, feature in self._metadata.features.items() if feature.dtype != "video" and key not in names
            ]
            if lacking:
                raise DatasetFormatError(
                    f"`{path}` lacks the declared columns {', '.join(f'`{key}`' for key in lacking)}; it has "
                    f"{', '.join(names)}",
                    "correct the features in meta/info.json, or restore the file",
                )
            table = read_groups(path, range(footer.num_row_groups), [EPISODE_INDEX], footer)
        numbers = np.empty(table.num_rows, dtype=np.int64)
        fill_from_column(numbers, table[EPISODE_INDEX], name=EPISODE_INDEX, where=str(path))
        runs = find_runs(numbers, self._metadata.episodes)
        sizes = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        starts = dict(zip(runs.episode.tolist(), runs.start.tolist(), strict=True))
        self._check_lengths(path, dict(zip(runs.episode.tolist(), runs.length.tolist(), strict=True)), file)
        return FileMap(starts, np.cumsum([0, *sizes], dtype=np.int64))

    def _check_lengths(self, path: Path, found: Mapping[int, int], file: int) -> None:
        mine = self._file == file
        wrong = [
            (episode, found[episode], length)
            for episode, length in zip(self._episode[mine].tolist(), self._length[mine].tolist(), strict=True)
            if episode in found and found[episode] != length
        ]
        if wrong:
            episode, there, length = wrong[0]
            more = f"; {len(wrong) - 1} more" if len(wrong) > 1 else ""
            exclude = ",".join(str(entry[0]) for entry in wrong[:50])
            raise EpisodeError(
                f"episode {episode} has {there} rows in `{path}`, {length} in its table{more}",
                f"restore the data files, or leave these episodes out with `--dataset.exclude_episodes=[{exclude}]`",
            )

    def _read(self, file: int, group: int) -> tuple[Part, int]:
        path, found = self.files[file], self._maps[file]
        with self.in_use.reading(path):
            table = read_groups(path, [group], [*self._numeric, *self._text])
        features, first = self._metadata.features, int(found.groups[group])
        columns = {}
        for key in self._numeric:
            shape = (table.num_rows, *features[key].value_shape)
            columns[key] = np.empty(shape, dtype=storage_dtype(features[key]))
            fill_from_column(columns[key], table[key], name=key, where=str(path))
        part = Part(first, columns, {key: table[key] for key in self._text})
        self._check(part, found, path)
        return part, sum(column.nbytes for column in columns.values()) + sum(table[k].nbytes for k in self._text)

    def _check(self, part: Part, found: FileMap, path: Path) -> None:
        """Compare a row group with the table of episodes, of tasks, and with the frame rate."""
        episode, frame = part.columns[EPISODE_INDEX], part.columns[FRAME_INDEX]
        known = np.isin(episode, self._episode)
        starts = np.asarray([found.starts[number] for number in episode[known].tolist()], dtype=np.int64)
        expected = part.first + np.flatnonzero(known) - starts
        wrong = np.flatnonzero(frame[known] != expected)
        if len(wrong):
            number = int(episode[known][wrong[0]])
            raise EpisodeError(
                f"episode {number}: row {expected[wrong[0]]} says frame_index {frame[known][wrong[0]]} in `{path}`; "
                "the rows of an episode are numbered from 0 without holes",
                f"leave it out with `--dataset.exclude_episodes=[{number}]`",
            )
        rows = Rows(part.columns, {}, [path], np.asarray([0, len(episode)]), {})
        check_task_numbers(self._metadata, rows)
        if self._metadata.video_keys:
            runs = find_runs(episode, self._metadata.episodes)
            check_times(self._metadata, rows, runs, self._episode, self._tolerance_s)


class Column:
    """A numeric column whose values are read when they are asked for.

    Args:
        rows: the rows.
        key: name of the column.
    """

    def __init__(self, rows: StreamRows, key: str) -> None:
        self._rows = rows
        self._key = key
        self.dtype = storage_dtype(rows._metadata.features[key])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        wanted = np.asarray(rows, dtype=np.int64)
        if self._key == FRAME_INDEX:
            return np.asarray(self._rows.frame_of(wanted))
        return self._rows.gather(self._key, wanted)


class Text:
    """A text column whose values are read when they are asked for (arguments as `Column`)."""

    def __init__(self, rows: StreamRows, key: str) -> None:
        self._rows = rows
        self._key = key

    def __getitem__(self, row: int) -> Any:
        return self._rows.text(self._key, row)


class FiniteRows:
    """Which rows of a float column hold finite values only; looked at when it is asked for."""

    def __init__(self, column: Column) -> None:
        self._column = column

    def __getitem__(self, rows: Ints) -> npt.NDArray[np.bool_]:
        values = self._column[rows]
        return np.asarray(np.isfinite(values).reshape(*rows.shape, -1).all(axis=-1))
