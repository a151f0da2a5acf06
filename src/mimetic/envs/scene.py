"""The cell as MJCF text: arm, table, walls, lamp, two cameras, and the things of one task.

The text depends on the task and the picture size only. What varies from episode to episode (`layout.Layout`) is written
into the compiled model afterwards, so a model is compiled once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.arm import (
    CHAIN,
    FINISHES,
    GRIPPER_SERVO,
    JAW_PARTS,
    PARALLEL_AT,
    PARTS,
    SERVO,
    SITE_POSITION,
    SITE_QUATERNION,
    WRIST_CAMERA_FOV,
    WRIST_CAMERA_POSITION,
    WRIST_CAMERA_TARGET,
    Link,
    Part,
)
from mimetic.envs.config import FPS
from mimetic.envs.geometry import look_at, quaternion, rotation
from mimetic.envs.layout import DISTRACTORS
from mimetic.envs.tasks import BALL_RADIUS_M, BIN_HALF_M, BIN_HEIGHT_M, BIN_WALL_M, CUBE_M, MAT_HALF_M, Task

Array = NDArray[np.float64]
SUBSTEPS = 10
"""Physics steps a control tick: 300 a second."""
TILE_M = 0.05
"""Edge of a square of the table's pattern [m]."""
_TABLE_M = 1.5
"""Half the width of the table, which goes on behind the walls [m]."""
TILE_CONTRAST = 0.93
"""Brightness of every second square, beside 1."""
FRONT_POSITION = (0.60, -0.14, 0.40)
FRONT_TARGET = (0.155, 0.0, 0.085)
FRONT_FOV = 44.0

_ARM = 'contype="1" conaffinity="0"'
_FIXED = 'contype="2" conaffinity="1"'
_LOOSE = 'contype="2" conaffinity="3"'
_GHOST = 'contype="0" conaffinity="0"'


def scene_xml(task: Task, *, width: int, height: int) -> str:
    """MJCF of the cell for one task.

    Args:
        task: decides which things are there.
        width: largest width of a picture [px].
        height: largest height of a picture [px].
    """
    servos = [SERVO] * 5 + [GRIPPER_SERVO]
    actuators = "\n".join(
        f'<position name="{link.joint}" joint="{link.joint}" kp="{servo.stiffness}" timeconst="{servo.lag_s}" '
        f'ctrlrange="{link.span[0]} {link.span[1]}" forcerange="-{servo.torque} {servo.torque}"/>'
        for link, servo in zip(CHAIN[1:], servos, strict=True)
    )
    return f"""<mujoco model="so101_cell">
<compiler angle="radian" autolimits="true"/>
<option timestep="{1 / FPS / SUBSTEPS!r}" integrator="implicitfast" cone="elliptic" impratio="10" iterations="30">
<flag autoreset="disable"/></option>
<statistic extent="1" center="0.2 0 0.1"/>
<visual>
<global offwidth="{width}" offheight="{height}"/>
<quality shadowsize="0" offsamples="0"/>
<map znear="0.005" zfar="20"/>
<headlight ambient="0.4 0.4 0.4" diffuse="0.12 0.12 0.12" specular="0 0 0"/>
</visual>
<asset>
<texture name="tiles" type="2d" builtin="checker" rgb1="1 1 1" rgb2="{_three(TILE_CONTRAST)}" width="64" height="64"/>
<material name="table" texture="tiles" texrepeat="{_TABLE_M / TILE_M:g} {_TABLE_M / TILE_M:g}" specular="0"/>
<material name="matt" specular="0" shininess="0"/>
</asset>
<default><geom material="matt" friction="0.9 0.01 0.001" solref="0.008 1" solimp="0.95 0.99 0.001"/></default>
<worldbody>
<light name="lamp" pos="0 0 2" dir="0 0 -1" directional="true" castshadow="false" diffuse="0.5 0.5 0.5"
 ambient="0 0 0" specular="0 0 0"/>
{_room()}
<camera name="front" pos="{_text(FRONT_POSITION)}" quat="{_text(front_camera())}" fovy="{FRONT_FOV}"/>
{_arm(0)}
{_things(task)}
</worldbody>
<actuator>
{actuators}
</actuator>
</mujoco>"""


