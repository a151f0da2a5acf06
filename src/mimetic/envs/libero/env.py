"""A task of LIBERO as a `gymnasium.Env` that shows what LeRobot's dataset of it shows."""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.libero.config import ACTION_SIZE, CAMERAS, STATE_SIZE, LiberoConfig
from mimetic.envs.package import draw_off_screen, gymnasium_of, needing
from mimetic.errors import SimulationError

_RATE_HZ = 20
_SETTLING = 10
"""Ticks at the beginning of an episode in which things come to rest and nobody is asked; as many as in LeRobot."""
_STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
_LEAST_SINE = 1e-10


def make_env(config: LiberoConfig | None = None, suite: str = "", task_id: int | None = None) -> Any:
    """One task of a suite.

    Observations are `pixels` with a picture (H, W, 3) uint8 a camera, turned by half a turn as in datasets, and
    `agent_pos` (8,) float32: the hand's place, its turn, the fingers. Actions are (7,) in -1 to 1. The reward is the
    package's; an episode has succeeded, and ends, when the package's goal conditions are met.

    Args:
        config: settings; the defaults when absent.
        suite: name of the suite; the first of the settings when absent.
        task_id: number of the task in it; the first of the settings when absent.

    Raises:
        MissingExtra: hf-libero is not installed.
        SimulationError: LIBERO's scenes are not on this machine and cannot be fetched.
    """
    config = config or LiberoConfig()
    suite = suite or config.suites[0]
    number = (config.task_ids or [0])[0] if task_id is None else task_id
    with quiet(), needing("libero"):
        bench = _benchmark(suite)
        from libero.libero import get_libero_path
        from libero.libero.envs import OffScreenRenderEnv

        task = bench.get_task(number)
        states = np.asarray(bench.get_task_init_states(number)) if config.init_states else None
    file = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)

    def build() -> Any:
        return OffScreenRenderEnv(
            bddl_file_name=str(file),
            camera_heights=config.observation_height,
            camera_widths=config.observation_width,
            control_freq=_RATE_HZ,
            hard_reset=config.hard_reset,
        )

    try:
        with quiet():
            return room(build, config, states, task.language)
    except FileNotFoundError as error:
        raise SimulationError(
            f"LIBERO's scenes and objects are not on this machine ({error.filename or error} is missing)",
            "they come from the hub at the first use (`lerobot/libero-assets`): run it once with a network",
        ) from error


def task_names(suite: str) -> list[str]:
    """Names of a suite's tasks, by number.

    Raises:
        MissingExtra: hf-libero is not installed.
    """
    with quiet(), needing("libero"):
        bench = _benchmark(suite)
    return [str(bench.get_task(number).name) for number in range(bench.n_tasks)]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what LIBERO prints off stdout, and answer the question of its first import with its default folders."""
    ask = builtins.input
    builtins.input = lambda prompt="": "n"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        builtins.input = ask


def _benchmark(suite: str) -> Any:
    draw_off_screen()
    from libero.libero import benchmark

    return benchmark.get_benchmark_dict()[suite]()


def room(build: Callable[[], Any], config: LiberoConfig, states: NDArray[Any] | None, instruction: str) -> Any:
    """A `gymnasium.Env` around LIBERO's own kind of environment.

    Args:
        build: makes that one.
        config: cameras and kind of control.
        states: recorded states (N, D) that episodes begin in; None draws a beginning.
        instruction: the task in words.

    Raises:
        MissingExtra: gymnasium is not installed.
    """
    return _env_class()(build, config, states, instruction)


def axis_angle(quaternion: ArrayLike) -> NDArray[np.float32]:
    """A turn as its axis times its angle (3,) [rad].

    Computed in float32 from w = cos(angle / 2) without choosing the shorter way round, so that angles go up to two
    half turns: what LeRobot's `libero_processor` does, and so what policies were trained on.

    Args:
        quaternion: (x, y, z, w) of length 1.
    """
    x, y, z, w = np.asarray(quaternion, dtype=np.float32)
    cosine = np.clip(w, np.float32(-1), np.float32(1))
    sine = np.sqrt(np.float32(1) - cosine * cosine)
    if sine <= _LEAST_SINE:
        return np.zeros(3, dtype=np.float32)
    turned: NDArray[np.float32] = np.array([x, y, z], dtype=np.float32) * (2 * np.arccos(cosine) / sine)
    return turned.astype(np.float32)


@functools.cache
def _env_class() -> Any:
    gym = gymnasium_of("libero")

    class Room(gym.Env):  # type: ignore[misc,name-defined,unused-ignore]
        """See `make_env`."""

        metadata = {"render_modes": ["rgb_array"], "render_fps": _RATE_HZ}  # noqa: RUF012  gymnasium's own spelling
        render_mode = "rgb_array"

        def __init__(
            self, build: Callable[[], Any], config: LiberoConfig, states: NDArray[Any] | None, instruction: str
        ) -> None:
            self._inner, self._states = build(), states
            self._cameras = [camera for camera in CAMERAS if camera in config.cameras]
            self._is_relative = config.control_mode == "relative"
            self._with_state = config.obs_type != "pixels"
            self._last: Mapping[str, Any] = {}
            self.task_description = instruction
            shape = (config.observation_height, config.observation_width, 3)
            pictures = {camera: gym.spaces.Box(0, 255, shape, dtype=np.uint8) for camera in self._cameras}
            state = {"agent_pos": gym.spaces.Box(-np.inf, np.inf, (STATE_SIZE,), dtype=np.float32)}
            self.action_space = gym.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), dtype=np.float32)
            self.observation_space = gym.spaces.Dict(
                {"pixels": gym.spaces.Dict(pictures)} | (state if self._with_state else {})
            )

        def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            """Begin the episode of a seed, and let things come to rest."""
            super().reset(seed=seed)
            number = int(self.np_random.integers(2**31)) if seed is None else seed
            self._inner.seed(number)
            self._inner.reset()
            if self._states is not None:
                self._inner.set_init_state(self._states[number % len(self._states)])
            self._control(relative=True)  # standing still is a movement by nothing
            for _ in range(_SETTLING):
                self._last, *_ = self._inner.step(list(_STILL))
            self._control(relative=self._is_relative)
            return self._shown(), {"is_success": False}

        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            """Move, and say whether the task has succeeded."""
            self._last, reward, done, _ = self._inner.step(np.asarray(action))
            is_success = bool(self._inner.check_success())
            return self._shown(), float(reward), bool(done) or is_success, False, {"is_success": is_success}

        def render(self) -> Any:
            """The first camera's picture (H, W, 3) uint8."""
            return _turned(self._last[self._cameras[0]])

        def close(self) -> None:
            """Give back the renderer."""
            self._inner.close()

        def _control(self, *, relative: bool) -> None:
            for robot in self._inner.robots:
                robot.controller.use_delta = relative

        def _shown(self) -> dict[str, Any]:
            shown: dict[str, Any] = {"pixels": {camera: _turned(self._last[camera]) for camera in self._cameras}}
            if self._with_state:
                shown["agent_pos"] = np.concatenate(
                    [
                        np.asarray(self._last["robot0_eef_pos"], dtype=np.float32),
                        axis_angle(self._last["robot0_eef_quat"]),
                        np.asarray(self._last["robot0_gripper_qpos"], dtype=np.float32),
                    ]
                )
            return shown

    return Room


def _turned(picture: Any) -> NDArray[np.uint8]:
    """A picture turned by half a turn: the package's are upside down and mirrored against those of datasets."""
    return np.ascontiguousarray(picture[::-1, ::-1])
