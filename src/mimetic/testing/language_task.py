"""A synthetic task that needs an instruction: one scene, two blocks, and the text says which one to reach.

A planar gripper starts anywhere on a table. A red block lies on the left half, a blue one on the right half, and the
instruction names one of them. Each step covers a share of the way that is left, so the recorded action depends on the
present position and the target alone, and not on how the episode began.

- Without the text a policy cannot know which block to go to; the best it can do is to aim between them.
- Without the picture it knows the side, but not where on that side the block lies.
- Every scene is recorded twice, once with each instruction, so the scenes say nothing about the instruction.

State and action are positions (x to the right, y upwards) in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.testing.datasets import build_dataset

Floats = npt.NDArray[np.float64]

RED, BLUE = 0, 1
INSTRUCTIONS = ("reach the red block", "reach the blue block")
CAMERA = "top"
SHARE_A_STEP = 0.2
"""Share of the way that is left which one step covers."""

_TABLE, _GRIPPER = (96, 96, 96), (235, 235, 235)
_COLOURS = ((220, 30, 30), (30, 60, 220))
_BLOCK_RADIUS, _GRIPPER_RADIUS = 0.2, 0.1


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """Scenes and what is recorded in them.

    Episode 2 k is scene k with the red instruction, episode 2 k + 1 the same scene with the blue one.

    Args:
        scenes: how many; there are twice as many episodes.
        frames: length of an episode.
        fps: frame rate [Hz].
        size: height and width of the camera [px].
        seed: of the scenes.
        instructions: what the episodes are labelled with; the motions stay those of red and blue.
    """

    scenes: int = 40
    frames: int = 16
    fps: int = 10
    size: tuple[int, int] = (64, 64)
    seed: int = 0
    instructions: tuple[str, ...] = INSTRUCTIONS

    @cached_property
    def starts(self) -> Floats:
        """Where the gripper is in the first frame, (scenes, 2)."""
        return np.random.default_rng((self.seed, 0)).uniform(-0.9, 0.9, (self.scenes, 2))

    @cached_property
    def blocks(self) -> Floats:
        """Places of the red and the blue block, (scenes, 2, 2)."""
        generator = np.random.default_rng((self.seed, 1))
        x = generator.uniform(0.3, 0.8, (self.scenes, 2)) * np.array([-1.0, 1.0])
        y = generator.uniform(-0.8, 0.8, (self.scenes, 2))
        return np.stack([x, y], axis=-1)

    def chunk(self, position: npt.ArrayLike, target: npt.ArrayLike, steps: int) -> Floats:
        """The demonstrator's next actions from a position, (..., 2) -> (..., steps, 2)."""
        here, there = (np.asarray(value, np.float64)[..., None, :] for value in (position, target))
        left = np.power(1.0 - SHARE_A_STEP, np.arange(1, steps + 1, dtype=np.float64))[:, None]
        actions: Floats = there + left * (here - there)
        return actions

    def path(self, scene: int, colour: int) -> Floats:
        """Positions in the frames of an episode and one step further, (frames + 1, 2)."""
        steps = self.chunk(self.starts[scene], self.blocks[scene, colour], self.frames)
        return np.concatenate([self.starts[scene][None], steps])

    def draw(self, episode: int, frame: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """What the camera sees, (H, W, 3) uint8: the table, both blocks, and the gripper above them."""
        scene, colour = divmod(episode, 2)
        height, width = size
        y, x = np.meshgrid(np.linspace(1, -1, height), np.linspace(-1, 1, width), indexing="ij")
        picture = np.full((height, width, 3), _TABLE, np.uint8)
        spots = [(*self.blocks[scene, block], _BLOCK_RADIUS, _COLOURS[block]) for block in (RED, BLUE)]
        spots.append((*self.path(scene, colour)[frame], _GRIPPER_RADIUS, _GRIPPER))
        for there_x, there_y, radius, paint in spots:
            picture[(x - there_x) ** 2 + (y - there_y) ** 2 < radius**2] = paint
        return picture


def build_language_dataset(root: Path, task: LanguageTask | None = None, **changes: Any) -> Path:
    """Record the task as a dataset and return its folder.

    Args:
        root: folder to create.
        task: what to record.
        changes: fields of `TinyDataset` that differ, such as `camera_dtype`.
    """
    task = task or LanguageTask()
    paths = [task.path(scene, colour) for scene in range(task.scenes) for colour in (RED, BLUE)]
    columns = {
        "observation.state": np.concatenate([path[:-1] for path in paths]).astype(np.float32),
        "action": np.concatenate([path[1:] for path in paths]).astype(np.float32),
    }
    settings: dict[str, Any] = {
        "lengths": [task.frames] * (2 * task.scenes),
        "fps": task.fps,
        "cameras": {CAMERA: task.size},
        "camera_dtype": "image",
        "state_dim": 2,
        "action_dim": 2,
        "tasks": task.instructions,
        "episodes_per_file": None,
        "columns": columns,
        "picture": task.draw,
    }
    return build_dataset(root, **{**settings, **changes})
