"""An operator's hand: turns "go there" into goals for the servos, tick by tick, with human-like variation.

Movements are generators. Each item is an action in the units of the arm; the caller sends it and lets a tick pass, and
the movement goes on from what the cell then is. So an operator can look again after closing the jaws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.arm import GRIPPER_SERVO, PARALLEL_AT, SERVO, SPANS
from mimetic.envs.cell import Cell
from mimetic.envs.config import FPS
from mimetic.envs.kinematics import HandPose
from mimetic.envs.manner import Manner

Array = NDArray[np.float64]
Moves = Iterator[Array]
OPEN = PARALLEL_AT + 0.60
"""Angle of the gripper that lets a cube pass between the jaws, with 20 mm on each side [rad]."""
CLOSED = PARALLEL_AT - 0.34
"""Nearly shut; on a cube the jaws stop earlier and press."""
EMPTY_BELOW = PARALLEL_AT - 0.12
"""A gripper that closed further than this holds nothing [rad]."""
_TREMOR_MEMORY = 0.8


class Hand:
    """One episode of one operator at one cell.

    Args:
        cell: just reset.
        manner: how the operator moves.
        rng: where the variation comes from.
    """

    def __init__(self, cell: Cell, manner: Manner, rng: np.random.Generator) -> None:
        self.cell = cell
        self.manner = manner
        self.rng = rng
        self.speed_m_s = float(rng.uniform(*manner.speed_m_s))
        slant, azimuth = rng.uniform(0, manner.tilt + 1e-12), rng.uniform(-np.pi, np.pi)
        self.down = np.array([np.sin(slant) * np.cos(azimuth), np.sin(slant) * np.sin(azimuth), -np.cos(slant)])
        self.above_m = float(rng.uniform(*manner.above_m))
        self._goal = cell.angles
        self._tremor = np.zeros(6)

    def believed(self, position: ArrayLike) -> Array:
        """Where the operator thinks that a thing is (3,) [m]."""
        error = self.rng.normal(0, 1, 3) * self.manner.aim_m
        return np.asarray(position, dtype=np.float64) + error * (1, 1, 0.3)

    def wait(self, ticks: int) -> Moves:
        """Stay where the hand is."""
        for _ in range(ticks):
            yield self._action()

    def idle(self) -> Moves:
        """What passes before an operator begins."""
        low, high = self.manner.idle_ticks
        yield from self.wait(int(self.rng.integers(low, high + 1)))

    def move(self, pose: HandPose, *, share: float = 1.0) -> Moves:
        """Bring the hand to a pose along a smooth way in joint space.

        Args:
            pose: where to.
            share: part of the usual speed.
        """
        if self.rng.random() < self.manner.pause_chance:
            low, high = self.manner.pause_ticks
            yield from self.wait(int(self.rng.integers(low, high + 1)))
        if self.rng.random() < self.manner.correction_chance:
            beside = pose.position + self.rng.normal(0, 0.006, 3) * (1, 1, 0.3)
            yield from self._travel(HandPose(beside, pose.direction, pose.opening, pose.pinch), share)
            share *= 0.7
        yield from self._travel(pose, share)

    def line(self, pose: HandPose, *, share: float = 1.0) -> Moves:
        """Bring the hand to a pose along a straight line in space, for the last centimetres and for pushing."""
        site, frame = self.cell.kinematics.frame(self._goal[:5])
        begin = site + pose.pinch * frame[:, 2]
        ticks = max(3, round(float(np.linalg.norm(pose.position - begin)) / (self.speed_m_s * share) * FPS))
        for tick in range(1, ticks + 1):
            point = begin + (pose.position - begin) * self._part(tick / ticks)
            goal = HandPose(point, pose.direction, pose.opening, pose.pinch)
            self._goal[:5] = self.cell.kinematics.solve(self._goal[:5], goal, iterations=8)
            yield self._action()

    def grip(self, angle: float, ticks: int = 10) -> Moves:
        """Open or close the jaws to an angle [rad], and let them get there."""
        begin = self._goal[5]
        for tick in range(1, ticks + 1):
            self._goal[5] = begin + (angle - begin) * min(1.0, 1.5 * tick / ticks)
            yield self._action()

    @property
    def is_empty(self) -> bool:
        """Whether the closed jaws hold nothing."""
        return bool(self.cell.angles[5] < EMPTY_BELOW)

    def opening_away(self, position: ArrayLike, *, spread: float = 0.1) -> Array:
        """Horizontal opening direction straight away from the base, give or take some carelessness."""
        x, y = np.asarray(position)[:2]
        turned = np.arctan2(y, x) + (self.rng.uniform(-spread, spread) if self.manner.tilt else 0.0)
        return np.array([np.cos(turned), np.sin(turned), 0.0])

    def opening_at(self, position: ArrayLike, yaw: float) -> Array:
        """Of the four directions along the sides of a square thing, the one nearest to straight away from the base."""
        x, y = np.asarray(position)[:2]
        away = np.arctan2(y, x)
        turned = yaw + np.round((away - yaw) / (np.pi / 2)) * np.pi / 2
        return np.array([np.cos(turned), np.sin(turned), 0.0])

    def _travel(self, pose: HandPose, share: float) -> Moves:
        begin = self._goal.copy()
        site, frame = self.cell.kinematics.frame(begin[:5])
        distance = float(np.linalg.norm(pose.position - site - pose.pinch * frame[:, 2]))
        end = self.cell.kinematics.solve(begin[:5], pose)
        turn = float(np.abs(end - begin[:5]).max())
        seconds = max(distance / (self.speed_m_s * share), turn / (2.2 * share), 0.12)
        ticks = max(2, round(seconds * FPS))
        for tick in range(1, ticks + 1):
            self._goal[:5] = begin[:5] + (end - begin[:5]) * self._part(tick / ticks)
            yield self._action()

    def _part(self, even: float) -> float:
        """Share of the way after a share of the time: least jerk, or, for a jerky operator, nearly even speed."""
        smooth = even**3 * (10 - 15 * even + 6 * even**2)
        return self.manner.jerk * even + (1 - self.manner.jerk) * smooth

    def _action(self) -> Array:
        """The goals that make the arm be where it shall: a servo hangs below its goal by torque over stiffness."""
        self._tremor = _TREMOR_MEMORY * self._tremor + self.rng.normal(0, 1, 6) * self.manner.tremor
        sag = self.cell.kinematics.holding_torque(self._goal) / _STIFFNESS
        angles = self._goal + sag + self._tremor * (1, 1, 1, 1, 1, 0)
        return self.cell.units.from_radians(np.clip(angles, _LOW, _HIGH)).astype(np.float64)


_STIFFNESS = np.array([SERVO.stiffness] * 5 + [GRIPPER_SERVO.stiffness])
_LOW, _HIGH = (np.array([span[side] for span in SPANS]) for side in (0, 1))
