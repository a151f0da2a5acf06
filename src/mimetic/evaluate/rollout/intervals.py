"""How sure a count of successes is: intervals, an exact paired test, and when enough has been seen.

Sources: Wilson 1927; Newcombe 1998 ("Improved confidence intervals for the difference between binomial proportions
based on paired data", method 10); McNemar 1947 in its exact, binomial form; Connor 1987 for the power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.975)
_Z80 = NormalDist().inv_cdf(0.8)
FIRST_LOOK, LOOK_EVERY = 30, 10
"""After how many episodes a sequential evaluation looks for the first time, and how often then."""


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval of a success rate, both ends in [0, 1]; (0, 1) where nothing was tried."""
    if n == 0:
        return 0.0, 1.0
    rate, square = successes / n, Z95 * Z95
    centre = (rate + square / (2 * n)) / (1 + square / n)
    half = wilson_half_width(successes, n)
    # At 0 and n successes rounding would leave an end beside 0 or 1.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def wilson_half_width(successes: int, n: int) -> float:
    """Half of the width of Wilson's interval; 0.5 where nothing was tried."""
    if n == 0:
        return 0.5
    rate, square = successes / n, Z95 * Z95
    return Z95 * math.sqrt(rate * (1 - rate) / n + square / (4 * n * n)) / (1 + square / n)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Outcomes of two policies in the same episodes.

    Args:
        both: episodes in which both succeeded.
        only_first: in which only the first did.
        only_second: in which only the second did.
        neither: in which both failed.
    """

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def n(self) -> int:
        """How many episodes."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """Success rate of the first minus that of the second; NaN without an episode."""
        return (self.only_first - self.only_second) / self.n if self.n else math.nan


def pair(first: Sequence[bool], second: Sequence[bool]) -> Pairs:
    """Count the outcomes of the same episodes, in the same order."""
    both = sum(a and b for a, b in zip(first, second, strict=True))
    return Pairs(
        both=both,
        only_first=sum(first) - both,
        only_second=sum(second) - both,
        neither=len(first) - sum(first) - sum(second) + both,
    )


def mcnemar(pairs: Pairs) -> float:
    """Exact two-sided p-value of "both policies succeed equally often"; 1 where no pair differs."""
    n = pairs.only_first + pairs.only_second
    smaller = min(pairs.only_first, pairs.only_second)
    tail = sum(math.comb(n, k) for k in range(smaller + 1))
    # Whole numbers to the last step: 2.0**n would overflow.
    return min(1.0, float(2 * tail / 2**n))


def newcombe(pairs: Pairs) -> tuple[float, float]:
    """95 % interval of the difference first - second of paired rates, in [-1, 1]."""
    n = pairs.n
    if n == 0:
        return -1.0, 1.0
    a, b, c, d = pairs.both, pairs.only_first, pairs.only_second, pairs.neither
    p1, p2 = (a + b) / n, (a + c) / n
    (low1, high1), (low2, high2) = wilson(a + b, n), wilson(a + c, n)
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    cross = float(a * d - b * c)
    if cross > 0:  # the correction of method 10 keeps a chance correlation from narrowing the interval
        cross = max(cross - n / 2, 0)
    phi = cross / math.sqrt(margins) if margins else 0.0

    def reach(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first * first - 2 * phi * first * second + second * second))

    return p1 - p2 - reach(p1 - low1, high2 - p2), p1 - p2 + reach(high1 - p1, p2 - low2)


def detectable_difference(n: int, differing: int) -> float:
    """Smallest difference of paired success rates that n episodes find with 80 % chance, at the 5 % level.

    By the normal approximation of McNemar's test, at the share of differing pairs that was seen (which a difference can
    never exceed). 1 where even a difference of 100 points is too small.

    Args:
        n: episodes.
        differing: pairs with different outcomes.
    """
    if n == 0:
        return 1.0
    seen = differing / n

    def is_found(difference: float) -> bool:
        share = min(1.0, max(seen, difference))
        needed = (Z95 * math.sqrt(share) + _Z80 * math.sqrt(max(0.0, share - difference**2))) / difference
        return needed * needed <= n

    low, high = 0.0, 1.0
    if not is_found(high):
        return 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def enough(successes: Sequence[bool], target: float) -> int | None:
    """How many episodes, from the first on, suffice for an interval of plus or minus `target`; None if these do not.

    Looked at after 30, 40, 50, ... episodes, so that the answer depends on the outcomes alone and not on how many
    episodes ran at once. Stopping where the interval happens to be narrow makes its true coverage slightly smaller
    than 95 %.

    Args:
        successes: outcomes of episodes 0, 1, 2, ...
        target: half-width, a share.
    """
    for n in range(FIRST_LOOK, len(successes) + 1, LOOK_EVERY):
        if wilson_half_width(sum(successes[:n]), n) <= target:
            return n
    return None
