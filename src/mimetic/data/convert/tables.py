"""The tables of a converted dataset: info.json, tasks, episodes, statistics of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.legacy_source import LegacySource
from mimetic.data.convert.shards import file_numbers
from mimetic.data.convert.streamed_stats import streamed_stats
from mimetic.data.edit.data_task import native_column
from mimetic.data.features import DatasetFeature
from mimetic.data.info import DATA_PATH, VIDEO_PATH
from mimetic.data.layout import Layout
from mimetic.data.parquet import read_table
from mimetic.data.statistics import PictureStats, numeric_stats
from mimetic.data.stats import FeatureStats, Stats, aggregate_stats
from mimetic.data.store.episode_rows import EpisodeRow, episodes_file, rows_table, write_episode_rows
from mimetic.data.store.shards import MEBIBYTE
from mimetic.data.store.tables import (
    CHUNKS_SIZE,
    DATA_FILES_SIZE_IN_MB,
    VIDEO_FILES_SIZE_IN_MB,
    write_info,
    write_stats,
    write_tasks,
)

LARGEST_SORT = 1 << 26
"""Most values of one dimension that are sorted for quantiles: 620 hours at 30 Hz, 2 GB of memory."""
_SAMPLE = 64
_REPLACED = frozenset(
    (
        *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "total_videos"),
        *("total_chunks", "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "data_path", "video_path"),
        *("robot_type", "splits"),
    )
)


def v30_info(source: LegacySource, config: ConvertConfig) -> dict[str, Any]:
    """info.json of the result, in LeRobot's order; keys that neither version knows are kept at the end."""
    raw = source.raw
    features = {
        name: dict(entry) if entry["dtype"] == "video" else {**entry, "fps": source.fps}
        for name, entry in raw["features"].items()
    }
    count = len(source.episodes)
    is_same = all(number == episode.index for number, episode in enumerate(source.episodes))
    splits = raw.get("splits") if is_same else None
    return {
        "codebase_version": "v3.0",
        "fps": source.fps,
        "features": features,
        "total_episodes": count,
        "total_frames": sum(episode.length for episode in source.episodes),
        "total_tasks": len(source.tasks),
        "chunks_size": int(raw.get("chunks_size", CHUNKS_SIZE)),
        "data_files_size_in_mb": _limit(
            config.data_file_size_in_mb, raw, "data_files_size_in_mb", DATA_FILES_SIZE_IN_MB
        ),
        "video_files_size_in_mb": _limit(
            config.video_file_size_in_mb, raw, "video_files_size_in_mb", VIDEO_FILES_SIZE_IN_MB
        ),
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if source.cameras or raw.get("video_path") is not None else None,
        "robot_type": raw.get("robot_type"),
        "splits": splits or {"train": f"0:{count}"},
        **{key: value for key, value in raw.items() if key not in _REPLACED},
    }


def _limit(flag: float | None, raw: Mapping[str, Any], key: str, default: float) -> float:
    value = flag if flag is not None else raw.get(key, default)
    return int(value) if value == int(value) else value


def write_v30_tables(
    root: Path, info: Mapping[str, Any], source: LegacySource, rows: Sequence[EpisodeRow], stats: Stats
) -> None:
    """Write everything in `meta/`; info.json comes last."""
    write_tasks(root, source.tasks)
    per_file = _rows_per_file(rows, source.features, float(info["data_files_size_in_mb"]))
    groups = [rows[start : start + per_file] for start in range(0, len(rows), per_file)]
    for group, (chunk, file) in zip(groups, file_numbers(len(groups), int(info["chunks_size"])), strict=True):
        placed = [replace(row, meta_chunk=chunk, meta_file=file) for row in group]
        write_episode_rows(episodes_file(root, chunk, file), placed, source.features)
    write_stats(root, stats)
    write_info(root, info)


def _rows_per_file(rows: Sequence[EpisodeRow], features: Mapping[str, DatasetFeature], limit_mb: float) -> int:
    """Rows of one file of the table; a limit for tests may be so small that not even one fits, which is let pass."""
    sample = rows_table(rows[:_SAMPLE], features)
    return max(int(max(limit_mb, 1.0) * MEBIBYTE / max(sample.nbytes / len(sample), 1.0)), 1)


def whole_stats(
    features: Mapping[str, DatasetFeature],
    layout: Layout,
    rows: Sequence[EpisodeRow],
    counted: Mapping[str, Iterable[Mapping[str, Any]]],
) -> Stats:
    """Statistics of the whole dataset.

    Quantiles of numbers are those of all rows together (spec/dataset.md 20.12), by sorting or, of very many rows, by
    counting; counted cameras have exact histograms; of other cameras the statistics of the episodes are put together.

    Args:
        features: declared features.
        layout: of the result, whose data files are read.
        rows: all episodes.
        counted: records of cameras that were counted.
    """
    files = [layout.data_file(*place) for place in dict.fromkeys((row.data_chunk, row.data_file) for row in rows)]
    frames = sum(row.length for row in rows)
    stats: Stats = {}
    for name, feature in features.items():
        if name in counted:
            stats[name] = _counted(feature, counted[name])
        elif feature.is_numeric and frames * int(np.prod(feature.shape[:-1])) <= LARGEST_SORT:
            stats[name] = _sorted(name, feature, files)
        elif feature.is_numeric:
            stats[name] = streamed_stats(partial(_by_file, name, feature, files))
        elif any(name in row.stats for row in rows):
            stats[name] = aggregate_stats([{name: row.stats[name]} for row in rows if name in row.stats])[name]
    return stats


def _counted(feature: DatasetFeature, records: Iterable[Mapping[str, Any]]) -> FeatureStats:
    whole, frames = PictureStats(feature.chw[0]), 0
    for record in records:
        whole.counts += np.asarray(record["counts"], dtype=np.int64)
        frames += int(record["frames"])
    return whole.result(count=frames)


def _by_file(name: str, feature: DatasetFeature, files: Sequence[Path]) -> Iterator[npt.NDArray[Any]]:
    for path in files:
        yield native_column(read_table(path, [name])[name], feature, name=name, where=str(path))


def _sorted(name: str, feature: DatasetFeature, files: Sequence[Path]) -> FeatureStats:
    """One dimension after the other, since sorting takes several times the memory of the values."""
    values = np.concatenate(list(_by_file(name, feature, files)))
    if values.ndim == 1:
        return numeric_stats(values)
    parts = [numeric_stats(values[..., place].reshape(-1)) for place in range(values.shape[-1])]
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0] if key != "count"}
    return {**joined, "count": np.asarray([len(values)], dtype=np.int64)}
