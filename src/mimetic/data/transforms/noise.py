"""Sensor noise."""

from __future__ import annotations

import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_range, uniform
from mimetic.data.transforms.pixels import in_unit_range


class GaussianNoise:
    """Adds independent normal noise of a random strength.

    Args:
        std: pair of standard deviations in units of 1/255.

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, std: object = (5.0, 25.0)) -> None:
        self._range = as_range("std", std, low=0.0)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        std = uniform(self._range, generator) / 255.0
        seed = int(torch.randint(0, torch.iinfo(torch.int64).max, (1,), generator=generator).item())
        own = torch.Generator().manual_seed(seed)
        noise = torch.randn(images.shape, generator=own).to(images.device)
        return in_unit_range(images, lambda work: work + noise.to(work.dtype) * std)
