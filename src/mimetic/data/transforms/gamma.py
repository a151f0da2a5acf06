"""Brighter or darker middle tones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_range, uniform
from mimetic.data.transforms.pixels import in_unit_range


class GammaCorrection:
    """Raises pixels to a random power, drawn evenly on a logarithmic scale.

    Args:
        gamma: pair of exponents above 0, or a number g for (min(g, 1/g), max(g, 1/g)).

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, gamma: object = (0.5, 2.0)) -> None:
        if isinstance(gamma, (int, float)) and gamma > 0:
            gamma = (min(gamma, 1.0 / gamma), max(gamma, 1.0 / gamma))
        low, high = as_range("gamma", gamma, low=1e-6)
        self._range = (math.log(low), math.log(high))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        exponent = math.exp(uniform(self._range, generator))
        return in_unit_range(images, lambda work: work.clamp(min=0.0).pow(exponent))
