"""How one episode differs from the next: where things lie, their colours, the light, the cameras, the arm's start.

A `Layout` is everything that varies, as plain numbers. It follows from (task, split, seed) alone.

The splits, by construction:

- Positions of the actor (the thing that the instruction is about) lie in a sector in front of the arm: radius
  `RADIUS_M`, azimuth within `AZIMUTH`. The wedge `UNSEEN_WEDGE` of it belongs to `unseen_positions` alone; around the
  wedge, `WEDGE_MARGIN` belongs to no split. Every other split has its positions in the rest of the sector.
- Actor positions are whole millimetres. In the rest of the sector, one position of five (`is_reserved`) belongs to
  `held_out`, `shifted_camera` and `shifted_light`; `train` has the other four. So no start of an evaluation is ever a
  start of a training episode, whatever the seeds.
- `train` goes through the sector evenly, seed by seed, as an operator does who spreads the starts of a recording; the
  others are drawn. `held_out` and the shifted splits stay `INSIDE_M` and `INSIDE` away from its edges: they ask for
  what lies between demonstrations, and `unseen_positions` for what lies beyond them.
- `shifted_camera` moves and turns the front camera by more than `train` ever does, `shifted_light` has the light
  dimmer, tinted and from the other side.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimetic.envs.config import CellConfig
from mimetic.envs.tasks import BIN_HALF_M, COLOURS, TASKS, Colour, Task
from mimetic.errors import ConfigError

RADIUS_M = (0.17, 0.27)
AZIMUTH = 0.70
UNSEEN_WEDGE = (-0.70, -0.45)
"""Azimuths that only `unseen_positions` starts from [rad]: the arm's right, away from the bin, beyond all training."""
WEDGE_MARGIN = 0.05
INSIDE_M, INSIDE = 0.010, 0.05
"""How far inside the sector of `train` the starts of `held_out` and the shifted splits lie [m], [rad]."""
DISTRACTORS = ("cylinder", "brick")
_BIN_RADIUS_M, _BIN_AZIMUTH = (0.205, 0.235), (0.68, 0.82)
"""The bin stands to the arm's left, as if put back by hand each time [m], [rad]."""
_RIGHT_OF_BIN = 0.25
"""Largest azimuth of a cube beside the bin [rad]; further left most of the table is taken."""
_EVEN_STEPS = (0.7548776662466927, 0.5698402909980532)
"""Steps of the two-dimensional golden sequence: 1 / g and 1 / g**2 with g**3 = g + 1 (Roberts, 2018)."""
_PUSH_TURN = 0.35
"""Largest angle between the way to the mat and straight to the left [rad]."""
_HAND_AT_START_M = 0.185
"""How far in front of the base the hand begins, above the table [m]."""
_TRIES = 2000
_EVEN_TRIES = 60
"""How often things are put around an even start before another one is drawn."""


@dataclass(frozen=True)
class Place:
    """A position on the table (or above it) and a turn about the vertical."""

    x: float
    y: float
    yaw: float = 0.0
    z: float = 0.0


@dataclass(frozen=True)
class Light:
    """A distant light: where it comes from, and its colour times its brightness."""

    azimuth: float
    elevation: float
    colour: Colour
    ambient: float


@dataclass(frozen=True)
class CameraShift:
    """How the front camera is moved [m], and where it looks beside its usual target [m]."""

    move: tuple[float, float, float] = (0.0, 0.0, 0.0)
    look: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One episode's variation.

    Args:
        places: thing -> where it begins.
        colours: thing or surface -> (red, green, blue) in [0, 1].
        light: the one light.
        camera: of the front camera.
        start: joint angles added to the home pose, (6,) [rad].
        instruction: what the arm is told.
    """

    places: Mapping[str, Place]
    colours: Mapping[str, Colour]
    light: Light
    camera: CameraShift
    start: tuple[float, ...]
    instruction: str


def sample_layout(config: CellConfig, seed: int) -> Layout:
    """The layout of an episode; the same for the same task, split, options and seed, on every machine.

    Args:
        config: task, split, distractors, paraphrase.
        seed: number of the episode, not negative.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"a seed is 0 or more; got {seed}")
    task = TASKS[config.task]
    rng = np.random.default_rng([seed, zlib.crc32(config.split.encode()), zlib.crc32(config.task.encode())])
    places = _place_things(config, task, rng, seed)
    names = _colour_names(task, rng)
    wording = task.instructions[int(rng.integers(len(task.instructions))) if config.paraphrase else 0]
    return Layout(
        places=places,
        colours={thing: _tint(COLOURS[name], rng) for thing, name in names.items()} | _surfaces(rng),
        light=_light(config.split, rng),
        camera=_camera(config.split, rng),
        start=tuple(float(angle) for angle in rng.uniform(-0.06, 0.06, 6)),
        instruction=wording.format(colour=names.get(task.actor, "")),
    )


