"""Environments of other packages without those packages: settings, missing extras, and the code around stand-ins."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from mimetic.config.codec import encode
from mimetic.data.features import policy_features
from mimetic.envs.aloha.config import JOINTS, AlohaConfig
from mimetic.envs.catalog import ENVS
from mimetic.envs.libero.config import LiberoConfig
from mimetic.envs.libero.env import axis_angle, quiet, room
from mimetic.envs.metaworld.config import MetaWorldConfig, task_name
from mimetic.envs.metaworld.tasks import DIFFICULTIES, INSTRUCTIONS
from mimetic.envs.pusht.config import PushTConfig
from mimetic.errors import ConfigError, MissingExtra, SimulationError
from mimetic.evaluate.rollout.adapters import ADAPTERS, open_tasks
from mimetic.evaluate.rollout.fit import Training, require_fit
from mimetic.evaluate.rollout.gym_world import GymWorld
from mimetic.features import FeatureType
from mimetic.policies.act.config import ACTConfig
from mimetic.processing.standard import standard_pipelines

MODULES = {"pusht": "gym_pusht", "aloha": "gym_aloha", "metaworld": "metaworld", "libero": "libero"}
GOLDEN = Path(__file__).parents[2] / "fixtures/envs/libero_processor.json"


# Settings.


@pytest.mark.parametrize("name", MODULES)
def test_every_environment_has_settings_an_extra_and_an_adapter(name):
    assert ENVS[name].extra == name
    assert ADAPTERS[name].extra == name
    config = ENVS.load_config(name)()
    assert config.check() == []
    assert json.loads(json.dumps(encode(config)))["fps"] == config.fps


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_package_is_named_with_the_extra(monkeypatch, name):
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")
    for loaded in [key for key in sys.modules if key.split(".")[0] == MODULES[name]]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    _forget_classes()
    with pytest.raises(MissingExtra) as caught:
        ENVS.load(name)()
    assert caught.value.message.startswith(f"`{MODULES[name]}")
    assert caught.value.hint == f"`pip install 'mimetic[{name}]'`"


@pytest.mark.parametrize("name", MODULES)
def test_without_gymnasium_the_extra_is_named_too(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, MODULES[name], types.ModuleType(MODULES[name]))
    _forget_classes()
    with pytest.raises(MissingExtra) as caught:
        ENVS.load(name)()
    assert caught.value.hint == f"`pip install 'mimetic[{name}]'`"


def _forget_classes():
    from mimetic.envs.libero import env as libero
    from mimetic.envs.metaworld import env as metaworld

    libero._env_class.cache_clear()
    metaworld._env_class.cache_clear()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PushTConfig(task="PushT-v1"), "`--env.task=PushT-v1`: there are PushT-v0"),
        (PushTConfig(obs_type="state"), "there are pixels_agent_pos, environment_state_agent_pos"),
        (PushTConfig(render_mode="human"), "`--env.render_mode=human`: there are rgb_array"),
        (PushTConfig(episode_length=0), "`--env.episode_length=0` must be at least 1"),
        (PushTConfig(observation_width=8), "`--env.observation_width=8` must be at least 16"),
        (PushTConfig(fps=0), "`--env.fps=0` must be at least 1"),
        (PushTConfig(features_map={"pixels": "observation.image"}), "has no name for `agent_pos`"),
        (PushTConfig(features_map={"pixels": "a", "agent_pos": "a"}), "two observations the same name"),
        (AlohaConfig(features=MetaWorldConfig().features), "the action has shape (4,), and the environment takes 14"),
        (AlohaConfig(task="AlohaInsertion"), "there are AlohaInsertion-v0, AlohaTransferCube-v0"),
        (
            MetaWorldConfig(task="puhs-v3"),
            "`puhs-v3` is neither a task nor one of easy, medium, hard, very_hard; did you",
        ),
        (MetaWorldConfig(task=""), "is neither a task nor one of"),
        (MetaWorldConfig(episode_length=501), "Meta-World ends an episode after 500"),
        (LiberoConfig(task="libero_11"), "`--env.task=libero_11`: there are libero_spatial, libero_object"),
        (LiberoConfig(task_ids=[3, 10]), "libero_10 has the tasks 0 to 9, and no 10"),
        (LiberoConfig(camera_name="frontview_image"), "there are agentview_image, robot0_eye_in_hand_image"),
        (LiberoConfig(hard_reset=False, init_states=False), "needs `--env.init_states=true`"),
        (LiberoConfig(control_mode="both"), "there are relative, absolute"),
        (
            LiberoConfig(camera_name_mapping={"agentview_image": "a", "robot0_eye_in_hand_image": "a"}),
            "gives two cameras the same name",
        ),
    ],
)
def test_what_cannot_be_played_is_said(config, words):
    assert len(config.check()) == 1
    assert words in config.check()[0]


def test_meta_worlds_50_tasks_have_words_and_a_difficulty():
    names = [name for names in DIFFICULTIES.values() for name in names]
    assert len(names) == len(set(names)) == len(INSTRUCTIONS) == 50
    assert [len(names) for names in DIFFICULTIES.values()] == [28, 11, 6, 5]


def test_suites_of_meta_world_are_reported_as_lerobot_does():
    chosen = MetaWorldConfig(task="hard, reach-v3,push-v3").chosen()
    assert chosen[:2] == [("hard", 0, "assembly-v3"), ("hard", 1, "hand-insert-v3")]
    assert chosen[6:] == [("reach-v3", 0, "reach-v3"), ("push-v3", 0, "push-v3")]
    assert MetaWorldConfig().chosen() == [("push-v3", 0, "push-v3")]
    assert {task_name(word) for word in ("push", "push-v2", "push-v3", "metaworld-push-v2")} == {"push-v3"}


def test_settings_that_never_reach_a_package_in_lerobot_mean_the_same_here():
    """LeRobot shows 96x96 and plays 500 ticks, whatever its flags say; other values than its defaults are obeyed."""
    assert PushTConfig().picture_px == (96, 96)
    assert PushTConfig(observation_height=64, observation_width=128).picture_px == (64, 128)
    assert MetaWorldConfig().ticks == 500
    assert MetaWorldConfig(episode_length=200).ticks == 200


def test_names_and_sizes_are_those_of_lerobots_datasets():
    [task] = open_tasks(PushTConfig())
    assert {key: (one.dtype, one.shape) for key, one in task.features.items()} == {
        "action": ("float32", (2,)),
        "observation.image": ("video", (96, 96, 3)),
        "observation.state": ("float32", (2,)),
    }
    assert (task.folder, task.fps, task.episode_length) == ("pusht_0", 10, 300)
    [task] = open_tasks(PushTConfig(obs_type="environment_state_agent_pos"))
    assert task.features["observation.environment_state"].shape == (16,)
    [task] = open_tasks(AlohaConfig())
    assert task.features["observation.images.top"].shape == (480, 640, 3)
    assert task.features["action"].names == task.features["observation.state"].names == list(JOINTS)
    assert (len(JOINTS), JOINTS[0], JOINTS[13]) == (14, "left_waist", "right_gripper")
    assert (task.folder, task.fps, task.episode_length) == ("aloha_0", 50, 400)
    [task] = open_tasks(AlohaConfig(obs_type="pixels"))
    assert set(task.features) == {"action", "observation.image.top"}
    [task] = open_tasks(MetaWorldConfig())
    assert {key: one.shape for key, one in task.features.items()} == {
        "action": (4,),
        "observation.image": (480, 480, 3),
        "observation.state": (4,),
    }
    assert (task.folder, task.fps, task.episode_length) == ("push-v3_0", 80, 500)


def test_a_map_of_names_is_obeyed():
    mapped = PushTConfig(features_map={"pixels": "observation.images.up", "agent_pos": "observation.state"})
    assert set(open_tasks(mapped)[0].features) == {"action", "observation.images.up", "observation.state"}
    assert LiberoConfig().cameras == {
        "agentview_image": "observation.images.image",
        "robot0_eye_in_hand_image": "observation.images.image2",
    }
    one = LiberoConfig(camera_name="agentview_image", camera_name_mapping={"agentview_image": "front"})
    assert one.cameras == {"agentview_image": "observation.images.front"}


# LIBERO around a stand-in of its own kind of environment.


class Controller:
    use_delta = True


class Robosuite:
    """Notes what it is told."""

    def __init__(self):
        self.told, self.wins_at = [], 3
        self.robots = [types.SimpleNamespace(controller=Controller())]
        self.ticks = 0

    def seed(self, number):
        self.told.append(("seed", number))

    def reset(self):
        self.ticks = 0
        self.told.append(("reset",))
        self.robots = [types.SimpleNamespace(controller=Controller())]  # as a hard reset does

    def set_init_state(self, state):
        self.told.append(("state", state.tolist()))

    def step(self, action):
        self.ticks += 1
        self.told.append(("step", [float(value) for value in action], self.robots[0].controller.use_delta))
        picture = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
        shown = {
            "agentview_image": picture,
            "robot0_eye_in_hand_image": picture + 1,
            "robot0_eef_pos": np.array([0.1, 0.2, 0.3]),
            "robot0_eef_quat": np.array([0.1, 0.2, 0.3, 0.9]) / np.sqrt(0.95),
            "robot0_gripper_qpos": np.array([0.01, -0.02]),
        }
        return shown, 0.5, False, {}

    def check_success(self):
        return self.ticks >= 10 + self.wins_at

    def close(self):
        self.told.append(("close",))


@pytest.fixture
def libero():
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")
    _forget_classes()
    inner = Robosuite()

    def made(**settings):
        config = LiberoConfig(observation_height=16, observation_width=16, **settings)
        states = np.arange(150.0).reshape(50, 3) if config.init_states else None
        names = {f"pixels/{camera}": name for camera, name in config.cameras.items()}
        names |= {"agent_pos": "observation.state"} if config.obs_type != "pixels" else {}
        return GymWorld(room(lambda: inner, config, states, "do it"), names, "do it"), inner

    return made


def test_an_episode_of_libero_begins_as_lerobots(libero):
    """Seed, reset, recorded state, ten ticks of standing still with an open hand: what LeRobot 0.6.1 was seen to do."""
    world, inner = libero()
    world.begin(1003)
    still = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    assert inner.told == [("seed", 1003), ("reset",), ("state", [9, 10, 11])] + [("step", still, True)] * 10


def test_libero_shows_what_its_datasets_show(libero):
    """The state is what LeRobot 0.6.1 was seen to make of these numbers; pictures are turned by half a turn."""
    world, _ = libero()
    sight = world.begin(0)
    state = sight.observation["observation.state"]
    assert state.dtype == np.float32
    assert np.allclose(state, [0.1, 0.2, 0.3, 0.2106, 0.4212, 0.6318, 0.01, -0.02], atol=1e-4)
    picture = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    assert np.array_equal(sight.observation["observation.images.image"], picture[::-1, ::-1])
    assert np.array_equal(sight.observation["observation.images.image2"], (picture + 1)[::-1, ::-1])


def test_success_in_libero_ends_the_episode(libero):
    world, _ = libero()
    world.begin(0)
    found = [world.step(np.full(7, 0.25)) for _ in range(3)]
    assert [one.is_success for one in found] == [False, False, True]
    assert [one.has_ended for one in found] == [False, False, True]
    assert [one.reward for one in found] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("mode", ["relative", "absolute"])
def test_places_are_sent_only_after_standing_still(libero, mode):
    """Standing still is a movement by nothing, and a place that is all zeros is far away."""
    world, inner = libero(control_mode=mode)
    for _ in range(2):
        inner.told.clear()
        world.begin(0)
        world.step(np.zeros(7))
        steps = [one[2] for one in inner.told if one[0] == "step"]
        assert steps == [True] * 10 + [mode == "relative"]


def test_libero_without_state_and_with_one_camera(libero):
    world, inner = libero(obs_type="pixels", camera_name="robot0_eye_in_hand_image", init_states=False)
    assert set(world.begin(0).observation) == {"observation.images.image2"}
    assert not [one for one in inner.told if one[0] == "state"]
    world.close()
    assert inner.told[-1] == ("close",)


def test_turns_are_lerobots():
    rows = json.loads(GOLDEN.read_text())["quaternion_xyzw_to_axis_angle"]
    assert len(rows) == 16
    for quaternion, expected in rows:
        assert np.allclose(axis_angle(quaternion), expected, atol=2e-6), quaternion


def test_what_libero_prints_and_asks_stays_away_from_stdout(capsys):
    with quiet():
        print("using task orders")
        assert input("Do you want to specify a custom path? ") == "n"
    said = capsys.readouterr()
    assert said.out == ""
    assert "using task orders" in said.err
    assert input.__module__ != __name__


def fake_libero(monkeypatch, open_env):
    """Modules that stand in for the package."""
    task = types.SimpleNamespace(
        name="KITCHEN_do_it", language="do it", problem_folder="libero_goal", bddl_file="x.bddl", init_states_file="x"
    )
    suite = types.SimpleNamespace(
        n_tasks=10, get_task=lambda number: task, get_task_init_states=lambda number: np.zeros((50, 3))
    )
    inner = types.ModuleType("libero.libero")
    inner.benchmark = types.SimpleNamespace(get_benchmark_dict=lambda: {"libero_goal": lambda: suite})
    inner.get_libero_path = lambda kind: f"/there/{kind}"
    envs = types.ModuleType("libero.libero.envs")
    envs.OffScreenRenderEnv = open_env
    outer = types.ModuleType("libero")
    outer.libero, inner.envs = inner, envs
    for name, module in (("libero", outer), ("libero.libero", inner), ("libero.libero.envs", envs)):
        monkeypatch.setitem(sys.modules, name, module)
    _forget_classes()


def test_libero_is_opened_with_the_settings(monkeypatch):
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")
    told = {}

    def open_env(**settings):
        told.update(settings)
        return Robosuite()

    fake_libero(monkeypatch, open_env)
    config = LiberoConfig(
        task="libero_goal", task_ids=[4], observation_height=16, observation_width=16, hard_reset=False
    )
    [task] = open_tasks(config)
    assert (task.folder, task.task, task.episode_length) == ("libero_goal_4", "KITCHEN_do_it", 300)
    assert {key: one.shape for key, one in task.features.items()} == {
        "action": (7,),
        "observation.state": (8,),
        "observation.images.image": (16, 16, 3),
        "observation.images.image2": (16, 16, 3),
    }
    places = task.open(1, 0)
    shown = places.begin(0, 0)
    assert shown.instructions == ("do it",)
    assert {key: value.shape[1:] for key, value in shown.observation.items()} == {
        key: one.shape for key, one in task.features.items() if key != "action"
    }
    places.close()
    assert told == {
        "bddl_file_name": "/there/bddl_files/libero_goal/x.bddl",
        "camera_heights": 16,
        "camera_widths": 16,
        "control_freq": 20,
        "hard_reset": False,
    }
    assert len(open_tasks(LiberoConfig(task="libero_goal"))) == 10


def test_scenes_of_libero_that_are_not_there_are_one_clear_error(monkeypatch):
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")

    def open_env(**settings):
        raise FileNotFoundError(2, "No such file or directory", "/there/assets/scene.xml")

    fake_libero(monkeypatch, open_env)
    [task] = open_tasks(LiberoConfig(task="libero_goal", task_ids=[0]))
    with pytest.raises(SimulationError, match=r"not on this machine \(/there/assets/scene.xml is missing\)") as caught:
        task.open(1, 0)
    assert "run it once with a network" in caught.value.hint


# Meta-World around a stand-in of the package.


class Table:
    """One of the package's own environments."""

    def __init__(self, **settings):
        self.settings, self.told = settings, []
        self.model = types.SimpleNamespace(
            cam_pos=np.zeros((3, 3)), camera=lambda name: types.SimpleNamespace(id={"corner2": 2}[name])
        )
        self.data = "data"
        self.ticks = 0

    def set_task(self, task):
        self._freeze_rand_vec, self.seeded_rand_vec = True, False

    def seed(self, number):
        self.told.append(("seed", number))

    def reset(self):
        self.told.append(("reset",))
        self.ticks = 0
        return np.arange(39.0), {}

    def step(self, action):
        self.ticks += 1
        return np.arange(39.0) + self.ticks, 2.5, False, False, {"success": float(self.ticks == 2)}

    def render(self):
        return np.arange(480 * 480 * 3, dtype=np.uint32).reshape(480, 480, 3).astype(np.uint8)

    def close(self):
        self.told.append(("close",))


