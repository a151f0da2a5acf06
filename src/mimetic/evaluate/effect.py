"""What an input is worth to a policy: the error without it against the error with it.

The same policy predicts at the same rows from the same noise, once with everything and once without. A bootstrap over
pairs of predictions says how sure the difference is.
"""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.evaluate.compare import Comparison
from mimetic.evaluate.metrics import POLICY, growths

BLIND, MUTE, SWAP = "blind", "mute", "swap"
"""Passes without an input: pictures, the instruction, and the right one of several instructions."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What an input is worth to a policy.

    Args:
        name: "blind", "mute" or "swap".
        error: overall normalised error without it.
        growth: error without it / error with it - 1; NaN where that is not defined.
        interval: 95 % interval of the growth, (2,); NaN where there is nothing to resample.
    """

    name: str
    error: float
    growth: float
    interval: tuple[float, float]


def measure_effect(name: str, whole: Comparison, without: Comparison, *, seed: int) -> Effect:
    """How much larger the error is without an input.

    Args:
        name: of the pass.
        whole: the pass with everything.
        without: the pass without the input, over the same chunks.
        seed: of the bootstrap.
    """
    growth, interval = growths(whole.sums, without.sums, whole.scale, seed=seed)
    return Effect(
        name=name,
        error=float(without.scores.overall[POLICY]),
        growth=growth,
        interval=(float(interval[0]), float(interval[1])),
    )
