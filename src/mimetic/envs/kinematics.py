"""Forward and inverse kinematics of the arm in a compiled model, without disturbing the simulation.

Inverse kinematics is damped least squares on MuJoCo's own Jacobian, for the point between the tips of the jaws: three
rows for its position, three that turn the gripper to point in a direction, three that turn its opening, the latter two
with small weights, so that a direction out of reach gives way to the position. Source: spec/simulation.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.arm import JOINTS, SPANS
from mimetic.envs.engine import mujoco

Array = NDArray[np.float64]
PINCH_M = 0.014
"""From the fixed jaw's tip to the point between the jaws when they hold a cube, along the opening [m]."""
_POINT_WEIGHT, _OPENING_WEIGHT, _DAMPING, _LARGEST_STEP = 0.02, 0.01, 1e-6, 0.2
_MARGIN = 0.01
"""Kept from the stops of the joints [rad]."""


@dataclass(frozen=True)
class HandPose:
    """Where the hand shall be.

    Args:
        position: of the point between the jaws [m].
        direction: unit vector in which the gripper points.
        opening: unit vector from the fixed to the moving jaw; None leaves the wrist as it is.
        pinch: where between the jaws that point lies, from the fixed jaw's tip along the opening [m].
    """

    position: Array
    direction: Array
    opening: Array | None = None
    pinch: float = PINCH_M


class ArmKinematics:
    """Kinematics of the arm of one model; angles are those of the five joints before the gripper [rad].

    Args:
        model: a compiled scene.
    """

    def __init__(self, model: Any) -> None:
        self._mujoco = mujoco()
        self._model = model
        self._data = self._mujoco.MjData(model)
        self._site = model.site("gripperframe").id
        self._body = model.body("gripper").id
        self._angles = np.array([model.joint(name).qposadr[0] for name in JOINTS])
        self._rates = np.array([model.joint(name).dofadr[0] for name in JOINTS])
        self._low = np.array([low + _MARGIN for low, _ in SPANS[:5]])
        self._high = np.array([high - _MARGIN for _, high in SPANS[:5]])

    def frame(self, angles: ArrayLike) -> tuple[Array, Array]:
        """Position (3,) [m] and orientation (3, 3) of the site `gripperframe` for joint angles (5 or 6,) [rad]."""
        self._place(np.asarray(angles, dtype=np.float64))
        return self._data.site_xpos[self._site].copy(), self._data.site_xmat[self._site].reshape(3, 3).copy()

    def jacobian(self, angles: ArrayLike) -> tuple[Array, Array]:
        """Jacobians (3, 6) of the site's position [m/rad] and orientation for joint angles (5 or 6,) [rad]."""
        position, _ = self.frame(angles)
        return self._jacobian_at(position)

    def solve(self, start: ArrayLike, goal: HandPose, *, iterations: int = 60, tolerance_m: float = 2e-4) -> Array:
        """Joint angles (5,) [rad] that bring the hand to a pose, as near as the arm comes.

        Args:
            start: angles to begin from (5,) [rad]; the nearest solution is usually found.
            goal: where the hand shall be.
            iterations: most steps.
            tolerance_m: distance that is near enough once the direction has settled too.
        """
        angles = np.clip(np.asarray(start, dtype=np.float64)[:5], self._low, self._high)
        for _ in range(iterations):
            site, orientation = self.frame(angles)
            point = site + goal.pinch * orientation[:, 2]
            moving, turning = (part[:, :5] for part in self._jacobian_at(point))
            rows = [moving, _POINT_WEIGHT * turning]
            error = [goal.position - point, _POINT_WEIGHT * _cross(orientation[:, 0], goal.direction)]
            if goal.opening is not None:
                rows.append(_OPENING_WEIGHT * turning)
                error.append(_OPENING_WEIGHT * _cross(orientation[:, 2], goal.opening))
            matrix, residual = np.vstack(rows), np.concatenate(error)
            step = _damped_step(matrix, residual, np.ones(5, dtype=bool))
            # A joint at its stop that would go on pushes in vain: the others must do without it.
            free = ~(((angles <= self._low) & (step < 0)) | ((angles >= self._high) & (step > 0)))
            if not free.all():
                step = _damped_step(matrix, residual, free)
            largest = float(np.abs(step).max())
            if largest > _LARGEST_STEP:
                step *= _LARGEST_STEP / largest
            moved = np.clip(angles + step, self._low, self._high)
            settled = float(np.abs(moved - angles).max()) < 1e-3
            angles = moved
            if settled and float(np.linalg.norm(error[0])) < tolerance_m:
                break
            if float(np.abs(step).max()) < 1e-5:
                break
        return angles

    def holding_torque(self, angles: ArrayLike) -> Array:
        """Torque (6,) that the servos need to hold the arm still at joint angles (6,) [N m]."""
        self._data.qvel[:] = 0
        self._place(np.asarray(angles, dtype=np.float64))
        self._mujoco.mj_comVel(self._model, self._data)
        result = np.zeros(self._model.nv)
        self._mujoco.mj_rne(self._model, self._data, 0, result)
        torque: Array = result[self._rates]
        return torque

    def _place(self, angles: Array) -> None:
        self._data.qpos[self._angles[: len(angles)]] = angles
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_comPos(self._model, self._data)

    def _jacobian_at(self, point: Array) -> tuple[Array, Array]:
        moving, turning = np.zeros((3, self._model.nv)), np.zeros((3, self._model.nv))
        self._mujoco.mj_jac(self._model, self._data, moving, turning, point, self._body)
        return moving[:, self._rates], turning[:, self._rates]


def _damped_step(matrix: Array, residual: Array, free: NDArray[np.bool_]) -> Array:
    """Least-squares change of the free joints (5,) [rad]; the others stay."""
    used = matrix * free
    return np.asarray(np.linalg.solve(used.T @ used + _DAMPING * np.eye(5), used.T @ residual), dtype=np.float64)


def _cross(first: Array, second: Array) -> Array:
    """Cross product of two vectors; numpy's own takes ten times as long for so little."""
    a, b, c = first.tolist()
    x, y, z = second.tolist()
    return np.array([b * z - c * y, c * x - a * z, a * y - b * x])
