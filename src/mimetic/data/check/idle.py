"""Standing still: three definitions of idle frames, and chunks in which nothing happens (dataset_quality 6.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

WINDOW_S = 0.5
_FLOOR, _CEILING = 0.02, 0.10
_SUBSTANTIAL, _IDLE = 0.5, 0.2
NOOP_HZ = 15
_NOOP_RUN, _NOOP_SEGMENT, _NOOP_TRIM = 7, 16, 10
_NOOP_IQR = 1e-3
SLOW_PER_S = 0.005
_PAUSE_WINDOW_S, _PAUSE_SHARE = 0.3, 0.1


@dataclass(frozen=True)
class Idle:
    """Idle frames of one episode.

    Args:
        head: at the start.
        middle: between, before the last substantial motion.
        tail: after the last motion.
        frames: length of the episode.
    """

    head: int
    middle: int
    tail: int
    frames: int


def net_motion(position: Floats, window: int) -> Floats:
    """||S[t+w] - S[t]|| of a range-scaled path (T, D); empty when it is shorter than the window."""
    if len(position) <= window:
        return np.empty(0)
    return np.asarray(np.linalg.norm(position[window:] - position[:-window], axis=1))


def noise_floor(motions: list[Floats]) -> float:
    """Net motion below which nothing happens: max(0.02, 2 q25 of the episodes' q10), at most 0.10.

    Without the upper bound, demonstrations that never pause would make slow motion look idle.
    """
    low = [float(np.quantile(motion, 0.1)) for motion in motions if len(motion)]
    return min(max(_FLOOR, 2 * float(np.quantile(low, 0.25))), _CEILING) if low else _FLOOR


def idle_frames(position: Floats, window: int, floor: float) -> Idle:
    """Idle frames at the start, between and at the end.

    Args:
        position: range-scaled path (T, D).
        window: of the net motion [frames].
        floor: what `noise_floor` gives.
    """
    frames, motion = len(position), net_motion(position, window)
    if not len(motion):
        return Idle(0, 0, 0, frames)
    typical = float(np.quantile(motion, 0.95))
    limit = max(floor, _IDLE * typical)
    idle = motion < limit
    moving = np.flatnonzero(~idle)
    if not len(moving):
        return Idle(frames, 0, 0, frames)
    head = _first_step(position[moving[0] :][: window + 1], limit) + int(moving[0])
    tail = _first_step(position[: moving[-1] + window + 1][::-1][: window + 1], limit)
    tail += frames - 1 - (int(moving[-1]) + window)
    substantial = np.flatnonzero(motion >= max(floor, _SUBSTANTIAL * typical))
    last = int(substantial[-1]) if len(substantial) else int(moving[-1])
    middle = int(idle[head : last + 1].sum())
    return Idle(head, middle, tail, frames)


def longest_pause(position: Floats, fps: float) -> tuple[int, int]:
    """First and last frame of the longest standstill between the first and the last motion; (0, -1) without one.

    A frame stands still when all channels together, the gripper's included, move less than a tenth of what they
    usually do at full motion (95th percentile), or less than 2 % of the range, in the 0.3 s that follow.

    Args:
        position: range-scaled path (T, D).
        fps: frames a second.
    """
    window = max(1, round(_PAUSE_WINDOW_S * fps))
    motion = net_motion(position, window)
    if not len(motion):
        return 0, -1
    still = motion < max(_PAUSE_SHARE * float(np.quantile(motion, 0.95)), _FLOOR)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    inner = [(a, b) for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True) if a > 0 and b < len(still)]
    if not inner:
        return 0, -1
    first, end = max(inner, key=lambda run: run[1] - run[0])
    return first, end + window - 1


def _first_step(position: Floats, limit: float) -> int:
    """Frames at the start of a window that do not yet move: less than half of what the whole window moves at least."""
    far = np.linalg.norm(position - position[0], axis=1) >= limit / 2
    return max(int(np.argmax(far)) - 1, 0) if far.any() else 0


def noop_frames(action: Floats, iqr: Floats, fps: float) -> int:
    """Frames that the no-op filter of a large VLA project would drop: long idle runs and what is left too short."""
    if len(action) < 2:
        return 0
    factor = fps / NOOP_HZ
    run, segment = max(1, round(_NOOP_RUN * factor)), max(1, round(_NOOP_SEGMENT * factor))
    trim = max(1, round(_NOOP_TRIM * factor))
    still = np.append((np.abs(np.diff(action, axis=0)) <= _NOOP_IQR * iqr).all(axis=1), False)
    keep = np.ones(len(action), dtype=np.bool_)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]]).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - start >= run:
            keep[max(0, start - trim) : end] = False
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]]).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if end - start < segment and end - start < len(action):
            keep[start:end] = False
    return int((~keep).sum())


def slow_share(position: Floats, fps: float) -> float:
    """Share of the steps of a range-scaled path that are slower than 0.005 of the range a second."""
    if len(position) < 2:
        return 0.0
    return float((np.linalg.norm(np.diff(position, axis=0), axis=1) * fps < SLOW_PER_S).mean())


def zero_chunk_share(action: Floats, chunk: int, floor: float, *, is_delta: bool = False) -> float:
    """Share of the frames whose whole action chunk moves less than `floor`.

    Args:
        action: (T, D) range-scaled.
        chunk: actions a chunk; complete chunks count, or the one cut chunk of a shorter episode.
        floor: norm of the peak-to-peak extent (of the largest value, for deltas).
        is_delta: actions are changes, so that zero means to stay.
    """
    width = min(chunk, len(action))
    high, low = _sliding_max(action, width), -_sliding_max(-action, width)
    extent = np.maximum(np.abs(high), np.abs(low)) if is_delta else high - low
    return float((np.linalg.norm(extent, axis=1) < floor).mean())


def _sliding_max(values: Floats, width: int) -> Floats:
    """Largest of `width` rows from each row on, (T - width + 1, D); doubles the width until it fits."""
    result, done = values, 1
    while done < width:
        step = min(done, width - done)
        result = np.maximum(result[:-step], result[step:])
        done += step
    return result
