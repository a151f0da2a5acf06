"""Settings of the simulated cell (`--env.*` of `--env.type=so101_cell`)."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
class CellLook:
    """What all episodes of one or several simulated cells have in common."""

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


@dataclass(frozen=True, kw_only=True)
class CellConfig(CellLook):
    """A simulated cell: which task, which variation of it, and what the cameras and motors speak."""

    task: str = setting("pick_place", "What the arm has to do", choices=TASK_NAMES, layer="mimetic")
    split: str = setting(
        "train",
        "Which variation of positions, colours, light and cameras is drawn",
        choices=SPLIT_NAMES,
        layer="mimetic",
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


@dataclass(frozen=True, kw_only=True)
class CellSuiteConfig(CellLook):
    """Several simulated cells, for an evaluation: every named task in every named split."""

    task: str = setting(
        "pick_place",
        f"Tasks to evaluate in, separated by commas, or all: {', '.join(TASK_NAMES)}",
        layer="mimetic",
    )
    split: str = setting(
        "held_out",
        f"Splits to evaluate in, separated by commas, or all: {', '.join(SPLIT_NAMES)}",
        layer="mimetic",
    )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The named tasks."""
        return _listed(self.task, TASK_NAMES)

    @property
    def splits(self) -> tuple[str, ...]:
        """The named splits."""
        return _listed(self.split, SPLIT_NAMES)

    def cells(self) -> list[CellConfig]:
        """One cell for each task in each split, splits outermost."""
        look = {field.name: getattr(self, field.name) for field in fields(CellLook)}
        return [CellConfig(task=task, split=split, **look) for split in self.splits for task in self.tasks]

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = [
            f"`--env.{kind}={text}`: `{name}` is no {kind}; there are {', '.join(known)}, and all"
            for kind, text, names, known in (
                ("task", self.task, self.tasks, TASK_NAMES),
                ("split", self.split, self.splits, SPLIT_NAMES),
            )
            for name in names or ("",)
            if name not in known
        ]
        if not problems:
            try:
                self.cells()[0].check()
            except ConfigError as error:
                problems.append(error.message)
        return problems


def _listed(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a list with commas, each once, in the order given."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    return known if names == ["all"] else tuple(dict.fromkeys(names))
