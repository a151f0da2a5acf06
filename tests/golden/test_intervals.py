"""Intervals of success rates against the tables of the papers that they come from.

Newcombe 1998a: "Two-sided confidence intervals for the single proportion: comparison of seven methods", Statistics in
Medicine 17:857-872, table I, method 3. Newcombe 1998b: "Interval estimation for the difference between independent
proportions: comparison of eleven methods", 17:873-890, table II, method 10. Newcombe 1998c: "Improved confidence
intervals for the difference between binomial proportions based on paired data", 17:2635-2650, method 10.
"""

from __future__ import annotations

import pytest

from mimetic.evaluate.rollout.independent import Counts, fisher, holm, newcombe_independent
from mimetic.evaluate.rollout.intervals import Pairs, newcombe, wilson

PRINTED = 5.1e-5
"""The papers print four decimals."""


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=PRINTED)


@pytest.mark.parametrize(
    ("successes", "n", "others", "m", "low", "high"),
    [
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (6, 7, 2, 7, 0.0582, 0.8062),
        (5, 56, 0, 29, -0.0381, 0.1926),
        (0, 10, 0, 20, -0.1611, 0.2775),
        (0, 10, 0, 10, -0.2775, 0.2775),
        (10, 10, 0, 20, 0.6791, 1.0),
        (10, 10, 0, 10, 0.6075, 1.0),
    ],
)
def test_newcombe_of_independent_rates(successes, n, others, m, low, high):
    counts = Counts(successes=successes, n=n, other_successes=others, other_n=m)
    assert newcombe_independent([counts]) == pytest.approx((low, high), abs=PRINTED)


@pytest.mark.parametrize(
    ("both", "first", "second", "neither", "low", "high"),
    [
        (36, 12, 2, 0, 0.0569, 0.3404),
        (18, 12, 2, 18, 0.0562, 0.3290),
        (53, 0, 0, 1, -0.0729, 0.0729),
        (0, 30, 0, 0, 0.8395, 1.0),
    ],
)
def test_newcombe_of_paired_rates(both, first, second, neither, low, high):
    pairs = Pairs(both=both, only_first=first, only_second=second, neither=neither)
    assert newcombe(pairs) == pytest.approx((low, high), abs=PRINTED)


def test_fishers_tea():
    """Fisher 1935: 3 of 4 cups right on both sides: (16 + 1) / 70 to one side, 34 / 70 to both."""
    counts = Counts(successes=3, n=4, other_successes=1, other_n=4)
    assert fisher([counts]) == pytest.approx(34 / 70, abs=1e-12)


def test_holm_step_by_step():
    """0.005 * 4, then the largest so far of 0.01 * 3, 0.03 * 2, 0.04 * 1 (Holm 1979)."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