def test_meta_world_around_a_stand_in(monkeypatch):
    pytest.importorskip("gymnasium", reason="needs the package gymnasium")
    tables = []

    def build(**settings):
        tables.append(Table(**settings))
        return tables[-1]

    benchmark = types.SimpleNamespace(train_classes={"push-v3": build}, train_tasks=["first"])
    package = types.ModuleType("metaworld")
    package.MT1 = lambda name, seed: benchmark
    physics = types.ModuleType("mujoco")
    physics.mj_resetData = lambda model, data: tables[-1].told.append(("forget", data))
    monkeypatch.setitem(sys.modules, "metaworld", package)
    monkeypatch.setitem(sys.modules, "mujoco", physics)
    _forget_classes()
    [task] = open_tasks(MetaWorldConfig())
    places = task.open(1, 0)
    shown = places.begin(0, 7)
    [table] = tables
    assert table.settings["camera_name"] == "corner2"
    assert (table._freeze_rand_vec, table.seeded_rand_vec) == (False, True)
    assert table.model.cam_pos[2].tolist() == [0.75, 0.075, 0.7]
    assert table.told == [("seed", 7), ("forget", "data"), ("reset",)]
    assert shown.instructions == ("Push the puck to a goal",)
    assert shown.observation["observation.state"][0].tolist() == [0, 1, 2, 3]
    assert np.array_equal(shown.observation["observation.image"][0], table.render()[::-1, ::-1])
    first, second = places.step(np.zeros((1, 4))), places.step(np.zeros((1, 4)))
    assert (bool(first.is_over[0]), bool(second.is_over[0]), bool(second.is_success[0])) == (False, True, True)
    assert first.rewards[0] == 2.5
    places.close()
    _forget_classes()


