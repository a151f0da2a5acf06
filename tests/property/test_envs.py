"""Whatever the seed: starts lie in their split; whatever the actions: going back equals not having stopped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.envs.config import SPLIT_NAMES, TASK_NAMES, CellConfig
from mimetic.envs.layout import belongs, sample_layout
from mimetic.envs.tasks import TASKS
from mimetic.errors import ConfigError

seeds = st.integers(0, 2**63)
tasks = st.sampled_from(TASK_NAMES)
splits = st.sampled_from(SPLIT_NAMES)


@settings(max_examples=150)
@given(seeds, tasks, splits)
def test_an_actor_begins_in_its_split_and_in_no_training_start(seed, task, split):
    layout = sample_layout(CellConfig(task=task, split=split), seed)
    place = layout.places[TASKS[task].actor]
    assert belongs(split, place.x, place.y)
    assert (split == "train") == belongs("train", place.x, place.y)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="0 or more; got -1"):
        sample_layout(CellConfig(), -1)


@settings(max_examples=15)
@given(seeds, tasks, st.integers(0, 11), st.integers(0, 2**32))
def test_going_back_to_any_tick_equals_not_having_stopped(seed, task, back, noise):
    pytest.importorskip("mujoco", reason="needs the package mujoco")
    from mimetic.envs.cell import Cell

    cell = Cell(CellConfig(task=task, renderer="rays", width=16, height=16))
    cell.reset(seed)
    low, high = cell.units.bounds()
    goals = np.random.default_rng(noise).uniform(low, high, (12, 6))
    for tick, goal in enumerate(goals):
        if tick == back:
            kept = cell.snapshot()
        cell.step(goal)
    end = cell.snapshot()
    cell.restore(kept)
    for goal in goals[back:]:
        cell.step(goal)
    again = cell.snapshot()
    np.testing.assert_array_equal(again.physics, end.physics)
    assert (again.tick, again.held, again.succeeded) == (end.tick, end.held, end.succeeded)
