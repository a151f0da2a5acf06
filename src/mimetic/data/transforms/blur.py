"""Blur of a moving camera."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from mimetic.data.transforms.draw import as_integer_range, integer, uniform
from mimetic.data.transforms.pixels import in_unit_range
from mimetic.errors import ConfigError

_LONGEST = 255  # [px]; the work of one image grows with the square


class MotionBlur:
    """Smears images along a line of random length and direction.

    Args:
        kernel_size: pair of lengths [px]; odd ones are drawn.

    Raises:
        ConfigError: the range is wrong or holds no odd number.
    """

    def __init__(self, kernel_size: object = (3, 11)) -> None:
        low, high = as_integer_range("kernel_size", kernel_size, low=1, high=_LONGEST)
        self._sizes = [size for size in range(low, high + 1) if size % 2]
        if not self._sizes:
            raise ConfigError(
                f"`kernel_size` of an image transform is {kernel_size!r}", "the range needs an odd number"
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        size = self._sizes[integer(0, len(self._sizes) - 1, generator)]
        kernel = line_kernel(size, uniform((0.0, 360.0), generator))
        return in_unit_range(images, lambda work: _smear(work, kernel))


def line_kernel(size: int, angle: float) -> Tensor:
    """Weights of a line through the centre, (size, size), sum 1.

    Args:
        size: odd length [px].
        angle: direction [deg].
    """
    half = size // 2
    along = torch.linspace(-half, half, size)
    turn = math.radians(angle)
    column = (along * math.cos(turn)).round().long() + half
    row = (along * math.sin(turn)).round().long() + half
    kernel = torch.zeros(size, size)
    kernel[row, column] = 1.0
    return kernel / kernel.sum()


def _smear(work: Tensor, kernel: Tensor) -> Tensor:
    half = kernel.shape[-1] // 2
    height, width = work.shape[-2:]
    flat = work.reshape(-1, 1, height, width)
    padded = functional.pad(flat, (half, half, half, half), mode="replicate")
    weights = kernel.to(dtype=work.dtype, device=work.device)[None, None]
    return functional.conv2d(padded, weights).reshape(work.shape)
