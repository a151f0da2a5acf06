"""Repairs of timestamps (`time.start`, `time.grid`, `time.monotonic`, `time.drift`): frames are where they count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mimetic.data.episodes import listed
from mimetic.data.repair.state import State
from mimetic.names import TIMESTAMP

TOLERANCE_S = 1e-4
GRID_RULES = ("time.monotonic", "time.grid", "time.drift")


def mend_start(state: State) -> None:
    """Let the clock of each episode begin at 0: its first time is subtracted."""
    wrong = []
    for row in state.episodes:
        rows = state.rows_of(row.episode_index)
        times = state.columns[TIMESTAMP][rows]
        if len(rows) and np.isfinite(times).all() and abs(times[0]) >= 0.5 / state.fps:
            moved, grid = times - times[0], np.arange(len(rows)) / state.fps
            # float32 kept the late times only roughly: what lies on the grid is put on it exactly.
            state.columns[TIMESTAMP][rows] = _stored(grid if np.abs(moved - grid).max() <= TOLERANCE_S else moved)
            wrong.append(row.episode_index)
    if wrong:
        state.note(
            "time.start",
            f"the timestamps of episodes {listed(wrong)} do not begin at 0; their first one is subtracted",
            wrong,
        )


def mend_grid(state: State, rules: set[str]) -> None:
    """Write `frame / fps` where timestamps are off the frame grid.

    Args:
        state: the dataset.
        rules: which of `GRID_RULES` to mend.
    """
    found: dict[str, list[int]] = {rule: [] for rule in GRID_RULES}
    for row in state.episodes:
        rows = state.rows_of(row.episode_index)
        times = state.columns[TIMESTAMP][rows]
        rule = _grid_fault(times, state.fps)
        if rule in rules:
            found[rule].append(row.episode_index)
            state.columns[TIMESTAMP][rows] = _stored(np.arange(len(rows)) / state.fps)
    for rule, episodes in found.items():
        if episodes:
            state.note(
                rule,
                f"the timestamps of episodes {listed(episodes)} are off the frame grid; frame / fps is written",
                episodes,
            )


def _grid_fault(times: npt.NDArray[np.float64], fps: int) -> str:
    """Which rule the times of an episode break; empty when none, or when they run at another rate or with holes."""
    if not len(times) or not np.isfinite(times).all():
        return ""
    steps = np.diff(times)
    if (steps <= 0).any():
        return "time.monotonic"
    times = times - times[0] if abs(times[0]) >= 0.5 / fps else times
    if len(times) > 1 and abs(float(np.median(steps)) * fps - 1) > 0.05:
        return ""  # another rate: nobody can say where the frames belong
    slack = np.spacing(np.abs(times).astype(np.float32)).astype(np.float64)
    off = np.maximum(np.abs(times - np.arange(len(times)) / fps) - slack, 0.0)
    if off.max() <= TOLERANCE_S:
        return ""
    is_drift = off[-1] >= 0.5 / fps and float(np.abs(steps - np.median(steps)).max()) < 0.25 / fps
    return "time.drift" if is_drift else "time.grid"


def _stored(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Times as float32 holds them."""
    return times.astype(np.float32).astype(np.float64)