def front_camera(move: ArrayLike = (0, 0, 0), look: ArrayLike = (0, 0, 0)) -> Array:
    """Orientation (w, x, y, z) of the front camera when it is moved and looks beside its usual target [m]."""
    position, target = np.asarray(FRONT_POSITION) + move, np.asarray(FRONT_TARGET) + look
    return quaternion(look_at(position, target, (0, 0, 1)))


def zero_pose(body: str) -> tuple[Array, Array]:
    """Origin (3,) [m] and orientation (3, 3) of a link in the world when every joint is at zero."""
    position, orientation = np.zeros(3), np.eye(3)
    for link in CHAIN[: [link.body for link in CHAIN].index(body) + 1]:
        position = position + orientation @ np.asarray(link.position)
        orientation = orientation @ rotation(link.quaternion)
    return position, orientation


def _room() -> str:
    """Table and walls: whatever a camera sees, a ray from it ends somewhere."""
    return f"""<geom name="table" type="plane" size="{_TABLE_M} {_TABLE_M} 0.1" material="table" {_FIXED}/>
<geom name="back" type="plane" pos="-0.45 0 0" quat="{_text(quaternion(_facing((1, 0, 0))))}" size="4 4 0.1" {_GHOST}/>
<geom name="left" type="plane" pos="0 0.75 0" quat="{_text(quaternion(_facing((0, -1, 0))))}" size="4 4 0.1" {_GHOST}/>
<geom name="right" type="plane" pos="0 -0.75 0" quat="{_text(quaternion(_facing((0, 1, 0))))}" size="4 4 0.1" {_GHOST}/>
<geom name="near" type="plane" pos="1.2 0 0" quat="{_text(quaternion(_facing((-1, 0, 0))))}" size="4 4 0.1" {_GHOST}/>
<geom name="ceiling" type="plane" pos="0 0 1.6" quat="0 1 0 0" size="4 4 0.1" {_GHOST}/>"""


def _facing(normal: ArrayLike) -> Array:
    z = np.asarray(normal, dtype=np.float64)
    x = np.cross([0, 0, 1], z)
    return np.stack([x, np.cross(z, x), z], axis=1)


def _arm(number: int) -> str:
    """The link of that number with everything that it carries."""
    link = CHAIN[number]
    servo = GRIPPER_SERVO if link.joint == "gripper" else SERVO
    parts = [part for part in (*PARTS, *JAW_PARTS) if part.body == link.body]
    lines = [f'<body name="{link.body}" pos="{_text(link.position)}" quat="{_text(link.quaternion)}">']
    if link.joint:
        lines.append(
            f'<joint name="{link.joint}" axis="0 0 1" range="{link.span[0]} {link.span[1]}" damping="{servo.damping}" '
            f'frictionloss="{servo.friction}" armature="{servo.armature}"/>'
        )
    drawn = [_part(part) for part in parts]
    centre = np.mean([middle for middle, _ in drawn], axis=0)
    lines.append(f'<inertial pos="{_text(centre)}" mass="{link.mass}" diaginertia="{_three(link.mass * 6e-4)}"/>')
    lines += [text for _, text in drawn]
    if link.body == "gripper":
        lines.append(f'<site name="gripperframe" pos="{_text(SITE_POSITION)}" quat="{_text(SITE_QUATERNION)}"/>')
        view = quaternion(look_at(WRIST_CAMERA_POSITION, WRIST_CAMERA_TARGET, (0, 0, -1)))
        place = _text(WRIST_CAMERA_POSITION)
        lines.append(f'<camera name="wrist" pos="{place}" quat="{_text(view)}" fovy="{WRIST_CAMERA_FOV}"/>')
    lines += [_arm(child) for child, other in enumerate(CHAIN) if other.parent == link.body]
    return "\n".join([*lines, "</body>"])


