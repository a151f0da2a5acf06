"""Rows of the table of episodes with everything in them, statistics too (spec/dataset.md 6).

`data/episodes.py` reads what access to frames needs; this module is for whoever writes a table again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_table
from mimetic.data.stats import QUANTILES, FeatureStats, Stats
from mimetic.data.store.atomic import replacing
from mimetic.data.store.data_file import open_parquet
from mimetic.errors import DatasetFormatError
from mimetic.names import EPISODES_DIR

STATISTICS = ("min", "max", "mean", "std", "count", *QUANTILES)


@dataclass(frozen=True, kw_only=True)
class VideoPlace:
    """Where an episode lies in the videos of one camera.

    Args:
        chunk: chunk folder.
        file: number of the file in it.
        from_s: time of the first frame in that file [s].
        to_s: time of the end of the last frame [s].
    """

    chunk: int
    file: int
    from_s: float
    to_s: float


@dataclass(frozen=True, kw_only=True)
class EpisodeRow:
    """One episode in the table.

    Args:
        episode_index: its number.
        tasks: its instructions, in the order of their first frame.
        length: frames.
        data_chunk: chunk folder of its rows.
        data_file: number of the data file.
        from_index: `index` of its first frame.
        to_index: `index` after its last frame.
        videos: place by camera; empty without videos.
        stats: statistics of its frames by feature; empty where there are none.
        meta_chunk: chunk folder of the file that holds this row.
        meta_file: number of that file.
    """

    episode_index: int
    tasks: tuple[str, ...]
    length: int
    data_chunk: int
    data_file: int
    from_index: int
    to_index: int
    videos: Mapping[str, VideoPlace] = field(default_factory=dict)
    stats: Stats = field(default_factory=dict)
    meta_chunk: int = 0
    meta_file: int = 0


def episodes_file(root: Path, chunk: int, file: int) -> Path:
    """Path of a file of the table of episodes."""
    return root / EPISODES_DIR / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"


def read_episode_rows(root: Path, features: Mapping[str, DatasetFeature]) -> list[EpisodeRow]:
    """Read the whole table of a v3.0 dataset, by `episode_index`.

    Statistics and places in `meta/episodes` that a table lacks are left empty or taken from the file's name.

    Raises:
        DatasetFormatError: a file is damaged, lacks a column, or two rows have the same number.
    """
    rows: list[EpisodeRow] = []
    cameras = [name for name, feature in features.items() if feature.dtype == "video"]
    for path in sorted((root / EPISODES_DIR).glob("*/*.parquet")):
        table = read_table(path)
        missing = [name for name in _needed(cameras) if name not in table.column_names]
        if missing:
            raise DatasetFormatError(f"`{path}` lacks the columns {', '.join(missing)}")
        own = [
            int(part.stem.split("-")[-1]) if part.stem.split("-")[-1].isdigit() else 0 for part in (path.parent, path)
        ]
        rows += [_row(values, features, cameras, own) for values in table.to_pylist()]
    rows.sort(key=lambda row: row.episode_index)
    twice = sorted(
        {one.episode_index for one, two in itertools.pairwise(rows) if one.episode_index == two.episode_index}
    )
    if twice:
        raise DatasetFormatError(f"`{root / EPISODES_DIR}` holds episodes twice: {twice[:8]}")
    return rows


def write_episode_rows(path: Path, rows: Sequence[EpisodeRow], features: Mapping[str, DatasetFeature]) -> None:
    """Write one file of the table, in LeRobot's columns and types; the old file stays until the new one is complete.

    Args:
        path: file to write (`episodes_file`).
        rows: in order; `meta_chunk` and `meta_file` should be those of `path`.
        features: all features; they give the order of the columns, and videos need a place in every row.

    Raises:
        DatasetFormatError: a row lacks the place of a camera.
    """
    table = rows_table(rows, features)
    with replacing(path) as temporary, open_parquet(temporary, table.schema) as writer:
        writer.write_table(table)


def rows_table(rows: Sequence[EpisodeRow], features: Mapping[str, DatasetFeature]) -> pa.Table:
    """The rows as an Arrow table with LeRobot's columns and types; see `write_episode_rows`."""
    cameras = [name for name, feature in features.items() if feature.dtype == "video"]
    for row in rows:
        lacking = [camera for camera in cameras if camera not in row.videos]
        if lacking:
            raise DatasetFormatError(f"episode {row.episode_index} has no video of {', '.join(lacking)}")
    columns: dict[str, pa.Array] = {
        "episode_index": _ints(row.episode_index for row in rows),
        "tasks": pa.array([list(row.tasks) for row in rows], type=pa.list_(pa.field("element", pa.string()))),
        "length": _ints(row.length for row in rows),
        "data/chunk_index": _ints(row.data_chunk for row in rows),
        "data/file_index": _ints(row.data_file for row in rows),
        "dataset_from_index": _ints(row.from_index for row in rows),
        "dataset_to_index": _ints(row.to_index for row in rows),
    }
    for camera in cameras:
        places = [row.videos[camera] for row in rows]
        columns[f"videos/{camera}/chunk_index"] = _ints(place.chunk for place in places)
        columns[f"videos/{camera}/file_index"] = _ints(place.file for place in places)
        columns[f"videos/{camera}/from_timestamp"] = pa.array([place.from_s for place in places], type=pa.float64())
        columns[f"videos/{camera}/to_timestamp"] = pa.array([place.to_s for place in places], type=pa.float64())
    for name, feature in features.items():
        for key in STATISTICS:
            if any(key in row.stats.get(name, {}) for row in rows):
                cells = [row.stats.get(name, {}).get(key) for row in rows]
                columns[f"stats/{name}/{key}"] = _stat_cells(cells, key, is_camera=feature.is_camera)
    columns["meta/episodes/chunk_index"] = _ints(row.meta_chunk for row in rows)
    columns["meta/episodes/file_index"] = _ints(row.meta_file for row in rows)
    return pa.table(columns)


