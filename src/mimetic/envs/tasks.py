"""The five tasks: their things, their instructions, and when they are done. All of it in this one place.

"Done" is a statement about where things are, how fast they move and where the hand is, never about contact forces or
the history of the episode; a tick counts when the statement is true, and the task has succeeded when it was true for
`HOLD_TICKS` ticks in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

HOLD_TICKS = 10
"""A third of a second at 30 Hz."""
CUBE_M = 0.028
"""Edge of a cube [m]."""
BIN_HALF_M, BIN_WALL_M, BIN_HEIGHT_M = 0.050, 0.003, 0.036
"""The bin: half its outer width, thickness of its walls, height of its rim [m]."""
MAT_HALF_M = 0.036
"""Half the width of the mat that a cube is pushed onto [m]."""
BALL_RADIUS_M = 0.014
STILL_M_S = 0.02
"""A thing that moves slower than this lies still [m/s]."""

Colour = tuple[float, float, float]
COLOURS: dict[str, Colour] = {
    "red": (0.86, 0.16, 0.14),
    "green": (0.16, 0.62, 0.28),
    "blue": (0.14, 0.34, 0.82),
    "yellow": (0.95, 0.79, 0.12),
}
"""Colours that instructions name, as (red, green, blue) in [0, 1]."""


@dataclass(frozen=True)
class Scene:
    """Where everything is now, as far as tasks need to know.

    Args:
        positions: centre of each thing in the world, (3,) [m].
        speeds: speed of each thing that can move [m/s].
        hand: point between the tips of the jaws, (3,) [m].
    """

    positions: Mapping[str, NDArray[np.float64]]
    speeds: Mapping[str, float]
    hand: NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """One task.

    Args:
        instructions: wordings; the first is used unless wording is drawn. `{colour}` is that of `actor`.
        actor: the thing that the instruction is about and whose position defines the splits.
        cubes: cubes on the table, the actor first where it is one.
        has_bin: whether there is a bin.
        is_done: whether the task is done at this instant.
        episode_length: ticks after which an episode is cut off.
        colours: colour of each cube, or empty where it is drawn for each episode.
        fixtures: other things: "mat", "ball".
    """

    instructions: tuple[str, ...]
    actor: str
    is_done: Callable[[Scene], bool]
    episode_length: int
    cubes: tuple[str, ...] = ()
    has_bin: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)
    fixtures: tuple[str, ...] = ()


def _flat_distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    return float(np.hypot(*(first[:2] - second[:2])))


def _is_in_bin(scene: Scene, cube: str) -> bool:
    """Centre below the rim and near the bin's: in a corner it is 47 mm away, against the wall outside 64 mm."""
    position = scene.positions[cube]
    return _flat_distance(position, scene.positions["bin"]) < BIN_HALF_M and position[2] < BIN_HEIGHT_M


def _is_released(scene: Scene, cube: str) -> bool:
    return float(np.linalg.norm(scene.positions[cube] - scene.hand)) > 0.035


def _reached(scene: Scene) -> bool:
    return float(np.linalg.norm(scene.positions["ball"] - scene.hand)) < 0.02


def _pushed(scene: Scene) -> bool:
    cube = scene.positions["cube"]
    return (
        _flat_distance(cube, scene.positions["mat"]) < 0.030
        and cube[2] < 0.6 * CUBE_M
        and scene.speeds["cube"] < STILL_M_S
    )


def _placed(scene: Scene) -> bool:
    return _is_in_bin(scene, "cube") and scene.speeds["cube"] < STILL_M_S and _is_released(scene, "cube")


def _sorted(scene: Scene) -> bool:
    return _placed(scene) and not _is_in_bin(scene, "other")


def _stacked(scene: Scene) -> bool:
    cube, under = scene.positions["cube"], scene.positions["under"]
    return (
        _flat_distance(cube, under) < 0.6 * CUBE_M
        and abs(float(cube[2] - under[2]) - CUBE_M) < 0.004
        and abs(float(under[2]) - CUBE_M / 2) < 0.004
        and max(scene.speeds["cube"], scene.speeds["under"]) < STILL_M_S
        and _is_released(scene, "cube")
    )


TASKS: dict[str, Task] = {
    "reach": Task(
        instructions=("Reach the {colour} ball", "Move the gripper to the {colour} ball", "Touch the {colour} ball"),
        actor="ball",
        is_done=_reached,
        episode_length=200,
        fixtures=("ball",),
        colours={"ball": "red"},
    ),
    "push": Task(
        instructions=(
            "Push the {colour} cube onto the mat",
            "Slide the {colour} cube to the square mat",
            "Move the {colour} cube onto the mat without lifting it",
        ),
        actor="cube",
        is_done=_pushed,
        episode_length=300,
        cubes=("cube",),
        fixtures=("mat",),
        colours={"cube": "red"},
    ),
    "pick_place": Task(
        instructions=(
            "Put the {colour} cube into the bin",
            "Pick up the {colour} cube and place it in the bin",
            "Drop the {colour} cube in the bin",
        ),
        actor="cube",
        is_done=_placed,
        episode_length=300,
        cubes=("cube",),
        has_bin=True,
        colours={"cube": "red"},
    ),
    "sort": Task(
        instructions=(
            "Put the {colour} cube into the bin",
            "Only the {colour} cube belongs in the bin",
            "Pick the {colour} cube and drop it in the bin",
        ),
        actor="cube",
        is_done=_sorted,
        episode_length=300,
        cubes=("cube", "other"),
        has_bin=True,
    ),
    "stack": Task(
        instructions=(
            "Stack the red cube on the blue cube",
            "Put the red cube on top of the blue cube",
            "Place the red cube onto the blue one",
        ),
        actor="cube",
        is_done=_stacked,
        episode_length=360,
        cubes=("cube", "under"),
        colours={"cube": "red", "under": "blue"},
    ),
}
"""Success, tolerances and lengths of every task."""
