"""Intervals and tests of success rates, against values worked out by hand or published, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mimetic.evaluate.rollout.intervals import (
    FIRST_LOOK,
    Pairs,
    detectable_difference,
    enough,
    mcnemar,
    newcombe,
    pair,
    wilson,
    wilson_half_width,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (7, 10, 0.3968, 0.8922),  # spec/dataset_quality.md 11.1: 40 to 89 %
        (0, 10, 0.0, 0.2775),  # z^2 / (n + z^2)
        (10, 10, 0.7225, 1.0),
        (15, 148, 0.0624, 0.1605),  # Newcombe 1998, table I: 15/148
        (81, 263, 0.2553, 0.3662),  # the same table
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_by_hand(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_the_half_width_is_half_of_the_interval():
    for successes, n in ((7, 10), (3, 50), (50, 50)):
        low, high = wilson(successes, n)
        assert wilson_half_width(successes, n) == pytest.approx((high - low) / 2, abs=1e-12)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (9, 1, 22 / 1024),  # 2 (C(10,0) + C(10,1)) / 2^10
        (1, 9, 22 / 1024),
        (12, 2, 2 * (1 + 14 + 91) / 2**14),
        (5, 0, 2 / 32),
        (3, 3, 1.0),
        (0, 0, 1.0),
    ],
)
def test_mcnemar_by_hand(only_first, only_second, p):
    pairs = Pairs(both=4, only_first=only_first, only_second=only_second, neither=3)
    assert mcnemar(pairs) == pytest.approx(p, abs=1e-12)


def test_mcnemar_of_thousands_of_pairs_does_not_overflow():
    assert 0 < mcnemar(Pairs(both=0, only_first=1600, only_second=1500, neither=0)) < 0.1


def test_newcombe_by_hand():
    """50 sputum specimens (Armitage and Berry), method 10: 0.20 with 0.0562 to 0.3292, as StatsDirect prints it."""
    pairs = Pairs(both=20, only_first=12, only_second=2, neither=16)
    assert pairs.difference == pytest.approx(0.2)
    assert newcombe(pairs) == pytest.approx((0.056156, 0.329207), abs=1e-6)


def test_newcombe_of_equal_outcomes_holds_zero_and_turns_with_the_policies():
    low, high = newcombe(Pairs(both=7, only_first=0, only_second=0, neither=3))
    assert low < 0 < high
    forth = newcombe(Pairs(both=5, only_first=6, only_second=1, neither=8))
    back = newcombe(Pairs(both=5, only_first=1, only_second=6, neither=8))
    assert forth == pytest.approx((-back[1], -back[0]))


def test_pairs_are_counted():
    found = pair([True, True, False, False, True], [True, False, True, False, False])
    assert found == Pairs(both=1, only_first=2, only_second=1, neither=1)


def test_wilson_covers_the_truth_in_about_95_of_100_evaluations():
    """20,000 evaluations of 50 episodes; the interval's coverage oscillates by a few points around 95 %."""
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.8, 0.95):
        bounds = np.array([wilson(k, 50) for k in range(51)])
        drawn = rng.binomial(50, rate, 20_000)
        covered = np.mean((bounds[drawn, 0] <= rate) & (rate <= bounds[drawn, 1]))
        assert 0.93 < covered < 0.985, (rate, covered)


def test_newcombe_covers_the_truth_in_about_95_of_100_comparisons():
    rng = np.random.default_rng(1)
    chances = np.array([0.55, 0.2, 0.08, 0.17])
    covered = []
    for counts in rng.multinomial(60, chances, 2000):
        both, first, second, neither = (int(count) for count in counts)
        low, high = newcombe(Pairs(both=both, only_first=first, only_second=second, neither=neither))
        covered.append(low <= 0.12 <= high)
    assert 0.93 < np.mean(covered) < 0.985


def test_the_exact_test_seldom_cries_wolf_and_finds_the_detectable_difference():
    """At most 5 % false alarms; about 80 % power at the difference that is printed (the exact test is cautious)."""
    rng = np.random.default_rng(2)
    n, share = 100, 0.3

    def found(difference):
        chances = [0.5, (share + difference) / 2, (share - difference) / 2, 0.5 - share]
        tests = [
            mcnemar(Pairs(both=int(a), only_first=int(b), only_second=int(c), neither=int(d))) < 0.05
            for a, b, c, d in rng.multinomial(n, chances, 2000)
        ]
        return np.mean(tests)

    assert found(0.0) <= 0.05
    assert 0.70 < found(detectable_difference(n, int(n * share))) < 0.88


def test_the_detectable_difference_shrinks_with_episodes_and_grows_with_disagreement():
    """With 30 % differing pairs of 100: (1.96 sqrt(0.3) + 0.8416 sqrt(0.3 - d^2))^2 = 100 d^2 at d = 0.15165."""
    assert detectable_difference(100, 30) == pytest.approx(0.15165, abs=1e-5)
    assert detectable_difference(400, 120) < detectable_difference(100, 30) < detectable_difference(100, 60)
    assert detectable_difference(0, 0) == detectable_difference(2, 0) == 1.0
    # Where no pair differed, a difference d must make up all disagreement itself: 1.96^2 d + ... = n d^2.
    d = detectable_difference(50, 0)
    assert (1.959964 * math.sqrt(d) + 0.841621 * math.sqrt(d - d * d)) ** 2 == pytest.approx(50 * d * d, rel=1e-4)


def test_enough_looks_at_30_40_50_and_at_nothing_else():
    always = [True] * 60
    assert wilson_half_width(30, 30) > 0.05 > wilson_half_width(40, 40)
    assert enough(always, 0.05) == 40
    assert enough(always, 0.06) == FIRST_LOOK
    assert enough(always[:29], 0.2) is None
    assert enough([True, False] * 50, 0.05) is None
    assert wilson_half_width(17, 35) < 0.17  # narrow enough at 35, where nobody looks
    assert enough([True, False] * 18, 0.155) is None


def test_stopping_early_costs_little_coverage():
    """The documented price of optional stopping: at worst a few points of coverage."""
    rng = np.random.default_rng(3)
    covered = []
    for _ in range(600):
        outcomes = list(rng.random(200) < 0.9)
        n = enough(outcomes, 0.06) or 200
        low, high = wilson(sum(outcomes[:n]), n)
        covered.append(low <= 0.9 <= high)
    assert 0.88 < np.mean(covered) < 0.99
