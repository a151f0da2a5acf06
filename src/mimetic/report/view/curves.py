"""Curves of a long episode, thinned so that their peaks stay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_POINTS = 2000
"""Points of one curve."""


def thinned_places(count: int) -> npt.NDArray[np.int64]:
    """Frames of the points of a curve: all, or two of each of `MOST_POINTS / 2` stretches."""
    if count <= MOST_POINTS:
        return np.arange(count, dtype=np.int64)
    edges = np.linspace(0, count, MOST_POINTS // 2 + 1).astype(np.int64)
    middle = (edges[:-1] + edges[1:]) // 2
    return np.sort(np.concatenate([edges[:-1], np.maximum(middle, edges[:-1] + 1)]))


def thinned(values: npt.NDArray[Any], frames: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Values at these frames; where some were left out, smallest and largest of each stretch in turn."""
    values = values.astype(np.float64)
    if len(frames) == len(values):
        return values
    edges = np.append(frames[::2], len(values))
    out = np.empty(len(frames))
    for number, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        part = values[start:end]
        if not np.isfinite(part).any():
            out[2 * number : 2 * number + 2] = np.nan
            continue
        low, high = int(np.nanargmin(part)), int(np.nanargmax(part))
        first, second = sorted((low, high))
        out[2 * number], out[2 * number + 1] = part[first], part[second]
    return out


def plain(values: npt.NDArray[np.float64]) -> list[float | None]:
    """Numbers for JSON, five digits each; None for what is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values.tolist()]
