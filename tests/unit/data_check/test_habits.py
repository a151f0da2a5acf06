"""Rules on how a person operates: each bad habit is told with its episodes, and practised recordings are not."""

import json

import numpy as np
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.idle import longest_pause
from mimetic.data.check.run import check_dataset
from mimetic.data.check.smoothness import roughness
from mimetic.names import SIMULATION_JSON
from mimetic.testing.recordings import Recording, demonstrations, write_recording

SPEC = Recording(episodes=24, positions=2)
GRIPPER = 5
ALWAYS = {"variety.amount", "variety.contexts"}


def changed(tmp_path, change, spec=SPEC):
    made = demonstrations(spec)
    change(made)
    return write_recording(tmp_path / "set", spec, made)


def risks(root):
    report = check_dataset(root)
    assert report.defects == []
    return {f.id: f for f in report.findings if f.claim is Claim.RISK and f.id not in ALWAYS}


def skipped(root):
    return {f.id: f.message for f in check_dataset(root).findings if f.claim is Claim.NOT_CHECKED}


def repeat(item, rows):
    """Play frames `rows` of a demonstration; the sensors' noise is drawn anew, or the state would be frozen."""
    item.state, item.action, item.timestamp = item.state[rows], item.action[rows], np.arange(len(rows)) / SPEC.fps
    item.state = item.state + np.random.default_rng(0).normal(0, 0.05, item.state.shape)


def test_practised_recordings_have_none_of_these_habits(tmp_path):
    assert risks(changed(tmp_path, lambda made: None)) == {}


def test_commands_that_tremble_while_the_arm_does_not_are_told(tmp_path):
    def tremble(made):
        for number in (2, 9):
            noise = np.random.default_rng(number).normal(0, 1.0, made[number].action.shape)
            made[number].action = made[number].action + noise * (np.arange(6) != GRIPPER)

    found = risks(changed(tmp_path, tremble))
    assert found["action.shaking"].episodes == (2, 9)
    assert found["action.shaking"].value > found["action.shaking"].threshold


def test_an_arm_that_trembles_with_its_commands_is_no_shaking_of_the_commands(tmp_path):
    def tremble(made):
        for item in made:
            noise = np.random.default_rng(item.length).normal(0, 1.0, item.action.shape) * (np.arange(6) != GRIPPER)
            item.action = item.action + noise
            item.state[SPEC.lag :] += noise[: -SPEC.lag]

    assert "action.shaking" not in risks(changed(tmp_path, tremble))


@pytest.mark.parametrize("resting", [4, 5])
def test_a_joint_whose_reading_stands_still_is_not_compared_with_its_commands(resting, tmp_path):
    """Commands that tremble by less than three steps of a coarse encoder; the ratio would be of millions."""

    def rest(made):
        for item in made:
            item.state = np.round(item.state)
        item, rests = made[4], np.arange(6) < resting
        noise = np.random.default_rng(0).uniform(-1.2, 1.2, item.action.shape)
        item.state = np.where(rests, item.state[0], item.state)
        item.action = np.where(rests, item.state[0] + noise, item.action)

    assert "action.shaking" not in {finding.id for finding in check_dataset(changed(tmp_path, rest)).findings}


@pytest.mark.parametrize(("frames", "told"), [(15, False), (60, True)])
def test_a_stop_in_the_middle_is_told_from_a_second_on(frames, told, tmp_path):
    def stop(made):
        item = made[5]
        middle = int(np.argmax(np.linalg.norm(np.diff(item.state, axis=0), axis=1)))
        repeat(item, np.sort(np.concatenate([np.arange(item.length), np.full(frames, middle)])))

    found = risks(changed(tmp_path, stop))
    assert ("motion.pause" in found) is told
    if told:
        ((episode, first, last),) = found["motion.pause"].spans
        assert episode == 5
        assert frames - 6 <= last - first <= frames + 20
        assert found["motion.pause"].value == pytest.approx((last - first + 1) / SPEC.fps, abs=1e-3)


def test_waiting_before_and_after_the_motion_is_no_pause_in_it():
    path = np.concatenate([np.zeros(90), np.linspace(0, 1, 40), np.ones(90)])[:, None]
    assert longest_pause(path, 30) == (0, -1)
    first, last = longest_pause(np.concatenate([path[:110], np.repeat(path[110:111], 45, axis=0), path[110:]]), 30)
    assert (first, last) == pytest.approx((110, 154), abs=3)


def test_durations_that_vary_by_more_than_a_careful_person_s_are_told_with_the_slow_episodes(tmp_path):
    def slow_down(made):
        for number in (1, 8, 20):
            repeat(made[number], np.repeat(np.arange(made[number].length), 2))

    found = risks(changed(tmp_path, slow_down))
    assert found["motion.tempo"].episodes == (1, 8, 20)
    assert found["motion.tempo"].value > 1.7
    few = Recording(episodes=12, positions=2)
    assert "needs 20 episodes" in skipped(changed(tmp_path / "few", lambda made: None, few))["motion.tempo"]


def test_roughness_of_white_noise_is_its_deviation_and_slow_motion_has_none():
    noise = np.random.default_rng(0).normal(0, 0.3, (20_000, 2))
    np.testing.assert_allclose(roughness(noise), 0.3, rtol=0.03)
    assert roughness(np.linspace(0, 5, 100)[:, None]).max() < 1e-12
    assert np.isnan(roughness(np.zeros((2, 3)))).all()


@pytest.mark.parametrize(("everywhere", "told"), [(True, True), (False, False)])
def test_a_gripper_that_holds_something_is_no_offset_and_a_shifted_one_is(everywhere, told, tmp_path):
    def hold(made):
        for item in made:
            closed = item.action[:, GRIPPER] < 50
            item.state[:, GRIPPER] += 15.0 if everywhere else 15.0 * closed

    assert ("action.offset" in risks(changed(tmp_path, hold))) is told


def note(root, successes, lengths=None):
    lengths = lengths or check_dataset(root, level="quick").lengths
    entries = [{"length": int(n), "success": s} for n, s in zip(lengths, successes, strict=True)]
    path = root / SIMULATION_JSON
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"episodes": entries}))


def test_failures_that_the_simulation_noted_are_told_with_the_command_that_takes_them_out(tmp_path):
    root = changed(tmp_path, lambda made: None)
    note(root, [number not in (3, 17) for number in range(24)])
    found = risks(root)["variety.failures"]
    assert found.episodes == (3, 17)
    assert found.repair.endswith("--operation.episode_indices=[3,17]")
    note(root, [True] * 24)
    assert risks(root) == {}
    assert "variety.failures" not in skipped(root)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "no list of episodes"),
        ('{"episodes": [{"length": 5}]}', "episode 0 has no length or no success"),
        ('{"episodes": [{"length": 5, "success": false}]}', "about other episodes"),
    ],
)
def test_notes_that_are_damaged_or_of_another_dataset_judge_nothing(text, words, tmp_path):
    root = changed(tmp_path, lambda made: None)
    (root / SIMULATION_JSON).parent.mkdir(parents=True, exist_ok=True)
    (root / SIMULATION_JSON).write_text(text)
    assert words in skipped(root)["variety.failures"]
    assert risks(root) == {}
