"""Scripted operators succeed, vary, repeat, and the sloppy one is worse in the ways that it should be."""

from __future__ import annotations

import numpy as np
import pytest

from mimetic.envs.config import SPLIT_NAMES, TASK_NAMES
from mimetic.errors import SimulationError

pytest.importorskip("mujoco", reason="needs the package mujoco")


def play(cell, name, seeds):
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import MANNERS

    return [demonstrate(cell, MANNERS[name], seed, pictures=False) for seed in seeds]


@pytest.mark.parametrize("task", TASK_NAMES)
def test_a_careful_operator_succeeds_in_95_of_100_episodes(cells, task):
    done = play(cells(task=task), "careful", range(50))
    assert np.mean([one.is_success for one in done]) >= 0.95


def test_an_ideal_operator_places_100_of_100_cubes(cells):
    assert all(one.is_success for one in play(cells(task="pick_place"), "ideal", range(100)))


@pytest.mark.parametrize("split", [split for split in SPLIT_NAMES if split != "train"])
def test_a_careful_operator_succeeds_in_every_split(cells, split):
    assert sum(one.is_success for one in play(cells(task="stack", split=split), "careful", range(10))) >= 9


def test_a_demonstration_repeats(cells, renderer):
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import CAREFUL

    cell = cells(task="reach", renderer=renderer)
    one, two = (demonstrate(cell, CAREFUL, 6) for _ in range(2))
    assert one.frames.keys() == two.frames.keys()
    for name, values in one.frames.items():
        np.testing.assert_array_equal(values, two.frames[name])


def test_a_demonstration_is_what_a_recorder_needs(cells):
    """Frame t holds what was observed and then sent: sending the actions again shows the same observations."""
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import CAREFUL

    cell = cells(task="reach")
    one = demonstrate(cell, CAREFUL, 3)
    assert set(one.frames) == set(cell.features())
    for name, feature in cell.features().items():
        assert one.frames[name].shape == (len(one), *feature["shape"])
        assert one.frames[name].dtype == (np.uint8 if feature["dtype"] == "video" else np.float32)
    assert (one.instruction, one.fps, one.seed, one.operator) == ("Reach the red ball", 30, 3, "careful")
    assert one.description["renderer"] == "rays"
    cell.reset(3)
    for row in one.rows():
        for name, value in cell.observe().items():
            np.testing.assert_array_equal(row[name], value)
        cell.step(row["action"])
    assert cell.succeeded == one.is_success


def test_actions_are_goals_within_the_range_of_the_arm(cells):
    for units in ("degrees", "range_m100_100"):
        cell = cells(task="stack", units=units)
        low, high = cell.units.bounds()
        for one in play(cell, "sloppy", range(4)):
            assert (one.frames["action"] >= low - 0.1).all()
            assert (one.frames["action"] <= high + 0.1).all()


def test_the_same_start_is_shown_in_different_ways(cells):
    """Human-like variation: speed, height, angle and aim differ from seed to seed; the ideal one's do not."""
    cell = cells(task="reach", distractors=0)
    lengths = {name: {len(one) for one in play(cell, name, range(12))} for name in ("ideal", "careful")}
    assert len(lengths["careful"]) > 6
    from mimetic.envs.hand import Hand
    from mimetic.envs.manner import CAREFUL, IDEAL

    def habits(manner):
        return {Hand(cell, manner, np.random.default_rng(seed)).speed_m_s for seed in range(5)}

    assert len(habits(IDEAL)) == 1
    assert len(habits(CAREFUL)) == 5


def quickest(one):
    """Largest change of speed between ticks, body joints [degrees a tick squared], median over the episode's worst."""
    return np.sort(np.abs(np.diff(one.frames["action"][:, :5], n=2, axis=0)).max(axis=1))[-10:].mean()


def idle_head(one, threshold=1.5):
    """Ticks before the arm first moves [degrees from its start]."""
    away = np.abs(one.frames["observation.state"] - one.frames["observation.state"][0]).max(axis=1)
    return int(np.argmax(away > threshold * 2))


def test_a_sloppy_operator_is_idle_jerky_and_fails_sometimes(cells):
    cell = cells(task="pick_place")
    careful, sloppy = (play(cell, name, range(12)) for name in ("careful", "sloppy"))
    assert np.median([idle_head(one) for one in careful]) < 12
    assert np.median([idle_head(one) for one in sloppy]) > 20
    assert np.median([quickest(one) for one in sloppy]) > 1.5 * np.median([quickest(one) for one in careful])
    assert np.mean([len(one) for one in sloppy]) > 1.2 * np.mean([len(one) for one in careful])
    failed = sum(not one.is_success for one in sloppy)
    assert 1 <= failed <= 8


def test_failures_are_left_out_or_kept(cells):
    from mimetic.envs.demonstration import demonstrations
    from mimetic.envs.manner import SLOPPY

    cell = cells(task="stack", width=16, height=16)
    kept = list(demonstrations(cell, 6, manner=SLOPPY, first_seed=40, only_successes=False))
    assert [one.seed for one in kept] == list(range(40, 46))
    good = [one.seed for one in kept if one.is_success]
    assert 0 < len(good) < 6
    only = list(demonstrations(cell, len(good), manner=SLOPPY, first_seed=40))
    assert [one.seed for one in only] == good


def test_an_operator_who_never_succeeds_is_reported(cells, monkeypatch):
    from mimetic.envs import experts
    from mimetic.envs.demonstration import demonstrations

    monkeypatch.setitem(experts.EXPERTS, "reach", lambda hand: hand.wait(2))
    with pytest.raises(SimulationError, match="failed 20 times in a row at reach"):
        list(demonstrations(cells(task="reach", width=16, height=16), 1))


def test_a_grasp_does_not_depend_on_how_the_cube_is_turned(cells):
    """What is demonstrated must not jump where one side of a cube becomes nearer than the other."""
    from mimetic.envs.experts import EXPERTS
    from mimetic.envs.hand import Hand
    from mimetic.envs.manner import IDEAL

    cell, sent = cells(task="pick_place"), []
    for yaw in (0.0, 0.4, 0.7, 0.9):
        cell.reset(0)
        address = cell.model.joint(int(cell.model.body("cube").jntadr[0])).qposadr[0]
        cell.data.qpos[address + 3 : address + 7] = np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)
        cell.step(cell.state())  # from here on the operator sees the turn
        way = EXPERTS["pick_place"](Hand(cell, IDEAL, np.random.default_rng(0)))
        for _ in range(30):
            action = next(way)
            cell.step(action)
        sent.append(action)
    np.testing.assert_allclose(sent[1:], [sent[0]] * 3, atol=0.2)  # units of the arm; the cube settles a little
