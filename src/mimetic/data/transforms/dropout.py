"""Missing rectangles."""

from __future__ import annotations

import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_integer_range, as_range, integer


class CoarseDropout:
    """Fills random rectangles with one value.

    Args:
        max_holes: largest number of rectangles; at least one is drawn.
        max_height_frac: largest height, as a part of the image's.
        max_width_frac: largest width, as a part of the image's.
        fill_value: value of the pixels, in [0, 1].

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        max_holes: int = 8,
        max_height_frac: float = 0.07,
        max_width_frac: float = 0.07,
        fill_value: float = 0.0,
    ) -> None:
        self._count = as_integer_range("max_holes", (1, max_holes), low=1, high=10_000)
        self._height = as_range("max_height_frac", (0.0, max_height_frac), low=0.0, high=1.0)[1]
        self._width = as_range("max_width_frac", (0.0, max_width_frac), low=0.0, high=1.0)[1]
        self._fill = as_range("fill_value", (0.0, fill_value), low=0.0, high=1.0)[1]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        count = integer(*self._count, generator)
        sizes = torch.rand(count, 2, generator=generator)
        places = torch.rand(count, 2, generator=generator)
        height, width = images.shape[-2:]
        result = images.clone()
        fill = self._fill if images.is_floating_point() else round(self._fill * 255.0)
        for size, place in zip(sizes.tolist(), places.tolist(), strict=True):
            rows = max(1, round(size[0] * self._height * height))
            columns = max(1, round(size[1] * self._width * width))
            top = round(place[0] * (height - rows))
            left = round(place[1] * (width - columns))
            result[..., top : top + rows, left : left + columns] = fill
        return result
