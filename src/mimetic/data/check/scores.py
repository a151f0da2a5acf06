"""Robust comparison of episodes with each other (dataset_quality 2.6, 1.3 to 1.5)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_EPISODES = 8
"""Below this no episode is called unusual: the others are too few to say what is usual."""


def robust_z(values: Floats, *, relative_floor: float = 0.0, absolute_floor: float = 0.0) -> Floats:
    """(x - median) / max(1.4826 MAD, floors); all NaN below `LEAST_EPISODES` values.

    Args:
        values: (E,) one value an episode; NaN stays NaN.
        relative_floor: least spread as a share of the median.
        absolute_floor: least spread.
    """
    known = values[np.isfinite(values)]
    if len(known) < LEAST_EPISODES:
        return np.full(len(values), np.nan)
    middle = float(np.median(known))
    spread = 1.4826 * float(np.median(np.abs(known - middle)))
    return np.asarray((values - middle) / max(spread, relative_floor * abs(middle), absolute_floor, 1e-9))


def rank_correlation(first: Floats, second: Floats) -> float:
    """Spearman's rho over the places where both are known; NaN below 4 of them or without spread."""
    known = np.isfinite(first) & np.isfinite(second)
    if known.sum() < 4:
        return float("nan")
    a, b = _ranks(first[known]), _ranks(second[known])
    if not a.std() > 0 or not b.std() > 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, ties share their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse.reshape(-1)], dtype=np.float64)


def tukey_limit(values: Floats, *, floor: float) -> float:
    """Upper fence q75 + 1.5 IQR, at least `floor`."""
    low, high = np.quantile(values, [0.25, 0.75])
    return max(float(high + 1.5 * (high - low)), floor)
