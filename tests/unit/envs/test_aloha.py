"""The simulated ALOHA itself, where its package is installed."""

from __future__ import annotations

import types

import numpy as np
import pytest
from played import check_features, check_lerobots, play, same

from mimetic.envs.aloha.config import AlohaConfig
from mimetic.envs.aloha.env import _leave_out_unseen_cameras
from mimetic.evaluate.rollout.adapters import open_tasks

ACTIONS = np.random.default_rng(0).uniform(-0.3, 0.3, (2, 14))


def test_only_the_camera_that_is_shown_is_drawn():
    drawn = []

    def draw(*, height, width, camera_id, **_):
        drawn.append(camera_id)
        return np.ones((height, width, 3), np.uint8)

    physics = types.SimpleNamespace(render=draw)
    _leave_out_unseen_cameras(
        types.SimpleNamespace(unwrapped=types.SimpleNamespace(_env=types.SimpleNamespace(physics=physics)))
    )
    pictures = [physics.render(height=4, width=6, camera_id=name) for name in ("top", "angle", "vis")]
    assert drawn == ["top"]
    assert [int(picture.max()) for picture in pictures] == [1, 0, 0]
    assert all(picture.shape == (4, 6, 3) for picture in pictures)


@pytest.fixture(scope="module")
def opened():
    pytest.importorskip("gym_aloha", reason="needs the package gym-aloha (mimetic[aloha])")
    [task] = open_tasks(AlohaConfig())
    places = task.open(1, 0)
    yield task, places
    places.close()


def test_it_shows_what_it_declares(opened):
    check_features(*opened)


def test_its_episodes_are_lerobots(opened):
    check_lerobots(opened[1], "aloha", tolerance=1e-3)


def test_an_episode_depends_on_its_seed_alone(opened):
    _, places = opened
    first, other, again = (play(places, seed, ACTIONS) for seed in (1, 2, 1))
    assert same(first, again)
    assert not same(first, other)


def test_success_is_the_packages_and_ends_the_episode(opened, monkeypatch):
    """The package's own task gives its largest reward; nothing else is changed."""
    _, places = opened
    places.begin(0, 0)
    inner = places._crews[0]._worlds[0]._env.unwrapped._env.task
    monkeypatch.setattr(inner, "get_reward", lambda physics: 4)
    shown = places.step(np.zeros((1, 14)))
    assert (bool(shown.is_success[0]), bool(shown.is_over[0]), shown.rewards[0]) == (True, True, 4.0)
    monkeypatch.setattr(inner, "get_reward", lambda physics: 3)
    assert not places.begin(0, 0).is_success[0]
    shown = places.step(np.zeros((1, 14)))
    assert (bool(shown.is_success[0]), bool(shown.is_over[0])) == (False, False)


def test_wild_actions_end_an_episode_and_not_the_evaluation(opened):
    """These broke physics down with gym-aloha 0.1.5 and mujoco 3.8.1; where they do not, the episode just goes on."""
    _, places = opened
    env = places._crews[0]._worlds[0]._env.unwrapped._env
    draw = env.physics.render
    env.physics.render = lambda height, width, camera_id, **_: np.zeros((height, width, 3), np.uint8)
    try:
        for seed in range(1000, 1004):
            places.begin(0, seed)
            rng = np.random.default_rng(seed)
            for _ in range(400):
                shown = places.step(rng.uniform(-1, 1, (1, 14)))
                if shown.is_over[0]:
                    break
            assert shown.is_over[0]
    finally:
        env.physics.render = draw
