"""Several cells at once: the same as each alone, whatever their number and whatever process they are in."""

from __future__ import annotations

import numpy as np
import pytest

from mimetic.envs.config import CellConfig
from mimetic.errors import ConfigError, ShapeError, WorkerError

pytest.importorskip("mujoco", reason="needs the package mujoco")

SEEDS = (3, 8, 3, 21, 5)
TICKS = 12


def config(renderer="rays", **settings):
    return CellConfig(**({"task": "sort", "renderer": renderer, "width": 32, "height": 32} | settings))


def goals(seed, tick):
    """Actions that depend on the episode and the tick only."""
    return np.array([20, -30, 30, 70, 0, 40]) + 15 * np.sin(seed + tick / 3 + np.arange(6))


def shown(batch, index):
    values = {name: value[index].tobytes() for name, value in batch.observation.items()}
    return values, batch.instructions[index], int(batch.ticks[index]), bool(batch.is_success[index])


@pytest.fixture(scope="module")
def alone():
    """What each episode shows at every tick when its cell is the only one, by renderer."""
    from mimetic.envs.vector import CellGroup

    def play(renderer):
        found = {}
        for seed in set(SEEDS):
            with CellGroup(config(renderer), 1) as group:
                found[seed] = [shown(group.reset([seed]), 0)]
                found[seed] += [shown(group.step([goals(seed, tick)]), 0) for tick in range(TICKS)]
        return found

    return play


@pytest.mark.parametrize("processes", [0, 2])
def test_an_episode_is_the_same_in_any_company(renderer, processes, alone):
    from mimetic.envs.vector import CellGroup

    expected = alone(renderer)
    with CellGroup(config(renderer), len(SEEDS), processes=processes) as group:
        batches = [group.reset(SEEDS)]
        for tick in range(TICKS):
            batches.append(group.step([goals(seed, tick) for seed in SEEDS]))
    for index, seed in enumerate(SEEDS):
        assert [shown(batch, index) for batch in batches] == expected[seed]


def test_an_ended_cell_stands_still_until_its_reset():
    from mimetic.envs.vector import CellGroup

    with CellGroup(config(episode_length=3), 2) as group:
        group.reset([0, 1])
        for _ in range(2):
            group.step(np.zeros((2, 6)))
        group.reset_one(1, 7)
        batch = group.step(np.zeros((2, 6)))
        assert batch.is_over.tolist() == [True, False]
        later = group.step(np.full((2, 6), 50.0))
        assert later.ticks.tolist() == [3, 2]
        np.testing.assert_array_equal(
            later.observation["observation.state"][0], batch.observation["observation.state"][0]
        )
        assert (later.observation["observation.state"][1] != batch.observation["observation.state"][1]).any()


def test_wrong_sizes_are_refused():
    from mimetic.envs.vector import CellGroup

    with pytest.raises(ConfigError, match="at least one cell"):
        CellGroup(config(), 0)
    with CellGroup(config(), 2) as group:
        with pytest.raises(ShapeError, match="2 cells need 2 seeds; got 1"):
            group.reset([1])
        group.reset([1, 2])
        with pytest.raises(ShapeError, match=r"shape \(2, 6\); got \(6,\)"):
            group.step(np.zeros(6))


def test_a_process_that_dies_is_named():
    from mimetic.envs.vector import CellGroup

    with CellGroup(config(), 2, processes=1) as group:
        group.reset([1, 2])
        group._workers[0]._process.kill()
        group._workers[0]._process.join()
        with pytest.raises(WorkerError, match="has ended from outside"):
            group.step(np.zeros((2, 6)))


def test_an_error_in_a_process_reaches_the_caller():
    from mimetic.envs.vector import CellGroup

    with CellGroup(config(), 2, processes=1) as group:
        group.reset([1, 2])
        with pytest.raises(WorkerError, match="six finite numbers"):
            group.step(np.full((2, 6), np.nan))


@pytest.mark.parametrize("processes", [0, 2])
def test_only_cells_that_somebody_looks_at_are_drawn(renderer, processes, alone):
    """What is drawn equals what is drawn when every tick is, and the rest is black."""
    from mimetic.envs.vector import CellGroup

    seeds = SEEDS[:3]
    expected = alone(renderer)
    drawn = 0
    with CellGroup(config(renderer), len(seeds), processes=processes) as group:
        group.reset(seeds)
        for tick in range(TICKS):
            looks = np.array([tick % (index + 2) == 0 for index in range(len(seeds))])
            batch = group.step([goals(seed, tick) for seed in seeds], looks)
            assert batch.is_drawn.tolist() == looks.tolist()
            for index, seed in enumerate(seeds):
                values, *rest = shown(batch, index)
                wanted, *others = expected[seed][tick + 1]
                assert rest == others
                assert values.pop("observation.state") == wanted["observation.state"]
                for name, value in values.items():
                    assert value == (wanted[name] if looks[index] else bytes(len(value)))
            drawn += looks.sum()
        assert group.reset_one(1, 3).is_drawn[1]
        assert group.step(np.zeros((3, 6))).is_drawn.all()
    assert 0 < drawn < TICKS * len(seeds)


def test_the_outcome_of_an_episode_is_drawn_unasked():
    from mimetic.envs.vector import CellGroup

    with CellGroup(config(episode_length=2), 2) as group:
        group.reset([0, 1])
        nobody = np.zeros(2, dtype=bool)
        assert group.step(np.zeros((2, 6)), nobody).is_drawn.tolist() == [False, False]
        batch = group.step(np.zeros((2, 6)), nobody)
        assert batch.is_over.all()
        assert batch.is_drawn.all()
        assert all(batch.observation[f"observation.images.{name}"].any() for name in ("front", "wrist"))
        with pytest.raises(ShapeError, match=r"looks of 2 cells have shape \(2,\); got \(3,\)"):
            group.step(np.zeros((2, 6)), np.ones(3))