# gym-pusht and gym-aloha around stand-ins that are registered under their names.


@pytest.fixture
def registered(monkeypatch):
    """Registers a stand-in for a package's environment, and notes what it is made with."""
    gymnasium = pytest.importorskip("gymnasium", reason="needs the package gymnasium")

    def register(module, name, size, shown):
        made = []

        class StandIn(gymnasium.Env):
            action_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), dtype=np.float32)
            observation_space = gymnasium.spaces.Discrete(2)
            metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

            def __init__(self, **settings):
                self.render_mode = settings["render_mode"]
                made.append(settings)

            def reset(self, *, seed=None, options=None):
                return shown(), {"is_success": False}

            def step(self, action):
                return shown(), 1.0, False, False, {"is_success": False}

            def render(self):
                return np.zeros((32, 32, 3), dtype=np.uint8)

        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        monkeypatch.setitem(gymnasium.registry, f"{module}/{name}", None)  # whatever was there comes back
        del gymnasium.registry[f"{module}/{name}"]
        gymnasium.register(f"{module}/{name}", entry_point=StandIn)
        return made

    return register


def test_pusht_is_opened_with_the_settings(registered):
    made = registered(
        "gym_pusht", "PushT-v0", 2, lambda: {"pixels": np.zeros((48, 64, 3), np.uint8), "agent_pos": np.ones(2)}
    )
    [task] = open_tasks(PushTConfig(observation_height=48, observation_width=64, episode_length=3))
    places = task.open(1, 0)
    shown = places.begin(0, 0)
    assert made == [
        {
            "obs_type": "pixels_agent_pos",
            "render_mode": "rgb_array",
            "observation_height": 48,
            "observation_width": 64,
            "visualization_height": 384,
            "visualization_width": 384,
        }
    ]
    assert shown.instructions == ("Push the T-shaped block onto the T-shaped target.",)
    assert shown.views["film"].shape == (1, 32, 32, 3)
    assert [bool(places.step(np.zeros((1, 2))).is_over[0]) for _ in range(3)] == [False, False, True]
    places.close()


