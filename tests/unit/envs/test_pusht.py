"""PushT itself, where its package is installed."""

from __future__ import annotations

import numpy as np
import pytest
from played import check_features, check_lerobots, play, same

from mimetic.envs.pusht.config import PushTConfig
from mimetic.evaluate.rollout.adapters import open_tasks

pytest.importorskip("gym_pusht", reason="needs the package gym-pusht (mimetic[pusht])")
ACTIONS = np.random.default_rng(0).uniform(0, 512, (30, 2))


@pytest.fixture(scope="module")
def places():
    [task] = open_tasks(PushTConfig())
    opened = task.open(1, 0)
    yield opened
    opened.close()


@pytest.mark.parametrize("obs_type", ["pixels_agent_pos", "environment_state_agent_pos"])
def test_it_shows_what_it_declares(obs_type):
    [task] = open_tasks(PushTConfig(obs_type=obs_type))
    places = task.open(1, 0)
    check_features(task, places)
    places.close()


def test_its_episodes_are_lerobots(places):
    check_lerobots(places, "pusht", tolerance=1e-5)


def test_an_episode_depends_on_its_seed_alone(places):
    first, other, again = (play(places, seed, ACTIONS) for seed in (1, 2, 1))
    assert same(first, again)
    assert not same(first, other)
    [task] = open_tasks(PushTConfig())
    spread = task.open(2, 2)
    spread.begin(0, 9)
    assert same(first, play(spread, 1, ACTIONS, place=1, count=2))
    spread.close()


def test_a_covered_goal_is_a_success_and_ends_the_episode(places):
    """The package is put into a state with the block on its outline; a film has a picture of its own size."""
    places.begin(0, 0)
    env = places._crews[0]._worlds[0]._env
    env.reset(options={"reset_to_state": [100, 100, 224.18, 242.82, np.pi / 4]})
    shown = places.step(np.array([[100.0, 100.0]]))
    assert (bool(shown.is_success[0]), bool(shown.is_over[0]), shown.rewards[0]) == (True, True, 1.0)
    assert shown.views["film"].shape == (1, 384, 384, 3)
    assert not places.begin(0, 0).is_success[0]
