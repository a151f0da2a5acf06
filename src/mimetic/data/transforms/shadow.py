"""A shadow or a beam of light across the image."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mimetic.data.transforms.draw import as_range, uniform
from mimetic.data.transforms.pixels import in_unit_range

_WIDTHS = (1.0 / 3.0, 2.0 / 3.0)
_SOFTNESS = 8


class RandomShadow:
    """Darkens or brightens a vertical band with soft edges.

    Args:
        opacity: pair of strengths in 0..1.

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, opacity: object = (0.3, 0.6)) -> None:
        self._opacity = as_range("opacity", opacity, low=0.0, high=1.0)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        opacity = uniform(self._opacity, generator)
        start = uniform((0.0, 1.0), generator)
        share = uniform(_WIDTHS, generator)
        direction = -1.0 if float(torch.rand(1, generator=generator)) < 0.5 else 1.0
        height, width = images.shape[-2:]
        band = max(1, min(width, round(share * width)))
        left = round(start * (width - band))
        mask = torch.ones(1, 1, height, width)
        mask[..., left : left + band] = 1.0 + direction * opacity
        size = min(_SOFTNESS, height, width)
        coarse = functional.avg_pool2d(mask, size)
        soft = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)[0, 0]
        return in_unit_range(images, lambda work: work * soft.to(dtype=work.dtype, device=work.device))
