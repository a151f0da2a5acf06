"""How sure the difference of two success rates is that come from different episodes.

Layouts of two variations have nothing in common, so nothing can be paired. Where several tasks were played in both,
each task is a stratum of its own: success rates of tasks differ, and their mixture must not look like a difference.

Sources: Newcombe 1998 ("Interval estimation for the difference between independent proportions: comparison of eleven
methods", Statistics in Medicine 17:873-890, method 10); Zou and Donner 2008 for a sum of strata (MOVER); Fisher's exact
test, and for strata its conditional form after Gart 1970; Holm 1979; Fleiss, Tytun and Ury 1980 for the power.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mimetic.evaluate.rollout.intervals import wilson

_Z80 = NormalDist().inv_cdf(0.8)
_TIE = 1 + 1e-7
"""Two tables whose probabilities differ by less than this factor are equally likely; rounding tells them apart."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Successes of one stratum under two conditions.

    Args:
        successes: under the first.
        n: episodes of it.
        other_successes: under the second.
        other_n: episodes of it.
    """

    successes: int
    n: int
    other_successes: int
    other_n: int

    @property
    def difference(self) -> float:
        """Success rate under the first minus that under the second."""
        return self.successes / self.n - self.other_successes / self.other_n


def difference(strata: Sequence[Counts]) -> float:
    """Mean difference of the success rates, every stratum with the same weight; NaN without any."""
    return sum(one.difference for one in strata) / len(strata) if strata else math.nan


def newcombe_independent(strata: Sequence[Counts]) -> tuple[float, float]:
    """95 % interval of `difference`, in [-1, 1]; for one stratum it is Newcombe's method 10."""
    if not strata:
        return -1.0, 1.0
    middle, down, up = difference(strata), 0.0, 0.0
    for one in strata:
        rate, other = one.successes / one.n, one.other_successes / one.other_n
        (low, high), (other_low, other_high) = wilson(one.successes, one.n), wilson(one.other_successes, one.other_n)
        down += (rate - low) ** 2 + (other_high - other) ** 2
        up += (high - rate) ** 2 + (other - other_low) ** 2
    return middle - math.sqrt(down) / len(strata), middle + math.sqrt(up) / len(strata)


def fisher(strata: Sequence[Counts]) -> float:
    """Exact two-sided p-value of "both conditions succeed equally often in every stratum".

    The successes of a stratum are held fixed; the p-value is the probability of all outcomes that are at most as likely
    as the one that was seen.
    """
    chances: NDArray[np.float64] = np.ones(1)
    place = 0
    for one in strata:
        both = one.successes + one.other_successes
        least, most = max(0, both - one.other_n), min(one.n, both)
        whole = math.comb(one.n + one.other_n, both)
        # Whole numbers until the division: no factorial of a float overflows.
        each = [math.comb(one.n, k) * math.comb(one.other_n, both - k) / whole for k in range(least, most + 1)]
        chances = np.convolve(chances, np.array(each))
        place += one.successes - least
    return min(1.0, float(chances[chances <= chances[place] * _TIE].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, so that all verdicts together err in at most 5 of 100 evaluations."""
    count, largest = len(p_values), 0.0
    corrected = [1.0] * count
    for rank, index in enumerate(sorted(range(count), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def detectable_fall(rate: float, n: int, other_n: int, *, level: float = 0.05) -> float | None:
    """Smallest fall from a success rate that Fisher's test finds with 80 % chance; None where no fall is large enough.

    By the normal approximation with continuity correction, which is close to the exact test's power.

    Args:
        rate: success rate from which it falls.
        n: episodes that it was measured in.
        other_n: episodes after the fall.
        level: of the test.
    """
    if not n or not other_n or not rate > 0:
        return None
    ratio, quantile = other_n / n, NormalDist().inv_cdf(1 - level / 2)

    def is_found(fall: float) -> bool:
        other = rate - fall
        mean = (rate + ratio * other) / (1 + ratio)
        spread = quantile * math.sqrt((1 + ratio) * mean * (1 - mean))
        spread += _Z80 * math.sqrt(ratio * rate * (1 - rate) + other * (1 - other))
        needed = spread * spread / (ratio * fall * fall)
        return needed / 4 * (1 + math.sqrt(1 + 2 * (1 + ratio) / (needed * ratio * fall))) ** 2 <= n

    low, high = 0.0, rate
    if not is_found(high):
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
