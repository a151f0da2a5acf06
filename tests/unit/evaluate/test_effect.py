import numpy as np
import pytest

from mimetic.evaluate.compare import compare
from mimetic.evaluate.effect import SWAP, measure_effect
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.metrics import chunk_sums, growths
from mimetic.evaluate.recording import Recording, Span

EPISODES, FRAMES, STEPS = 6, 20, 4


def recording():
    actions = np.cumsum(np.random.default_rng(0).normal(size=(EPISODES * FRAMES, 2)), axis=0)
    spans = tuple(Span(episode=n, first=n * FRAMES, last=(n + 1) * FRAMES, task="") for n in range(EPISODES))
    return Recording(actions=actions, states=actions, spans=spans)


def predictions(recorded, offset):
    """Predictions that are off by `offset(row)` in both joints."""
    rows = recorded.starts(2)
    chunks, _ = recorded.chunks(rows, STEPS)
    return [(rows, chunks + np.array([offset(row) for row in rows])[:, None, None])]


def compared(recorded, offset):
    return compare(recorded, predictions(recorded, offset), hold=HoldPose((0, 1), ""), mean=np.zeros(2))


def test_an_error_three_times_as_large_everywhere_is_a_growth_of_two_without_any_doubt():
    recorded = recording()
    whole = compared(recorded, lambda row: 0.1 + 0.01 * (row % 7))
    without = compared(recorded, lambda row: 3 * (0.1 + 0.01 * (row % 7)))
    found = measure_effect(SWAP, whole, without, seed=0)
    assert found.name == SWAP
    # Errors are exact multiples of each other, up to the rounding of additions.
    assert found.growth == pytest.approx(2.0, rel=1e-9)
    np.testing.assert_allclose(found.interval, (2.0, 2.0), rtol=1e-9)
    assert found.error == pytest.approx(float(without.scores.overall[0]))


def test_the_same_predictions_have_no_effect():
    recorded = recording()
    found = measure_effect(SWAP, compared(recorded, lambda row: 0.1), compared(recorded, lambda row: 0.1), seed=0)
    assert (found.growth, found.interval) == (0.0, (0.0, 0.0))


def test_an_effect_in_one_of_six_episodes_is_within_chance():
    recorded = recording()
    whole = compared(recorded, lambda row: 0.1)
    without = compared(recorded, lambda row: 0.3 if row < FRAMES else 0.1)
    growth, (low, high) = (
        measure_effect(SWAP, whole, without, seed=0).growth,
        measure_effect(SWAP, whole, without, seed=0).interval,
    )
    # Without the episode, which a draw of six episodes leaves out with (5 / 6) ^ 6 = 33 %, there is no growth.
    assert growth == pytest.approx(1 / 3, rel=1e-6)
    assert low == pytest.approx(0.0, abs=1e-9)
    assert high > 0.6


def test_pairs_matter_and_not_two_separate_spreads():
    """Errors that differ hugely from chunk to chunk, and always by 10 % more: the interval is narrow."""
    recorded = recording()
    scale = np.random.default_rng(1).uniform(0.01, 10, len(recorded.actions))
    whole = compared(recorded, lambda row: scale[row])
    without = compared(recorded, lambda row: 1.1 * scale[row])
    np.testing.assert_allclose(measure_effect(SWAP, whole, without, seed=0).interval, (0.1, 0.1), atol=1e-9)


def test_the_interval_does_not_depend_on_the_order_of_the_chunks():
    generator = np.random.default_rng(2)
    recorded, episode = generator.normal(size=(30, STEPS, 2)), np.repeat(np.arange(5), 6)
    first, second = (recorded + generator.normal(size=recorded.shape) for _ in range(2))

    def sums(predicted, order):
        return chunk_sums(
            predicted[order],
            recorded[order],
            np.ones((30, STEPS), bool),
            hold=np.zeros((30, 2)),
            mean=np.zeros(2),
            episode=episode[order],
        )

    forward, shuffled = np.arange(30), generator.permutation(30)
    one = growths(sums(first, forward), sums(second, forward), np.ones(2), seed=3)
    other = growths(sums(first, shuffled), sums(second, shuffled), np.ones(2), seed=3)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-12)


def test_one_chunk_has_no_interval_and_a_perfect_policy_no_growth():
    perfect, wrong = (
        chunk_sums(
            np.full((1, STEPS, 2), value),
            np.zeros((1, STEPS, 2)),
            np.ones((1, STEPS), bool),
            hold=np.zeros((1, 2)),
            mean=np.zeros(2),
            episode=[0],
        )
        for value in (0.0, 1.0)
    )
    growth, interval = growths(wrong, wrong, np.ones(2), seed=0)
    assert growth == 0.0
    assert np.isnan(interval).all()
    assert np.isnan(growths(perfect, wrong, np.ones(2), seed=0)[0])
