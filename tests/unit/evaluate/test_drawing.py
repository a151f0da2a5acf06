"""Pictures are drawn where somebody reads them, and nothing else about an evaluation depends on that."""

from __future__ import annotations

from dataclasses import asdict, replace

import av
import numpy as np
import pytest

from mimetic.data.features import policy_features
from mimetic.envs.config import CAMERAS, CellConfig, CellSuiteConfig
from mimetic.errors import MimeticError
from mimetic.evaluate.rollout.cell import cell_features, cell_tasks
from mimetic.evaluate.rollout.journal import VOLATILE
from mimetic.evaluate.rollout.play import Plan, play
from mimetic.evaluate.rollout.player import Player
from mimetic.names import IMAGES_PREFIX, STATE
from mimetic.policies.base import Policy
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.keypoint.policy import KeypointPolicy
from mimetic.testing.untrained import untrained

pytest.importorskip("mujoco", reason="needs the package mujoco")

SIZE = 32


def player(n_action_steps=10):
    """A small policy with random weights, whose actions move the arm visibly."""
    features = policy_features(cell_features(CellConfig(width=SIZE, height=SIZE)))
    sizes = {"chunk_size": 60, "n_keypoints": 4, "n_channels": 8, "dim_hidden": 16}
    return Player(*untrained(KeypointConfig, features, n_action_steps=n_action_steps, **sizes))


class Watched:
    """Places that keep, episode by episode, what they were sent and what they showed."""

    def __init__(self, places, ticks):
        self.places, self.ticks, self.seeds = places, ticks, {}

    def begin(self, place, seed):
        shown = self.places.begin(place, seed)
        self.seeds[place] = seed
        self.ticks[seed] = [self._tick(shown, place, b"")]
        return shown

    def step(self, actions, looks):
        standing = {place for place, seed in self.seeds.items() if self.ticks[seed][-1]["is_over"]}
        shown = self.places.step(actions, looks)
        for place in self.seeds.keys() - standing:
            self.ticks[self.seeds[place]].append(self._tick(shown, place, actions[place].tobytes()))
        return shown

    def _tick(self, shown, place, action):
        return {
            "action": action,
            "state": shown.observation[STATE][place].tobytes(),
            "pictures": [shown.observation[IMAGES_PREFIX + name][place].tobytes() for name in CAMERAS],
            "is_drawn": bool(shown.is_drawn[place]),
            "is_over": bool(shown.is_over[place]),
        }

    def description(self):
        return self.places.description()

    def close(self):
        self.places.close()


class Kept(list):
    """Stands in for a recording."""

    def add(self, observation, action):
        self.append(({name: value.tobytes() for name, value in observation.items()}, action.tobytes()))

    def outcome(self, reward, *, done, success):
        self.append((reward, done, success))


def played(who, *, folder=None, renderer="rays", length=25, places=2, n=4, videos=0, keep=None):
    """Episodes in order, and what each showed by seed."""
    (task,) = cell_tasks(
        CellSuiteConfig(task="reach", renderer=renderer, width=SIZE, height=SIZE, episode_length=length)
    )
    ticks = {}
    watched = replace(task, open=lambda *how: Watched(task.open(*how), ticks))
    plan = Plan(run="policy", seed=1000, places=places, processes=0, folder=folder, videos=videos)
    episodes = sorted(play(watched, who, plan, range(n), keep=keep), key=lambda one: one.episode)
    return episodes, ticks


def drawn(ticks):
    return {seed: [number for number, tick in enumerate(one) if tick["is_drawn"]] for seed, one in ticks.items()}


def always(monkeypatch):
    """Let the policy ask for every observation, as one that does not know any better."""
    monkeypatch.setattr(KeypointPolicy, "needs_observation", Policy.needs_observation)


