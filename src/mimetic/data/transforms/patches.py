"""Brighter and darker spots."""

from __future__ import annotations

import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_integer_range, as_range, integer
from mimetic.data.transforms.pixels import in_unit_range


class GaussianPatchBrightness:
    """Multiplies images by soft spots of random place, size and strength.

    Args:
        num_patches: pair of numbers of spots.
        sigma_range: pair of widths, as parts of the image's size.
        factor_range: pair of factors in the middle of a spot.

    Raises:
        ConfigError: a range is wrong.
    """

    def __init__(
        self, num_patches: object = (1, 4), sigma_range: object = (0.05, 0.25), factor_range: object = (0.4, 1.6)
    ) -> None:
        self._count = as_integer_range("num_patches", num_patches, low=0, high=1000)
        self._sigma = as_range("sigma_range", sigma_range, low=1e-6)
        self._factor = as_range("factor_range", factor_range, low=0.0)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        count = integer(*self._count, generator)
        centres = torch.rand(count, 2, generator=generator)
        sigmas = torch.empty(count).uniform_(*self._sigma, generator=generator)
        factors = torch.empty(count).uniform_(*self._factor, generator=generator)
        height, width = images.shape[-2:]
        rows = torch.linspace(0.0, 1.0, height)[:, None]
        columns = torch.linspace(0.0, 1.0, width)[None, :]
        mask = torch.ones(height, width)
        for (row, column), sigma, factor in zip(centres, sigmas, factors, strict=True):
            distance = (rows - row) ** 2 + (columns - column) ** 2
            mask *= 1.0 + (factor - 1.0) * torch.exp(-distance / (2.0 * sigma**2))
        return in_unit_range(images, lambda work: work * mask.to(dtype=work.dtype, device=work.device))
