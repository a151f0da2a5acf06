"""How many frames the state trails the action, by aligning velocities (dataset_quality 5.1, 2.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_FRAMES = 15
_STEP = 2
_MOVES = 1e-6


@dataclass(frozen=True)
class LagCurve:
    """Misfit of one episode's velocities at each shift.

    Args:
        shifts: (K,) frames; positive where the state trails the action.
        error: (K,) 0 for identical velocities, about 2 for unrelated ones.
    """

    shifts: npt.NDArray[np.int64]
    error: Floats

    @property
    def lag(self) -> int:
        """Shift with the smallest misfit."""
        return int(self.shifts[np.argmin(self.error)])

    @property
    def least(self) -> float:
        """Smallest misfit."""
        return float(self.error.min())

    def at(self, lag: int) -> float:
        """Misfit at a shift; infinite outside the searched ones."""
        places = np.flatnonzero(self.shifts == lag)
        return float(self.error[places[0]]) if len(places) else float("inf")


def lag_curve(state: Floats, action: Floats, most: int = MOST_FRAMES) -> LagCurve | None:
    """Compare velocities at shifts of -most to most frames.

    Args:
        state: (T, D).
        action: (T, D), the same channels in the same order.
        most: largest shift [frames]; less in short episodes.

    Returns:
        None when no channel moves in both, or the episode is too short to compare.
    """
    most = min(most, (len(state) - _STEP) // 3)
    moves = (state.std(axis=0) > _MOVES) & (action.std(axis=0) > _MOVES)
    if most < 1 or not moves.any():
        return None
    velocity_state = state[_STEP:, moves] - state[:-_STEP, moves]
    velocity_action = action[_STEP:, moves] - action[:-_STEP, moves]
    size_state, size_action = _rms(velocity_state), _rms(velocity_action)
    known = (size_state > 0) & (size_action > 0)
    if not known.any():
        return None
    velocity_state = velocity_state[:, known] / size_state[known]
    velocity_action = velocity_action[:, known] / size_action[known]
    shifts = np.arange(-most, most + 1)
    length = len(velocity_state)
    error = np.empty(len(shifts))
    for place, shift in enumerate(shifts.tolist()):
        first, last = max(0, -shift), length - max(0, shift)
        difference = velocity_state[first + shift : last + shift] - velocity_action[first:last]
        error[place] = float(np.einsum("td,td->", difference, difference)) / difference.size
    return LagCurve(shifts, error)


def _rms(values: Floats) -> Floats:
    return np.asarray(np.sqrt(np.mean(np.square(values), axis=0)))


def position_correlation(state: Floats, action: Floats, moves: npt.NDArray[np.bool_]) -> float:
    """Mean correlation over the channels in `moves` of two (T, D) signals; NaN without any."""
    if not moves.any() or len(state) < 3:
        return float("nan")
    a, b = action[:, moves], state[:, moves]
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    size = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(size > 0, (a * b).sum(axis=0) / size, 0.0)
    return float(found.mean())
