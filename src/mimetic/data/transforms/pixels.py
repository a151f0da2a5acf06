"""Both kinds of pixels that augmentations accept: uint8 in 0..255 and floating point in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def bound(images: Tensor) -> float:
    """The largest value of a pixel of this dtype."""
    return 1.0 if images.is_floating_point() else 255.0


def in_unit_range(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a change that is defined on [0, 1] to images of either kind.

    Args:
        images: (..., C, H, W) uint8, or float in [0, 1].
        change: maps float images to float images of the same shape; its result is clamped to [0, 1].

    Returns:
        Same shape and dtype; bytes are rounded to the nearest.
    """
    if images.is_floating_point():
        return change(images).clamp_(0.0, 1.0)
    changed = change(images.to(torch.float32) / 255.0)
    return changed.clamp_(0.0, 1.0).mul_(255.0).round_().to(torch.uint8)


def blend(images: Tensor, other: Tensor, share: float) -> Tensor:
    """`share * images + (1 - share) * other`, clamped; bytes are cut off, not rounded, as torchvision does."""
    mixed = (images * share).add_(other, alpha=1.0 - share).clamp_(0.0, bound(images))
    return mixed.to(images.dtype)


def luma(images: Tensor) -> Tensor:
    """Brightness as the eye weighs it (ITU-R BT.601), (..., 1, H, W) float; whole numbers for bytes."""
    if images.shape[-3] == 1:
        return images if images.is_floating_point() else images.to(torch.float32)
    red, green, blue = images.unbind(dim=-3)
    grey = (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(-3)
    return grey if images.is_floating_point() else grey.floor_()
