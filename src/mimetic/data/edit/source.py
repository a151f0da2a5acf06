"""A dataset that is about to be edited: its tables, and where every episode's rows and frames really are.

Rows are found by their own `episode_index`, never by the table alone, so that an edit of a dataset whose table points
to a wrong file still moves the right rows. What cannot be told for sure is refused here, before anything is written.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.episodes import listed
from mimetic.data.features import DatasetFeature
from mimetic.data.metadata import Metadata
from mimetic.data.parquet import fill_from_column, read_footer, read_table
from mimetic.data.record.journal import WORK_DIR
from mimetic.data.repair.lock import require_no_repair
from mimetic.data.store.episode_rows import EpisodeRow, read_episode_rows
from mimetic.data.store.tables import read_raw_info
from mimetic.data.table import check_default_features
from mimetic.data.video.index import FrameIndex, build_index, open_container
from mimetic.errors import DatasetError, EpisodeError
from mimetic.names import DEFAULT_FEATURES, EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX

Ints = npt.NDArray[np.int64]
_REPAIR = "`mimetic dataset repair --root={root}` shows what is wrong and mends it"


@dataclass(frozen=True, kw_only=True)
class RowPlace:
    """Rows of one episode in a data file.

    Args:
        path: data file.
        chunk: its chunk folder, by its name.
        file: its number, by its name.
        start: first row.
        stop: row after the last.
    """

    path: Path
    chunk: int
    file: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class FramePlace:
    """Frames of one episode in a video file.

    Args:
        path: video file.
        chunk: its chunk folder.
        file: its number.
        first: number of the episode's first frame in it.
        count: frames of the episode.
    """

    path: Path
    chunk: int
    file: int
    first: int
    count: int


class EditSource:
    """One dataset that an edit reads.

    `is_numbered` says whether the rows' `index` is what the table says.

    Args:
        root: folder of a v3.0 dataset.

    Raises:
        DatasetNotFound: there is none.
        DatasetFormatError: a file breaks the format.
        DatasetError: v2.x, whose files are laid out differently; or a recording or repair that is not finished.
        EpisodeError: rows are missing, too many, or in several places; all such episodes are named.
    """

    def __init__(self, root: Path) -> None:
        self._files = _state_of(root)
        self.metadata = Metadata.open(root)
        self.root = self.metadata.root
        if self.metadata.info.is_legacy:
            raise DatasetError(
                f"`{root}` is a dataset of version {self.metadata.version}; editing needs v3.0",
                f"convert it first: `mimetic dataset convert --root={root}`",
            )
        if (self.root / WORK_DIR).exists():
            raise DatasetError(
                f"a recording into `{root}` goes on, or was broken off",
                f"end it; or tidy it: `mimetic dataset repair --root={root} --only=meta.files --apply=true`",
            )
        require_no_repair(self.root)
        check_default_features(self.features, where=f"{root}/meta/info.json")
        self.raw_info = read_raw_info(self.root)
        rows = read_episode_rows(self.root, self.features)
        self.episodes: dict[int, EpisodeRow] = {row.episode_index: row for row in rows}
        self.rows, columns = self._find_rows()
        self._check_rows(columns)
        self.tasks_of: dict[int, Ints] = {
            episode: columns[place.path][TASK_INDEX][place.start : place.stop] for episode, place in self.rows.items()
        }
        self.is_numbered = all(
            np.array_equal(
                columns[place.path][INDEX][place.start : place.stop],
                self.episodes[episode].from_index + np.arange(place.stop - place.start),
            )
            for episode, place in self.rows.items()
        )
        self._check_tasks()
        self._indices: dict[Path, FrameIndex] = {}

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """Features by name, in column order."""
        return self.metadata.features

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self.metadata.fps

    @property
    def own_features(self) -> list[str]:
        """Features without the five that every dataset has."""
        return [name for name in self.features if name not in DEFAULT_FEATURES]

    @cached_property
    def data_files(self) -> list[Path]:
        """Data files in row order."""
        return self.metadata.layout.data_files()

    def frames(self, key: str, episode: int) -> FramePlace:
        """Where a video camera shows an episode."""
        row = self.episodes[episode]
        place = row.videos[key]
        return FramePlace(
            path=self.metadata.layout.video_file(key, place.chunk, place.file),
            chunk=place.chunk,
            file=place.file,
            first=round(place.from_s * self.fps),
            count=row.length,
        )

    def frame_index(self, path: Path) -> FrameIndex:
        """Frames and keyframes of a video file; read once, from its header."""
        if path not in self._indices:
            container, stream = open_container(path)
            try:
                self._indices[path] = build_index(path, container, stream)
            finally:
                container.close()
        return self._indices[path]

    def require_unchanged(self) -> None:
        """Make sure that all that was read belongs together: no other program has written to the dataset since.

        Raises:
            DatasetError: one has.
        """
        now = _state_of(self.root)
        changed = sorted(name for name in {*self._files, *now} if self._files.get(name) != now.get(name))
        if changed:
            raise DatasetError(
                f"another program changed `{self.root}` while it was read (`{changed[0]}`)",
                "nothing was written; give the command again when that program has ended",
            )

    def _find_rows(self) -> tuple[dict[int, RowPlace], dict[Path, dict[str, Ints]]]:
        found: dict[int, RowPlace] = {}
        columns: dict[Path, dict[str, Ints]] = {}
        scattered: list[int] = []
        for path in self.data_files:
            columns[path] = read_ints(path, (EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX))
            chunk, file = numbers_of(path)
            episode = columns[path][EPISODE_INDEX]
            edges = np.flatnonzero(np.diff(episode)) + 1
            for start, stop in zip([0, *edges], [*edges, len(episode)], strict=True):
                if start == stop:
                    continue
                number = int(episode[start])
                if number in found:
                    scattered.append(number)
                found[number] = RowPlace(path=path, chunk=chunk, file=file, start=int(start), stop=int(stop))
        if scattered:
            raise EpisodeError(
                f"dataset `{self.root}`: the rows of episodes {listed(sorted(set(scattered)))} lie in several places",
                "two recordings may have been copied into one folder; keep them apart and use `merge`",
            )
        return found, columns

    def _check_rows(self, columns: Mapping[Path, Mapping[str, Ints]]) -> None:
        problems: list[str] = []
        for number, row in self.episodes.items():
            place = self.rows.get(number)
            count = place.stop - place.start if place else 0
            if place is None or count != row.length:
                problems.append(f"episode {number} has {count} rows, its table says {row.length}")
            elif not np.array_equal(
                columns[place.path][FRAME_INDEX][place.start : place.stop], np.arange(row.length, dtype=np.int64)
            ):
                problems.append(f"the rows of episode {number} are not numbered 0 to {row.length - 1}")
        if problems:
            more = f"; {len(problems) - 3} more" if len(problems) > 3 else ""
            raise EpisodeError(
                f"dataset `{self.root}`: {'; '.join(problems[:3])}{more}", _REPAIR.format(root=self.root)
            )
        self.rows = {number: self.rows[number] for number in self.episodes}

    def _check_tasks(self) -> None:
        known = set(self.metadata.tasks)
        unknown = sorted({int(n) for numbers in self.tasks_of.values() for n in np.unique(numbers)} - known)
        if unknown:
            raise DatasetError(
                f"dataset `{self.root}`: rows use task_index {listed(unknown)}, which meta/tasks.parquet does not hold",
                f"`mimetic dataset repair --root={self.root} --only=data.task --apply=true`",
            )


def _state_of(root: Path) -> dict[str, tuple[int, int, int]]:
    """What tells that a file of the dataset is another one, or has another content: its number, size and time."""
    found = {}
    for folder in ("meta", "data", "videos"):
        for path in (root / folder).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # it goes just now, which counts as a change
                state = path.stat()
                if stat.S_ISREG(state.st_mode):
                    found[path.relative_to(root).as_posix()] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def read_ints(path: Path, names: tuple[str, ...]) -> dict[str, Ints]:
    """Whole-number columns of a data file as arrays (rows,).

    Raises:
        DatasetFormatError: the file is damaged or lacks one.
    """
    footer = read_footer(path)
    table = read_table(path, names, footer)
    columns: dict[str, Ints] = {}
    for name in names:
        columns[name] = np.empty(footer.num_rows, dtype=np.int64)
        if name not in table.column_names:
            raise DatasetError(f"`{path}` has no column `{name}`", "restore this file from a copy")
        fill_from_column(columns[name], table[name], name=name, where=str(path))
    return columns


def numbers_of(path: Path) -> tuple[int, int]:
    """Chunk and file number of `chunk-001/file-002.parquet`; 0 where the name holds none."""
    digits = [part.rpartition("-")[2] for part in (path.parent.name, path.stem)]
    chunk, file = (int(text) if text.isascii() and text.isdigit() else 0 for text in digits)
    return chunk, file
