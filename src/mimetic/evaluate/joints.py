"""Names of joints, and which pose "holding still" means for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNLIKE = 1.0
"""State and action whose typical distance exceeds this many deviations of the action are not the same quantity."""


def joint_names(names: Sequence[str] | None, size: int, feature: str) -> list[str]:
    """One name for each dimension of a feature.

    Args:
        names: names of the dimensions, where the dataset has them.
        size: number of dimensions.
        feature: name of the feature, for dimensions without a name of their own.

    Returns:
        `size` distinct names; `feature[0]`, `feature[1]`, ... unless the dataset names every dimension differently.
    """
    if names is not None and len(names) == size and len(set(names)) == size:
        return list(names)
    return [f"{feature}[{index}]" for index in range(size)]


@dataclass(frozen=True)
class HoldPose:
    """What the baseline "hold the present pose" sends.

    Args:
        columns: for each joint of the action, the dimension of the state that it holds; None: the recorded action at
            the present frame is held instead.
        explanation: which of the two, and why, as one sentence.
    """

    columns: tuple[int, ...] | None
    explanation: str


def choose_hold(
    action_names: Sequence[str],
    state_names: Sequence[str] | None,
    actions: NDArray[np.floating],
    states: NDArray[np.floating] | None,
) -> HoldPose:
    """Decide what holding the present pose means in a dataset.

    The measured state is the pose when each joint of the action is found in it, by name or, with as many dimensions, by
    position, and when the two look like the same quantity. A dataset of relative actions or velocities fails the last
    test.

    Args:
        action_names: names of the action's dimensions.
        state_names: names of the state's dimensions; None without a state.
        actions: recorded actions, (frames, A).
        states: recorded states of the same frames, (frames, P); None without a state.
    """
    instead = "holding still means repeating the recorded action of the present frame"
    if state_names is None or states is None:
        return HoldPose(None, f"{instead}, because the dataset has no `observation.state`")
    if set(action_names) <= set(state_names):
        columns = tuple(list(state_names).index(name) for name in action_names)
        how = "the state holds joints of the same names"
    elif len(action_names) == len(state_names):
        columns = tuple(range(len(action_names)))
        how = "the state has as many dimensions as the action, taken in the same order"
    else:
        return HoldPose(
            None, f"{instead}, because the action has {len(action_names)} dimensions and the state {len(state_names)}"
        )
    distance = _typical_distance(actions, states[:, list(columns)])
    if distance > UNLIKE:
        return HoldPose(
            None,
            f"{instead}, because state and action differ by {distance:.1f} deviations of the action, "
            "so they are not the same quantity",
        )
    return HoldPose(columns, f"holding still means sending the measured `observation.state` ({how})")


def _typical_distance(actions: NDArray[np.floating], states: NDArray[np.floating]) -> float:
    std = actions.std(axis=0, dtype=np.float64)
    moving = std > 1e-6 * np.maximum(np.abs(actions).max(axis=0), 1e-12)
    if not moving.any():
        return 0.0
    gap = np.abs(actions.astype(np.float64) - states).mean(axis=0)
    return float(np.median(gap[moving] / std[moving]))
