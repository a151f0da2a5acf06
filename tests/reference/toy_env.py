"""An environment in a few lines of numpy: two coloured points on a square, of which the instruction names one.

For tests of evaluation, and as an example of what an adapter must do. Register it under its name with the row `ENTRY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.catalog import Entry
from mimetic.data.features import DatasetFeature
from mimetic.evaluate.rollout.environment import EnvTask, Shown
from mimetic.fields import setting
from mimetic.names import ACTION, IMAGES_PREFIX, STATE

ENTRY = Entry("toy_env:toy_tasks", config="toy_env:ToyEnvConfig")
NAME = "toy"
CAMERA = IMAGES_PREFIX + "front"
SIZE_PX, FPS, LENGTH = 24, 30, 24
STEP, NEAR = 0.2, 0.07
_COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


@dataclass(frozen=True, kw_only=True)
class ToyEnvConfig:
    """Settings of the toy."""

    splits: int = setting(1, "How many variations there are")
    fail_at: int = setting(-1, "Episode seed at which the environment breaks down; -1 for none")


def toy_tasks(config: ToyEnvConfig) -> list[EnvTask]:
    """One task in each variation."""
    vector = DatasetFeature("float32", (2,), ["x.pos", "y.pos"])
    picture = DatasetFeature("video", (SIZE_PX, SIZE_PX, 3), ["height", "width", "channels"])
    reach = (np.full(2, -1.0), np.full(2, 1.0))
    return [
        EnvTask(
            group=f"toy_{split}",
            task_id=0,
            task="go",
            split=f"split_{split}",
            features={ACTION: vector, STATE: vector, CAMERA: picture},
            fps=FPS,
            episode_length=LENGTH,
            open=lambda places, processes, split=split: _Toys(places, split, config.fail_at),  # type: ignore[misc]
            ranges={STATE: reach, ACTION: reach},
        )
        for split in range(config.splits)
    ]


def layout(seed: int, split: int = 0) -> tuple[str, dict[str, NDArray[np.float64]]]:
    """Colour that the instruction of an episode names, and where the points are."""
    rng = np.random.default_rng((seed, split))
    points = {colour: rng.uniform(-0.8, 0.8, 2) for colour in _COLOURS}
    return list(_COLOURS)[seed % 2], points


def instruction(colour: str) -> str:
    """Words for a colour."""
    return f"Go to the {colour} point"


def picture(points: Mapping[str, NDArray[np.float64]]) -> NDArray[np.uint8]:
    """The points as blots on black (H, W, 3)."""
    image = np.zeros((SIZE_PX, SIZE_PX, 3), dtype=np.uint8)
    for colour, point in points.items():
        x, y = ((point + 1) / 2 * (SIZE_PX - 3)).astype(int)
        image[y : y + 3, x : x + 3] |= np.array(_COLOURS[colour], dtype=np.uint8)
    return image


class _Toys:
    def __init__(self, places: int, split: int, fail_at: int) -> None:
        self._split, self._fail_at = split, fail_at
        self._at = np.zeros((places, 2))
        self._goal = np.zeros((places, 2))
        self._pictures = np.zeros((places, SIZE_PX, SIZE_PX, 3), dtype=np.uint8)
        self._said = [""] * places
        self._ticks = np.zeros(places, dtype=int)
        self._seeds = [0] * places
        self._won = np.zeros(places, dtype=bool)
        self._over = np.ones(places, dtype=bool)

    def begin(self, place: int, seed: int) -> Shown:
        colour, points = layout(seed, self._split)
        self._at[place], self._goal[place] = 0.0, points[colour]
        self._pictures[place], self._said[place] = picture(points), instruction(colour)
        self._ticks[place], self._seeds[place] = 0, seed
        self._won[place] = self._over[place] = False
        return self._shown(np.zeros(len(self._at)))

    def step(self, actions: NDArray[np.float64], looks: NDArray[np.bool_]) -> Shown:
        assert looks.shape == self._over.shape  # its pictures stay as they are, so there is nothing to leave out
        going = ~self._over
        if any(seed == self._fail_at for seed in np.array(self._seeds)[going]):
            raise KeyboardInterrupt
        self._at[going] += np.clip(actions[going], -STEP, STEP)
        self._ticks[going] += 1
        near = np.linalg.norm(self._at - self._goal, axis=1) < NEAR
        rewards = (going & near).astype(np.float64)
        self._won |= going & near
        self._over |= self._won | (self._ticks >= LENGTH)
        return self._shown(rewards)

    def description(self) -> Mapping[str, Any]:
        return {"type": NAME, "task": "go", "split": f"split_{self._split}"}

    def close(self) -> None:
        self._over[:] = True

    def _shown(self, rewards: NDArray[np.float64]) -> Shown:
        return Shown(
            observation={STATE: self._at.astype(np.float32), CAMERA: self._pictures.copy()},
            instructions=tuple(self._said),
            rewards=rewards,
            is_success=self._won.copy(),
            is_over=self._over.copy(),
            views={"front": self._pictures.copy()},
        )


def script(seed: int, split: int = 0) -> NDArray[np.float64]:
    """Actions (T, 2) that solve an episode: straight to the point, then still."""
    colour, points = layout(seed, split)
    goal, at, actions = points[colour], np.zeros(2), []
    for _ in range(LENGTH):
        step = np.clip(goal - at, -STEP, STEP)
        actions.append(step)
        at = at + step
    return np.array(actions)
