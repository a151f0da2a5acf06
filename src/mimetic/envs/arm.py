"""An SO-101 follower arm: its kinematic facts, its servos, and a drawing of it in boxes and capsules.

The chain (names, offsets, axes, ranges, masses) is that of the real arm in its newer calibration, where every joint's
zero is the middle of its range; golden forward kinematics and Jacobians hold it to 1e-6. The shapes are drawn here and
resemble the real parts; no mesh is used. Servo constants are chosen, not measured: see `SERVO`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
"""In the order of the servo bus, of states and of actions."""


@dataclass(frozen=True)
class Link:
    """One body of the arm and the joint that carries it; every joint turns about the body's z axis.

    Args:
        body: its name.
        parent: name of the body before it; "world" for the base.
        position: origin in the parent's coordinates [m].
        quaternion: orientation in the parent's coordinates (w, x, y, z), not normalised.
        mass: [kg].
        joint: name of the joint; empty for the base.
        span: smallest and largest angle [rad].
    """

    body: str
    parent: str
    position: Vector
    quaternion: Quaternion
    mass: float
    joint: str = ""
    span: tuple[float, float] = (0.0, 0.0)


CHAIN = (
    Link("base", "world", (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), 0.147),
    Link("shoulder", "base", (0.0388353, 0.0, 0.0624), (0.0, 0.0, -1.0, 0.0), 0.100006,
         "shoulder_pan", (-1.919862, 1.919862)),
    Link("upper_arm", "shoulder", (-0.0303992, -0.0182778, -0.0542), (0.5, -0.5, -0.5, -0.5), 0.103,
         "shoulder_lift", (-1.745329, 1.745329)),
    Link("lower_arm", "upper_arm", (-0.11257, -0.028, 0.0), (math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)), 0.104,
         "elbow_flex", (-1.69, 1.69)),
    Link("wrist", "lower_arm", (-0.1349, 0.0052, 0.0), (math.sqrt(0.5), 0.0, 0.0, -math.sqrt(0.5)), 0.079,
         "wrist_flex", (-1.658063, 1.658063)),
    Link("gripper", "wrist", (0.0, -0.0611, 0.0181), (0.0172091, -0.0172091, 0.7068973, 0.7068973), 0.087,
         "wrist_roll", (-2.743847, 2.841206)),
    Link("jaw", "gripper", (0.0202, 0.0188, -0.0234), (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0), 0.012,
         "gripper", (-0.174533, 1.745329)),
)  # fmt: skip
SPANS = tuple(link.span for link in CHAIN[1:])
"""Range of each joint [rad], in the order of `JOINTS`."""

SITE_POSITION: Vector = (-0.0079, -0.0002181, -0.0981274)
SITE_QUATERNION: Quaternion = (math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0)
"""The tip of the fixed jaw (`gripperframe`) in the gripper: x is the direction of approach, z that of opening."""


@dataclass(frozen=True)
class Servo:
    """A position servo: torque = stiffness * (goal - angle) - damping * speed, with the goal smoothed.

    Args:
        stiffness: [N m/rad].
        damping: of servo and gears together [N m s/rad].
        friction: dry friction [N m].
        armature: inertia of the rotor behind its gears [kg m2].
        torque: largest torque [N m].
        lag_s: time constant of the goal's smoothing [s].
    """

    stiffness: float
    damping: float
    friction: float
    armature: float
    torque: float
    lag_s: float


SERVO = Servo(stiffness=32.0, damping=1.6, friction=0.03, armature=0.028, torque=3.35, lag_s=0.03)
"""An STS3215 as LeRobot sets it: about 0.1 s behind its goal, and hanging about 1 degree under the arm's weight."""
GRIPPER_SERVO = Servo(stiffness=10.0, damping=0.28, friction=0.02, armature=0.004, torque=0.7, lag_s=0.03)
"""The gripper's, whose torque LeRobot limits."""


