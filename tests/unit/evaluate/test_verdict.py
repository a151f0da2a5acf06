import numpy as np
import pytest

from mimetic.evaluate.metrics import chunk_sums, intervals, summarise
from mimetic.evaluate.verdict import CAVEAT, judge

NAMES = ("shoulder", "elbow", "gripper")
STEPS = 10


def verdict(make, *, chunks=60, episodes=6, steps=STEPS, scale=(1.0, 1.0, 1.0), blind_error=None, walk=0.3):
    """Judge the predictions that `make(recorded, hold, generator)` returns for random walks."""
    generator = np.random.default_rng(0)
    hold = generator.normal(size=(chunks, 3))
    recorded = hold[:, None] + np.cumsum(walk * generator.normal(size=(chunks, steps, 3)), axis=1)
    predicted = make(recorded, np.repeat(hold[:, None], steps, axis=1), generator)
    sums = chunk_sums(
        predicted,
        recorded,
        np.ones(recorded.shape[:2], bool),
        hold=hold,
        mean=np.zeros(3),
        episode=np.repeat(np.arange(episodes), chunks // episodes),
    )
    scores = summarise(sums, scale)
    return judge(scores, intervals(sums, scale, seed=0), NAMES, episodes=episodes, blind_error=blind_error)


def test_a_perfect_policy_is_better_than_both_baselines():
    found = verdict(lambda recorded, hold, _: recorded)
    assert found.level == "good"
    assert found.headline == (
        "Better than both baselines: the error is 100 % smaller than holding still's "
        "and 100 % smaller than the mean action's"
    )
    assert not found.advice


def test_a_holding_policy_hardly_moves():
    found = verdict(lambda recorded, hold, _: hold)
    assert found.level == "bad"
    assert found.headline == "The policy hardly moves: its chunks cover 0 % of the recorded movement"
    assert found.advice


def test_a_policy_of_the_mean_action_hardly_moves():
    assert verdict(lambda recorded, hold, _: np.zeros_like(hold)).headline.startswith("The policy hardly moves")


def test_a_policy_that_moves_the_wrong_way_is_no_better_than_holding_still():
    found = verdict(lambda recorded, hold, _: 2 * hold - recorded)
    assert found.level == "bad"
    assert found.headline == "No better than holding still: the policy's error is 100 % larger"


def test_a_policy_whose_gain_is_within_chance_is_not_called_better():
    def lucky(recorded, hold, generator):
        moved = generator.normal(size=(len(hold), 1, 1)) + 0.05
        return hold + np.sign(moved) * (recorded - hold) * 0.9

    found = verdict(lucky)
    assert found.level == "weak"
    assert "which is within chance" in found.headline
    assert any("--stride" in line for line in found.advice)


def test_a_policy_that_beats_holding_but_not_the_mean_is_no_better_than_the_mean():
    # The arm returns to the middle: holding is bad, the mean action is nearly perfect.
    generator = np.random.default_rng(1)
    hold = 5 + generator.normal(size=(60, 3))
    recorded = 0.1 * generator.normal(size=(60, STEPS, 3))
    predicted = recorded + 0.8 * generator.normal(size=recorded.shape)
    sums = chunk_sums(
        predicted,
        recorded,
        np.ones((60, STEPS), bool),
        hold=hold,
        mean=np.zeros(3),
        episode=np.repeat(np.arange(6), 10),
    )
    scale = np.ones(3)
    found = judge(summarise(sums, scale), intervals(sums, scale, seed=0), NAMES, episodes=6)
    assert found.headline.startswith("No better than the mean action: the policy's error is")


def test_recordings_that_rest_allow_no_verdict():
    found = verdict(lambda recorded, hold, _: recorded, walk=1e-3)
    assert found.level == "unknown"
    assert found.headline == "Nothing can be told: the recorded actions hardly move in these episodes"
    assert not found.findings


def test_joints_that_are_worse_than_holding_are_named_worst_first():
    def uneven(recorded, hold, _):
        predicted = recorded.copy()
        predicted[..., 0] += 1.5
        predicted[..., 2] += 4.0
        return predicted

    found = verdict(uneven, walk=0.5)
    assert "Worse than holding still on 2 of 3 joints: gripper, shoulder" in found.findings


def test_joints_without_motion_are_named():
    found = verdict(lambda recorded, hold, _: recorded, scale=(1.0, np.nan, 1.0))
    assert "1 joint without any recorded motion is not part of the overall numbers: elbow" in found.findings


@pytest.mark.parametrize(("factor", "words"), [(0.4, "the motion is damped"), (2.5, "exaggerated or jitters")])
def test_damped_and_exaggerated_motion_is_said(factor, words):
    found = verdict(lambda recorded, hold, _: recorded[:, :1] + factor * (recorded - recorded[:, :1]))
    assert any(words in line for line in found.findings)


def test_a_policy_that_ignores_its_cameras_is_found():
    def noisy(recorded, hold, generator):
        return recorded + 0.1 * generator.normal(size=recorded.shape)

    error = 0.1 * np.sqrt(2 / np.pi)
    for blind_error, words in ((error, "hardly uses its cameras"), (3 * error, "the policy uses its cameras")):
        assert any(words in line for line in verdict(noisy, blind_error=blind_error).findings)


def test_the_caveat_is_always_there_and_few_episodes_are_said():
    assert verdict(lambda recorded, hold, _: recorded).caveats == (CAVEAT,)
    few = verdict(lambda recorded, hold, _: recorded, chunks=10, episodes=1).caveats
    assert few[0].startswith("Only 1 episode was evaluated")
    assert few[1].startswith("Only 10 predictions")
    assert few[-1] == CAVEAT
