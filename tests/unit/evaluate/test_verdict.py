import numpy as np
import pytest

from mimetic.evaluate.effect import BLIND, MUTE, SWAP, Effect
from mimetic.evaluate.metrics import chunk_sums, intervals, summarise
from mimetic.evaluate.verdict import CAVEAT, judge

NAMES = ("shoulder", "elbow", "gripper")
STEPS = 10


def verdict(make, *, chunks=60, episodes=6, steps=STEPS, scale=(1.0, 1.0, 1.0), effects=(), notes=(), walk=0.3):
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
    bounds = intervals(sums, scale, seed=0)
    return judge(scores, bounds, NAMES, episodes=episodes, effects=effects, notes=notes)


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


def perfect(recorded, hold, _):
    return recorded


def effect(name, growth, low, high):
    return Effect(name=name, error=1.0 + growth, growth=growth, interval=(low, high))


CHANCE = "that may be chance; evaluate more episodes"


@pytest.mark.parametrize(
    ("name", "growth", "interval", "words"),
    [
        (BLIND, 0.4, (0.3, 0.5), "With blank images the error changes by +40 % (95 % interval +30 to +50 %): "
         "the policy uses its cameras"),
        (BLIND, 0.06, (0.02, 0.1), "the policy uses its cameras a little"),
        (BLIND, 0.0, (-0.01, 0.01), "the policy hardly uses its cameras"),
        (BLIND, -0.1, (-0.2, -0.05), "the policy hardly uses its cameras"),
        (BLIND, 0.4, (-0.1, 0.9), CHANCE),
        (BLIND, 0.0, (-0.6, 0.7), CHANCE),
        (MUTE, 0.5, (0.4, 0.6), "Without an instruction the error changes by +50 % (95 % interval +40 to +60 %): "
         "the policy notices that it is missing"),
        (MUTE, 0.0, (-0.01, 0.01), "the policy does not notice that it is missing"),
        (SWAP, 2.0, (1.5, 2.5), "With another task's instruction the error changes by +200 % "
         "(95 % interval +150 to +250 %): the policy follows its instruction"),
        (SWAP, 0.3, (0.2, 0.4), "the policy reacts to its instruction, but too little to say that it follows it"),
        (SWAP, 0.15, (0.13, 0.17), "the policy ignores its instruction"),
        (SWAP, -0.02, (-0.1, 0.1), "the policy ignores its instruction"),
        (SWAP, 0.3, (-0.2, 0.9), CHANCE),
        (SWAP, 0.5, (np.nan, np.nan), f"With another task's instruction the error changes by +50 %: {CHANCE}"),
        (SWAP, np.nan, (np.nan, np.nan), "With another task's instruction the error cannot be compared"),
    ],
)  # fmt: skip
def test_what_an_input_is_worth_is_said_in_words(name, growth, interval, words):
    found = verdict(perfect, effects=[effect(name, growth, *interval)])
    assert found.findings[-1].endswith(words)


def test_a_policy_that_ignores_its_instruction_gets_advice():
    ignored = verdict(perfect, effects=[effect(SWAP, 0.0, -0.01, 0.01)])
    hardly = verdict(perfect, effects=[effect(SWAP, 0.3, 0.2, 0.4)])
    followed = verdict(perfect, effects=[effect(SWAP, 2.0, 1.5, 2.5)])
    assert any("give the task away" in line for line in ignored.advice)
    assert hardly.advice == ignored.advice
    assert not followed.advice
    assert ignored.level == followed.level == "good"


def test_what_cannot_be_measured_is_said_even_where_nothing_moves():
    note = "The policy (`act`) does not read instructions"
    assert note in verdict(perfect, notes=[note]).findings
    assert verdict(perfect, notes=[note], walk=1e-3).findings == (note,)


def test_the_caveat_is_always_there_and_few_episodes_are_said():
    assert verdict(lambda recorded, hold, _: recorded).caveats == (CAVEAT,)
    few = verdict(lambda recorded, hold, _: recorded, chunks=10, episodes=1).caveats
    assert few[0].startswith("Only 1 episode was evaluated")
    assert few[1].startswith("Only 10 predictions")
    assert few[-1] == CAVEAT
