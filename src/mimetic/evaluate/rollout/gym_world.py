"""One `gymnasium.Env`, an episode at a time, in the words of LeRobot's datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.errors import SimulationError


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What one environment shows.

    Args:
        observation: by dataset name: cameras (H, W, C) uint8, vectors (D,) float32.
        reward: of the last step; 0 at the beginning.
        is_success: whether the package says so at this tick.
        has_ended: whether the environment itself has ended the episode.
        views: pictures for a film, (H, W, 3) uint8 each.
    """

    observation: Mapping[str, NDArray[Any]]
    reward: float
    is_success: bool
    has_ended: bool
    views: Mapping[str, NDArray[np.uint8]]


class GymWorld:
    """Plays in a `gymnasium.Env` whose `info` says `is_success`.

    Args:
        env: made already; nothing may reset it by itself at the end of an episode.
        names: observation in the package (`pixels/top` for nested ones) -> name in datasets; others are left out.
        instruction: the task in words.
        draw: makes the picture of a film; without it the cameras' pictures are filmed.
        forget: called before an episode begins, for what the package carries over from the last one.
    """

    def __init__(
        self,
        env: Any,
        names: Mapping[str, str],
        instruction: str,
        *,
        draw: Callable[[], NDArray[np.uint8]] | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.instruction = instruction
        self._env, self._names, self._draw, self._forget = env, dict(names), draw, forget

    def begin(self, seed: int) -> Sight:
        """Begin the episode of a seed."""
        self._forget()
        shown, info = self._env.reset(seed=seed)
        return self._sight(shown, 0.0, False, info)

    def step(self, action: NDArray[np.float64]) -> Sight:
        """Send an action (A,), as float32: what a policy gives and what LeRobot sends."""
        shown, reward, terminated, truncated, info = self._env.step(action.astype(np.float32))
        return self._sight(shown, float(reward), bool(terminated) or bool(truncated), info)

    def close(self) -> None:
        """Give back the renderer."""
        self._env.close()

    def _sight(self, shown: Any, reward: float, has_ended: bool, info: Mapping[str, Any]) -> Sight:
        found = flatten(shown)
        absent = [name for name in self._names if name not in found]
        if absent:
            raise SimulationError(f"it does not show `{absent[0]}`; it shows {', '.join(found)}")
        observation = {own: _typed(found[name]) for name, own in self._names.items()}
        views = (
            {"film": np.asarray(self._draw(), dtype=np.uint8)}
            if self._draw is not None
            else {own: value for own, value in observation.items() if value.ndim == 3}
        )
        return Sight(
            observation=observation,
            reward=reward,
            is_success=bool(info.get("is_success", False)),
            has_ended=has_ended,
            views=views,
        )


def flatten(shown: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Nested observations as one level, `{"pixels": {"top": x}}` as `{"pixels/top": x}`; an array alone is `pixels`."""
    if not isinstance(shown, Mapping):
        return {prefix or "pixels": np.asarray(shown)}
    flat: dict[str, NDArray[Any]] = {}
    for name, value in shown.items():
        flat |= flatten(value, f"{prefix}/{name}" if prefix else str(name))
    return flat


def _typed(value: NDArray[Any]) -> NDArray[Any]:
    """A copy that the environment cannot change any more: pictures uint8, numbers float32."""
    return np.array(value, dtype=np.uint8 if value.ndim == 3 else np.float32)
