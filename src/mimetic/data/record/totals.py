"""Statistics of a whole dataset while it grows: exact after every episode (spec/dataset.md 20.12-20.14).

Low-dimensional values of all episodes stay in memory, sorted, so that an episode is merged in and not all of them are
sorted again. Pictures are counted in histograms, which a side file that LeRobot does not look at keeps for the next
session.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_table
from mimetic.data.statistics import LEVELS, PictureStats
from mimetic.data.stats import FeatureStats, Stats, aggregate_stats
from mimetic.data.store.data_file import open_parquet
from mimetic.data.store.episode_rows import STATISTICS
from mimetic.errors import DatasetFormatError

PICTURES_FILE = "meta/mimetic/pictures.parquet"
_ENTRY = b"mimetic"
Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ColumnTotal:
    """All values of one numeric feature.

    Args:
        ordered: (d, samples) float64, ascending, NaN last.
        mean: (d,) of them.
        spread: (d,) sum of their squared distances from the mean.
        n_frames: frames that they come from; a frame of two or more dimensions is several samples (spec 7.1).
    """

    ordered: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    spread: npt.NDArray[np.float64]
    n_frames: int

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> ColumnTotal:
        """The total of (frames, ...) values."""
        last = values.shape[-1] if values.ndim > 1 else 1
        samples = np.ascontiguousarray(values.reshape(-1, last).T, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values have no deviation; they make it NaN
            mean = samples.mean(axis=1)
            spread = np.square(samples - mean[:, None]).sum(axis=1)
        return cls(np.sort(samples, axis=1), mean, spread, len(values))

    def merged(self, other: ColumnTotal) -> ColumnTotal:
        """The total of both; neither changes."""
        n, m = self.ordered.shape[1], other.ordered.shape[1]
        # A stable sort finds the two ascending runs and merges them, which takes as long as copying them.
        ordered = np.sort(np.concatenate([self.ordered, other.ordered], axis=1), axis=1, kind="stable")
        with np.errstate(invalid="ignore", over="ignore"):
            apart = other.mean - self.mean
            mean = self.mean + apart * (m / (n + m))
            spread = self.spread + other.spread + np.square(apart) * (n * m / (n + m))
        return ColumnTotal(ordered, mean, spread, self.n_frames + other.n_frames)

    def stats(self) -> FeatureStats:
        """The same as `statistics.numeric_stats` of all values, but for rounding."""
        count = self.ordered.shape[1]
        has_nan = np.isnan(self.ordered[:, -1])
        found: FeatureStats = {
            "min": self.ordered[:, 0].copy(),
            "max": self.ordered[:, -1].copy(),
            "mean": self.mean,
            "std": np.sqrt(self.spread / count),
            "count": np.asarray([self.n_frames], dtype=np.int64),
        }
        for name, level in LEVELS.items():
            place = level * (count - 1)
            below = int(place)
            low, high = self.ordered[:, below], self.ordered[:, min(below + 1, count - 1)]
            with np.errstate(invalid="ignore"):
                found[name] = low + (high - low) * (place - below)
        for name in ("min", *LEVELS):
            found[name][has_nan] = np.nan
        return found


@dataclass(frozen=True)
class CameraTotal:
    """All pictures of one camera.

    Args:
        pictures: their histograms.
        n_frames: how many were counted.
        before: statistics of earlier frames whose histograms nobody kept; empty when all frames are counted.
    """

    pictures: PictureStats
    n_frames: int = 0
    before: FeatureStats = field(default_factory=dict)

    def with_episode(self, pictures: PictureStats, n_frames: int) -> CameraTotal:
        """The total after one more episode; this one stays as it is."""
        merged = copy.deepcopy(self.pictures)
        merged.merge(pictures)
        return CameraTotal(merged, self.n_frames + n_frames, self.before)

    def stats(self, name: str) -> FeatureStats:
        """The statistics of the camera; quantiles are estimates when there are frames without histograms."""
        counted = self.pictures.result(count=self.n_frames)
        if not self.before:
            return counted
        return aggregate_stats([{name: self.before}, {name: counted}])[name]


@dataclass(frozen=True)
class Totals:
    """Everything that the statistics of a dataset are made from.

    Args:
        columns: total of each numeric feature.
        cameras: total of each camera.
    """

    columns: Mapping[str, ColumnTotal]
    cameras: Mapping[str, CameraTotal]

    def with_episode(self, columns: Columns, cameras: Mapping[str, tuple[PictureStats, int]]) -> Totals:
        """The totals after one more episode; these stay as they are.

        Args:
            columns: (frames, ...) of each numeric feature.
            cameras: statistics of the episode's pictures and their number.
        """
        episode = {name: ColumnTotal.of(values) for name, values in columns.items()}
        return Totals(
            {name: self.columns[name].merged(new) if name in self.columns else new for name, new in episode.items()},
            {
                name: self.cameras[name].with_episode(*new) if name in self.cameras else CameraTotal(*new)
                for name, new in cameras.items()
            },
        )

    def stats(self, features: Mapping[str, DatasetFeature]) -> Stats:
        """Statistics of all rows, in the order of the features."""
        found: Stats = {}
        for name, feature in features.items():
            if feature.is_numeric and name in self.columns:
                found[name] = self.columns[name].stats()
            elif name in self.cameras and (self.cameras[name].n_frames or self.cameras[name].before):
                camera = self.cameras[name]
                found[name] = camera.stats(name) if camera.n_frames else dict(camera.before)
        return {name: {key: entry[key] for key in STATISTICS if key in entry} for name, entry in found.items()}


def empty_pictures(feature: DatasetFeature, depth_unit: str | None) -> PictureStats:
    """Empty statistics of a camera in its recorded unit."""
    if feature.is_depth:
        return PictureStats(1, is_depth=True, scale=0.001 if depth_unit == "m" else 1.0)
    return PictureStats(feature.chw[0])


def write_pictures(path: Path, cameras: Mapping[str, CameraTotal], *, n_episodes: int, n_frames: int) -> None:
    """Write the histograms under a working name; bins without pixels are left out.

    Args:
        path: file to write.
        cameras: totals by camera.
        n_episodes: of the dataset that they belong to.
        n_frames: of that dataset.
    """
    rows: list[dict[str, Any]] = []
    for name, total in cameras.items():
        for channel, counts in enumerate(total.pictures.counts):
            used = np.flatnonzero(counts)
            rows.append({"camera": name, "channel": channel, "bins": used.tolist(), "counts": counts[used].tolist()})
    schema = pa.schema(
        {"camera": pa.string(), "channel": pa.int32(), "bins": pa.list_(pa.int32()), "counts": pa.list_(pa.int64())},
        metadata={
            _ENTRY: json.dumps(
                {
                    "episodes": n_episodes,
                    "frames": n_frames,
                    "counted": {name: total.n_frames for name, total in cameras.items()},
                }
            )
        },
    )
    with open_parquet(path, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def read_pictures(
    root: Path, empty: Mapping[str, PictureStats], stats: Stats, *, n_episodes: int, n_frames: int
) -> dict[str, CameraTotal]:
    """Totals of the cameras of a dataset that is continued.

    Args:
        root: folder of the dataset.
        empty: empty statistics of each camera.
        stats: what stats.json says, for cameras without usable histograms.
        n_episodes: of the dataset; histograms of another number are of an older state and are left aside.
        n_frames: as `n_episodes`.
    """
    path = root / PICTURES_FILE
    found: dict[str, CameraTotal] = {}
    if path.is_file():
        try:
            found = _read(path, empty, n_episodes, n_frames)
        except DatasetFormatError:
            found = {}  # a side file: the statistics that follow from stats.json serve as well
    for name, pictures in empty.items():
        if name not in found:
            found[name] = CameraTotal(copy.deepcopy(pictures), 0, dict(stats.get(name, {})) if n_frames else {})
    return found


def _read(path: Path, empty: Mapping[str, PictureStats], n_episodes: int, n_frames: int) -> dict[str, CameraTotal]:
    table = read_table(path)
    try:
        about = json.loads((pq.read_schema(path).metadata or {})[_ENTRY])
        if (about["episodes"], about["frames"]) != (n_episodes, n_frames):
            return {}
        counted = {name: int(number) for name, number in about["counted"].items()}
        filled = {name: copy.deepcopy(pictures) for name, pictures in empty.items() if counted.get(name) == n_frames}
        for row in table.to_pylist():
            if row["camera"] in filled:
                filled[row["camera"]].counts[row["channel"], row["bins"]] = row["counts"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DatasetFormatError(f"`{path}` cannot be understood: {error!s:.100}") from error
    return {name: CameraTotal(pictures, n_frames) for name, pictures in filled.items()}