class PhysicsError(RuntimeError):
    """Stands in for dm-control's."""


@pytest.fixture
def dm_control(monkeypatch):
    """The one name of the package that is used."""
    module = types.ModuleType("dm_control.rl.control")
    module.PhysicsError = PhysicsError
    for name in ("dm_control", "dm_control.rl"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "dm_control.rl.control", module)


def test_an_episode_of_aloha_ends_where_physics_breaks_down(registered, dm_control):
    """At the same seed it would do so again: an exception could never be got past."""
    calls = []

    def shown():
        calls.append(None)
        if len(calls) == 3:
            raise PhysicsError("mjWARN_BADQACC")
        return {"pixels": {"top": np.full((48, 64, 3), len(calls), np.uint8)}, "agent_pos": np.full(14, len(calls))}

    registered("gym_aloha", "AlohaInsertion-v0", 14, shown)
    [task] = open_tasks(AlohaConfig(observation_height=48, observation_width=64))
    places = task.open(1, 0)
    places.begin(0, 0)
    assert not places.step(np.zeros((1, 14))).is_over[0]
    broken = places.step(np.zeros((1, 14)))
    assert (bool(broken.is_over[0]), bool(broken.is_success[0]), broken.rewards[0]) == (True, False, 0)
    assert broken.observation["observation.state"][0, 0] == 2
    assert not places.begin(0, 1).is_over[0]
    places.close()