def _part(part: Part) -> tuple[Array, str]:
    """Centre in its body's coordinates, and the MJCF of one primitive."""
    start, end = np.asarray(part.start), np.asarray(part.end)
    length = float(np.linalg.norm(end - start))
    along = (end - start) / length
    sideways = np.array([0.0, 1.0, 0.0]) if abs(along[1]) < 0.9 else np.array([1.0, 0.0, 0.0])
    sideways = sideways - along * (sideways @ along)
    sideways /= np.linalg.norm(sideways)
    orientation = np.stack([sideways, np.cross(along, sideways), along], axis=1)
    centre = (start + end) / 2
    if part.body == "jaw":
        centre, orientation = _into_jaw(centre, orientation)
    elif part.body != "gripper":
        origin, frame = zero_pose(part.body)
        centre, orientation = frame.T @ (centre - origin), frame.T @ orientation
    size = (*part.thickness, length / 2)
    finish = FINISHES[part.finish]
    contact = _ARM if part.is_solid else _GHOST
    grip = ' friction="1.6 0.02 0.001" condim="4"' if part.finish == "jaw" else ""
    return centre, (
        f'<geom type="{part.shape}" pos="{_text(centre)}" quat="{_text(quaternion(orientation))}" size="{_text(size)}" '
        f'rgba="{_text(finish)} 1" {contact}{grip}/>'
    )


def _into_jaw(centre: Array, orientation: Array) -> tuple[Array, Array]:
    """From the gripper's coordinates, with the gripper's joint at `PARALLEL_AT`, to the jaw's."""
    link: Link = CHAIN[-1]
    cosine, sine = np.cos(PARALLEL_AT), np.sin(PARALLEL_AT)
    frame = rotation(link.quaternion) @ np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])
    return frame.T @ (centre - np.asarray(link.position)), frame.T @ orientation


def _things(task: Task) -> str:
    half = CUBE_M / 2
    lines = [_loose(cube, f'type="box" size="{_three(half)}"', 0.03) for cube in task.cubes]
    lines += [_loose(name, _DISTRACTOR_SHAPES[name], 0.04) for name in DISTRACTORS]
    if task.has_bin:
        lines.append(_bin())
    if "mat" in task.fixtures:
        lines.append(f'<body name="mat"><geom type="box" size="{MAT_HALF_M} {MAT_HALF_M} 0.0006" {_GHOST}/></body>')
    if "ball" in task.fixtures:
        # A long stick below the ball: whatever the ball's height, its foot ends inside the table.
        lines.append(
            f'<body name="ball"><geom type="sphere" size="{BALL_RADIUS_M}" {_GHOST}/>'
            f'<geom name="stick" type="capsule" fromto="0 0 -0.2 0 0 0" size="0.003" rgba="0.35 0.35 0.37 1" {_GHOST}/>'
            "</body>"
        )
    return "\n".join(lines)


_DISTRACTOR_SHAPES = {"cylinder": 'type="cylinder" size="0.013 0.019"', "brick": 'type="box" size="0.020 0.011 0.009"'}
DISTRACTOR_REST_M = {"cylinder": 0.019, "brick": 0.009}
"""Height of a distractor's centre when it stands on the table [m]."""


def _loose(name: str, shape: str, mass: float) -> str:
    return (
        f'<body name="{name}"><freejoint name="{name}"/>'
        f'<geom name="{name}" {shape} mass="{mass}" condim="4" friction="0.9 0.01 0.001" {_LOOSE}/></body>'
    )


def _bin() -> str:
    """Floor and four walls, each a little apart in brightness so that the inside reads as an inside."""
    wall, half, height = BIN_WALL_M / 2, BIN_HALF_M, BIN_HEIGHT_M / 2
    inside = half - wall
    boxes: Iterable[tuple[str, str, str]] = (
        ("bin_floor", f"0 0 {wall}", f"{half} {half} {wall}"),
        ("bin_far", f"{inside} 0 {height}", f"{wall} {half} {height}"),
        ("bin_near", f"{-inside} 0 {height}", f"{wall} {half} {height}"),
        ("bin_left", f"0 {inside} {height}", f"{half} {wall} {height}"),
        ("bin_right", f"0 {-inside} {height}", f"{half} {wall} {height}"),
    )
    shades = {"bin_floor": 0.30, "bin_far": 0.42, "bin_near": 0.42, "bin_left": 0.42, "bin_right": 0.42}
    geoms = "".join(
        f'<geom name="{name}" type="box" pos="{position}" size="{size}" '
        f'rgba="{shades[name] * 0.95:.3f} {shades[name]:.3f} {shades[name] * 1.12:.3f} 1" {_FIXED}/>'
        for name, position, size in boxes
    )
    return f'<body name="bin">{geoms}</body>'


def _text(values: ArrayLike) -> str:
    return " ".join(f"{value:.10g}" for value in np.asarray(values, dtype=np.float64))


def _three(value: float) -> str:
    return f"{value:.10g} {value:.10g} {value:.10g}"
