"""Windows in time around a frame: offsets, clamping at the episode's ends, padding flags (spec/dataset.md 10.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.catalog import closest_hint
from mimetic.data.features import DatasetFeature
from mimetic.errors import ConfigError

Ints = npt.NDArray[np.int64]
_FARTHEST = 1 << 40


def window_rows(rows: Ints, deltas: Ints, starts: Ints, ends: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Rows of the windows around given rows, clamped to their episodes.

    Args:
        rows: (B,) row of each sample.
        deltas: (K,) offsets in frames.
        starts: (B,) first row of each sample's episode.
        ends: (B,) row after the last of each sample's episode.

    Returns:
        Rows (B, K), repeating the episode's first or last row outside of it, and the flags (B, K) of these repeats.
    """
    wanted = rows[:, None] + deltas
    clamped = np.minimum(np.maximum(wanted, starts[:, None]), ends[:, None] - 1)
    return clamped, wanted != clamped


def indices_from_timestamps(
    delta_timestamps: Mapping[str, Sequence[float]], fps: int, tolerance_s: float
) -> dict[str, list[int]]:
    """Frame offsets of time offsets.

    Args:
        delta_timestamps: offsets in seconds by feature.
        fps: frame rate [Hz].
        tolerance_s: how far an offset may be from a whole number of frames [s].

    Raises:
        ConfigError: offsets that are not multiples of the frame time; all of them are named.
    """
    problems = []
    indices: dict[str, list[int]] = {}
    for key, seconds in delta_timestamps.items():
        frames = [float(second) * fps for second in seconds]
        off = [
            second
            for second, frame in zip(seconds, frames, strict=True)
            if abs(frame - round(frame)) / fps > tolerance_s
        ]
        if off:
            problems.append(f"`{key}`: {off}")
        indices[key] = [round(frame) for frame in frames]
    if problems:
        raise ConfigError(
            f"time offsets are not multiples of 1/{fps} s: " + "; ".join(problems),
            "give whole frames, or raise the tolerance",
        )
    return indices


def check_windows(
    delta_indices: Mapping[str, Sequence[int]], features: Mapping[str, DatasetFeature]
) -> dict[str, Ints]:
    """Check window offsets against the features and return them as arrays.

    Raises:
        ConfigError: unknown features, features of text, or windows without an offset; all of them are named.
    """
    problems = []
    windows: dict[str, Ints] = {}
    for key, deltas in delta_indices.items():
        feature = features.get(key)
        if feature is None:
            hint = closest_hint(key, features)
            problems.append(f"`{key}` is not a feature of the dataset" + (f" ({hint})" if hint else ""))
        elif feature.dtype in ("string", "language"):
            problems.append(f"`{key}` holds text, which has no windows")
        elif len(deltas) == 0:
            problems.append(f"`{key}` has a window without an offset")
        else:
            windows[key] = np.asarray([_whole(delta) for delta in deltas], dtype=np.int64)
    if problems:
        raise ConfigError("; ".join(problems), f"features: {', '.join(features)}")
    return windows


def check_skipped(
    skip: Collection[str], windows: Mapping[str, Ints], features: Mapping[str, DatasetFeature]
) -> frozenset[str]:
    """Check the names of features that samples leave out.

    Raises:
        ConfigError: unknown features, or features that have a window; all of them are named.
    """
    problems = []
    for key in sorted(set(skip)):
        if key not in features:
            hint = closest_hint(key, features)
            problems.append(f"`{key}` cannot be skipped: it is no feature" + (f" ({hint})" if hint else ""))
        elif key in windows:
            problems.append(f"`{key}` cannot be skipped: it has a window")
    if problems:
        raise ConfigError("; ".join(problems), f"features: {', '.join(features)}")
    return frozenset(skip)


def _whole(delta: Any) -> int:
    try:
        if int(delta) == delta and abs(int(delta)) <= _FARTHEST:
            return int(delta)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"the window offset {delta!r:.60} is not a whole number of frames")
