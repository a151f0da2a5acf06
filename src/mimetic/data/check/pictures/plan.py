"""Which frames of an episode are looked at (spec/dataset_quality.md 7): about two a second, and some in a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

THUMBS_A_SECOND = 2.0
FEWEST, MOST = 12, 160
"""Thumbnails of an episode."""
IN_FULL = 6
"""Frames of an episode that are measured at full size."""
WINDOW, WINDOWS = 12, 3
"""Frames in a row, and how often: single repeats show in rows only."""


@dataclass(frozen=True)
class Plan:
    """Frames of one episode to decode, numbered from its start.

    Args:
        spread: ascending, over the whole episode; the first and the last are always among them.
        full: some of `spread`, measured at full size.
        rows: (start, end) of frames in a row; `end` is not included.
    """

    spread: Ints
    full: Ints
    rows: tuple[tuple[int, int], ...]


def plan_frames(length: int, fps: float, speed: npt.NDArray[np.float64] | None, *, every: bool) -> Plan:
    """Choose the frames of one episode.

    Args:
        length: frames of the episode, at least 1.
        fps: frame rate [Hz].
        speed: (length,) how fast the robot moves, so that the rows lie where it does; None when it is not known.
        every: put all frames into the rows.
    """
    wanted = round(length / max(fps, 1e-6) * THUMBS_A_SECOND)
    count = min(length, max(FEWEST, min(MOST, wanted)))
    spread = np.unique(np.rint(np.linspace(0, length - 1, count)).astype(np.int64))
    full = spread[np.unique(np.rint(np.linspace(0, len(spread) - 1, min(IN_FULL, len(spread)))).astype(np.int64))]
    if every or length <= WINDOW * WINDOWS:
        return Plan(spread, full, ((0, length),))
    return Plan(spread, full, _windows(length, speed))


def _windows(length: int, speed: npt.NDArray[np.float64] | None) -> tuple[tuple[int, int], ...]:
    """One window in each third: where the slowest moment is fastest, else in its middle."""
    third = length // WINDOWS
    rows = []
    for number in range(WINDOWS):
        first = number * third
        start = first + (third - WINDOW) // 2
        if speed is not None and len(speed) == length:
            inside = np.nan_to_num(speed[first : first + third])
            views = np.lib.stride_tricks.sliding_window_view(inside, WINDOW)
            start = first + int(np.median(views, axis=1).argmax())
        rows.append((start, start + WINDOW))
    return tuple(rows)
