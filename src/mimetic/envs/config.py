"""Settings of the simulated cell (`--env.*` of `--env.type=so101_cell`)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.errors import ConfigError
from mimetic.fields import setting

TASK_NAMES = ("reach", "push", "pick_place", "sort", "stack")
SPLIT_NAMES = ("train", "held_out", "unseen_positions", "shifted_camera", "shifted_light")
RENDERER_NAMES = ("auto", "egl", "osmesa", "native", "rays")
UNIT_NAMES = ("degrees", "range_m100_100")
CAMERAS = ("front", "wrist")
FPS = 30
"""Control ticks a second; the arm of LeRobot's recordings runs at this rate."""


@dataclass(frozen=True, kw_only=True)
class CellConfig:
    """A simulated cell: which task, which variation of it, and what the cameras and motors speak."""

    task: str = setting("pick_place", "What the arm has to do", choices=TASK_NAMES, layer="mimetic")
    split: str = setting(
        "train",
        "Which variation of positions, colours, light and cameras is drawn",
        choices=SPLIT_NAMES,
        layer="mimetic",
    )
    renderer: str = setting(
        "auto",
        "What draws the pictures; auto takes OpenGL where it works, else rays",
        choices=RENDERER_NAMES,
        layer="mimetic",
    )
    width: int = setting(96, "Width of a picture", unit="px", layer="mimetic")
    height: int = setting(96, "Height of a picture", unit="px", layer="mimetic")
    units: str = setting(
        "degrees",
        "Units of the five arm joints in states and actions; the gripper is 0 (closed) to 100 (open) in both",
        choices=UNIT_NAMES,
        layer="mimetic",
    )
    distractors: int = setting(2, "How many things that do not matter lie on the table, 0 to 2", layer="mimetic")
    paraphrase: bool = setting(
        False, "Draw the wording of the instruction instead of always using the first", layer="mimetic"
    )
    episode_length: int | None = setting(
        None, "Ticks until an episode is cut off; without it the task's own limit", unit="ticks", layer="mimetic"
    )

    def check(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            ConfigError: one or more settings are outside their range; the message names all of them.
        """
        problems = [
            f"`{name}`: unknown {name} `{value}`; there are {', '.join(known)}"
            for name, value, known in (
                ("task", self.task, TASK_NAMES),
                ("split", self.split, SPLIT_NAMES),
                ("renderer", self.renderer, RENDERER_NAMES),
                ("units", self.units, UNIT_NAMES),
            )
            if value not in known
        ]
        problems += [
            f"`{name}`: {value} pixels; a picture has between 16 and 2048"
            for name, value in (("width", self.width), ("height", self.height))
            if not 16 <= value <= 2048
        ]
        if not 0 <= self.distractors <= 2:
            problems.append(f"`distractors`: {self.distractors}; there are between 0 and 2")
        if self.episode_length is not None and self.episode_length < 1:
            problems.append(f"`episode_length`: {self.episode_length}; an episode has at least one tick")
        if problems:
            raise ConfigError("the simulated cell cannot be built: " + "; ".join(problems))
