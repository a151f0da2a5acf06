"""Sharper or softer images."""

from __future__ import annotations

import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_factor_range, uniform
from mimetic.data.transforms.pixels import bound


class SharpnessJitter:
    """Changes sharpness by a random factor: 0 blurs, 1 leaves as it is, 2 sharpens.

    Args:
        sharpness: pair of factors, or a number s for (max(0, 1 - s), 1 + s).

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, sharpness: object) -> None:
        self._range = as_factor_range("sharpness", sharpness)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float."""
        return adjust_sharpness(images, uniform(self._range, generator))


def adjust_sharpness(images: Tensor, factor: float) -> Tensor:
    """Mix images with their smoothed selves; the outermost pixels stay as they are.

    Args:
        images: (..., C, H, W) uint8 or float; images of 2 pixels or less are returned as they are.
        factor: 1 gives the image, 0 the smoothed one (3x3, the centre weighs 5 of 13).
    """
    height, width = images.shape[-2:]
    if height <= 2 or width <= 2:
        return images
    work = images if images.is_floating_point() else images.to(torch.float32)
    # Sums along rows, then along columns: a third of the additions, and exact for bytes.
    rows = work[..., :-2] + work[..., 1:-1]
    rows += work[..., 2:]
    smooth = rows[..., :-2, :] + rows[..., 1:-1, :]
    smooth += rows[..., 2:, :]
    smooth.add_(work[..., 1:-1, 1:-1], alpha=4.0).div_(13.0)
    if not images.is_floating_point():
        smooth.round_()
    result = work.clone()
    inner = result[..., 1:-1, 1:-1]
    inner.copy_(smooth.add_(inner - smooth, alpha=factor))
    return result.clamp_(0.0, bound(images)).to(images.dtype)
