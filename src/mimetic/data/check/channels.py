"""State and action as channels: units, ranges, which are discrete, dead or angles (dataset_quality 2.1 to 2.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.source import CheckSource
from mimetic.data.statistics import numeric_stats
from mimetic.data.stats import FeatureStats

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NORMALISED, RADIANS, DEGREES, COUNTS = "normalised", "radians", "degrees or -100..100", "encoder counts"
_DEAD = 1e-9
_DISTINCT = 5
_BLOCK = 8
_TURNS = {"pi": 2 * np.pi, "degrees": 360.0, "counts": 4096.0}
GRIPPER_WORDS = re.compile(r"gripper|grip|jaw|finger", re.IGNORECASE)
_BIMODAL = 0.555
_FEW_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The channels of one feature over the whole dataset; arrays of shape (D,).

    Args:
        feature: name of the feature.
        names: names of its channels; numbers as text where there are none.
        unit: what the values are inferred to be.
        stats: true statistics of all finite values, float64.
        spread: q99 - q01, or max - min where that is zero.
        is_dead: never changes.
        is_discrete: fewer than 5 distinct values; scaled and compared differently.
        turn: a full turn where the channel wraps around, else NaN.
        resolution: smallest step between two values that occurs, 0 where unknown.
    """

    feature: str
    names: Sequence[str]
    unit: str
    stats: FeatureStats
    spread: Floats
    is_dead: Bools
    is_discrete: Bools
    turn: Floats
    resolution: Floats

    @property
    def live(self) -> Bools:
        """Channels that measures of motion use: neither dead nor discrete."""
        return ~self.is_dead & ~self.is_discrete

    @property
    def scale(self) -> Floats:
        """Spread, and 1 for dead channels."""
        return np.where(self.is_dead, 1.0, np.maximum(self.spread, 1e-12))

    def signal(self, values: npt.NDArray[Any]) -> Floats:
        """One episode's values (T, ...) as float64 (T, D), angles without jumps at the seam."""
        signal = values.reshape(len(values), -1).astype(np.float64)
        for channel in np.flatnonzero(np.isfinite(self.turn)):
            signal[:, channel] = np.unwrap(signal[:, channel], period=self.turn[channel])
        return signal


def load_channels(source: CheckSource, feature: str) -> Channels | None:
    """Look at a float feature of the rows; None when it is absent, empty or not a float vector."""
    rows = source.rows
    column = None if rows is None else rows.columns.get(feature)
    if rows is None or column is None or not len(column) or column.dtype.kind not in "fi":
        return None
    flat = column.reshape(len(column), -1)
    names = source.features[feature].flat_names
    width = flat.shape[1]
    if names is None or len(names) != width:
        names = [str(number) for number in range(width)]
    stats = true_stats(flat)
    full = stats["max"] - stats["min"]
    spread = stats["q99"] - stats["q01"]
    spread = np.where(spread > _DEAD, spread, full)
    is_dead = ~(full > _DEAD)
    discrete = np.asarray([bool(dead) or _is_discrete(flat[:, i]) for i, dead in enumerate(is_dead)]) & ~is_dead
    unit = infer_unit(stats)
    turn = np.full(width, np.nan)
    inside = np.ones(len(flat) - 1, dtype=np.bool_)
    inside[rows.run_end[:-1] - 1] = False
    for channel in np.flatnonzero(~is_dead & ~discrete):
        turn[channel] = _turn(flat[:, channel], inside, float(stats["min"][channel]), float(stats["max"][channel]))
    resolution = np.asarray([_resolution(flat[:, i]) for i in range(width)])
    return Channels(
        feature=feature,
        names=names,
        unit=unit,
        stats=stats,
        spread=spread,
        is_dead=is_dead,
        is_discrete=discrete,
        turn=turn,
        resolution=resolution,
    )


def true_stats(flat: npt.NDArray[Any]) -> FeatureStats:
    """Exact statistics (D,) of the finite values of (N, D), a few channels at a time to bound memory."""
    parts: list[FeatureStats] = []
    for first in range(0, flat.shape[1], _BLOCK):
        block = flat[:, first : first + _BLOCK]
        if block.dtype.kind != "f" or np.isfinite(block).all():
            parts.append(numeric_stats(block))
            continue
        for channel in range(block.shape[1]):
            values = block[np.isfinite(block[:, channel]), channel]
            parts.append(numeric_stats(values if len(values) else np.zeros(1)))
    names = [name for name in parts[0] if name != "count"]
    stats = {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in names}
    return {**stats, "count": np.asarray([len(flat)], dtype=np.int64)}


def infer_unit(stats: FeatureStats) -> str:
    """Unit by the largest value (dataset_quality 2.1); the format declares none."""
    largest = float(np.max(np.abs(np.stack([stats["min"], stats["max"]])), initial=0.0))
    if largest <= 1.05:
        return NORMALISED
    if largest <= 2 * np.pi:
        return RADIANS
    return DEGREES if largest <= 400 else COUNTS


def _is_discrete(values: npt.NDArray[Any]) -> bool:
    sample = values[:: max(1, len(values) // 2000)]
    if len(np.unique(sample)) >= _DISTINCT:
        return False
    return len(np.unique(values)) < _DISTINCT


def _turn(values: npt.NDArray[Any], inside: Bools, low: float, high: float) -> float:
    """A full turn, if the channel stays within one and jumps by more than half of it."""
    limits = (
        (-np.pi - 1e-3, np.pi + 1e-3, _TURNS["pi"]),
        (-180.0, 180.0, _TURNS["degrees"]),
        (-2048.0, 2048.0, _TURNS["counts"]),
        (0.0, 4095.0, _TURNS["counts"]),
    )
    jump = float(np.max(np.abs(np.diff(values))[inside], initial=0.0)) if len(values) > 1 else 0.0
    for least, most, turn in limits:
        if low >= least and high <= most and high - low > turn / 2:
            return turn if jump > turn / 2 else float("nan")
    return float("nan")


def _resolution(values: npt.NDArray[Any]) -> float:
    steps = np.abs(np.diff(values[:20_000].astype(np.float64)))
    steps = steps[steps > 1e-9]
    return float(steps.min()) if len(steps) else 0.0


def find_gripper(channels: Channels, values: npt.NDArray[Any]) -> tuple[int, bool] | None:
    """Number of the gripper's channel, and whether it is only guessed (dataset_quality 2.5); None without one.

    Args:
        channels: state or action.
        values: (N, D) its values.
    """
    for number, name in enumerate(channels.names):
        if GRIPPER_WORDS.search(name) and not channels.is_dead[number]:
            return number, False
    flat = values.reshape(len(values), -1)
    if flat.shape[1] < 3 or len(flat) < _FEW_ROWS:
        return None  # a pushed block or a cart has no gripper
    scores = {number: _bimodality(flat[:: max(1, len(flat) // 5000), number]) for number in range(flat.shape[1])[-2:]}
    best = max(scores, key=lambda number: scores[number])
    return (best, True) if scores[best] > _BIMODAL and not channels.is_dead[best] else None


def _bimodality(values: npt.NDArray[Any]) -> float:
    """Sarle's coefficient: 0.555 for a uniform distribution, 1 for two points."""
    centred = values.astype(np.float64) - values.mean()
    variance = float(np.mean(centred**2))
    if not variance > 1e-18:
        return 0.0
    skew = float(np.mean(centred**3)) / variance**1.5
    kurtosis = float(np.mean(centred**4)) / variance**2
    return float((skew**2 + 1) / kurtosis)
