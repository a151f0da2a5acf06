"""A dataset as it stands, faults and all, in memory: what repairs look at and change before anything is written."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.data.info import Info, parse_info
from mimetic.data.layout import Layout, require_dataset, require_inside
from mimetic.data.parquet import Truncated, fill_from_column, read_footer, read_table
from mimetic.data.stats import Stats, read_stats
from mimetic.data.store.episode_rows import EpisodeRow, read_episode_rows
from mimetic.data.store.tables import read_raw_info
from mimetic.data.tasks import read_tasks
from mimetic.data.video.index import build_index, open_container
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.names import (
    EPISODE_INDEX,
    EPISODES_DIR,
    FRAME_INDEX,
    INDEX,
    INFO_JSON,
    STATS_JSON,
    TASK_INDEX,
    TASKS_PARQUET,
    TIMESTAMP,
)

NUMBERS = (EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP)


@dataclass(frozen=True, kw_only=True)
class Repair:
    """One fault, and what is done about it.

    Args:
        id: rule of `mimetic dataset check` that names it.
        message: what is wrong and what happens to it, one sentence.
        episodes: episodes concerned, by the numbers before the repair; empty means the whole dataset.
        is_mended: False when it cannot be mended; the message says why.
    """

    id: str
    message: str
    episodes: tuple[int, ...] = ()
    is_mended: bool = True


@dataclass(kw_only=True)
class State:
    """Everything that repairs may change.

    Args:
        root: folder of the dataset.
        raw_info: info.json as it is.
        info: its values.
        layout: names of files.
        files: data files that can be read, in row order.
        file: (N,) number in `files` of each row.
        columns: the five numbering columns, (N,) each; int64, `timestamp` float64.
        kept: (N,) rows that stay.
        episodes: rows of the table of episodes, in its order.
        origin: position in the stored table of each of `episodes`; -1 for new ones.
        table: the stored table.
        tasks: task strings by number.
        has_tasks_file: whether meta/tasks.parquet exists.
        stats: statistics of the dataset.
        has_stats_file: whether meta/stats.json exists.
        moved: files to move aside.
        repairs: what was found, in the order of the steps.
        redo_episodes: episodes whose statistics must be computed again.
        is_ledger_changed: whether the table of episodes must be written again.
        are_tasks_changed: whether the table of tasks must be.
        are_stats_changed: whether stats.json must be.
        is_info_changed: whether info.json must be.
    """

    root: Path
    raw_info: dict[str, Any]
    info: Info
    layout: Layout
    files: list[Path]
    file: npt.NDArray[np.int64]
    columns: dict[str, npt.NDArray[Any]]
    kept: npt.NDArray[np.bool_]
    episodes: list[EpisodeRow]
    origin: list[int]
    table: Any
    tasks: dict[int, str]
    has_tasks_file: bool
    stats: Stats
    has_stats_file: bool
    moved: list[Path] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    redo_episodes: set[int] = field(default_factory=set)
    is_ledger_changed: bool = False
    are_tasks_changed: bool = False
    are_stats_changed: bool = False
    is_info_changed: bool = False
    _counts: dict[Path, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = {name: column.copy() for name, column in self.columns.items()}

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """Features by name."""
        return self.info.features

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self.info.fps

    @property
    def video_keys(self) -> list[str]:
        """Cameras that are stored as videos."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    def rows_of(self, episode: int) -> npt.NDArray[np.int64]:
        """Rows that stay of an episode."""
        return np.flatnonzero((self.columns[EPISODE_INDEX] == episode) & self.kept)

    def counts(self) -> dict[int, int]:
        """Rows that stay, by episode."""
        numbers, counts = np.unique(self.columns[EPISODE_INDEX][self.kept], return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    def video_frames(self, path: Path) -> int | None:
        """Frames of a video file; None when it is missing or damaged."""
        if path not in self._counts:
            try:
                container, stream = open_container(path)
                try:
                    self._counts[path] = len(build_index(path, container, stream))
                finally:
                    container.close()
            except DatasetError:
                self._counts[path] = None
        return self._counts[path]

    def has_pictures(self, name: str) -> bool:
        """Whether all frames of a camera are there, by the headers of its files."""
        for row in self.episodes if self.features[name].dtype == "video" else ():
            place = row.videos[name]
            frames = self.video_frames(self.layout.video_file(name, place.chunk, place.file))
            if frames is None or round(place.from_s * self.fps) + row.length > frames:
                return False
        return True

    def note(self, rule: str, message: str, episodes: Any = (), *, is_mended: bool = True) -> None:
        """Remember a fault."""
        numbers = tuple(int(episode) for episode in episodes)
        self.repairs.append(Repair(id=rule, message=message, episodes=numbers, is_mended=is_mended))

    def is_file_changed(self, number: int) -> bool:
        """Whether a data file must be written again."""
        rows = self.file == number
        return bool((~self.kept[rows]).any()) or any(
            not np.array_equal(self.columns[name][rows], self.before[name][rows], equal_nan=name == TIMESTAMP)
            for name in NUMBERS
        )


def read_state(root: Path, *, without_truncated: bool = False) -> State:
    """Read a dataset as far as it can be read.

    Args:
        root: folder of the dataset.
        without_truncated: leave out, and move aside, Parquet files whose writer was stopped, as long as others are
            whole (`meta.files`).

    Raises:
        DatasetNotFound: there is none.
        DatasetFormatError: info.json, the table of episodes or every data file cannot be read, or v2.x.
    """
    require_dataset(root)
    require_inside(root, root / INFO_JSON)
    raw = read_raw_info(root)
    info = parse_info(raw, where=str(root / INFO_JSON))
    if info.is_legacy:
        raise DatasetFormatError(
            f"`{root}` is a dataset of version {raw.get('codebase_version')}; v3.0 can be repaired",
            f"convert it first: `mimetic dataset convert --root={root}`",
        )
    layout = Layout.of(root, info)
    data_files, tables = layout.data_files(), sorted((root / EPISODES_DIR).glob("**/*.parquet"))
    broken = [path for path in (*data_files, *tables) if without_truncated and _is_truncated(path)]
    files, file, columns = _read_numbers(root, [path for path in data_files if path not in broken])
    episodes, table = _read_table(root, [path for path in tables if path not in broken], info.features)
    place = {int(number): at for at, number in enumerate(table[EPISODE_INDEX].to_pylist())} if table else {}
    state = State(
        root=root,
        raw_info=raw,
        info=info,
        layout=layout,
        files=files,
        file=file,
        columns=columns,
        kept=np.ones(len(file), dtype=np.bool_),
        episodes=episodes,
        origin=[place.get(row.episode_index, -1) for row in episodes],
        table=table,
        tasks=read_tasks(root),
        has_tasks_file=(root / TASKS_PARQUET).is_file(),
        stats=read_stats(root),
        has_stats_file=(root / STATS_JSON).is_file(),
        moved=broken,
    )
    for path in broken:
        name = layout.relative(path)
        state.note("meta.files", f"`{name}` is cut, the program that wrote it was stopped; moved aside")
    return state


def _is_truncated(path: Path) -> bool:
    try:
        read_footer(path)
    except Truncated:
        return True
    return False


def _read_numbers(
    root: Path, files: list[Path]
) -> tuple[list[Path], npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
    parts = []
    if not files:
        raise DatasetFormatError(
            f"dataset `{root}` has no data file that can be read (expected `data/*/*.parquet`)",
            "restore the `data` folder from a copy",
        )
    for path in files:
        footer = read_footer(path)
        table = read_table(path, list(NUMBERS), footer)
        part: dict[str, npt.NDArray[Any]] = {}
        for name in NUMBERS:
            if name not in table.column_names:
                raise DatasetFormatError(f"`{path}` has no column `{name}`", "restore this file from a copy")
            part[name] = np.empty(footer.num_rows, dtype=np.float64 if name == TIMESTAMP else np.int64)
            fill_from_column(part[name], table[name], name=name, where=str(path))
        parts.append(part)
    file = np.repeat(np.arange(len(files)), [len(part[INDEX]) for part in parts]).astype(np.int64)
    return files, file, {name: np.concatenate([part[name] for part in parts]) for name in NUMBERS}


def _read_table(root: Path, paths: list[Path], features: Mapping[str, DatasetFeature]) -> tuple[list[EpisodeRow], Any]:
    """The table of episodes from some of its files: as rows, and as it is stored."""
    tables = [read_table(require_inside(root, path)) for path in paths]
    if not tables:
        return [], None
    if len(paths) == len(list((root / EPISODES_DIR).glob("**/*.parquet"))):
        return read_episode_rows(root, features), pa.concat_tables(tables, promote_options="permissive")
    with tempfile.TemporaryDirectory(prefix="mimetic-repair-") as folder:
        for path in paths:
            place = Path(folder) / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        rows = read_episode_rows(Path(folder), features)
    return rows, pa.concat_tables(tables, promote_options="permissive")
