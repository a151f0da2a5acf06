"""Statistics computed from data: float64, true quantiles, counts in frames (spec/dataset.md 7, 20.12-20.14).

LeRobot averages the quantiles of episodes and takes variances from float32 squares; both are wrong enough to be seen on
a robot. Here low-dimensional features are sorted, and pictures are counted: 256 values of a colour channel, 65536 of a
depth map, fit a histogram without loss, and histograms of parts add up to that of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from mimetic.data.features import DatasetFeature
from mimetic.data.stats import QUANTILES, FeatureStats, Stats
from mimetic.errors import DatasetError

LEVELS = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_MOST_SAMPLES = 10_000
_LEAST_SAMPLES = 100
_THIN_FROM, _THIN_TO = 300, 150
_DEPTH_BINS = 1 << 16


@np.errstate(invalid="ignore", over="ignore")  # infinite values have no spread, which NaN says; no warnings
def numeric_stats(values: npt.ArrayLike) -> FeatureStats:
    """Statistics of a feature over its frames.

    Args:
        values: (frames, ...) numbers or booleans; all axes between the first and the last count as samples too, as
            LeRobot has it (spec/dataset.md 7.1).

    Returns:
        `min`, `max`, `mean`, `std` (population), `q01` ... `q99` (linear between samples, numpy's default rule), each
        float64 of shape (n,), or (1,) for scalars; `count` int64 (1,): frames.

    Raises:
        DatasetError: there is no frame.
    """
    array = np.asarray(values)
    if not len(array):
        raise DatasetError("statistics need at least one frame")
    frames = len(array)
    samples = array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1).astype(np.float64)
    mean = samples.mean(axis=0)
    ordered = np.sort(samples, axis=0)
    stats: FeatureStats = {
        "min": ordered[0].copy(),
        "max": samples.max(axis=0),
        "mean": mean,
        "std": np.sqrt(np.square(samples - mean).mean(axis=0)),
        "count": np.asarray([frames], dtype=np.int64),
    }
    if np.isnan(samples).any():  # sorting puts NaN last; every statistic of such a channel must say so
        stats["min"] = samples.min(axis=0)
    stats.update(zip(QUANTILES, _quantiles_of_sorted(ordered, stats["max"]), strict=True))
    return stats


def _quantiles_of_sorted(
    ordered: npt.NDArray[np.float64], highest: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    found = []
    for level in LEVELS.values():
        place = level * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        value = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
        found.append(np.where(np.isnan(highest), np.nan, value))
    return found


def sample_indices(length: int) -> npt.NDArray[np.int64]:
    """Frames of an episode whose pictures enter its statistics (spec/dataset.md 7.2).

    Args:
        length: frames of the episode, at least 1.

    Returns:
        (k,) rising frame numbers; all of up to 100 frames, then `length ** 0.75`, 10000 at most.
    """
    count = max(min(_LEAST_SAMPLES, length), min(int(length**0.75), _MOST_SAMPLES))
    return np.round(np.linspace(0, length - 1, count)).astype(np.int64)


def thin(picture: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Every n-th row and column of a picture (H, W, ...), the larger side about 150 long (spec/dataset.md 7.2)."""
    height, width = picture.shape[:2]
    if max(height, width) < _THIN_FROM:
        return picture
    step = int(width / _THIN_TO) if width > height else int(height / _THIN_TO)
    return picture[::step, ::step]


class PictureStats:
    """Statistics of the pictures of one camera, from exact histograms; those of parts can be merged.

    Args:
        channels: 3 for colour, 1 for depth.
        is_depth: depth counts in the recorded unit; colour in 0..1.
        scale: what a histogram step is worth: 1 for millimetres, 0.001 for depth in metres, 1/255 for colour.
    """

    def __init__(self, channels: int, *, is_depth: bool = False, scale: float | None = None) -> None:
        self._bins = _DEPTH_BINS if is_depth else 256
        self._scale = scale if scale is not None else (1.0 if is_depth else 1.0 / 255.0)
        self.counts: npt.NDArray[np.int64] = np.zeros((channels, self._bins), dtype=np.int64)

    def add(self, picture: npt.NDArray[np.generic]) -> None:
        """Count the pixels of one picture, (H, W, C) or (H, W): uint8 colour, uint16 depth [mm], float depth [m].

        The caller thins it first (`thin`) where LeRobot does.
        """
        pixels = picture.reshape(-1, len(self.counts))
        if pixels.dtype.kind == "f":
            pixels = np.clip(np.rint(pixels.astype(np.float64) / self._scale), 0, self._bins - 1)
        for channel, counts in enumerate(self.counts):
            values = pixels[:, channel].astype(np.int64)
            counts += np.bincount(values, minlength=self._bins)[: self._bins]

    def merge(self, other: PictureStats) -> None:
        """Add the pixels that another part of the same camera counted.

        Raises:
            DatasetError: it counts other channels or in another unit.
        """
        if other.counts.shape != self.counts.shape or other._scale != self._scale:
            raise DatasetError("statistics of cameras of different kinds cannot be merged")
        self.counts += other.counts

    def result(self, *, count: int) -> FeatureStats:
        """The statistics, each (C, 1, 1) float64 but `count`.

        Args:
            count: frames that were added (LeRobot's count, not pixels).

        Raises:
            DatasetError: no pixel was counted.
        """
        totals = self.counts.sum(axis=1)
        if not totals.all():
            raise DatasetError("statistics of a camera need at least one picture")
        values = np.arange(self._bins, dtype=np.float64)
        mean = (self.counts @ values) / totals
        deviation = np.square(values[None, :] - mean[:, None])
        std = np.sqrt((self.counts * deviation).sum(axis=1) / totals)
        used = self.counts > 0
        result = {
            "min": used.argmax(axis=1),
            "max": self._bins - 1 - used[:, ::-1].argmax(axis=1),
            "mean": mean,
            "std": std,
        }
        up_to = np.cumsum(self.counts, axis=1)
        for name, level in LEVELS.items():
            result[name] = np.asarray(
                [_quantile_of_counts(row, int(total), level) for row, total in zip(up_to, totals, strict=True)]
            )
        stats: FeatureStats = {
            name: (np.asarray(value, dtype=np.float64) * self._scale).reshape(-1, 1, 1)
            for name, value in result.items()
        }
        return {**_in_order(stats), "count": np.asarray([count], dtype=np.int64)}


def _in_order(stats: FeatureStats) -> FeatureStats:
    return {name: stats[name] for name in ("min", "max", "mean", "std", *QUANTILES)}


def _quantile_of_counts(up_to: npt.NDArray[np.int64], total: int, level: float) -> float:
    """numpy's linear rule on the sorted samples that a histogram stands for."""
    place = level * (total - 1)
    below = int(np.searchsorted(up_to, int(place), side="right"))
    above = int(np.searchsorted(up_to, min(int(place) + 1, total - 1), side="right"))
    return below + (above - below) * (place - int(place))


def columns_stats(
    features: Mapping[str, DatasetFeature], columns: Mapping[str, npt.NDArray[np.generic]], names: Iterable[str] = ()
) -> Stats:
    """Statistics of every numeric feature.

    Args:
        features: all features.
        columns: (frames, ...) by feature; features without a column are left out.
        names: only these, when given.
    """
    chosen = set(names) or set(features)
    return {
        name: numeric_stats(columns[name])
        for name, feature in features.items()
        if feature.is_numeric and name in columns and name in chosen
    }