def is_unseen(x: float, y: float) -> bool:
    """Whether a position lies in the wedge that only `unseen_positions` starts from."""
    return UNSEEN_WEDGE[0] <= math.atan2(y, x) <= UNSEEN_WEDGE[1]


def is_reserved(x: float, y: float) -> bool:
    """Whether a position (whole millimetres) outside the wedge is kept for evaluation."""
    return (round(x * 1000) + 2 * round(y * 1000)) % 5 == 0


def belongs(split: str, x: float, y: float) -> bool:
    """Whether an actor may begin here in this split; x, y in whole millimetres [m]."""
    azimuth, radius = math.atan2(y, x), math.hypot(x, y)
    if not (RADIUS_M[0] <= radius <= RADIUS_M[1] and abs(azimuth) <= AZIMUTH):
        return False
    if split == "unseen_positions":
        return is_unseen(x, y)
    if UNSEEN_WEDGE[0] - WEDGE_MARGIN < azimuth < UNSEEN_WEDGE[1] + WEDGE_MARGIN:
        return False
    return is_reserved(x, y) == (split != "train") and (split == "train" or _is_inside(radius, azimuth))


def _is_inside(radius: float, azimuth: float) -> bool:
    """Whether a place lies away from every edge of the sector that training covers."""
    return (
        RADIUS_M[0] + INSIDE_M <= radius <= RADIUS_M[1] - INSIDE_M
        and abs(azimuth) <= AZIMUTH - INSIDE
        and not UNSEEN_WEDGE[0] - WEDGE_MARGIN - INSIDE < azimuth < UNSEEN_WEDGE[1] + WEDGE_MARGIN + INSIDE
    )


def _place_things(config: CellConfig, task: Task, rng: np.random.Generator, seed: int) -> dict[str, Place]:
    """Draw whole arrangements until one is free of overlaps; which one follows from seed and generator alone."""
    for attempt in range(_TRIES):
        is_even = config.split == "train" and attempt < _EVEN_TRIES
        places = _draw_arrangement(config, task, rng, even=seed if is_even else None)
        if places is not None:
            return places
    raise RuntimeError(f"no free arrangement of task {config.task}, split {config.split} was found")


def _draw_arrangement(
    config: CellConfig, task: Task, rng: np.random.Generator, *, even: int | None
) -> dict[str, Place] | None:
    taken: list[tuple[float, float, float]] = []
    places: dict[str, Place] = {}

    def put(name: str, x: float, y: float, size: float, *, yaw: float = 0.0, z: float = 0.0) -> bool:
        if any(math.hypot(x - x2, y - y2) < size + size2 for x2, y2, size2 in taken):
            return False
        taken.append((x, y, size))
        places[name] = Place(x, y, yaw, z)
        return True

    x, y = _draw_actor(config.split, task, rng, even)
    height = float(rng.uniform(0.06, 0.13)) if task.actor == "ball" else 0.0
    if height and math.hypot(x - _HAND_AT_START_M, y) < 0.05:  # the hand would hide the ball
        return None
    put(task.actor, x, y, 0.04, yaw=float(rng.uniform(-math.pi / 4, math.pi / 4)), z=height)
    if task.has_bin:
        radius, azimuth = rng.uniform(*_BIN_RADIUS_M), rng.uniform(*_BIN_AZIMUTH)
        x, y = radius * math.cos(azimuth), radius * math.sin(azimuth)
        if not put("bin", x, y, BIN_HALF_M + 0.03, yaw=float(azimuth)):
            return None
    if "mat" in task.fixtures and not _put_mat(places, put, rng):
        return None
    for cube in task.cubes:
        if cube not in places:
            x, y = _polar(rng, RADIUS_M, AZIMUTH)
            if not put(cube, x, y, 0.04, yaw=float(rng.uniform(-math.pi / 4, math.pi / 4))):
                return None
    for name in DISTRACTORS[: config.distractors]:
        x, y = _polar(rng, (0.17, 0.36), 0.95)
        if _blocks_push(places, x, y) or not put(name, x, y, 0.045, yaw=float(rng.uniform(0, math.pi))):
            return None
    return places


def _draw_actor(split: str, task: Task, rng: np.random.Generator, even: int | None) -> tuple[float, float]:
    """A start in whole millimetres: number `even` of the even sequence if the split has it, else a drawn one."""
    if split == "unseen_positions":
        right, left = UNSEEN_WEDGE
    else:
        inside = 0.0 if split == "train" else INSIDE
        right, left = UNSEEN_WEDGE[1] + WEDGE_MARGIN + inside, (_RIGHT_OF_BIN if task.has_bin else AZIMUTH) - inside
    while True:
        shares = rng.uniform(0, 1, 2)
        if even is not None:
            shares, even = (0.5 + np.multiply(_EVEN_STEPS, even)) % 1.0, None
        radius, azimuth = RADIUS_M[0] + shares[0] * (RADIUS_M[1] - RADIUS_M[0]), right + shares[1] * (left - right)
        x, y = (round(1000 * value) / 1000 for value in (radius * math.cos(azimuth), radius * math.sin(azimuth)))
        if belongs(split, x, y):
            return x, y


