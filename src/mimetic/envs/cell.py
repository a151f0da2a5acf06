"""The simulated cell: physics, cameras and the judgement of success, in the units of the real arm.

One `Cell` holds one compiled model and one state. `reset` and `step` are deterministic: the same seed and the same
actions give the same states to the last bit and, with the same renderer, the same pictures. `gym.make_env` puts the
usual face on it, `vector.CellGroup` runs several.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.arm import JOINTS
from mimetic.envs.config import CAMERAS, FPS, CellConfig
from mimetic.envs.engine import mujoco
from mimetic.envs.geometry import turn
from mimetic.envs.kinematics import PINCH_M, ArmKinematics
from mimetic.envs.layout import DISTRACTORS, Layout, sample_layout
from mimetic.envs.render.choose import RendererChoice, choose_renderer, make_renderer
from mimetic.envs.scene import DISTRACTOR_REST_M, FRONT_POSITION, SUBSTEPS, front_camera, scene_xml
from mimetic.envs.tasks import CUBE_M, HOLD_TICKS, TASKS, Scene
from mimetic.envs.units import Units
from mimetic.errors import ShapeError, SimulationError
from mimetic.names import ACTION, IMAGES_PREFIX, STATE

Array = NDArray[np.float64]
HOME = (0.0, -0.80, 0.52, 1.58, 0.04, 0.12)
"""Where the arm begins, before its variation: hand above the table, pointing down, nearly closed [rad]."""
_SETTLE_TICKS = 10
_PARKED_M = (0.95, 0.20)
"""Where distractors that are not wanted stand: behind the front camera."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that decides how a cell goes on; taking it and going back changes nothing.

    Args:
        layout: of the episode.
        physics: state of the physics engine, float64.
        tick: control ticks since the reset.
        held: for how many ticks in a row the task has been done.
        succeeded: whether it was done for long enough at any time.
    """

    layout: Layout
    physics: Array
    tick: int
    held: int
    succeeded: bool


class Cell:
    """One simulated SO-101 arm at its table.

    Args:
        config: task, split, renderer, sizes, units.
        choice: what draws, where that has been decided already; `config.renderer` is then not asked.

    Raises:
        ConfigError: a setting is outside its range, or the renderer does not work here.
        MissingExtra: MuJoCo is not installed.
    """

    def __init__(self, config: CellConfig, *, choice: RendererChoice | None = None) -> None:
        config.check()
        self.config = config
        self.task = TASKS[config.task]
        self.units = Units(config.units)
        self.choice = choice or choose_renderer(config.renderer)
        self._mujoco = mujoco()
        xml = scene_xml(self.task, width=config.width, height=config.height)
        self.model: Any = self._mujoco.MjModel.from_xml_string(xml)
        self.data: Any = self._mujoco.MjData(self.model)
        self.kinematics = ArmKinematics(self.model)
        self._renderer = make_renderer(self.choice, self.model, xml)
        self._joints = np.array([self.model.joint(name).qposadr[0] for name in JOINTS])
        self._things = [*self.task.cubes, *DISTRACTORS]
        self._free = {name: self.model.joint(name) for name in self._things}
        self._state_kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        self.tick = self.held = 0
        self.succeeded = False
        self.layout = self.reset(0)

    # Episodes

    def reset(self, seed: int) -> Layout:
        """Begin the episode of a seed, and return how it is laid out."""
        return self.reset_to(sample_layout(self.config, seed))

    def reset_to(self, layout: Layout) -> Layout:
        """Begin an episode with a layout of one's own; the arm has come to rest when this returns."""
        self._mujoco.mj_resetData(self.model, self.data)
        self._apply(layout)
        for name in self._things:
            place = layout.places.get(name)
            x, y = (place.x, place.y) if place else (_PARKED_M[0], _PARKED_M[1] * (1 if name == "brick" else -1))
            address = self._free[name].qposadr[0]
            self.data.qpos[address : address + 3] = x, y, DISTRACTOR_REST_M.get(name, CUBE_M / 2)
            self.data.qpos[address + 3 : address + 7] = turn(place.yaw if place else 0.0)
        angles = np.asarray(HOME) + layout.start
        self.data.qpos[self._joints] = angles
        self.data.ctrl[:] = angles
        self.data.act[:] = angles
        for _ in range(_SETTLE_TICKS):
            self._advance()
        self.data.time = 0.0
        self.tick = self.held = 0
        self.succeeded = False
        return layout

    def step(self, action: ArrayLike) -> None:
        """Send goals to the servos and let one control tick pass.

        Args:
            action: goals of the six joints in the units of the arm (6,); the arm clips them to its range.

        Raises:
            ShapeError: the action does not have six finite numbers.
            SimulationError: the physics has broken down.
        """
        goal = np.asarray(action, dtype=np.float64)
        if goal.shape != (6,) or not np.isfinite(goal).all():
            raise ShapeError(f"an action is six finite numbers ({', '.join(JOINTS)}); got {action!r}")
        self.data.ctrl[:] = self.units.to_radians(goal)
        self._advance()
        self.tick += 1
        self.held = self.held + 1 if self.task.is_done(self.scene()) else 0
        self.succeeded = self.succeeded or self.held >= HOLD_TICKS

    def snapshot(self) -> Snapshot:
        """The present state, to come back to."""
        physics = np.zeros(self._mujoco.mj_stateSize(self.model, self._state_kind))
        self._mujoco.mj_getState(self.model, self.data, physics, self._state_kind)
        return Snapshot(self.layout, physics, self.tick, self.held, self.succeeded)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a state that this cell, or one with the same task, was in."""
        self._apply(snapshot.layout)
        self._mujoco.mj_setState(self.model, self.data, snapshot.physics, self._state_kind)
        self._look()
        self.tick, self.held, self.succeeded = snapshot.tick, snapshot.held, snapshot.succeeded

    # What can be known

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, by success or by its limit."""
        return self.succeeded or self.tick >= self.episode_length

    @property
    def episode_length(self) -> int:
        """Ticks after which an episode is cut off."""
        return self.config.episode_length or self.task.episode_length

    @property
    def instruction(self) -> str:
        """What the arm is told to do in this episode."""
        return self.layout.instruction

    @property
    def angles(self) -> Array:
        """Joint angles (6,) [rad], exact."""
        result: Array = self.data.qpos[self._joints].copy()
        return result

    def state(self) -> NDArray[np.float32]:
        """Joint positions as the arm reports them (6,) float32."""
        return self.units.from_radians(self.angles)

    def picture(self, camera: str) -> NDArray[np.uint8]:
        """What a camera sees now (height, width, 3) uint8."""
        return self._renderer.picture(self.model, self.data, camera, self.config.width, self.config.height)

    def segmentation(self, camera: str) -> NDArray[np.int32]:
        """Number of the geom at each pixel (height, width); -1 where there is none."""
        return self._renderer.segmentation(self.model, self.data, camera, self.config.width, self.config.height)

    def observe(self) -> dict[str, NDArray[Any]]:
        """`observation.state` (6,) float32 and `observation.images.<camera>` (height, width, 3) uint8."""
        return {STATE: self.state()} | {IMAGES_PREFIX + camera: self.picture(camera) for camera in CAMERAS}

    def scene(self) -> Scene:
        """Where things are, for the judgement of success and for experts."""
        names = [name for name in self.layout.places if name not in DISTRACTORS]
        site = self.data.site("gripperframe")
        return Scene(
            positions={name: self.data.body(name).xpos.copy() for name in names},
            speeds={name: self._speed(name) for name in self.task.cubes},
            hand=site.xpos + PINCH_M * site.xmat.reshape(3, 3)[:, 2],
        )

    def yaw(self, thing: str) -> float:
        """Turn of a thing about the vertical [rad]."""
        matrix = self.data.body(thing).xmat.reshape(3, 3)
        return float(np.arctan2(matrix[1, 0], matrix[0, 0]))

    def features(self) -> dict[str, dict[str, Any]]:
        """Features of a dataset of this cell, as LeRobot derives them for an SO-101 follower with two cameras."""
        names = [f"{joint}.pos" for joint in JOINTS]
        joints = {"dtype": "float32", "names": names, "shape": (6,)}
        picture = {
            "dtype": "video",
            "shape": (self.config.height, self.config.width, 3),
            "names": ["height", "width", "channels"],
        }
        return {ACTION: dict(joints), STATE: dict(joints)} | {IMAGES_PREFIX + name: dict(picture) for name in CAMERAS}

    def description(self) -> dict[str, Any]:
        """What a recording should say about where it comes from, as plain values for JSON."""
        return {
            "type": "so101_cell",
            **asdict(self.config),
            "renderer": self.choice.name,
            "renderer_reason": self.choice.reason,
            "fps": FPS,
            "cameras": list(CAMERAS),
            "mujoco": self._mujoco.__version__,
        }

    def close(self) -> None:
        """Give back the renderer."""
        self._renderer.close()

    # The rest

    def _advance(self) -> None:
        self._mujoco.mj_step(self.model, self.data, SUBSTEPS)
        if not np.isfinite(self.data.qpos).all():
            raise SimulationError(
                f"the physics of task {self.config.task} broke down at tick {self.tick}",
                "this is a bug of the simulated cell; please report it with the seed and the actions",
            )
        self._look()

    def _look(self) -> None:
        """Bring places of bodies, sites, cameras and lights up to the joint angles, which a step leaves one behind."""
        self._mujoco.mj_kinematics(self.model, self.data)
        self._mujoco.mj_comPos(self.model, self.data)
        self._mujoco.mj_camlight(self.model, self.data)

    def _speed(self, name: str) -> float:
        address = self._free[name].dofadr[0]
        return float(np.linalg.norm(self.data.qvel[address : address + 3]))

    def _apply(self, layout: Layout) -> None:
        """Write what varies into the model."""
        model = self.model
        for name, place in layout.places.items():
            if name not in self._free:
                body = model.body(name).id
                model.body_pos[body] = place.x, place.y, place.z
                model.body_quat[body] = turn(place.yaw)
        for name, colour in layout.colours.items():
            for geom in self._geoms(name):
                model.geom_rgba[geom, :3] = colour
        lamp, light = model.light("lamp").id, layout.light
        flat = np.cos(light.elevation)
        model.light_dir[lamp] = -np.array(
            [flat * np.cos(light.azimuth), flat * np.sin(light.azimuth), np.sin(light.elevation)]
        )
        model.light_diffuse[lamp] = light.colour
        model.vis.headlight.ambient[:] = light.ambient
        front = model.camera("front").id
        model.cam_pos[front] = np.asarray(FRONT_POSITION) + layout.camera.move
        model.cam_quat[front] = front_camera(layout.camera.move, layout.camera.look)
        self.layout = layout

    def _geoms(self, name: str) -> list[int]:
        if name == "wall":
            return [self.model.geom(wall).id for wall in ("back", "left", "right", "near", "ceiling")]
        if name == "table":
            return [int(self.model.geom("table").id)]
        names = [self.model.body(number).name for number in range(self.model.nbody)]
        return [int(self.model.body(name).geomadr[0])] if name in names else []
