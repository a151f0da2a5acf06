"""A `gymnasium.Env` in a few lines that behaves like those of LeRobot's packages, and fails on demand.

A counter starts at the seed modulo 7 and grows by the action; at 10 the task has succeeded. It stands in for packages
that are not installed: adapters and groups are tested with it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from mimetic.evaluate.rollout.gym_world import GymWorld

GOAL, START = 10, 7
NAMES = {"pixels/top": "observation.images.top", "agent_pos": "observation.state"}


class TinyEnv:
    """The methods of a `gymnasium.Env` that are used.

    Args:
        ends: whether success ends an episode.
        blinks: whether success is only said in the tick in which the counter first reaches the goal.
        fail_at: counter at which it breaks down; "exit" as `how` kills the process.
        how: exception text, or "exit".
    """

    def __init__(self, *, ends: bool = True, blinks: bool = False, fail_at: int | None = None, how: str = "") -> None:
        self.ends, self.blinks, self.fail_at, self.how = ends, blinks, fail_at, how
        self.count, self.last, self.resets, self.is_closed = 0.0, 0.0, 0, False
        self.shared = np.zeros((4, 6, 3), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert not self.is_closed
        self.resets += 1
        self.count = self.last = float((seed or 0) % START)
        return self._shown(), {"is_success": False}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float32
        assert action.shape == (1,)
        self.last, self.count = self.count, self.count + float(action[0])
        if self.fail_at is not None and self.count >= self.fail_at:
            if self.how == "exit":
                os._exit(3)
            raise RuntimeError(self.how)
        won = self.count >= GOAL and (not self.blinks or self.last < GOAL)
        return self._shown(), self.count, won and self.ends, False, {"is_success": won}

    def render(self) -> Any:
        return np.full((8, 8, 3), 200, dtype=np.uint8)

    def close(self) -> None:
        self.is_closed = True

    def _shown(self) -> dict[str, Any]:
        self.shared[:] = int(self.count)  # the same array every time, as some packages do it
        return {"pixels": {"top": self.shared}, "agent_pos": np.array([self.count, self.last]), "unused": np.zeros(3)}


def world(**options: Any) -> GymWorld:
    """A world in it; other processes can import this."""
    return GymWorld(TinyEnv(**options), NAMES, "Count to ten.")


def broken_world() -> GymWorld:
    """One that cannot be built."""
    raise OSError("no\n  display")


def slow_world() -> GymWorld:
    """One that takes long to be built."""
    time.sleep(30)
    return world()