@dataclass(frozen=True)
class Part:
    """One primitive of the drawing, given where it is when every joint is at zero.

    Args:
        body: the link that carries it.
        shape: "box" or "capsule".
        start: where it begins, in the world or (for gripper and jaw) in the body's own coordinates [m].
        end: where it ends, likewise.
        thickness: half widths across [m]: one for a capsule, two (sideways, other) for a box.
        finish: key of `FINISHES`.
        is_solid: whether it touches things.
    """

    body: str
    shape: str
    start: Vector
    end: Vector
    thickness: tuple[float, ...]
    finish: str = "print"
    is_solid: bool = True


FINISHES: dict[str, tuple[float, float, float]] = {
    "print": (0.93, 0.91, 0.86),
    "servo": (0.16, 0.17, 0.19),
    "jaw": (0.96, 0.60, 0.12),
    "lens": (0.05, 0.05, 0.06),
}
"""Printed parts, servos, jaws and the camera, as (red, green, blue) in [0, 1]."""

PARTS = (
    Part("base", "box", (-0.035, 0.0, 0.022), (0.072, 0.0, 0.022), (0.042, 0.022), is_solid=False),
    Part("base", "box", (0.010, 0.0, 0.050), (0.066, 0.0, 0.050), (0.028, 0.012), "servo", is_solid=False),
    Part("shoulder", "box", (0.044, 0.0, 0.088), (0.092, 0.0, 0.088), (0.024, 0.026), is_solid=False),
    Part("shoulder", "capsule", (0.0692, -0.034, 0.1166), (0.0692, 0.034, 0.1166), (0.019,), "servo", is_solid=False),
    Part("upper_arm", "box", (0.071, 0.0, 0.128), (0.094, 0.0, 0.216), (0.017, 0.015)),
    Part("upper_arm", "capsule", (0.0972, -0.030, 0.2292), (0.0972, 0.030, 0.2292), (0.018,), "servo"),
    Part("lower_arm", "box", (0.112, 0.0, 0.2292), (0.218, 0.0, 0.2340), (0.015, 0.014)),
    Part("wrist", "capsule", (0.2321, -0.026, 0.2344), (0.2321, 0.026, 0.2344), (0.017,), "servo"),
    Part("wrist", "box", (0.238, 0.0, 0.2344), (0.286, 0.0, 0.2344), (0.016, 0.016)),
    # From here on in the coordinates of the gripper: x towards the opening jaw, z back towards the wrist.
    Part("gripper", "box", (0.004, 0.0, 0.004), (0.004, 0.0, -0.030), (0.021, 0.024), "servo"),
    Part("gripper", "box", (-0.0145, 0.0, -0.030), (-0.0145, 0.0, -0.070), (0.013, 0.0065)),
    Part("gripper", "box", (-0.0119, 0.0, -0.066), (-0.0119, 0.0, -0.104), (0.009, 0.004), "jaw"),
    Part("gripper", "box", (0.004, -0.024, -0.010), (0.004, -0.058, -0.010), (0.008, 0.006), "servo", is_solid=False),
    Part("gripper", "capsule", (0.004, -0.060, -0.006), (0.004, -0.061, -0.012), (0.010,), "lens", is_solid=False),
)
"""The arm without its moving jaw."""

PARALLEL_AT = 0.18
"""Angle of the gripper at which its jaws are parallel, 28 mm apart [rad]."""
JAW_PARTS = (
    Part("jaw", "capsule", (0.0202, -0.013, -0.0234), (0.0202, 0.013, -0.0234), (0.011,), "print"),
    Part("jaw", "box", (0.0266, 0.0, -0.026), (0.0266, 0.0, -0.070), (0.013, 0.0065)),
    Part("jaw", "box", (0.0241, 0.0, -0.066), (0.0241, 0.0, -0.104), (0.009, 0.004), "jaw"),
)
"""The moving jaw, in the coordinates of the gripper, at `PARALLEL_AT`."""

WRIST_CAMERA_POSITION: Vector = (0.004, -0.062, -0.026)
WRIST_CAMERA_TARGET: Vector = (0.006, 0.004, -0.100)
"""The camera beside the gripper looks along the jaws at what they hold; in the gripper's coordinates [m]."""
WRIST_CAMERA_FOV = 68.0
"""Vertical field of view [degrees]."""
