"""Scripted operators for the five tasks: they see where things are, and move the arm there.

An expert is a function from a `Hand` to its movements. It ends when the operator believes to be done; whether the task
was done, the cell says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mimetic.envs.arm import PARALLEL_AT
from mimetic.envs.hand import CLOSED, OPEN, Array, Hand, Moves
from mimetic.envs.kinematics import PINCH_M, HandPose
from mimetic.envs.tasks import CUBE_M, HOLD_TICKS

_ROOMY_PINCH_M = PINCH_M + 0.014
"""Where between the open jaws a cube is aimed at: not quite at the fixed one."""
_BESIDE_M = 0.09
"""How far from its goal a sloppy operator's wrong goal lies [m]."""


def reach(hand: Hand) -> Moves:
    """Bring the point between the jaws to the ball and stay."""
    yield from hand.idle()
    ball = hand.believed(hand.cell.scene().positions["ball"])
    if _is_wrong(hand):
        ball = _beside(hand, ball)
    before = ball + _up(min(0.04, hand.above_m))
    yield from hand.move(HandPose(before, hand.down))
    yield from hand.line(HandPose(ball, hand.down), share=0.7)
    yield from hand.wait(HOLD_TICKS + 4)


def push(hand: Hand) -> Moves:
    """Push the cube to the mat; look, and push again when it stopped beside."""
    yield from hand.idle()
    mat = hand.cell.scene().positions["mat"]
    if _is_wrong(hand):
        mat = _beside(hand, mat)
    for _ in range(hand.manner.retries + 1):
        cube = hand.believed(hand.cell.scene().positions["cube"])
        yield from _push_once(hand, cube, mat)
        rest = hand.cell.scene().positions["cube"] - mat
        if np.hypot(rest[0], rest[1]) < 0.015:
            break
    yield from hand.wait(HOLD_TICKS)


def _push_once(hand: Hand, cube: Array, mat: Array) -> Moves:
    """Set the jaws behind the cube, a little apart so that it cannot turn away, push, and withdraw."""
    way = mat[:2] - cube[:2]
    ahead = np.array([*(way / np.linalg.norm(way)), 0.0])
    opening = np.cross([0.0, 0.0, 1.0], ahead)
    if opening @ cube < 0:  # either side of the hand may lead; this one turns the wrist less
        opening = -opening
    height, middle = 0.012, 0.007
    behind = np.array([*cube[:2], 0.0]) - ahead * 0.052
    yield from hand.move(HandPose(behind + _up(hand.above_m), hand.down, opening, middle))
    yield from hand.grip(PARALLEL_AT - 0.18, 6)
    yield from hand.line(HandPose(behind + _up(height), hand.down, opening, middle), share=0.7)
    until = np.array([*mat[:2], height]) - ahead * (CUBE_M / 2 + 0.005)
    yield from hand.line(HandPose(until, hand.down, opening, middle), share=0.6)
    yield from hand.wait(2)
    yield from hand.line(HandPose(until - ahead * 0.02, hand.down, opening, middle), share=0.6)
    yield from hand.line(HandPose(until - ahead * 0.02 + _up(0.05), hand.down, opening, middle))


def pick_place(hand: Hand) -> Moves:
    """Grasp the cube, carry it over the bin, let go."""
    yield from _into_bin(hand, "cube", other="")


def sort(hand: Hand) -> Moves:
    """Grasp the cube of the named colour, carry it over the bin, let go."""
    yield from _into_bin(hand, "cube", other="other")


def stack(hand: Hand) -> Moves:
    """Grasp the red cube, set it down on the blue one, let go, withdraw upwards."""
    yield from hand.idle()
    yield from _grasp(hand, "cube")
    under = hand.cell.scene().positions["under"]
    goal = _beside(hand, under) if _is_wrong(hand) else hand.believed(under)
    goal = goal + _up(CUBE_M + 0.002)
    opening = hand.opening_at(under, hand.cell.yaw("under"))
    yield from hand.move(HandPose(goal + _up(0.03), _DOWN, opening))
    yield from hand.wait(4)
    yield from hand.line(HandPose(goal, _DOWN, opening), share=0.5)
    yield from hand.wait(5)
    yield from hand.grip(OPEN, 12)
    yield from hand.line(HandPose(goal + _up(0.055), _DOWN, opening), share=0.6)
    yield from hand.wait(HOLD_TICKS)


EXPERTS: dict[str, Callable[[Hand], Moves]] = {
    "reach": reach,
    "push": push,
    "pick_place": pick_place,
    "sort": sort,
    "stack": stack,
}
"""Task -> what an operator does."""
_DOWN = np.array([0.0, 0.0, -1.0])


def _up(height_m: float) -> Array:
    return np.array([0.0, 0.0, height_m])


def _into_bin(hand: Hand, cube: str, other: str) -> Moves:
    yield from hand.idle()
    wrong = _is_wrong(hand)
    yield from _grasp(hand, other if wrong and other else cube)
    goal = hand.cell.scene().positions["bin"]
    if wrong and not other:
        goal = _beside(hand, goal)
    opening = hand.opening_at(goal, hand.cell.yaw("bin"))
    over = hand.believed(goal) * (1, 1, 0)
    yield from hand.move(HandPose(over + _up(0.095), hand.down, opening))
    yield from hand.line(HandPose(over + _up(0.055), hand.down, opening), share=0.8)
    yield from hand.wait(3)
    yield from hand.grip(OPEN, 8)
    yield from hand.line(HandPose(over + _up(0.11), hand.down, opening))
    yield from hand.wait(HOLD_TICKS)


def _grasp(hand: Hand, cube: str) -> Moves:
    """Close the jaws on a cube and lift it; look, and try again when they are empty.

    However the cube is turned, the jaws turn it as they close. An operator who turns the wrist along its sides must
    choose between two of them where it lies askew, and neither choice can be learnt from a few dozen demonstrations.
    """
    for _ in range(hand.manner.retries + 1):
        position = hand.believed(hand.cell.scene().positions[cube])
        opening = hand.opening_away(position)
        yield from hand.move(HandPose(position + _up(hand.above_m), hand.down, opening, _ROOMY_PINCH_M))
        yield from hand.grip(OPEN, 8)
        low = np.array([position[0], position[1], 0.013])
        yield from hand.line(HandPose(low, hand.down, opening, _ROOMY_PINCH_M), share=0.6)
        yield from hand.grip(CLOSED, 12)
        yield from hand.line(HandPose(low + _up(0.07), hand.down, opening), share=0.8)
        if not hand.is_empty:
            return


def _is_wrong(hand: Hand) -> bool:
    return bool(hand.rng.random() < hand.manner.wrong_goal_chance)


def _beside(hand: Hand, position: Array) -> Array:
    azimuth = hand.rng.uniform(-np.pi, np.pi)
    return position + _BESIDE_M * np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
