"""Measures of a gripper's channel: reversals, cycles, the first grasp (dataset_quality 6.3)."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SMALL, _LARGE = 0.02, 0.10
_DEBOUNCE = 3
_OPEN, _CLOSED = 0.7, 0.3


def reversals(signal: Floats) -> Ints:
    """Frames in which the direction turns.

    A swing counts from 2 % of the range on; one of fewer than 3 frames from 10 % on.

    Args:
        signal: (T,) scaled by the range.
    """
    turns = _turning_points(signal)
    found: list[int] = []
    for before, turn, after in zip(turns, turns[1:], turns[2:], strict=False):
        short = min(turn - before, after - turn) < _DEBOUNCE
        swing = min(abs(signal[turn] - signal[before]), abs(signal[after] - signal[turn]))
        if swing >= (_LARGE if short else _SMALL):
            found.append(turn)
    return np.asarray(found, dtype=np.int64)


def _turning_points(signal: Floats) -> list[int]:
    """First frame, extremes that differ by at least 2 % from each other, last frame."""
    steps = np.sign(np.diff(signal))
    places = np.flatnonzero(steps)
    extremes = [0] + [int(b) for a, b in itertools.pairwise(places) if steps[a] != steps[b]]
    extremes.append(len(signal) - 1)
    kept = [extremes[0]]
    for place in extremes[1:]:
        if abs(signal[place] - signal[kept[-1]]) >= _SMALL:
            if len(kept) > 1 and (signal[place] - signal[kept[-1]]) * (signal[kept[-1]] - signal[kept[-2]]) > 0:
                kept[-1] = place
            else:
                kept.append(place)
        elif len(kept) > 1 and (signal[place] - signal[kept[-1]]) * (signal[kept[-1]] - signal[kept[-2]]) > 0:
            kept[-1] = place
    return kept


def peak_rate(frames: Ints, fps: float) -> int:
    """Most events in any one second."""
    if not len(frames):
        return 0
    after = np.searchsorted(frames, frames + round(fps), side="left")
    return int((after - np.arange(len(frames))).max())


def states(signal: Floats) -> Ints:
    """1 open, 0 closed, with hysteresis between 30 % and 70 % and a debounce of 3 frames.

    Args:
        signal: (T,) scaled to 0..1 by the dataset's range.
    """
    marks = np.where(signal >= _OPEN, 1, np.where(signal <= _CLOSED, 0, -1))
    known = np.flatnonzero(marks >= 0)
    if not len(known):
        return np.zeros(len(signal), dtype=np.int64)
    filled = marks[known[np.maximum(np.searchsorted(known, np.arange(len(signal)), side="right") - 1, 0)]]
    edges = np.flatnonzero(np.diff(filled)) + 1
    bounds = [0, *edges.tolist(), len(filled)]
    for start, end in itertools.pairwise(bounds[1:-1]):
        if end - start < _DEBOUNCE:
            filled[start:end] = filled[start - 1]
    return np.asarray(filled, dtype=np.int64)


def cycles(state: Ints) -> int:
    """How often the gripper closes and opens again."""
    changes = np.diff(state)
    closed = np.flatnonzero(changes < 0)
    opened = np.flatnonzero(changes > 0)
    return int(sum((opened > frame).any() for frame in closed)) if len(closed) and len(opened) else 0


def closings(state: Ints) -> int:
    """How often the gripper closes."""
    return int((np.diff(state) < 0).sum())


def first_grasp(state: Ints) -> int:
    """Frame of the first closing, else of the first change, else -1."""
    closed = np.flatnonzero(np.diff(state) < 0)
    if len(closed):
        return int(closed[0]) + 1
    changes = np.flatnonzero(np.diff(state))
    return int(changes[0]) + 1 if len(changes) else -1
