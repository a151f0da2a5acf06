"""What a writer knows about the dataset on disk: always the last committed state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.encoding.info import encoder_from_info
from mimetic.data.features import DatasetFeature, flatten_names
from mimetic.data.info import parse_info
from mimetic.data.layout import Layout, require_dataset
from mimetic.data.parquet import fill_from_column, read_table
from mimetic.data.record.declare import Declared, declare
from mimetic.data.record.totals import ColumnTotal, Totals, empty_pictures, read_pictures
from mimetic.data.stats import read_stats
from mimetic.data.store.episode_rows import EpisodeRow, episodes_file, read_episode_rows
from mimetic.data.store.shards import next_file
from mimetic.data.store.tables import read_raw_info
from mimetic.data.table import check_default_features
from mimetic.data.tasks import read_tasks
from mimetic.errors import DatasetError, EpisodeError
from mimetic.names import INDEX, INFO_JSON

Place = tuple[int, int]
"""Chunk folder and file number."""


@dataclass(frozen=True, kw_only=True)
class DatasetState:
    """The committed state of a dataset that is written.

    Args:
        root: folder.
        raw_info: content of info.json.
        declared: its features.
        tasks: instruction by task index.
        rows: table of episodes.
        totals: what the statistics are made from.
        data: place of the next data file.
        meta: place of the next file of the table of episodes.
        videos: place of the next video by camera.
        encoders: encoder of each video camera.
    """

    root: Path
    raw_info: dict[str, Any]
    declared: Declared
    tasks: dict[int, str]
    rows: tuple[EpisodeRow, ...]
    totals: Totals
    data: Place
    meta: Place
    videos: dict[str, Place]
    encoders: dict[str, EncoderConfig]

    @property
    def layout(self) -> Layout:
        """Names of the data and video files."""
        return Layout.of(self.root, parse_info(self.raw_info, where=INFO_JSON))

    @property
    def features(self) -> dict[str, DatasetFeature]:
        """All features in column order."""
        return self.declared.features

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return int(self.raw_info["fps"])

    @property
    def chunks_size(self) -> int:
        """Most files in one chunk folder."""
        return int(self.raw_info.get("chunks_size", 1000))

    @property
    def n_frames(self) -> int:
        """Frames of all episodes."""
        return self.rows[-1].to_index if self.rows else 0

    @property
    def depth_units(self) -> dict[str, str]:
        """Unit of the depth cameras that have frames."""
        return {
            name: str(feature.info["depth_unit"])
            for name, feature in self.features.items()
            if feature.is_depth and feature.info.get("depth_unit") in ("mm", "m")
        }


def read_state(root: Path) -> DatasetState:
    """Read a dataset that is going to be continued; the encoders are those of its `info` blocks.

    Raises:
        DatasetNotFound: there is no dataset.
        DatasetError: it is not v3.0, or its files contradict each other: recording would build on a fault.
    """
    require_dataset(root)
    raw_info = read_raw_info(root)
    info = parse_info(raw_info, where=str(root / INFO_JSON))
    if info.is_legacy:
        raise DatasetError(
            f"`{root}` has the v2 layout, which cannot be continued", "convert it first with `mimetic dataset convert`"
        )
    features = info.features
    check_default_features(features, where=INFO_JSON)
    layout = Layout.of(root, info)
    rows = tuple(read_episode_rows(root, features))
    problems = _problems(rows, info.total_episodes, info.total_frames)
    columns: dict[str, npt.NDArray[Any]] = {}
    if not problems:
        columns = _read_columns(layout, features, rows[-1].to_index if rows else 0, problems)
    if problems:
        raise EpisodeError(
            f"`{root}` is not in order, so nothing is recorded into it: {'; '.join(problems)}",
            f"`mimetic dataset check --root={root}` lists everything, `mimetic dataset repair` mends what it can",
        )
    cameras = {name: feature for name, feature in features.items() if feature.is_camera}
    empty = {name: empty_pictures(feature, feature.info.get("depth_unit")) for name, feature in cameras.items()}
    n_frames = rows[-1].to_index if rows else 0
    totals = Totals({}, {})
    if n_frames:
        totals = Totals(
            {name: ColumnTotal.of(column) for name, column in columns.items()},
            read_pictures(root, empty, read_stats(root), n_episodes=len(rows), n_frames=n_frames),
        )
    videos = {name: feature for name, feature in cameras.items() if feature.dtype == "video"}
    return DatasetState(
        root=root,
        raw_info=raw_info,
        declared=Declared({name: dict(entry) for name, entry in raw_info["features"].items()}, dict(features)),
        tasks=read_tasks(root),
        rows=rows,
        totals=totals,
        data=_after(
            [(row.data_chunk, row.data_file) for row in rows], lambda c, f: layout.data_file(c, f), info.chunks_size
        ),
        meta=_after(
            [(row.meta_chunk, row.meta_file) for row in rows],
            lambda c, f: episodes_file(root, c, f),
            info.chunks_size,
        ),
        videos={
            name: _after(
                [(row.videos[name].chunk, row.videos[name].file) for row in rows],
                lambda c, f, name=name: layout.video_file(name, c, f),
                info.chunks_size,
            )
            for name in videos
        },
        encoders={name: encoder_from_info(feature.info, is_depth=feature.is_depth) for name, feature in videos.items()},
    )


def new_state(
    root: Path, raw_info: dict[str, Any], declared: Declared, encoders: Mapping[str, EncoderConfig]
) -> DatasetState:
    """The state of a dataset without episodes."""
    return DatasetState(
        root=root,
        raw_info=raw_info,
        declared=declared,
        tasks={},
        rows=(),
        totals=Totals({}, {}),
        data=(0, 0),
        meta=(0, 0),
        videos=dict.fromkeys(declared.video_keys, (0, 0)),
        encoders=dict(encoders),
    )


def mismatches(
    state: DatasetState,
    *,
    fps: int | None = None,
    features: Mapping[str, Mapping[str, Any]] | None = None,
    robot_type: str | None = None,
) -> list[str]:
    """How a recording differs from the dataset that it is to continue, one sentence each; None is not compared.

    Args:
        state: the dataset.
        fps: rate of the recording [Hz].
        features: features of the recording, as for a new dataset.
        robot_type: of the recording.
    """
    found = []
    if fps is not None and fps != state.fps:
        found.append(f"the dataset has {state.fps} frames a second and the recording {fps}")
    if robot_type is not None and robot_type != state.raw_info.get("robot_type"):
        found.append(f"the dataset's robot is {state.raw_info.get('robot_type')!r} and this one is {robot_type!r}")
    if features is None:
        return found
    wanted, there = declare(features).own, state.declared.own
    found += [f"`{name}` is not in the dataset" for name in wanted if name not in there]
    found += [f"`{name}` of the dataset is not recorded" for name in there if name not in wanted]
    for name in wanted.keys() & there.keys():
        one, other = there[name], wanted[name]
        for what in ("dtype", "shape", "is_depth"):
            if getattr(one, what) != getattr(other, what):
                found.append(
                    f"`{name}` has the {what} {getattr(one, what)} in the dataset and {getattr(other, what)} here"
                )
        names = flatten_names(one.names), flatten_names(other.names)
        if not one.is_camera and names[0] != names[1]:
            found.append(f"`{name}` has the names {names[0]} in the dataset and {names[1]} here")
    return sorted(found, key=found.index)


def _problems(rows: tuple[EpisodeRow, ...], n_episodes: int, n_frames: int) -> list[str]:
    found = []
    expected = 0
    for number, row in enumerate(rows):
        if row.episode_index != number:
            found.append(f"the table of episodes has no episode {number}")
            break
        if (row.from_index, row.to_index) != (expected, expected + row.length):
            found.append(f"episode {number} should begin at row {expected} and has {row.from_index}..{row.to_index}")
            break
        expected = row.to_index
    if not found and (len(rows), expected) != (n_episodes, n_frames):
        found.append(
            f"meta/info.json counts {n_episodes} episodes of {n_frames} frames, the table has {len(rows)} of {expected}"
        )
    return found


def _read_columns(
    layout: Layout, features: Mapping[str, DatasetFeature], n_frames: int, problems: list[str]
) -> dict[str, npt.NDArray[Any]]:
    """All numeric columns in their declared types."""
    numeric = {name: feature for name, feature in features.items() if feature.is_numeric}
    columns = {
        name: np.empty((n_frames, *feature.value_shape), dtype=np.dtype(feature.dtype))
        for name, feature in numeric.items()
    }
    start = 0
    for path in layout.data_files():
        table = read_table(path, list(numeric))
        missing = [name for name in numeric if name not in table.column_names]
        if missing or start + table.num_rows > n_frames:
            problems.append(
                f"`{layout.relative(path)}` lacks {', '.join(missing)}"
                if missing
                else f"the data files have more than the {n_frames} rows of the table of episodes"
            )
            return columns
        for name, column in columns.items():
            fill_from_column(column[start : start + table.num_rows], table[name], name=name, where=str(path))
        start += table.num_rows
    if start != n_frames:
        problems.append(f"the data files have {start} rows and the table of episodes {n_frames}")
    elif not np.array_equal(columns[INDEX], np.arange(n_frames)):
        problems.append("the rows are not numbered one after the other")
    return columns


def _after(used: list[Place], path: Any, chunks_size: int) -> Place:
    """The first place behind all that are in use, and without a file."""
    place = next_file(*max(used), chunks_size) if used else (0, 0)
    while path(*place).exists():
        place = next_file(*place, chunks_size)
    return place
