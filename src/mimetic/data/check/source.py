"""A dataset opened for checking: every part that can be read, and a note on every part that cannot.

`mimetic.data.metadata` and `mimetic.data.reader` open datasets for use and refuse what is wrong; here nothing is
refused, since what is wrong is what is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.clocks import Clocks, read_clocks
from mimetic.data.check.ledger import Ledger, read_ledger, read_legacy_ledger
from mimetic.data.check.rows import CheckRows, read_check_rows
from mimetic.data.check.unreadable import Part, Unreadable, unreadable
from mimetic.data.features import DatasetFeature
from mimetic.data.info import Info, parse_info
from mimetic.data.jsonfile import parse_json
from mimetic.data.layout import Layout, require_dataset, require_inside
from mimetic.data.legacy import read_legacy_stats
from mimetic.data.stats import Stats, read_stats
from mimetic.data.tasks import read_legacy_tasks, read_tasks
from mimetic.errors import DatasetError
from mimetic.names import INFO_JSON, STATS_JSON, TASK_INDEX, TASKS_PARQUET

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Footage:
    """Where the pictures of one episode of one camera lie.

    Args:
        path: the mp4 file, or the data file that holds the pictures.
        first: number of the episode's first frame in the video, or its first row in the data file.
        length: frames by the table of episodes (videos) or rows in the file (pictures).
        from_s: declared start in the video [s]; 0 for pictures.
        to_s: declared end in the video [s].
    """

    path: Path
    first: int
    length: int
    from_s: float = 0.0
    to_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CheckSource:
    """Everything that the rules look at.

    Args:
        root: folder of the dataset.
        raw_info: decoded JSON of info.json; empty when it cannot be read.
        info: its checked values; None when they cannot be used.
        layout: names of files; None when a path template is missing or leaves the folder.
        tasks: task strings by index; None when the table cannot be read.
        stats: stats.json; None when it cannot be read, empty when it is absent.
        ledger: the table of episodes; None when nothing of it can be read.
        rows: the rows; None below the level `rows`, and when no data file can be read.
        clocks: measured clocks of the recorder; None when there are none.
        unreadable: files that could not be read.
    """

    root: Path
    raw_info: Mapping[str, Any]
    info: Info | None
    layout: Layout | None
    tasks: Mapping[int, str] | None
    stats: Stats | None
    ledger: Ledger | None
    rows: CheckRows | None
    clocks: Clocks | None = None
    unreadable: Sequence[Unreadable] = field(default_factory=list)

    @property
    def fps(self) -> int:
        """Declared rate [Hz]; 0 when it is not known."""
        return self.info.fps if self.info is not None else 0

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """Declared features; none when info.json cannot be used."""
        return self.info.features if self.info is not None else {}

    @property
    def video_keys(self) -> list[str]:
        """Cameras stored as video files."""
        return [key for key, feature in self.features.items() if feature.dtype == "video"]

    @property
    def image_keys(self) -> list[str]:
        """Cameras stored as pictures in the data files."""
        return [key for key, feature in self.features.items() if feature.dtype == "image"]

    @property
    def camera_keys(self) -> list[str]:
        """All cameras, in the order of the features."""
        return [key for key, feature in self.features.items() if feature.is_camera]

    @cached_property
    def episodes(self) -> Ints:
        """Distinct episode numbers, in rising order: those of the table, else those of the rows."""
        if self.ledger is not None:
            return np.unique(self.ledger.index)
        return np.unique(self.rows.episode) if self.rows is not None else np.empty(0, dtype=np.int64)

    @cached_property
    def lengths(self) -> Ints:
        """Frames of each of `episodes`, by the rows where they were read, else by the table."""
        return np.asarray([self.length(int(episode)) for episode in self.episodes], dtype=np.int64)

    @cached_property
    def first_tasks(self) -> list[str]:
        """First task string of each of `episodes`, by the table, else by the first row; empty where neither says it."""
        tasks: list[str] = []
        for episode in self.episodes.tolist():
            row = self._table_row.get(episode, -1)
            names = self.ledger.tasks[row] if self.ledger is not None and row >= 0 else ()
            bounds = self.bounds(episode)
            if not names and bounds is not None and self.rows is not None and TASK_INDEX in self.rows.columns:
                number = int(self.rows.columns[TASK_INDEX][bounds[0]])
                names = ((self.tasks or {}).get(number, ""),)
            tasks.append(names[0] if names else "")
        return tasks

    def bounds(self, episode: int) -> tuple[int, int] | None:
        """First row and row after the last of an episode; None when it has no rows or they lie in several places."""
        return self._bounds.get(int(episode))

    def columns_of(self, episode: int) -> dict[str, npt.NDArray[Any]]:
        """All numeric columns of one episode, (T, ...) each, as views; empty when it has no rows."""
        bounds = self.bounds(episode)
        if bounds is None or self.rows is None:
            return {}
        return {key: column[bounds[0] : bounds[1]] for key, column in self.rows.columns.items()}

    def footage(self, key: str, episode: int) -> Footage | None:
        """Where the pictures of an episode lie; None when neither the table nor the rows say it."""
        if self.features[key].dtype == "image":
            return self._pictures(int(episode))
        if self.ledger is None or self.layout is None or key not in self.ledger.videos or not self.fps:
            return None
        row, spans = self._table_row.get(int(episode), -1), self.ledger.videos[key]
        if row < 0 or spans.chunk[row] < 0 or spans.file[row] < 0 or not np.isfinite(spans.from_s[row]):
            return None
        try:
            path = self.layout.video_file(key, int(spans.chunk[row]), int(spans.file[row]))
        except DatasetError:
            return None
        first, length = round(float(spans.from_s[row]) * self.fps), int(self.ledger.length[row])
        return Footage(path, first, length, float(spans.from_s[row]), float(spans.to_s[row]))

    def relative(self, path: Path) -> str:
        """A path as seen from the dataset's folder, for messages."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)

    def lost(self, part: Part) -> Iterator[Unreadable]:
        """The files of one kind that could not be read."""
        return (item for item in self.unreadable if item.part is part)

    @cached_property
    def _bounds(self) -> dict[int, tuple[int, int]]:
        if self.rows is None:
            return {}
        found: dict[int, tuple[int, int]] = {}
        twice = set[int]()
        for episode, start, end in zip(
            self.rows.episode.tolist(), self.rows.run_start.tolist(), self.rows.run_end.tolist(), strict=True
        ):
            if episode in found:
                twice.add(episode)
            found[episode] = (start, end)
        return {episode: bounds for episode, bounds in found.items() if episode not in twice}

    @cached_property
    def _table_row(self) -> dict[int, int]:
        return {} if self.ledger is None else {int(e): row for row, e in reversed(list(enumerate(self.ledger.index)))}

    def length(self, episode: int) -> int:
        """Frames of an episode, by the rows where they were read, else by the table; 0 when neither knows it."""
        bounds = self.bounds(episode)
        if bounds is not None:
            return bounds[1] - bounds[0]
        row = self._table_row.get(episode, -1)
        return max(int(self.ledger.length[row]), 0) if self.ledger is not None and row >= 0 else 0

    def _pictures(self, episode: int) -> Footage | None:
        bounds = self.bounds(episode)
        if bounds is None or self.rows is None:
            return None
        file = self.rows.file_of(bounds[0])
        inside = min(bounds[1], int(self.rows.starts[file + 1]))
        first = bounds[0] - int(self.rows.starts[file])
        return Footage(self.rows.files[file], first, inside - bounds[0])


