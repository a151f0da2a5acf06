"""The simulated SO-101 cell as an environment to be evaluated in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.data.features import DatasetFeature
from mimetic.envs.arm import JOINTS
from mimetic.envs.config import CAMERAS, FPS, TASK_NAMES, CellConfig, CellSuiteConfig
from mimetic.envs.tasks import TASKS
from mimetic.envs.units import Units
from mimetic.envs.vector import Batch, CellGroup
from mimetic.evaluate.rollout.environment import EnvTask, Shift, Shown
from mimetic.names import ACTION, IMAGES_PREFIX, STATE

NAME = "so101_cell"
_REFERENCE = "held_out"
SHIFTS = {
    "train": Shift(
        reference=_REFERENCE,
        short="having seen the very start",
        depends="The policy has learnt some starts by heart and succeeds less often from new ones between them",
        not_found="No sign was found that it has learnt starts by heart",
        is_harder=False,
    ),
    "unseen_positions": Shift(
        reference=_REFERENCE,
        short="a start like those of the demonstrations",
        depends="The policy carries over less well to a region without demonstrations",
        not_found="No difference was found in a region without demonstrations",
    ),
    "shifted_camera": Shift(
        reference=_REFERENCE,
        short="the camera's place",
        depends="The policy depends on the camera's place",
        not_found="No dependence on the camera's place was found",
    ),
    "shifted_light": Shift(
        reference=_REFERENCE,
        short="the light",
        depends="The policy depends on the light",
        not_found="No dependence on the light was found",
    ),
}
"""What the splits change, compared with `held_out`; see `envs/layout.py`."""


def cell_tasks(config: CellSuiteConfig) -> list[EnvTask]:
    """Every task in every split that the settings name.

    A split is a suite of its own, `so101_cell_<split>`, and a task has the same number in all of them.
    """
    return [_task(cell) for cell in config.cells()]


def _task(config: CellConfig) -> EnvTask:
    bounds = Units(config.units).bounds()
    return EnvTask(
        group=f"{NAME}_{config.split}",
        task_id=TASK_NAMES.index(config.task),
        task=config.task,
        split=config.split,
        features=cell_features(config),
        fps=FPS,
        episode_length=config.episode_length or TASKS[config.task].episode_length,
        open=lambda places, processes: _Cells(config, places, processes),
        units=config.units,
        ranges={STATE: bounds, ACTION: bounds},
        shift=SHIFTS.get(config.split),
        robot_type="so101_follower",
    )


def cell_features(config: CellConfig) -> dict[str, DatasetFeature]:
    """Features of a dataset of the cell, without building it; equal to `Cell.features`."""
    joints = DatasetFeature("float32", (len(JOINTS),), [f"{joint}.pos" for joint in JOINTS])
    picture = DatasetFeature("video", (config.height, config.width, 3), ["height", "width", "channels"])
    return {ACTION: joints, STATE: joints} | {IMAGES_PREFIX + camera: picture for camera in CAMERAS}


class _Cells:
    def __init__(self, config: CellConfig, places: int, processes: int) -> None:
        self._config = config
        self._group = CellGroup(config, places, processes=processes)
        self._succeeded = np.zeros(places, dtype=bool)

    def begin(self, place: int, seed: int) -> Shown:
        self._succeeded[place] = False
        return self._shown(self._group.reset_one(place, seed))

    def step(self, actions: NDArray[np.float64], looks: NDArray[np.bool_]) -> Shown:
        return self._shown(self._group.step(actions, looks))

    def description(self) -> Mapping[str, Any]:
        choice = self._group.choice
        return {"type": NAME, **asdict(self._config), "renderer": choice.name, "renderer_reason": choice.reason}

    def close(self) -> None:
        self._group.close()

    def _shown(self, batch: Batch) -> Shown:
        """The reward is 1 at the tick in which the task has succeeded, as `envs.gym` gives it."""
        rewards = (batch.is_success & ~self._succeeded).astype(np.float64)
        self._succeeded = batch.is_success.copy()
        return Shown(
            observation=batch.observation,
            instructions=batch.instructions,
            rewards=rewards,
            is_success=batch.is_success,
            is_over=batch.is_over,
            views={camera: batch.observation[IMAGES_PREFIX + camera] for camera in CAMERAS},
            is_drawn=batch.is_drawn,
        )