@pytest.mark.parametrize("renderer", ["rays", "egl"])
def test_drawing_on_demand_changes_no_episode_and_no_film(renderer, tmp_path, monkeypatch):
    from mimetic.envs.render.choose import failure

    if renderer != "rays" and failure(renderer):
        pytest.skip(f"needs OpenGL by {renderer}")
    who = player()
    episodes, ticks = played(who, folder=tmp_path / "a", renderer=renderer, videos=1)
    always(monkeypatch)
    wanted, every = played(who, folder=tmp_path / "b", renderer=renderer, videos=1)

    def stable(found):
        return [{key: value for key, value in asdict(one).items() if key not in VOLATILE} for one in found]

    assert stable(episodes) == stable(wanted)
    assert ticks.keys() == every.keys()
    assert all(tick["is_drawn"] for one in every.values() for tick in one)
    assert len({tick["state"] for tick in every[1000]}) > 20  # something moves
    for seed, one in ticks.items():
        assert [(tick["action"], tick["state"]) for tick in one] == [(t["action"], t["state"]) for t in every[seed]]
        same = [tick["pictures"] == other["pictures"] for tick, other in zip(one, every[seed], strict=True)]
        assert same == [tick["is_drawn"] for tick in one]
    assert all(tick["is_drawn"] for tick in ticks[1000])  # a film wants every tick
    assert not all(tick["is_drawn"] for tick in ticks[1001])
    films = []
    for folder in ("a", "b"):
        with av.open(str(tmp_path / folder / episodes[0].video)) as container:
            films.append([frame.to_ndarray(format="rgb24").tobytes() for frame in container.decode(video=0)])
    assert len(films[0]) == episodes[0].length + 1
    assert films[0] == films[1]


def test_a_recording_gets_the_pictures_of_every_tick(monkeypatch):
    def recorded():
        takes = {}
        played(who, n=2, keep=lambda episode: takes.setdefault(episode, Kept()))
        return takes

    who = player()
    found = recorded()
    assert len(found[0]) == 2 * 25
    always(monkeypatch)
    assert found == recorded()


def test_a_policy_with_ten_actions_a_prediction_is_drawn_for_every_tenth_tick(monkeypatch):
    from mimetic.envs.render.rays import RayRenderer

    calls, draw = [], RayRenderer.picture
    monkeypatch.setattr(RayRenderer, "picture", lambda *given: calls.append(given[3]) or draw(*given))
    episodes, ticks = played(player(), length=63, n=3)
    assert len(calls) == len(CAMERAS) * sum(len(one) for one in drawn(ticks).values())
    for episode in episodes:
        assert drawn(ticks)[episode.seed] == sorted({*range(0, episode.length + 1, 10), episode.length})
    assert len(calls) < 0.15 * len(CAMERAS) * sum(one.length for one in episodes)


def test_a_strip_has_enough_pictures_where_the_policy_seldom_looks(tmp_path):
    """And the same ones whatever runs beside it."""
    strips = []
    for places in (1, 3):
        episodes, ticks = played(player(60), folder=tmp_path / str(places), length=63, n=3, places=places)
        strips.append([(tmp_path / str(places) / one.strip).read_bytes() for one in episodes])
        for episode in episodes:
            assert episode.predictions == 1 + (episode.length > 60)
            seen = drawn(ticks)[episode.seed]
            assert max(np.diff(seen)) == 5  # 63 ticks in 12 parts
            assert seen[0] == 0
            assert seen[-1] == episode.length  # how it ended
    assert strips[0] == strips[1]


def test_calls_that_only_remember_where_the_joints_are_are_no_predictions():
    """With 10 frames of motion and 7 actions a prediction, the joints are also read 10 frames before each."""
    who = player(7)
    calls, predict = [], who.policy.predict_chunk
    who.policy.predict_chunk = lambda batch: calls.append(0) or predict(batch)
    (episode,), ticks = played(who, n=1)
    looks = drawn(ticks)[episode.seed][:-1]  # the last one is of how it ended
    assert looks == [tick for tick in range(episode.length) if tick % 7 in (0, 4)]
    assert episode.predictions == len(episode.latency_ms) == -(-episode.length // 7)
    assert len(calls) in (episode.predictions, episode.predictions + 1)  # one to warm up
    assert episode.predictions < len(looks)


@pytest.mark.parametrize(("answers", "tick"), [([], 0), ([True], 10)])
def test_a_policy_that_reads_what_it_said_it_does_not_need_is_one_clear_error(answers, tick, monkeypatch):
    left = list(answers)
    monkeypatch.setattr(KeypointPolicy, "needs_observation", lambda self: left.pop(0) if left else False)
    words = rf"policy `keypoint` reads an observation that it said it does not need \(task reach.*, tick {tick}\)"
    with pytest.raises(MimeticError, match=words) as caught:
        played(player(), n=1)
    assert "needs_observation" in caught.value.hint