def open_source(root: Path, *, with_rows: bool) -> CheckSource:
    """Read what can be read of a dataset.

    Args:
        root: folder of the dataset, v3.0 or v2.x.
        with_rows: read the data files too, and not the metadata only.

    Raises:
        DatasetNotFound: there is no dataset at all.
    """
    root = Path(root).expanduser()
    require_dataset(root)
    broken: list[Unreadable] = []
    raw, info, layout = _read_info(root, broken)
    features = info.features if info is not None else {}
    videos = [key for key, feature in features.items() if feature.dtype == "video"]
    legacy = info is not None and info.is_legacy
    if info is not None and legacy:
        ledger, lost = read_legacy_ledger(root, info, videos)
    else:
        ledger, lost = read_ledger(root, videos)
    broken += lost
    tasks_path = root / ("meta/tasks.jsonl" if legacy else TASKS_PARQUET)
    tasks, stats = None, None
    try:
        require_inside(root, tasks_path)
        if tasks_path.is_file():  # a missing file has its own rule
            tasks = read_legacy_tasks(root) if legacy else read_tasks(root)
    except DatasetError as error:
        broken.append(unreadable(Part.TASKS, tasks_path, error))
    try:
        require_inside(root, root / STATS_JSON)
        stats = read_legacy_stats(root) if legacy else read_stats(root)
    except DatasetError as error:
        broken.append(unreadable(Part.STATS, root / STATS_JSON, error))
    rows = None
    if with_rows and layout is not None and info is not None:
        rows, lost = read_check_rows(_data_files(root, layout, broken), info.features)
        broken += lost
    clocks, lost = read_clocks(root)
    broken += lost
    return CheckSource(
        root=root,
        raw_info=raw,
        info=info,
        layout=layout,
        tasks=tasks,
        stats=stats,
        ledger=ledger,
        rows=rows,
        clocks=clocks,
        unreadable=broken,
    )


def _read_info(root: Path, broken: list[Unreadable]) -> tuple[Mapping[str, Any], Info | None, Layout | None]:
    path = root / INFO_JSON
    raw: Mapping[str, Any] = {}
    info: Info | None = None
    try:
        require_inside(root, path)
        decoded = parse_json(path.read_text(encoding="utf-8"))
        raw = decoded if isinstance(decoded, Mapping) else {}
        info = parse_info(decoded, where=INFO_JSON)
        return raw, info, Layout.of(root, info)
    except (DatasetError, OSError, UnicodeDecodeError, ValueError) as error:
        broken.append(unreadable(Part.INFO, path, error))
        return raw, info, None


def _data_files(root: Path, layout: Layout, broken: list[Unreadable]) -> list[Path]:
    found: list[Path] = []
    for path in sorted(layout.root.glob("data/*/*.parquet")):
        try:
            found.append(require_inside(root, path))
        except DatasetError as error:
            broken.append(unreadable(Part.DATA, path, error))
    return found