def _needed(cameras: Iterable[str]) -> list[str]:
    parts = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
    base = ["episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"]
    return [*base, *(f"videos/{camera}/{part}" for camera in cameras for part in parts)]


def _row(
    values: Mapping[str, Any], features: Mapping[str, DatasetFeature], cameras: Iterable[str], own: Sequence[int]
) -> EpisodeRow:
    videos = {
        camera: VideoPlace(
            chunk=int(values[f"videos/{camera}/chunk_index"]),
            file=int(values[f"videos/{camera}/file_index"]),
            from_s=float(values[f"videos/{camera}/from_timestamp"]),
            to_s=float(values[f"videos/{camera}/to_timestamp"]),
        )
        for camera in cameras
    }
    stats: Stats = {}
    for name in features:
        entry: FeatureStats = {
            key: np.atleast_1d(np.asarray(cell))
            for key in STATISTICS
            if (cell := values.get(f"stats/{name}/{key}")) is not None
        }
        if entry:
            stats[name] = entry
    return EpisodeRow(
        episode_index=int(values["episode_index"]),
        tasks=tuple(values.get("tasks") or ()),
        length=int(values["length"]),
        data_chunk=int(values["data/chunk_index"]),
        data_file=int(values["data/file_index"]),
        from_index=int(values["dataset_from_index"]),
        to_index=int(values["dataset_to_index"]),
        videos=videos,
        stats=stats,
        meta_chunk=int(values.get("meta/episodes/chunk_index", own[0]) or 0),
        meta_file=int(values.get("meta/episodes/file_index", own[1]) or 0),
    )


def _ints(values: Iterable[int]) -> pa.Array:
    return pa.array(list(values), type=pa.int64())


def _stat_cells(cells: Sequence[Any], key: str, *, is_camera: bool) -> pa.Array:
    kind: pa.DataType = pa.list_(pa.field("element", pa.int64() if key == "count" else pa.float64()))
    if is_camera and key != "count":
        for _ in range(2):
            kind = pa.list_(pa.field("element", kind))
    numbers = np.int64 if key == "count" else np.float64
    return pa.array([None if cell is None else np.asarray(cell, dtype=numbers).tolist() for cell in cells], type=kind)
