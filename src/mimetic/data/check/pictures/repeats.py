"""Pictures that repeat the one before: a camera slower than the recording, or one that stands still.

A picture may rest because nothing moves in it. So a repeat counts only while the robot moves, and only between
pictures that changed visibly (spec/dataset_quality.md 7.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SAME_MEAN, SAME_BLOCK = 2.0, 4.0
"""Largest differences of a repeated picture [grey levels]: over the picture, and over its most changed block.

Keyframes and the frames between them are compressed differently: a real recording in AV1 with a keyframe every second
frame differs by 0.8 on average between two copies of one picture, and by 2 in the worst block; a moving arm makes that
20 to 90.
"""
_CONTRAST = 0.12
_LONGEST = 4
"""Most repeats in a row that are taken for a slow camera's."""
_MOVES = 0.1
_AROUND = 2
_TURNING = 0.3
LEAST_PAIRS = 8
"""Fewest changed pictures of a window that say that movement is visible in it (of at least so many pairs)."""


@dataclass(frozen=True)
class Pairs:
    """Differences of consecutive frames; arrays of shape (n,).

    Args:
        frame: the second frame of each pair.
        mean: mean absolute difference [grey levels].
        block: the same over the block that changed most.
    """

    frame: npt.NDArray[np.int64]
    mean: Floats
    block: Floats

    @property
    def same(self) -> npt.NDArray[np.bool_]:
        """Whether the second frame repeats the first."""
        return (self.mean < SAME_MEAN) & (self.block < SAME_BLOCK)


def is_same(mean: float, block: float) -> bool:
    """Whether two pictures with such differences are one and the same."""
    return mean < SAME_MEAN and block < SAME_BLOCK


def count_repeats(pairs: Pairs, speed: Floats | None) -> tuple[int, int]:
    """Repeated pictures among consecutive ones while the robot moves.

    Args:
        pairs: differences, in windows of consecutive frames.
        speed: (T,) how fast the robot moves at each frame, in any unit; None when it is not known.

    Returns:
        Repeats, and pictures that were looked at; both 0 when no window shows movement.
    """
    if speed is None or not len(pairs.frame):
        return 0, 0
    exact = np.nan_to_num(speed)
    # Where whole rows are repeated, the state rests as well: what moves just before or after counts.
    padded = np.pad(exact, _AROUND, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _AROUND + 1).max(axis=1)
    least = _MOVES * float(np.quantile(around, 0.95))
    if least <= 0:
        return 0, 0
    repeats = looked_at = 0
    starts = np.flatnonzero(np.diff(pairs.frame, prepend=-2) != 1)
    for start, end in zip(starts, [*starts[1:], len(pairs.frame)], strict=True):
        inside = slice(int(start), int(end))
        block, same = pairs.block[inside], pairs.same[inside]
        frames = np.minimum(pairs.frame[inside], len(exact) - 1)
        moving = around[frames] >= least
        changed = ~same & moving
        if len(block) < LEAST_PAIRS or changed.sum() < 3:
            continue
        visible = float(np.median(block[changed]))
        first, last = np.flatnonzero(changed)[[0, -1]]
        # From one change to another, the first of them left out: else every window would begin and end with changes.
        between = np.zeros(len(block), dtype=bool)
        between[first + 1 : last + 1] = True
        # A slow camera spreads its repeats: at two thirds of the rate one at a time, at a third two in a row. More in
        # one place are a movement that does not show.
        share = float(same[between].mean()) if between.any() else 0.0
        longest = min(_LONGEST, max(1, math.ceil(share / max(1.0 - share, 1e-9))))
        for run_first, run_last in runs_of(same, np.arange(len(block))):
            if run_last - run_first > longest:
                between[run_first + 1 : run_last + 1] = False
        # Small movements look like neither: a repeat differs by far less than the other pictures do.
        # An arm that turns round rests for a frame, too: then it moves little, but hardly ever not at all.
        moves = (exact[frames] >= _TURNING * float(np.median(exact[frames][changed]))) | (exact[frames] == 0.0)
        clear = ~same | (block <= max(_CONTRAST * visible, 0.5))
        counted = between & moving & moves & clear
        repeats += int((counted & same).sum())
        looked_at += int(counted.sum())
    return repeats, looked_at


def runs_of(same: npt.NDArray[np.bool_], frames: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of pictures that are all alike.

    Args:
        same: (n,) whether a frame repeats the one before it.
        frames: (n,) numbers of these frames, consecutive.

    Returns:
        (first, last) frame of each run, the first one being the picture that is repeated.
    """
    edges = np.diff(np.concatenate([[0], same.astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [(int(frames[start]) - 1, int(frames[end - 1])) for start, end in zip(starts, ends, strict=True)]


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans of frames, both ends included, joined where they touch or overlap."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined
