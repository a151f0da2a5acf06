"""Groups of environments of a package, with a stand-in: what ends, what counts, what never depends on the group."""

from __future__ import annotations

import types
from functools import partial

import numpy as np
import pytest
import tiny_gym

from mimetic.errors import ShapeError, SimulationError, WorkerError
from mimetic.evaluate.rollout import worlds as module
from mimetic.evaluate.rollout.environment import EnvTask, Shown
from mimetic.evaluate.rollout.gym_world import GymWorld, flatten
from mimetic.evaluate.rollout.play import Plan, play
from mimetic.evaluate.rollout.player import Timing
from mimetic.evaluate.rollout.worlds import Worlds

STATE, TOP = "observation.state", "observation.images.top"


@pytest.fixture
def opened():
    """Opens groups and closes them."""
    groups = []

    def open_group(places=1, *, processes=0, length=20, make=None, **options):
        make = make or partial(tiny_gym.world, **options)
        groups.append(
            Worlds(make, places, processes=processes, episode_length=length, action_size=1, description={"type": "x"})
        )
        return groups[-1]

    yield open_group
    for group in groups:
        group.close()


def actions(*values):
    return np.array(values, dtype=np.float64)[:, None]


def test_an_observation_has_the_names_and_types_of_a_dataset(opened):
    shown = opened(2).begin(0, 3)
    assert set(shown.observation) == {STATE, TOP}
    assert (shown.observation[STATE].dtype, shown.observation[STATE].shape) == (np.float32, (2, 2))
    assert (shown.observation[TOP].dtype, shown.observation[TOP].shape) == (np.uint8, (2, 4, 6, 3))
    assert shown.observation[STATE][0].tolist() == [3, 3]
    assert shown.instructions == ("Count to ten.", "")
    assert not shown.is_over[0]
    assert shown.is_over[1]  # nothing has begun there
    assert set(shown.views) == {TOP}


def test_success_ends_the_episode_in_its_own_tick_and_nothing_begins_by_itself(opened):
    """LeRobot counts one step after the end, of what may be the next episode."""
    group = opened()
    group.begin(0, 8)  # counter 1
    rewards, ends = [], []
    for _ in range(5):
        shown = group.step(actions(4))
        rewards.append(shown.rewards[0])
        ends.append(bool(shown.is_over[0]))
    assert rewards == [5, 9, 13, 0, 0]
    assert ends == [False, False, True, True, True]
    assert shown.is_success[0]
    assert shown.observation[STATE][0, 0] == 13
    env = group._crews[0]._worlds[0]._env
    assert env.resets == 1
    shown = group.begin(0, 9)
    assert (shown.is_success[0], shown.is_over[0], shown.observation[STATE][0, 0]) == (False, False, 2)
    assert env.resets == 2


def test_an_episode_is_cut_off_at_its_length_and_not_a_tick_later(opened):
    group = opened(length=3)
    group.begin(0, 0)
    assert [bool(group.step(actions(0)).is_over[0]) for _ in range(4)] == [False, False, True, True]
    assert not group.step(actions(0)).is_success[0]
    group.begin(0, 0)
    assert not group.step(actions(0)).is_over[0]


def test_a_success_in_the_last_tick_counts(opened):
    group = opened(length=2)
    group.begin(0, 0)
    group.step(actions(5))
    shown = group.step(actions(5))
    assert (bool(shown.is_success[0]), bool(shown.is_over[0])) == (True, True)


def test_a_success_that_passes_stays_a_success(opened):
    """Any success up to the end of the episode counts, in an environment that goes on after it, too."""
    group = opened(ends=False, blinks=True, length=6)
    group.begin(0, 0)
    found = [group.step(actions(6)) for _ in range(6)]
    assert [bool(one.is_success[0]) for one in found] == [False, True, True, True, True, True]
    assert [bool(one.is_over[0]) for one in found] == [False] * 5 + [True]


def test_a_beginning_leaves_the_other_places_as_they_are(opened):
    """Rewards of the last step, too: who reads them may have begun another place in between."""
    group = opened(3)
    for place in range(3):
        group.begin(place, place)
    stepped = group.step(actions(10, 2, 3))
    shown = group.begin(0, 5)
    assert shown.rewards.tolist() == [0, *stepped.rewards[1:]] == [0, 3, 5]
    assert shown.observation[STATE][:, 0].tolist() == [5, 3, 5]
    assert group.step(actions(0, 0, 0)).rewards.tolist() == [5, 3, 5]


def test_what_was_shown_does_not_change_afterwards(opened):
    group = opened()
    before = group.begin(0, 1)
    group.step(actions(1))
    assert before.observation[TOP].max() == 1


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_change_nothing(opened, processes):
    plan = [(place, 20 + place) for place in range(3)]
    alone, spread = opened(3), opened(3, processes=processes)
    for place, seed in plan:
        assert _same(alone.begin(place, seed), spread.begin(place, seed))
    for tick in range(8):
        values = actions(1.5, 0.5, 3.0)
        assert _same(alone.step(values), spread.step(values))
        if tick == 4:
            assert _same(alone.begin(2, 3), spread.begin(2, 3))


def _same(one, other):
    return (
        one.instructions == other.instructions
        and np.array_equal(one.rewards, other.rewards)
        and np.array_equal(one.is_success, other.is_success)
        and np.array_equal(one.is_over, other.is_over)
        and all(np.array_equal(one.observation[name], other.observation[name]) for name in (STATE, TOP))
        and all(np.array_equal(one.views[name], other.views[name]) for name in one.views)
    )


def test_actions_of_another_size_are_refused(opened):
    group = opened(2)
    group.begin(0, 0)
    with pytest.raises(ShapeError, match=r"shape \(2, 1\); got \(2, 3\)"):
        group.step(np.zeros((2, 3)))


@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_of_the_package_says_where_it_happened(opened, processes):
    group = opened(1, processes=processes, fail_at=5, how="the  arm\nfell off")
    group.begin(0, 0)
    group.step(actions(4))
    with pytest.raises(SimulationError, match="failed while taking a step: RuntimeError: the arm fell off") as caught:
        group.step(actions(4))
    assert "MUJOCO_GL" in caught.value.hint


@pytest.mark.parametrize("processes", [0, 2])
def test_an_environment_that_cannot_be_built_says_why(opened, processes):
    with pytest.raises(SimulationError, match="failed while being built: OSError: no display"):
        opened(2, processes=processes, make=tiny_gym.broken_world)


def test_a_process_that_dies_is_named(opened):
    group = opened(1, processes=1, fail_at=5, how="exit")
    group.begin(0, 0)
    with pytest.raises(WorkerError, match="ended from outside"):
        group.step(actions(6))


def test_patience_with_a_process_ends(opened, monkeypatch):
    monkeypatch.setattr(module, "_READY_S", 0.2)
    with pytest.raises(WorkerError, match=r"not ready within 0\.2 s"):
        opened(1, processes=1, make=tiny_gym.slow_world)


def test_closing_closes_every_environment(opened):
    group = opened(2)
    group.begin(0, 0)
    envs = [world._env for world in group._crews[0]._worlds.values()]
    group.close()
    group.close()
    assert [env.is_closed for env in envs] == [True, True]


def test_an_observation_that_is_missing_is_named():
    world = GymWorld(tiny_gym.TinyEnv(), {"pixels/wrist": TOP}, "")
    with pytest.raises(SimulationError, match="does not show `pixels/wrist`; it shows pixels/top, agent_pos, unused"):
        world.begin(0)


def test_a_film_may_have_pictures_of_its_own():
    env = tiny_gym.TinyEnv()
    sight = GymWorld(env, tiny_gym.NAMES, "", draw=env.render).begin(0)
    assert sight.views["film"].shape == (8, 8, 3)
    assert sight.observation[TOP].shape == (4, 6, 3)


def test_flat_names_of_nested_observations():
    nested = {"a": {"b": {"c": 1}}, "d": np.zeros(2)}
    assert set(flatten(nested)) == {"a/b/c", "d"}
    assert set(flatten(np.zeros((2, 2, 3)))) == {"pixels"}


class Forgetful:
    """Places that end in the same tick, and whose beginnings show no rewards."""

    def __init__(self):
        self.going = [False, False]

    def begin(self, place, seed):
        self.going[place] = True
        return self._shown(0.0)

    def step(self, actions, looks):
        self.going = [False, False]
        return self._shown(1.0)

    def description(self):
        return {}

    def close(self):
        pass

    def _shown(self, reward):
        over = np.array([not one for one in self.going])
        return Shown(
            observation={STATE: np.zeros((2, 1), np.float32)},
            instructions=("", ""),
            rewards=np.full(2, reward),
            is_success=over,
            is_over=over,
            views={"film": np.zeros((2, 16, 16, 3), np.uint8)},
        )


def test_a_reward_is_not_lost_when_another_place_begins_in_the_same_tick():
    seat = types.SimpleNamespace(
        act=lambda observation, instruction: np.zeros(1), needs_observation=lambda: True, timing=Timing()
    )
    player = types.SimpleNamespace(warm_up=lambda observation, instruction: None, sit_down=lambda seed: seat)
    task = EnvTask(
        group="g", task_id=0, task="t", split="", features={}, fps=10, episode_length=1, open=lambda *_: Forgetful()
    )
    plan = Plan(run="policy", seed=0, places=2, processes=0)
    found = list(play(task, player, plan, range(4)))
    assert [one.sum_reward for one in found] == [1, 1, 1, 1]
    assert [one.success for one in found] == [True] * 4
