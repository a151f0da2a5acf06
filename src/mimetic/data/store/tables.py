"""The small files of `meta/`: info.json, stats.json, tasks.parquet (spec/dataset.md 2, 5, 7.1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mimetic.data.info import DATA_PATH, VIDEO_PATH
from mimetic.data.stats import Stats
from mimetic.data.store.atomic import read_json, replacing, write_json
from mimetic.data.store.data_file import open_parquet
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.names import (
    DEFAULT_FEATURES,
    EPISODE_INDEX,
    FRAME_INDEX,
    INDEX,
    INFO_JSON,
    STATS_JSON,
    TASK_INDEX,
    TASKS_PARQUET,
    TIMESTAMP,
)

CHUNKS_SIZE = 1000
DATA_FILES_SIZE_IN_MB = 100
VIDEO_FILES_SIZE_IN_MB = 200
_DEFAULTS: dict[str, dict[str, Any]] = {
    TIMESTAMP: {"dtype": "float32", "shape": [1], "names": None},
    FRAME_INDEX: {"dtype": "int64", "shape": [1], "names": None},
    EPISODE_INDEX: {"dtype": "int64", "shape": [1], "names": None},
    INDEX: {"dtype": "int64", "shape": [1], "names": None},
    TASK_INDEX: {"dtype": "int64", "shape": [1], "names": None},
}


def with_default_features(features: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The features as info.json declares them: the user's in their order, then the five default ones.

    Raises:
        DatasetError: a name contains `/`, which separates names in the table of episodes.
    """
    slashed = [name for name in features if "/" in name]
    if slashed:
        raise DatasetError(f"feature names must not contain `/`: {', '.join(slashed)}", "use a dot instead")
    own = {name: _plain(entry) for name, entry in features.items() if name not in DEFAULT_FEATURES}
    return {**own, **{name: dict(entry) for name, entry in _DEFAULTS.items()}}


def new_info(
    *,
    fps: int,
    features: Mapping[str, Mapping[str, Any]],
    robot_type: str | None = None,
    use_videos: bool = True,
    chunks_size: int = CHUNKS_SIZE,
    data_files_size_in_mb: float = DATA_FILES_SIZE_IN_MB,
    video_files_size_in_mb: float = VIDEO_FILES_SIZE_IN_MB,
) -> dict[str, Any]:
    """The content of info.json of a dataset without episodes, in LeRobot's key order.

    Args:
        fps: frame rate [Hz].
        features: as LeRobot declares them (dtype, shape, names, info); the default ones are added.
        robot_type: free text.
        use_videos: false for datasets that keep pictures in the data files: `video_path` is null then.
        chunks_size: most files in one chunk folder.
        data_files_size_in_mb: limit of a data file [MiB].
        video_files_size_in_mb: limit of a video file [MiB].
    """
    return {
        "codebase_version": "v3.0",
        "fps": fps,
        "features": with_default_features(features),
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": 0,
        "chunks_size": chunks_size,
        "data_files_size_in_mb": data_files_size_in_mb,
        "video_files_size_in_mb": video_files_size_in_mb,
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if use_videos else None,
        "robot_type": robot_type,
        "splits": {},
    }


def with_counts(raw: Mapping[str, Any], *, episodes: int, frames: int, tasks: int) -> dict[str, Any]:
    """The content of info.json with other counters; `splits` follows, every other key stays."""
    return {
        **raw,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "splits": {"train": f"0:{episodes}"} if episodes else {},
    }


def read_raw_info(root: Path) -> dict[str, Any]:
    """The JSON of info.json as it is, unknown keys included.

    Raises:
        DatasetFormatError: it cannot be read or is not an object.
    """
    raw = read_json(root / INFO_JSON)
    if not isinstance(raw, dict):
        raise DatasetFormatError(f"`{root / INFO_JSON}` must hold an object, not {raw!r:.60}")
    return raw


def write_info(root: Path, raw: Mapping[str, Any]) -> None:
    """Replace info.json."""
    write_json(root / INFO_JSON, raw)


def stats_json(stats: Stats) -> dict[str, dict[str, Any]]:
    """Statistics as JSON data."""
    return {name: {key: np.asarray(value).tolist() for key, value in entry.items()} for name, entry in stats.items()}


def write_stats(root: Path, stats: Stats) -> None:
    """Replace stats.json."""
    write_json(root / STATS_JSON, stats_json(stats))


def write_tasks(root: Path, tasks: Mapping[int, str]) -> None:
    """Replace tasks.parquet.

    Args:
        root: folder of the dataset.
        tasks: instruction by `task_index`; LeRobot looks them up by row, so the numbers are 0..n-1.

    Raises:
        DatasetError: the numbers have gaps.
    """
    write_tasks_file(root / TASKS_PARQUET, tasks)


def write_tasks_file(path: Path, tasks: Mapping[int, str]) -> None:
    """Write a file of tasks; see `write_tasks`."""
    if sorted(tasks) != list(range(len(tasks))):
        raise DatasetError(f"task numbers must be 0..{len(tasks) - 1}, not {sorted(tasks)}")
    ordered = [tasks[number] for number in range(len(tasks))]
    schema = pa.schema({"task_index": pa.int64(), "task": pa.string()}, metadata={"pandas": json.dumps(_PANDAS)})
    table = pa.table({"task_index": range(len(ordered)), "task": ordered}, schema=schema)
    with replacing(path) as temporary, open_parquet(temporary, schema) as writer:
        writer.write_table(table)


def _column(name: str, kind: str, numpy_kind: str) -> dict[str, Any]:
    return {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}


_PANDAS = {
    "index_columns": ["task"],
    "column_indexes": [
        {
            "name": None,
            "field_name": None,
            "pandas_type": "unicode",
            "numpy_type": "object",
            "metadata": {"encoding": "UTF-8"},
        }
    ],
    "columns": [_column("task_index", "int64", "int64"), _column("task", "unicode", "object")],
    "attributes": {},
    "creator": {"library": "mimetic", "version": "0"},
    "pandas_version": "2.3.3",
}
"""LeRobot reads the file with pandas, which finds the index column by this entry."""


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A declared feature with lists for tuples, as JSON has them."""
    return {key: list(value) if key == "shape" else value for key, value in entry.items()}
