"""Statistics of the output: exact from its rows; of cameras carried over where the pictures are the same ones.

Carried camera statistics of several episodes are merged as distributions, by the quantiles that each episode stores,
and not by averaging the quantiles (spec/dataset.md 20.12). Where all pictures are looked at, histograms make it exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.depth import depth_table
from mimetic.data.edit.data_task import native_column, pictures
from mimetic.data.edit.video_task import read_index
from mimetic.data.features import DatasetFeature
from mimetic.data.images import decode_colour, decode_depth
from mimetic.data.parquet import read_table
from mimetic.data.statistics import LEVELS, PictureStats, numeric_stats, sample_indices, thin
from mimetic.data.stats import QUANTILES, FeatureStats, aggregate_stats
from mimetic.data.video.decoder import PyavDecoder

Floats = npt.NDArray[np.float64]
_KEYS = ("min", "max", "mean", "std", "count", *QUANTILES)
_GRID = 2049


@dataclass(frozen=True, kw_only=True)
class PictureTask:
    """Pictures of one episode and camera to look at.

    Args:
        path: video file, or data file.
        first: first frame in the video, or first row.
        length: frames of the episode.
        camera: the camera as declared.
        column: name of the picture column; empty for videos.
    """

    path: Path
    first: int
    length: int
    camera: DatasetFeature
    column: str = ""


def look_at_pictures(task: PictureTask) -> tuple[npt.NDArray[np.int64], int]:
    """Count the pixel values of an episode's sampled frames.

    Returns:
        Histogram (C, bins), and how many frames were looked at.
    """
    counts = picture_stats(task.camera)
    frames = sample_indices(task.length)
    if task.column:
        column = read_table(task.path, [task.column])[task.column].slice(task.first, task.length)
        cells = pictures(column, name=task.column, where=str(task.path))
        for frame in frames:
            counts.add(thin(_decoded(cells[frame][0], task.camera, f"frame {frame} of `{task.path}`")))
    else:
        _count_video(task, frames, counts)
    return counts.counts, len(frames)


def picture_stats(camera: DatasetFeature) -> PictureStats:
    """An empty histogram for a camera, in the unit of its statistics."""
    if not camera.is_depth:
        return PictureStats(3)
    return PictureStats(1, is_depth=True, scale=0.001 if camera.info.get("depth_unit") == "m" else 1.0)


def _decoded(data: bytes, camera: DatasetFeature, where: str) -> npt.NDArray[Any]:
    channels, height, width = camera.chw
    if camera.is_depth:
        depth = np.empty((1, height, width), dtype=np.float32)
        decode_depth(data, depth, where=where)
        return depth.reshape(height, width)
    colour = np.empty((channels, height, width), dtype=np.uint8)
    decode_colour(data, colour, where=where)
    return colour.transpose(1, 2, 0)


def _count_video(task: PictureTask, frames: npt.NDArray[np.int64], counts: PictureStats) -> None:
    decoder = PyavDecoder(task.path, read_index(task.path))
    try:
        size = (decoder.height, decoder.width)
        if task.camera.is_depth:
            unit = task.camera.info.get("depth_unit")
            table = depth_table(task.camera.info, unit if unit in ("mm", "m") else "mm")
            codes = np.empty(size, dtype=np.uint16)
            for frame in frames.tolist():
                decoder.read([task.first + frame], [codes], is_depth=True)
                counts.add(thin(table[np.minimum(codes, len(table) - 1)]))
            return
        colour = np.empty((3, *size), dtype=np.uint8)
        for frame in frames.tolist():
            decoder.read([task.first + frame], [colour], is_depth=False)
            counts.add(thin(colour.transpose(1, 2, 0)))
    finally:
        decoder.close()


def carried(stats: FeatureStats | None, length: int) -> FeatureStats | None:
    """Stored statistics of an episode's pictures, if they are complete; `count` in frames (spec/dataset.md 20.14).

    Args:
        stats: what is stored.
        length: frames of the episode.
    """
    if not stats or any(key not in stats for key in _KEYS):
        return None
    values = {key: np.asarray(stats[key], dtype=np.int64 if key == "count" else np.float64) for key in _KEYS}
    shape = values["mean"].shape
    if len(shape) != 3 or any(values[key].shape != shape for key in _KEYS if key != "count"):
        return None
    if values["count"].shape != (1,) or not all(np.isfinite(values[key]).all() for key in _KEYS):
        return None
    if not 0 < values["count"][0] <= length:
        values["count"] = np.asarray([len(sample_indices(length))], dtype=np.int64)
    return values


def merged_pictures(parts: Sequence[FeatureStats]) -> FeatureStats:
    """Statistics of all episodes from those of each: moments exactly, quantiles of the mixture of the distributions.

    Args:
        parts: complete statistics of each episode, (C, 1, 1) each.
    """
    merged = aggregate_stats([{"camera": part} for part in parts])["camera"]
    weight = np.asarray([float(part["count"][0]) for part in parts])
    channels = merged["mean"].shape[0]
    for name in QUANTILES:
        merged[name] = np.empty_like(np.asarray(merged["mean"], dtype=np.float64))
    for channel in range(channels):
        quantiles = mixture_quantiles(
            np.stack([[float(part[key].reshape(-1)[channel]) for key in ("min", *QUANTILES, "max")] for part in parts]),
            weight,
        )
        for name, value in zip(QUANTILES, quantiles, strict=True):
            merged[name][channel] = value
    return {key: merged[key] for key in _KEYS}


def mixture_quantiles(knots: Floats, weight: Floats) -> Floats:
    """Quantiles q01, q10, q50, q90, q99 of a mixture of distributions that are known by some quantiles.

    Args:
        knots: (parts, 7) minimum, the five quantiles and maximum of each.
        weight: (parts,) weights.

    Returns:
        (5,).
    """
    levels = np.asarray([0.0, *LEVELS.values(), 1.0])
    knots = np.maximum.accumulate(knots, axis=1)
    low, high = knots.min(), knots.max()
    if high <= low:
        return np.full(5, low)
    grid = np.linspace(low, high, _GRID)
    total = np.zeros(_GRID)
    for row, part_weight in zip(knots, weight, strict=True):
        # A jump (equal quantiles) is spread over the width of one cell, or np.interp would choose a side at random.
        total += part_weight * np.interp(grid, row + np.arange(7) * (high - low) * 1e-9, levels, left=0.0, right=1.0)
    total /= weight.sum()
    wanted = np.asarray(list(LEVELS.values()))
    place = np.clip(np.searchsorted(total, wanted, side="left"), 1, _GRID - 1)
    below, above = total[place - 1], total[place]
    share = np.where(above > below, (wanted - below) / np.where(above > below, above - below, 1.0), 0.0)
    return np.asarray(grid[place - 1] + np.clip(share, 0.0, 1.0) * (grid[place] - grid[place - 1]))


def all_rows_stats(files: Sequence[Path], features: dict[str, DatasetFeature]) -> dict[str, FeatureStats]:
    """Exact statistics of every numeric feature over all rows; one feature at a time is in memory.

    Args:
        files: data files.
        features: all features.
    """
    found = {}
    for name, feature in features.items():
        if feature.is_numeric:
            found[name] = numeric_stats(whole_column(files, name, feature))
    return found


def whole_column(files: Sequence[Path], name: str, feature: DatasetFeature) -> npt.NDArray[Any]:
    """One numeric column of all data files, in the declared dtype."""
    return np.concatenate(
        [native_column(read_table(path, [name])[name], feature, name=name, where=str(path)) for path in files]
    )


def relative_action_stats(
    action: npt.NDArray[Any],
    state: npt.NDArray[Any],
    lengths: Sequence[int],
    *,
    chunk: int,
    is_relative: npt.NDArray[np.bool_],
) -> FeatureStats:
    """Statistics of actions minus the state at the start of their chunk, over all chunks inside episodes.

    Args:
        action: (frames, joints).
        state: (frames, joints).
        lengths: frames of each episode.
        chunk: actions in a chunk.
        is_relative: (joints,) which joints are relative; the others stay as they are.

    Returns:
        As `numeric_stats`; `count` is chunks times actions.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    first = np.concatenate(
        [start + np.arange(max(length - chunk + 1, 0)) for start, length in zip(starts, lengths, strict=True)]
    ).astype(np.int64)
    rows = first[:, None] + np.arange(chunk)
    parts = []
    for joint, relative in enumerate(is_relative):  # one joint at a time: all windows of all joints may not fit
        values = action[rows, joint].astype(np.float64)
        if relative:
            values -= state[first, joint][:, None]
        parts.append(numeric_stats(values.reshape(-1)))
    return {
        key: parts[0]["count"] if key == "count" else np.concatenate([part[key] for part in parts]) for key in parts[0]
    }