def _polar(rng: np.random.Generator, radii: tuple[float, float], azimuth: float) -> tuple[float, float]:
    radius, angle = rng.uniform(*radii), rng.uniform(-azimuth, azimuth)
    return float(radius * math.cos(angle)), float(radius * math.sin(angle))


def _put_mat(places: Mapping[str, Place], put: Any, rng: np.random.Generator) -> bool:
    """A mat 9 to 12 cm to the left of the cube, seen from the base, and within reach."""
    cube = places["cube"]
    distance = rng.uniform(0.09, 0.12)
    direction = math.atan2(cube.y, cube.x) + math.pi / 2 + rng.uniform(-_PUSH_TURN, _PUSH_TURN)
    x, y = cube.x + distance * math.cos(direction), cube.y + distance * math.sin(direction)
    within = RADIUS_M[0] <= math.hypot(x, y) <= RADIUS_M[1] + 0.01 and abs(math.atan2(y, x)) <= AZIMUTH
    return within and bool(put("mat", x, y, 0.045))


def _blocks_push(places: Mapping[str, Place], x: float, y: float) -> bool:
    """Whether a point lies beside the way from the cube to the mat, or where the hand begins to push."""
    if "mat" not in places:
        return False
    cube, mat = places["cube"], places["mat"]
    way = np.array([mat.x - cube.x, mat.y - cube.y])
    share = float(np.dot([x - cube.x, y - cube.y], way) / np.dot(way, way))
    nearest = np.array([cube.x, cube.y]) + min(max(share, -0.8), 1.4) * way
    return math.hypot(*(nearest - [x, y])) < 0.07


def _colour_names(task: Task, rng: np.random.Generator) -> dict[str, str]:
    if task.colours:
        return dict(task.colours)
    drawn = rng.permutation(list(COLOURS))
    return {cube: str(name) for cube, name in zip(task.cubes, drawn, strict=False)}


def _tint(colour: Colour, rng: np.random.Generator) -> Colour:
    red, green, blue = (float(np.clip(value * rng.uniform(0.92, 1.08), 0, 1)) for value in colour)
    return red, green, blue


def _surfaces(rng: np.random.Generator) -> dict[str, Colour]:
    """Table and wall get a little lighter or darker, the distractors a colour that no instruction names."""
    plain = {"table": (0.80, 0.71, 0.58), "wall": (0.66, 0.72, 0.78), "mat": (0.20, 0.46, 0.48)}
    shades = {name: _scaled(colour, rng.uniform(0.93, 1.05)) for name, colour in plain.items()}
    dull = ((0.55, 0.35, 0.62), (0.35, 0.62, 0.66), (0.72, 0.72, 0.72), (0.45, 0.38, 0.32))
    picks = rng.permutation(len(dull))
    return shades | {name: dull[int(pick)] for name, pick in zip(DISTRACTORS, picks, strict=False)}


def _scaled(colour: Colour, factor: float) -> Colour:
    red, green, blue = (float(min(1.0, value * factor)) for value in colour)
    return red, green, blue


def _light(split: str, rng: np.random.Generator) -> Light:
    brightness, warmth = rng.uniform(0.92, 1.08), rng.uniform(-0.03, 0.03)
    azimuth, elevation, ambient = rng.uniform(-1.2, -0.6), rng.uniform(0.9, 1.1), 0.42
    if split == "shifted_light":
        brightness, warmth = rng.uniform(0.50, 0.70), rng.choice([-1, 1]) * rng.uniform(0.10, 0.18)
        azimuth, elevation, ambient = rng.uniform(0.8, 1.4), rng.uniform(0.6, 0.85), 0.38
    white = 0.52 * brightness
    colour = (float(white * (1 + warmth)), float(white), float(white * (1 - warmth)))
    return Light(float(azimuth), float(elevation), colour, float(ambient * (0.5 + 0.5 * brightness)))


def _camera(split: str, rng: np.random.Generator) -> CameraShift:
    move, look = rng.uniform(-0.004, 0.004, 3), rng.uniform(-0.003, 0.003, 3)
    if split == "shifted_camera":
        move = rng.choice([-1.0, 1.0], 3) * rng.uniform(0.03, 0.06, 3)
        look = rng.choice([-1.0, 1.0], 3) * rng.uniform(0.008, 0.02, 3)
    return CameraShift(
        (float(move[0]), float(move[1]), float(move[2])), (float(look[0]), float(look[1]), float(look[2]))
    )