def test_aloha_is_opened_with_the_settings_and_draws_what_is_seen(registered, dm_control):
    picture = np.zeros((48, 64, 3), np.uint8)
    made = registered(
        "gym_aloha", "AlohaTransferCube-v0", 14, lambda: {"pixels": {"top": picture}, "agent_pos": np.ones(14)}
    )
    [task] = open_tasks(AlohaConfig(task="AlohaTransferCube-v0", observation_height=48, observation_width=64))
    places = task.open(1, 0)
    shown = places.begin(0, 0)
    assert made[0]["observation_height"] == made[0]["visualization_height"] == 48
    assert shown.instructions == ("Pick up the cube with the right arm and transfer it to the left arm.",)
    assert shown.observation["observation.images.top"].shape == (1, 48, 64, 3)
    assert set(shown.views) == {"observation.images.top"}
    places.close()


# Whether a policy fits.


def fitting(task, training):
    """Ask whether a policy for the task's own features fits it."""
    features = policy_features(task.features)
    inputs = {key: one for key, one in features.items() if one.type is not FeatureType.ACTION}
    outputs = {key: one for key, one in features.items() if one.type is FeatureType.ACTION}
    config = ACTConfig(input_features=inputs, output_features=outputs)
    before, _ = standard_pipelines(input_features=inputs, output_features=outputs, norm_map={}, stats={})
    return require_fit(config, before, task, training)


