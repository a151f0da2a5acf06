"""Meta-World itself, where its package is installed."""

from __future__ import annotations

import numpy as np
import pytest
from played import check_features, check_lerobots, play, same

from mimetic.envs.metaworld.config import MetaWorldConfig
from mimetic.envs.metaworld.tasks import INSTRUCTIONS
from mimetic.evaluate.rollout.adapters import open_tasks

metaworld = pytest.importorskip("metaworld", reason="needs the package metaworld (mimetic[metaworld])")
ACTIONS = np.random.default_rng(0).uniform(-1, 1, (4, 4))


@pytest.fixture(scope="module")
def opened():
    [task] = open_tasks(MetaWorldConfig())
    places = task.open(1, 0)
    yield task, places
    places.close()


def test_every_task_of_the_package_is_known():
    assert set(metaworld.ALL_V3_ENVIRONMENTS) == set(INSTRUCTIONS)


def test_it_shows_what_it_declares(opened):
    check_features(*opened)


def test_its_episodes_are_lerobots(opened):
    check_lerobots(opened[1], "metaworld")


def test_an_episode_depends_on_its_seed_alone(opened):
    """To the last pixel: a marker must not stand where it stood in the episode before."""
    _, places = opened
    first, other, again = (play(places, seed, ACTIONS) for seed in (1, 2, 1))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.filterwarnings("ignore:Constant.s. may be too high")
def test_an_expert_of_the_package_succeeds_and_that_ends_the_episode():
    from metaworld.policies import SawyerReachV3Policy

    [task] = open_tasks(MetaWorldConfig(task="reach", obs_type="pixels"))
    places = task.open(1, 0)
    env = places._crews[0]._worlds[0]._env
    picture = np.zeros((480, 480, 3), np.uint8)
    env.render = lambda: picture  # pictures take all the time, and this expert does not look
    expert = SawyerReachV3Policy()
    for seed in (0, 1):
        shown = places.begin(0, seed)
        ticks = 0
        while not shown.is_over[0]:
            action = expert.get_action(env._inner._get_obs())
            shown = places.step(np.clip(action, -1, 1)[None])
            ticks += 1
        assert shown.is_success[0]
        assert 5 < ticks < task.episode_length
    places.close()
