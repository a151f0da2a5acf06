"""Splits are disjoint by construction, and a layout follows from task, split and seed alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from mimetic.envs.config import SPLIT_NAMES, TASK_NAMES, CellConfig
from mimetic.envs.layout import AZIMUTH, RADIUS_M, UNSEEN_WEDGE, belongs, is_unseen, sample_layout
from mimetic.envs.tasks import BIN_HALF_M, TASKS

SEEDS = range(60)


def layouts(task, split, **settings):
    return [sample_layout(CellConfig(task=task, split=split, **settings), seed) for seed in SEEDS]


def starts(task, split):
    actor = TASKS[task].actor
    return {(round(one.places[actor].x * 1000), round(one.places[actor].y * 1000)) for one in layouts(task, split)}


def test_no_position_of_the_sector_belongs_to_training_and_to_another_split():
    """Every whole millimetre of the sector, for all splits: the statement that the seeds cannot break."""
    counted = dict.fromkeys(SPLIT_NAMES, 0)
    for x, y in itertools.product(range(120, 271), range(-180, 181)):
        owners = [split for split in SPLIT_NAMES if belongs(split, x / 1000, y / 1000)]
        assert len(owners) <= 1 or "train" not in owners
        assert "unseen_positions" not in owners or owners == ["unseen_positions"]
        for split in owners:
            counted[split] += 1
    inside = counted["train"] + counted["held_out"]
    assert 0.13 < counted["held_out"] / inside < 0.20  # one position of five, less the rim
    assert counted["unseen_positions"] > 0.15 * inside


@pytest.mark.parametrize("task", TASK_NAMES)
def test_starts_lie_where_their_split_has_its_place(task):
    for split in SPLIT_NAMES:
        for x, y in starts(task, split):
            assert belongs(split, x / 1000, y / 1000)
            assert is_unseen(x / 1000, y / 1000) == (split == "unseen_positions")
            assert RADIUS_M[0] <= math.hypot(x, y) / 1000 <= RADIUS_M[1]
            assert abs(math.atan2(y, x)) <= AZIMUTH


@pytest.mark.parametrize("task", TASK_NAMES)
def test_unseen_starts_are_centimetres_from_training_only_across_the_margin(task):
    trained = np.array(sorted(starts(task, "train")))
    azimuths = np.arctan2(trained[:, 1], trained[:, 0])
    assert not ((azimuths > UNSEEN_WEDGE[0] - 0.05) & (azimuths < UNSEEN_WEDGE[1] + 0.05)).any()


@pytest.mark.parametrize("task", [task for task in TASK_NAMES if TASKS[task].has_bin])
def test_the_bin_stands_to_the_left_and_leaves_the_whole_wedge_free(task):
    for split in SPLIT_NAMES:
        for layout in layouts(task, split):
            where = layout.places["bin"]
            assert 0.205 <= math.hypot(where.x, where.y) <= 0.235
            assert 0.68 <= math.atan2(where.y, where.x) <= 0.82
    begin, end = UNSEEN_WEDGE
    xy = np.array(sorted(starts(task, "unseen_positions"))) / 1000
    thirds = (np.arctan2(xy[:, 1], xy[:, 0]) - begin) / (end - begin) * 3
    assert np.bincount(thirds.astype(int), minlength=3).min() > len(xy) / 6
    halves = (np.hypot(xy[:, 0], xy[:, 1]) - RADIUS_M[0]) / (RADIUS_M[1] - RADIUS_M[0]) * 2
    assert np.bincount(halves.astype(int), minlength=2).min() > len(xy) / 4


@pytest.mark.parametrize("split", SPLIT_NAMES)
def test_the_mat_lies_to_the_left_of_the_cube(split):
    for layout in layouts("push", split):
        cube, mat = layout.places["cube"], layout.places["mat"]
        way = (mat.x - cube.x, mat.y - cube.y)
        assert 0.09 <= math.hypot(*way) <= 0.12
        left_of_the_cube = math.atan2(cube.y, cube.x) + math.pi / 2
        assert abs(math.remainder(math.atan2(way[1], way[0]) - left_of_the_cube, math.tau)) <= 0.35


@pytest.mark.parametrize("task", TASK_NAMES)
def test_the_same_seed_is_the_same_layout_and_another_one_is_not(task):
    config = CellConfig(task=task)
    assert sample_layout(config, 7) == sample_layout(config, 7)
    assert sample_layout(config, 7) != sample_layout(config, 8)
    assert sample_layout(config, 7) != sample_layout(replace(config, split="held_out"), 7)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_what_draws_or_how_large_changes_no_layout(task):
    config = CellConfig(task=task)
    other = replace(config, renderer="rays", width=320, height=240, units="range_m100_100", episode_length=9)
    assert sample_layout(config, 3) == sample_layout(other, 3)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_things_do_not_overlap(task):
    for layout in layouts(task, "train"):
        for (name, one), (other_name, other) in itertools.combinations(layout.places.items(), 2):
            needed = 0.04 + (BIN_HALF_M if "bin" in (name, other_name) else 0)
            assert math.hypot(one.x - other.x, one.y - other.y) > needed, (name, other_name)


def test_shifts_go_beyond_training():
    trained, shifted = layouts("reach", "train"), layouts("reach", "shifted_camera")
    assert max(max(map(abs, one.camera.move)) for one in trained) <= 0.004
    assert min(min(map(abs, one.camera.move)) for one in shifted) >= 0.03
    dimmed = layouts("reach", "shifted_light")
    assert max(max(one.light.colour) for one in dimmed) < min(min(one.light.colour) for one in trained)
    assert max(one.light.azimuth for one in trained) < min(one.light.azimuth for one in dimmed)


def test_other_splits_have_the_cameras_and_light_of_training():
    for split in ("held_out", "unseen_positions", "shifted_light"):
        assert max(max(map(abs, one.camera.move)) for one in layouts("reach", split)) <= 0.004
    for split in ("held_out", "unseen_positions", "shifted_camera"):
        assert min(min(one.light.colour) for one in layouts("reach", split)) > 0.45


def test_sorting_names_the_colour_of_the_actor():
    said = set()
    for layout in layouts("sort", "train"):
        word = layout.instruction.split()[2]
        red, green, blue = layout.colours["cube"]
        looks = {
            "red": red > 2 * max(green, blue),
            "green": green > 1.5 * max(red, blue),
            "blue": blue > 1.5 * max(red, green),
            "yellow": min(red, green) > 3 * blue,
        }
        assert looks[word], (word, layout.colours["cube"])
        said.add(word)
    assert said == {"red", "green", "blue", "yellow"}


def test_wording_varies_only_when_asked():
    assert len({one.instruction for one in layouts("stack", "train")}) == 1
    assert len({one.instruction for one in layouts("stack", "train", paraphrase=True)}) == 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_distractors_are_as_many_as_asked(count):
    for layout in layouts("pick_place", "train", distractors=count):
        assert len({"cylinder", "brick"} & set(layout.places)) == count


@pytest.mark.parametrize("task", ["pick_place", "stack"])
def test_training_starts_cover_the_sector_evenly(task):
    """Counts in 4 x 4 cells of equal measure vary less than those of independent draws, whose deviation is 1.9."""
    right, left = UNSEEN_WEDGE[1] + 0.05, 0.25 if TASKS[task].has_bin else AZIMUTH
    places = [one.places[TASKS[task].actor] for one in layouts(task, "train")]
    along = [(math.hypot(one.x, one.y) - RADIUS_M[0]) / (RADIUS_M[1] - RADIUS_M[0]) for one in places]
    across = [(math.atan2(one.y, one.x) - right) / (left - right) for one in places]
    counts, _, _ = np.histogram2d(along, across, bins=4, range=[[0, 1], [0, 1]])
    assert counts.std() < 1.6