def test_names_are_only_compared_where_the_package_has_some():
    """LeRobot's dataset of PushT calls its two numbers motor_0 and motor_1."""
    names = {"observation.state": ("motor_0", "motor_1"), "action": ("motor_0", "motor_1")}
    assert set(fitting(open_tasks(PushTConfig())[0], Training(fps=10, names=names))) == {
        "observation.image",
        "observation.state",
    }
    swapped = {"action": tuple(reversed(JOINTS))}
    with pytest.raises(ConfigError, match="number 0 of `action` is `right_gripper`"):
        fitting(open_tasks(AlohaConfig())[0], Training(fps=50, names=swapped))
    fitting(open_tasks(AlohaConfig())[0], Training(fps=50, names={"action": JOINTS}))


def test_a_rate_that_only_the_data_names_can_be_said():
    """LeRobot's datasets of LIBERO say 10 Hz, and its environment runs at 20."""
    with pytest.raises(ConfigError) as caught:
        fitting(open_tasks(PushTConfig(fps=20))[0], Training(fps=10))
    assert "trained at 10 Hz, and the environment runs at 20 Hz" in caught.value.message
    assert "`--env.fps=10`" in caught.value.hint


def test_a_picture_of_another_size_names_the_flags_of_the_environment():
    wide = open_tasks(AlohaConfig(observation_width=320))[0]
    features = policy_features(open_tasks(AlohaConfig())[0].features)
    inputs = {key: one for key, one in features.items() if key != "action"}
    config = ACTConfig(input_features=inputs, output_features={"action": features["action"]})
    before, _ = standard_pipelines(input_features=inputs, output_features=config.output_features, norm_map={}, stats={})
    with pytest.raises(ConfigError) as caught:
        require_fit(config, before, wide, Training())
    assert caught.value.hint == "`--env.observation_width=640 --env.observation_height=480`"
