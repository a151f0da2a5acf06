"""From joint angles to what an SO-101 follower reports and takes, by way of its servo steps.

A servo counts 4096 steps a turn, and its step 2048 is the joint's zero. LeRobot turns steps into degrees, into -100 to
100, or (gripper) into 0 to 100, with the range that the calibration found. Going through whole steps gives the
simulated arm the resolution of the real one (0.088 degrees), its ranges, and its formulas, so that recordings,
statistics and policies of one serve the other. Source: spec/robots.md 2.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimetic.envs.arm import JOINTS, SPANS

Array = NDArray[np.float64]
STEPS_PER_TURN = 4096
LARGEST_STEP = STEPS_PER_TURN - 1
ZERO_STEP = 2048
GRIPPER = JOINTS.index("gripper")
_PER_RADIAN = STEPS_PER_TURN / (2 * math.pi)


def calibrated_range(joint: str) -> tuple[int, int]:
    """Smallest and largest servo step of a joint, as a calibration of this arm finds them.

    LeRobot's calibration gives `wrist_roll` the whole turn, whatever its stops allow.
    """
    if joint == "wrist_roll":
        return 0, LARGEST_STEP
    low, high = SPANS[JOINTS.index(joint)]
    return round(ZERO_STEP + low * _PER_RADIAN), round(ZERO_STEP + high * _PER_RADIAN)


def calibration() -> dict[str, dict[str, int]]:
    """The calibration file of this arm, as LeRobot writes it: motor -> id, drive_mode, homing_offset, range."""
    rows = {}
    for number, joint in enumerate(JOINTS):
        low, high = calibrated_range(joint)
        rows[joint] = {"id": number + 1, "drive_mode": 0, "homing_offset": 0, "range_min": low, "range_max": high}
    return rows


@dataclass(frozen=True)
class Units:
    """One way of writing the six joints.

    Args:
        body: "degrees" (LeRobot's default) or "range_m100_100" for the five arm joints; the gripper is 0 to 100 always.
    """

    body: str

    def from_radians(self, angles: Array) -> NDArray[np.float32]:
        """What the arm reports, (..., 6) float32, for joint angles (..., 6) [rad]."""
        low, high, middle = _LOW, _HIGH, (_LOW + _HIGH) / 2
        steps = np.clip(np.rint(ZERO_STEP + np.asarray(angles, dtype=np.float64) * _PER_RADIAN), 0, LARGEST_STEP)
        share = (np.clip(steps, low, high) - low) / (high - low)
        values = (steps - middle) * 360 / LARGEST_STEP if self.body == "degrees" else share * 200 - 100
        values[..., GRIPPER] = share[..., GRIPPER] * 100
        result: NDArray[np.float32] = values.astype(np.float32)
        return result

    def to_radians(self, values: Array) -> Array:
        """Goal angles (..., 6) [rad] for what the arm is told (..., 6), clipped to the calibrated range."""
        low, high, middle = _LOW, _HIGH, (_LOW + _HIGH) / 2
        values = np.asarray(values, dtype=np.float64)
        if self.body == "degrees":
            steps = values * LARGEST_STEP / 360 + middle
        else:
            steps = (np.clip(values, -100, 100) + 100) / 200 * (high - low) + low
        opening = np.clip(values[..., GRIPPER], 0, 100) / 100
        steps[..., GRIPPER] = opening * (high[GRIPPER] - low[GRIPPER]) + low[GRIPPER]
        # LeRobot truncates; the servo takes whole steps only.
        steps = np.trunc(np.clip(steps, low, high))
        radians: Array = (steps - ZERO_STEP) / _PER_RADIAN
        return radians

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Smallest and largest value of each joint, (6,) float32 each: those of the calibrated range."""
        if self.body == "degrees":
            high = (_HIGH - _LOW) / 2 * (360 / LARGEST_STEP)
            low = -high
        else:
            low, high = np.full(6, -100.0), np.full(6, 100.0)
        low[GRIPPER], high[GRIPPER] = 0.0, 100.0
        return low.astype(np.float32), high.astype(np.float32)


_LOW, _HIGH = (np.array([calibrated_range(joint)[side] for joint in JOINTS], dtype=np.float64) for side in (0, 1))
