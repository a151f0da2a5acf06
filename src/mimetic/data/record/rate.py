"""Did the loop run at the declared rate? Measured on a monotonic clock (spec/dataset_quality.md 4, case 15).

The stored timestamps are `frame_index / fps` by definition of the format, so a slow loop cannot be seen in them: the
policy would learn to move too fast.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

OFF_MEDIAN = 0.03
"""Largest share by which the median period may be off."""
LONGEST_PERIODS = 2.0
"""Largest 99th percentile of the periods, in declared periods."""
_FASTEST = 1 / 3
_LEAST_PERIODS = 2
_LONG_WAIT_S = 0.5


@dataclass(frozen=True, kw_only=True)
class RateReport:
    """The measured rate of one episode.

    Args:
        rate_hz: 1 / median period [Hz].
        p99_s: 99th percentile of the periods [s].
        longest_s: longest period [s].
        problem: what is wrong, one sentence; empty when the loop kept the rate.
    """

    rate_hz: float
    p99_s: float
    longest_s: float
    problem: str = ""


def judge_rate(loop_s: npt.ArrayLike, fps: float) -> RateReport | None:
    """Compare the measured times of an episode's frames with the declared rate.

    Args:
        loop_s: (frames,) time of each frame on a monotonic clock [s].
        fps: declared rate [Hz].

    Returns:
        None when there are too few frames to tell.
    """
    periods = np.diff(np.asarray(loop_s, dtype=np.float64))
    if len(periods) < _LEAST_PERIODS or not np.isfinite(periods).all():
        return None
    median, p99 = float(np.median(periods)), float(np.quantile(periods, 0.99))
    problems = []
    off = median * fps - 1
    if abs(off) > OFF_MEDIAN:
        problems.append(
            f"the loop ran at {1 / median:.1f} Hz (median period {1000 * median:.1f} ms) and {fps:g} Hz is declared"
            if median > 0
            else f"the clock stands still, and {fps:g} Hz is declared"
        )
    if p99 * fps > LONGEST_PERIODS:
        problems.append(
            f"one period in a hundred takes {1000 * p99:.0f} ms or more, {p99 * fps:.1f} times the declared one"
        )
    return RateReport(
        rate_hz=1 / median if median > 0 else float("inf"),
        p99_s=p99,
        longest_s=float(periods.max()),
        problem="; ".join(problems),
    )


def is_live(loop_s: npt.ArrayLike, fps: float) -> bool:
    """Whether frames came from a loop in real time: a program that writes stored data is many times faster."""
    periods = np.diff(np.asarray(loop_s, dtype=np.float64))
    return bool(len(periods) and np.median(periods) * fps > _FASTEST)


def report_episode(
    episode: int, rate: RateReport | None, repeated: Mapping[str, Sequence[int]], waited_s: float
) -> None:
    """Warn about what was not as it should be while an episode was recorded.

    Args:
        episode: its number.
        rate: verdict on its rate.
        repeated: frames by camera that show the picture before.
        waited_s: time that the loop waited for encoders [s].
    """
    if rate is not None and rate.problem:
        logger.warning(
            "episode %d is saved and marked: %s; a policy would learn to move at another speed", episode, rate.problem
        )
    for camera, frames in repeated.items():
        logger.warning(
            "episode %d is saved and marked: %d pictures of %s show the one before, as the encoder was too slow",
            episode,
            len(frames),
            camera,
        )
    if waited_s > _LONG_WAIT_S:
        logger.warning(
            "the loop waited %.1f s for the encoders during episode %d; `encoding=fast` or hardware is faster",
            waited_s,
            episode,
        )
