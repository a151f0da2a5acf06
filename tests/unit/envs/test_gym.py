"""The gymnasium face."""

from __future__ import annotations

import numpy as np
import pytest

from mimetic.envs.config import CellConfig
from mimetic.errors import ConfigError

pytest.importorskip("mujoco", reason="needs the package mujoco")
pytest.importorskip("gymnasium", reason="needs the package gymnasium")

SMALL = {"renderer": "rays", "width": 32, "height": 32}


@pytest.fixture
def env():
    from mimetic.envs.gym import make_env

    return make_env(CellConfig(task="push", **SMALL))


@pytest.mark.parametrize("units", ["degrees", "range_m100_100"])
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space.*")  # degrees are the arm's own units
def test_the_checker_of_gymnasium_is_content(units):
    from gymnasium.utils.env_checker import check_env

    from mimetic.envs.gym import make_env

    check_env(make_env(CellConfig(units=units, **SMALL)), skip_render_check=True)


def test_a_seed_is_an_episode(env):
    first, info = env.reset(seed=3)
    assert info == {"task": "Push the red cube onto the mat", "is_success": False}
    for action in (env.action_space.low, env.action_space.high):
        env.step(action)
    again, _ = env.reset(seed=3)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    other, _ = env.reset(seed=4)
    assert (other["observation.images.front"] != first["observation.images.front"]).any()


def test_without_a_seed_episodes_follow_from_the_last_one(env):
    def two():
        env.reset(seed=9)
        return [env.reset()[0]["observation.images.front"].tobytes() for _ in range(2)]

    pictures = two()
    assert pictures == two()
    assert pictures[0] != pictures[1]


def test_success_is_rewarded_once_and_ends_the_episode(env):
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import IDEAL

    actions = demonstrate(env.cell, IDEAL, 2, pictures=False).frames["action"]
    env.reset(seed=2)
    results = [env.step(action)[1:] for action in actions]
    rewards = [reward for reward, *_ in results]
    assert sum(rewards) == 1.0
    at = rewards.index(1.0)
    assert [ended for _, ended, _, _ in results] == [False] * at + [True] * (len(actions) - at)
    assert not any(late for _, _, late, _ in results)
    assert [info["is_success"] for *_, info in results] == [False] * at + [True] * (len(actions) - at)


def test_a_late_episode_is_truncated():
    from mimetic.envs.gym import make_env

    env = make_env(CellConfig(episode_length=3, **SMALL))
    observation, _ = env.reset(seed=0)
    ends = [env.step(observation["observation.state"])[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_a_layout_of_ones_own_can_be_played(env):
    from mimetic.envs.layout import sample_layout

    layout = sample_layout(CellConfig(task="push", split="unseen_positions"), 5)
    env.reset(seed=0, options={"layout": layout})
    assert env.cell.layout == layout
    with pytest.raises(ConfigError, match="`colour` is not known"):
        env.reset(options={"colour": "red"})
    with pytest.raises(ConfigError, match="is a Layout; got dict"):
        env.reset(options={"layout": {}})


def test_it_renders_the_front_camera(env):
    from mimetic.envs.gym import make_env

    observation, _ = env.reset(seed=1)
    np.testing.assert_array_equal(env.render(), observation["observation.images.front"])
    with pytest.raises(ConfigError, match="`human` is not known"):
        make_env(CellConfig(**SMALL), render_mode="human")
