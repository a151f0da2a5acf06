"""Statistics of more rows than can be sorted in memory, with the same quantiles as if they had been.

The bits of a float32 can be made to rise with its value. A first pass counts their upper halves, 65536 of them; that
tells in which of these bins every wanted rank lies. A second pass counts the lower halves inside those bins only, and
each rank is a value. Two passes over the files and some megabytes, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.statistics import LEVELS
from mimetic.data.stats import FeatureStats
from mimetic.errors import DatasetError

_HALF = 1 << 16
Chunks = Callable[[], Iterator[npt.NDArray[Any]]]
"""Gives the rows piece by piece, (frames, ...) each, as often as it is called."""


def streamed_stats(chunks: Chunks) -> FeatureStats:
    """The statistics of `numeric_stats`; values are rounded to float32 for the quantiles.

    Args:
        chunks: the rows.

    Raises:
        DatasetError: there is no row.
    """
    first = _FirstPass()
    for values in chunks():
        first.add(values)
    if not first.frames:
        raise DatasetError("statistics need at least one frame")
    places = [level * (first.samples - 1) for level in LEVELS.values()]
    ranks = sorted({min(int(place) + step, first.samples - 1) for place in places for step in (0, 1)})
    found = _ranked(chunks, first.counts, ranks)
    stats: FeatureStats = {
        "min": first.low,
        "max": first.high,
        "mean": first.mean,
        "std": np.sqrt(first.squares / first.samples),
        "count": np.asarray([first.frames], dtype=np.int64),
    }
    for name, place in zip(LEVELS, places, strict=True):
        below, above = found[int(place)], found[min(int(place) + 1, first.samples - 1)]
        value = below + (above - below) * (place - int(place))
        stats[name] = np.where(np.isnan(first.mean), np.nan, value)
    return stats


class _FirstPass:
    """Minimum, maximum, mean, squared deviations (joined without loss of digits) and counts of upper halves."""

    def __init__(self) -> None:
        self.frames = self.samples = 0
        self.low = self.high = self.mean = self.squares = np.zeros(0)
        self.counts: npt.NDArray[np.int64] = np.zeros((0, _HALF), dtype=np.int64)

    def add(self, values: npt.NDArray[Any]) -> None:
        if not len(values):
            return
        samples = _samples(values).astype(np.float64)
        mean = samples.mean(axis=0)
        squares = np.square(samples - mean).sum(axis=0)
        low, high = samples.min(axis=0), samples.max(axis=0)
        if not self.samples:
            self.low, self.high, self.mean, self.squares = low, high, mean, squares
            self.counts = np.zeros((samples.shape[1], _HALF), dtype=np.int64)
        else:
            total = self.samples + len(samples)
            change = mean - self.mean
            self.squares = self.squares + squares + np.square(change) * (self.samples * len(samples) / total)
            self.mean = self.mean + change * (len(samples) / total)
            self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        for column, keys in zip(self.counts, _keys(values).T, strict=True):
            column += np.bincount(keys >> 16, minlength=_HALF)
        self.frames += len(values)
        self.samples += len(samples)


def _ranked(chunks: Chunks, counts: npt.NDArray[np.int64], ranks: list[int]) -> dict[int, npt.NDArray[np.float64]]:
    """The values of some ranks, (n,) each."""
    up_to = np.cumsum(counts, axis=1)
    bins = np.stack([[np.searchsorted(column, rank, side="right") for column in up_to] for rank in ranks])
    inside = {
        (column, int(wanted)): np.zeros(_HALF, dtype=np.int64)
        for column in range(len(counts))
        for wanted in np.unique(bins[:, column])
    }
    for values in chunks():
        keys = _keys(values)
        for (column, wanted), fine in inside.items():
            chosen = keys[keys[:, column] >> 16 == wanted, column]
            fine += np.bincount(chosen & (_HALF - 1), minlength=_HALF)
    found = {}
    for row, rank in enumerate(ranks):
        keys = np.empty(len(counts), dtype=np.uint32)
        for column in range(len(counts)):
            wanted = int(bins[row, column])
            before = int(up_to[column, wanted - 1]) if wanted else 0
            lower = int(np.searchsorted(np.cumsum(inside[column, wanted]), rank - before, side="right"))
            keys[column] = (wanted << 16) | lower
        found[rank] = _values(keys)
    return found


def _samples(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(samples, n): all axes but the last are samples, as in `numeric_stats`."""
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)


def _keys(values: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Whole numbers that rise with the values."""
    bits = np.ascontiguousarray(_samples(values), dtype=np.float32).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


def _values(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """The values that `_keys` stands for."""
    bits = np.where(keys >> 31, keys & np.uint32((1 << 31) - 1), ~keys).astype(np.uint32)
    return bits.view(np.float32).astype(np.float64)
