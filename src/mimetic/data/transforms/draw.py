"""Random parameters of augmentations, from an explicit generator, and the ranges they are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mimetic.errors import ConfigError

Range = tuple[float, float]


def uniform(bounds: Range, generator: torch.Generator) -> float:
    """One float32 number drawn evenly between two bounds."""
    return float(torch.empty(1).uniform_(bounds[0], bounds[1], generator=generator).item())


def integer(low: int, high: int, generator: torch.Generator) -> int:
    """One integer drawn evenly from low..high, both included."""
    return int(torch.randint(low, high + 1, (1,), generator=generator).item())


def as_range(name: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> Range:
    """Check a pair of ascending numbers.

    Args:
        name: parameter, for messages.
        value: the pair.
        low: smallest allowed number.
        high: largest allowed number.

    Raises:
        ConfigError: not two ascending numbers inside the limits.
    """
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        try:
            first, second = float(value[0]), float(value[1])
        except (TypeError, ValueError, OverflowError):
            first, second = math.nan, math.nan
        if low <= first <= second <= high and math.isfinite(second - first):
            return first, second
    limits = f" in {low:g}..{high:g}" if math.isfinite(low) or math.isfinite(high) else ""
    raise ConfigError(f"`{name}` of an image transform is {value!r:.80}", f"give two ascending numbers{limits}")


def as_factor_range(name: str, value: object) -> Range:
    """A range of factors around 1: a pair, or a number s that means (max(0, 1 - s), 1 + s).

    Raises:
        ConfigError: neither, or below 0.
    """
    if isinstance(value, (int, float)):
        if not 0 <= value < math.inf:
            raise ConfigError(f"`{name}` of an image transform is {value!r}", "give a number of at least 0, or a pair")
        return max(0.0, 1.0 - value), 1.0 + value
    return as_range(name, value, low=0.0)


def as_integer_range(name: str, value: object, *, low: int, high: int | None = None) -> tuple[int, int]:
    """Check a pair of ascending integers (errors as `as_range`)."""
    first, second = as_range(name, value, low=low, high=math.inf if high is None else high)
    if first != int(first) or second != int(second):
        raise ConfigError(f"`{name}` of an image transform is {value!r}", "give two ascending whole numbers")
    return int(first), int(second)
