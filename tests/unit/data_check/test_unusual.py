"""Rules that compare episodes: each unusual episode is told once, as a risk, and usual ones are not."""

import numpy as np
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.results import Results
from mimetic.data.check.review import check_review
from mimetic.data.check.run import check_dataset
from mimetic.data.check.source import open_source
from mimetic.testing.datasets import build_dataset
from mimetic.testing.recordings import Recording, demonstrations, write_recording

SPEC = Recording(episodes=20, positions=2)
GRIPPER = 5
ALWAYS = {"variety.amount", "variety.contexts"}


def risks(root, level="rows"):
    report = check_dataset(root, level=level)
    assert report.defects == []
    return {f.id: f for f in report.findings if f.claim is Claim.RISK and f.id not in ALWAYS}


def changed(tmp_path, change, spec=SPEC):
    made = demonstrations(spec)
    change(made)
    return write_recording(tmp_path / "set", spec, made)


def cut(item, frames):
    item.state, item.action, item.timestamp = item.state[:frames], item.action[:frames], item.timestamp[:frames]


def test_an_episode_that_was_cut_ends_elsewhere(tmp_path):
    found = risks(changed(tmp_path, lambda made: cut(made[4], 90)))
    assert found["motion.end"].episodes == (4,)
    assert "state.spike" not in found


def test_an_accidental_recording_is_very_short(tmp_path):
    found = risks(changed(tmp_path, lambda made: cut(made[6], 12)))
    assert found["motion.short"].episodes == (6,)
    assert found["motion.short"].value == 12


def test_an_episode_of_twice_the_length_is_unusual(tmp_path):
    def stretch(made):
        item = made[3]
        rows = np.repeat(np.arange(item.length), 2)
        item.state, item.action = item.state[rows], item.action[rows]
        item.timestamp = np.arange(len(rows)) / SPEC.fps

    assert risks(changed(tmp_path, stretch))["motion.length"].episodes == (3,)


def test_a_far_start_pose_is_told_and_a_second_place_is_not(tmp_path):
    def move(made):
        for item in (made[7],):
            away = 60 * np.linspace(1, 0, item.length)[:, None]
            item.state, item.action = item.state + away * (np.arange(6) < 3), item.action + away * (np.arange(6) < 3)

    assert risks(changed(tmp_path, move))["motion.start"].episodes == (7,)

    def two_places(made):
        for item in made[::2]:
            away = 60 * np.linspace(1, 0, item.length)[:, None]
            item.state, item.action = item.state + away * (np.arange(6) < 3), item.action + away * (np.arange(6) < 3)

    assert "motion.start" not in risks(changed(tmp_path / "two", two_places))


def test_a_grasp_that_never_came_and_one_that_was_tried_again(tmp_path):
    def hold(made):
        made[2].state[:, GRIPPER] = made[2].action[:, GRIPPER] = 90.0
        made[2].state[:, GRIPPER] += np.random.default_rng(0).normal(0, 0.05, made[2].length)

    found = risks(changed(tmp_path / "a", hold))
    assert found["gripper.never_closed"].episodes == (2,)

    def again(made):
        item = made[9]
        t = np.arange(item.length)
        wave = 50 + 40 * np.cos(2 * np.pi * t / 45)
        item.action[:, GRIPPER] = wave
        item.state[:, GRIPPER] = wave[np.maximum(t - SPEC.lag, 0)]

    found = risks(changed(tmp_path / "b", again))
    assert found["gripper.retries"].episodes == (9,)


def test_a_hesitating_episode_pauses_in_between(tmp_path):
    def pause(made):
        item = made[5]
        rows = np.sort(np.concatenate([np.arange(item.length), np.full(120, 60)]))
        item.state, item.action, item.timestamp = item.state[rows], item.action[rows], np.arange(len(rows)) / SPEC.fps
        item.state = item.state + np.random.default_rng(0).normal(0, 0.05, item.state.shape)

    assert risks(changed(tmp_path, pause))["motion.idle_middle"].episodes == (5,)


def test_a_shaking_episode_is_rougher_than_the_others(tmp_path):
    def shake(made):
        item = made[8]
        wave = 6 * np.sin(2 * np.pi * 4 * np.arange(item.length) / SPEC.fps)[:, None] * (np.arange(6) < 5)
        item.action = item.action + wave
        item.state = item.action[np.maximum(np.arange(item.length) - SPEC.lag, 0)]

    assert risks(changed(tmp_path, shake))["motion.smoothness"].episodes == (8,)


def test_a_blocked_arm_is_followed_badly(tmp_path):
    def block(made):
        item = made[11]
        slope = np.linspace(0, 1, 40)
        item.state[60:100, 1] = item.state[60, 1] + slope * 0.2
        item.state[100:, 1] -= 12

    assert risks(changed(tmp_path, block))["action.tracking"].episodes == (11,)


def test_a_miscalibrated_joint_has_a_constant_offset(tmp_path):
    def offset(made):
        for item in made:
            item.action[:, 3] += 15

    found = risks(changed(tmp_path, offset))
    assert found["action.offset"].feature == "action[wrist_flex.pos]"
    assert found["action.offset"].episodes == ()


def test_a_start_that_moves_over_the_session_is_drift(tmp_path):
    def drift(made):
        for item in made[14:]:
            item.state[:, 0] += 25
            item.action[:, 0] += 25

    found = risks(changed(tmp_path, drift))
    assert found["variety.drift"].feature == "observation.state[shoulder_pan.pos]"


def test_demonstrations_that_are_all_the_same_lack_variety(tmp_path):
    assert "variety.diversity" in risks(changed(tmp_path, lambda made: None, Recording(episodes=20, positions=1)))


def test_rare_tasks_and_failed_episodes_are_told(tmp_path):
    success = np.ones(300, dtype=np.bool_)
    success[100:110] = False
    root = build_dataset(
        tmp_path / "set",
        lengths=(10,) * 30,
        tasks=tuple(f"Task number {number} of the day" for number in range(25)),
        columns={"next.success": success},
    )
    found = risks(root)
    assert found["variety.failures"].episodes == (10,)
    assert found["variety.balance"].value == pytest.approx(1 / 30, abs=1e-4)


def test_an_episode_that_acts_unlike_the_others_is_told_with_full(tmp_path):
    def contradict(made):
        item = made[13]
        item.action[:, :3] += 25 * np.sin(np.linspace(0, 9, item.length))[:, None]

    root = changed(tmp_path, contradict)
    assert "consistency.neighbours" not in risks(root)
    assert risks(root, level="full")["consistency.neighbours"].episodes == (13,)
    clean = changed(tmp_path / "clean", lambda made: None)
    assert "consistency.neighbours" not in risks(clean, level="full")


def test_too_many_unusual_episodes_and_scores_of_length_are_told(tmp_path):
    source = open_source(changed(tmp_path, lambda made: None), with_rows=True)
    results = Results(source.root)
    results.add("motion.end", "x", episodes=range(11))
    results.measure("path_ratio", 1 + source.lengths / 100.0)
    check_review(source, results)
    found = {finding.id: finding for finding in results.findings}
    assert found["review.assumption"].value == pytest.approx(0.55)
    assert found["review.length"].value == pytest.approx(1.0)
    quiet = Results(source.root)
    quiet.add("motion.end", "x", episodes=range(9))
    check_review(source, quiet)
    assert [finding.id for finding in quiet.findings] == ["motion.end"]
