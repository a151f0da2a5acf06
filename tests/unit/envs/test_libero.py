"""LIBERO's package, where it is installed, and its simulator, which has a scene that needs no download."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mimetic.envs.libero.config import SUITES, LiberoConfig
from mimetic.envs.libero.env import quiet, room
from mimetic.errors import SimulationError
from mimetic.evaluate.rollout.adapters import open_tasks
from mimetic.evaluate.rollout.gym_world import GymWorld

pytest.importorskip("libero", reason="needs the package hf-libero (mimetic[libero])")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory):
    """The package keeps its folders in a file of the user; tests have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIBERO_CONFIG_PATH", str(tmp_path_factory.mktemp("libero")))
        yield


def test_suites_are_the_packages(capfd):
    for suite, (count, _) in SUITES.items():
        tasks = open_tasks(LiberoConfig(task=suite))
        assert len(tasks) == count
        assert len({task.task for task in tasks}) == count
        assert {task.episode_length for task in tasks} == {SUITES[suite][1]}
    assert capfd.readouterr().out == ""


def test_a_task_opens_or_says_that_its_scenes_are_missing():
    [task] = open_tasks(LiberoConfig(task_ids=[0], observation_height=64, observation_width=64))
    try:
        places = task.open(1, 0)
    except SimulationError as error:
        assert "not on this machine" in error.message
        pytest.skip("needs LIBERO's scenes (lerobot/libero-assets), which are fetched from the hub")
    shown = places.begin(0, 0)
    assert shown.instructions[0].startswith("put both the alphabet soup")
    assert shown.observation["observation.state"].shape == (1, 8)
    places.step(np.zeros((1, 7)))
    places.close()


class Lift:
    """robosuite's scene `Lift` with the methods of LIBERO's environments: the same arm, cameras and control."""

    def __init__(self) -> None:
        import robosuite
        from robosuite import load_controller_config

        self._env = robosuite.make(
            "Lift",
            robots="Panda",
            controller_configs=load_controller_config(default_controller="OSC_POSE"),
            has_renderer=False,
            has_offscreen_renderer=True,
            use_camera_obs=True,
            camera_names=["agentview", "robot0_eye_in_hand"],
            camera_heights=64,
            camera_widths=64,
            control_freq=20,
        )

    def seed(self, number):
        np.random.seed(number)

    @property
    def robots(self):
        return self._env.robots

    def __getattr__(self, name):
        return getattr(self._env, name)

    def check_success(self):
        return bool(self._env._check_success())


def test_the_simulator_plays_behind_the_interface():
    """Names of observations, the state, determinism by seed, and relative against absolute control."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    config = LiberoConfig(observation_height=64, observation_width=64, init_states=False)
    names = {f"pixels/{camera}": name for camera, name in config.cameras.items()} | {"agent_pos": "observation.state"}
    with quiet():
        lift = Lift()
        world = GymWorld(room(lambda: lift, config, None, "lift it"), names, "lift it")
        first, other, again = (world.begin(seed) for seed in (3, 4, 3))
    for name, value in first.observation.items():
        assert np.array_equal(value, again.observation[name]), name
    image = first.observation["observation.images.image"]
    assert image.shape == (64, 64, 3)
    assert image.std() > 5
    assert not np.array_equal(image, other.observation["observation.images.image"])
    state = first.observation["observation.state"]
    assert (state.shape, state.dtype) == ((8,), np.float32)
    assert abs(np.linalg.norm(state[3:6]) - np.pi) < 0.2  # the hand points down
    up = np.array([0, 0, 1.0, 0, 0, 0, -1])
    for _ in range(5):
        sight = world.step(up)
    assert sight.observation["observation.state"][2] > state[2] + 0.01
    assert (sight.is_success, sight.has_ended) == (False, False)
    world.close()
