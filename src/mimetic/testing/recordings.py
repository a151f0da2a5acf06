"""Recordings of pick-and-place that look like a person's, for tests of the dataset check: smooth, noisy, never equal.

The arm goes home - object - target - home in minimum-jerk moves of varying duration; the state follows the action a
few frames later, with sensor noise and the steps of an encoder. Nothing in it is wrong; `mimetic.testing.faults` plants
what is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.testing.datasets import TinyDataset, build_dataset

Floats = npt.NDArray[np.float64]
Picture = npt.NDArray[np.uint8]

SO101 = ("shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "wrist_roll.pos", "gripper.pos")
ALOHA = tuple(
    f"{side}_{joint}"
    for side in ("left", "right")
    for joint in ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
)
PANDA = (*(f"joint_{number}" for number in range(1, 8)), "gripper")
_SCALE = {"degrees": 1.0, "radians": np.pi / 180, "normalised": 1 / 180}
_SPAN = 100.0
"""Way of a joint [degrees] that the moves use."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is recorded.

    Args:
        episodes: how many.
        fps: frame rate [Hz].
        names: joints; those called gripper open and close.
        unit: of the joints; grippers are 0 to 100, or 0 to 1.
        seconds: shortest and longest nominal duration of an episode [s].
        positions: places of the object, each shown equally often, one after the other.
        lag: frames by which the state follows.
        noise: of the sensors, as a share of the way.
        tasks: one string each; episodes take turns.
        cameras: (height, width) by name, at most 160 each.
        episodes_per_file: episodes in one data and one video file.
        seed: of everything random.
    """

    episodes: int = 20
    fps: int = 30
    names: Sequence[str] = SO101
    unit: str = "degrees"
    seconds: tuple[float, float] = (4.0, 5.0)
    positions: int = 4
    lag: int = 3
    noise: float = 0.0005
    tasks: Sequence[str] = ("Pick up the cube and place it in the box",)
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    episodes_per_file: int = 5
    seed: int = 0

    @property
    def grippers(self) -> npt.NDArray[np.bool_]:
        """Which joints are grippers, (D,)."""
        return np.asarray(["gripper" in name for name in self.names])

    @property
    def turn(self) -> float:
        """A full turn in the unit of the joints."""
        return 360.0 * _SCALE[self.unit]


@dataclass
class Demonstration:
    """One episode while it is being made; faults change it before it is written.

    Args:
        state: (T, D).
        action: (T, D).
        timestamp: (T,) [s].
        task: number of its task in `Recording.tasks`.
    """

    state: Floats
    action: Floats
    timestamp: Floats
    task: int

    @property
    def length(self) -> int:
        """Frames."""
        return len(self.state)


def demonstrations(spec: Recording) -> list[Demonstration]:
    """The episodes of a recording without faults."""
    generator = np.random.default_rng(spec.seed)
    width = len(spec.names)
    home = generator.uniform(-10, 10, width)
    reach, drop = generator.uniform(-0.7, 0.7, (2, width)) * _SPAN
    places = generator.uniform(-0.25, 0.25, (spec.positions, width)) * _SPAN
    pace = generator.uniform(*spec.seconds)
    made = []
    for episode in range(spec.episodes):
        place = places[episode * spec.positions // max(spec.episodes, 1)]
        made.append(_demonstrate(spec, episode, home, reach + place, drop, pace, generator))
    return made


def _demonstrate(
    spec: Recording,
    episode: int,
    home: Floats,
    grasp: Floats,
    drop: Floats,
    pace: float,
    generator: np.random.Generator,
) -> Demonstration:
    grippers = spec.grippers
    width = len(home)

    def near(pose: Floats) -> Floats:
        return pose + generator.normal(0, 0.012 * _SPAN, width)

    above = grasp * 0.7 + home * 0.3
    # (pose, gripper open, share of the time)
    stations = [
        (near(home), 1.0, 0.05),
        (near(above), 1.0, 0.20),
        (near(grasp), 1.0, 0.15),
        (grasp + generator.normal(0, 0.004 * _SPAN, width), 0.0, 0.08),
        (near(above), 0.0, 0.12),
        (near(drop), 0.0, 0.22),
        (near(drop), 1.0, 0.08),
        (near(home), 1.0, 0.15),
    ]
    path = [np.where(grippers, 90.0, stations[0][0])]
    for pose, is_open, share in stations:
        duration = pace * share * generator.uniform(0.8, 1.25)
        goal = np.where(grippers, 10.0 + 80.0 * is_open, pose)
        u = np.arange(1, max(2, round(duration * spec.fps)) + 1) / max(2, round(duration * spec.fps))
        profile = 10 * u**3 - 15 * u**4 + 6 * u**5
        path += list(path[-1] + (goal - path[-1]) * profile[:, None])
    action = np.stack(path)
    tremor = generator.normal(0, 0.002 * _SPAN, (len(action), width))
    kernel = np.hanning(max(5, spec.fps // 4))
    kernel /= kernel.sum()
    for joint in range(width):
        action[:, joint] += np.convolve(tremor[:, joint], kernel, mode="same")
    state = action[np.maximum(np.arange(len(action)) - spec.lag, 0)]
    state = state + generator.normal(0, spec.noise * _SPAN, state.shape)
    state = np.round(state / (360 / 4096)) * (360 / 4096)
    action = np.round(action / (360 / 4096)) * (360 / 4096)
    factor = np.where(grippers, 0.01 if spec.unit != "degrees" else 1.0, _SCALE[spec.unit])
    timestamp = np.arange(len(action)) / spec.fps
    return Demonstration(state * factor, action * factor, timestamp, episode % len(spec.tasks))


_NOISES, _LARGEST = 23, 160


class _Size(tuple[int, int]):
    """Height and width of a camera, and its name, which the writer of tiny datasets does not pass on."""

    camera: str = ""

    @classmethod
    def of(cls, camera: str, size: tuple[int, int]) -> _Size:
        named = cls(size)
        named.camera = camera
        return named


Draw = Callable[[int, int, str], Picture]
"""(episode, frame, camera) -> picture (H, W, 3)."""


class Scene:
    """What the cameras see: a textured table, and the arm as discs that go where the joints are.

    Args:
        spec: the recording.
        made: its episodes.
    """

    def __init__(self, spec: Recording, made: Sequence[Demonstration]) -> None:
        self.spec = spec
        self.made = made
        self._tables: dict[str, npt.NDArray[np.float32]] = {}
        self._noise = (
            np.random.default_rng(spec.seed).normal(0, 2.0, (_NOISES, _LARGEST, _LARGEST, 1)).astype(np.float32)
        )

    def table(self, camera: str) -> npt.NDArray[np.float32]:
        """The background of a camera, (H, W, 3) in 0..255."""
        if camera not in self._tables:
            height, width = self.spec.cameras[camera]
            generator = np.random.default_rng([self.spec.seed, sum(camera.encode())])
            texture = np.zeros((height, width, 3))
            for scale in (4, 8, 16):
                coarse = generator.uniform(-1, 1, (height // scale + 2, width // scale + 2, 3))
                texture += np.repeat(np.repeat(coarse, scale, axis=0), scale, axis=1)[:height, :width] * 22
            self._tables[camera] = (120 + texture).astype(np.float32)
        return self._tables[camera]

    def draw(self, episode: int, frame: int, camera: str) -> Picture:
        """A picture without faults, (H, W, 3) uint8."""
        table = self.table(camera).copy()
        height, width = table.shape[:2]
        demonstration = self.made[episode]
        pose = demonstration.state[min(frame, demonstration.length - 1)]
        unit = 1.0 / (_SPAN * _SCALE[self.spec.unit])
        y, x = np.mgrid[0:height, 0:width]
        place = list(self.spec.cameras).index(camera)
        for number, shade in ((0, 220.0), (1, 40.0)):
            joint = number + 2 * place  # each camera sees the arm from another side
            a, b = pose[joint % len(pose)] * unit, pose[(joint + 2) % len(pose)] * unit
            middle = 0.35 + 0.3 * (place % 2)
            at_x, at_y = width * (middle + 0.3 * np.tanh(a)), height * (0.5 + 0.3 * np.tanh(b))
            table[(x - at_x) ** 2 + (y - at_y) ** 2 < (0.09 * width) ** 2] = shade
        noise = self._noise[(31 * episode + 7 * frame + len(camera)) % _NOISES, :height, :width]
        return np.asarray(np.clip(table + noise, 0, 255), dtype=np.uint8)


def write_recording(root: Path, spec: Recording, made: Sequence[Demonstration], draw: Draw | None = None) -> Path:
    """Write episodes as a v3.0 dataset with exact statistics; its folder is returned.

    Args:
        root: folder to create.
        spec: the recording.
        made: its episodes.
        draw: pictures of its cameras; the scene without faults when absent.
    """
    columns: dict[str, npt.NDArray[Any]] = {
        "observation.state": np.concatenate([item.state for item in made]).astype(np.float32),
        "action": np.concatenate([item.action for item in made]).astype(np.float32),
    }
    scene = Scene(spec, made)
    draw = draw or scene.draw

    def picture(episode: int, frame: int, size: tuple[int, int]) -> Picture:
        assert isinstance(size, _Size)
        return draw(episode, frame, size.camera)

    build_dataset(
        root,
        TinyDataset(
            lengths=[item.length for item in made],
            fps=spec.fps,
            cameras={camera: _Size.of(camera, size) for camera, size in spec.cameras.items()},
            camera_stats=False,
            state_dim=0,
            tasks=spec.tasks,
            episodes_per_file=spec.episodes_per_file,
            columns=columns,
            picture=picture,
            gop=2,
        ),
    )
    _write_times(root, spec, made)
    info_path = root / "meta" / "info.json"
    info = json.loads(info_path.read_text(encoding="utf-8"))
    for key in columns:
        info["features"][key]["names"] = list(spec.names)
    info_path.write_text(json.dumps(info, indent=4, ensure_ascii=False), encoding="utf-8")
    return root


def _write_times(root: Path, spec: Recording, made: Sequence[Demonstration]) -> None:
    """Put timestamps into the rows where they are not frame / fps."""
    grid = [np.arange(item.length) / spec.fps for item in made]
    if all(np.array_equal(item.timestamp, times) for item, times in zip(made, grid, strict=True)):
        return
    stamps = np.concatenate([item.timestamp for item in made]).astype(np.float32)
    for path in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        column = pa.array(stamps[table["index"].to_numpy()])
        pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", column), path)


def build_recording(root: Path, spec: Recording | None = None) -> Path:
    """Write a recording without faults and return its folder."""
    spec = spec or Recording()
    return write_recording(root, spec, demonstrations(spec))
