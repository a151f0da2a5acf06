"""Changes of brightness, contrast, saturation and hue."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mimetic.data.transforms.draw import Range, as_factor_range, as_range, uniform
from mimetic.data.transforms.pixels import blend, bound, luma
from mimetic.errors import ConfigError


class ColorJitter:
    """Changes the given properties by random amounts, in random order.

    Draws in torchvision's order: the order of the four changes, then one factor for each given property.

    Args:
        brightness: pair of factors, or a number s for (max(0, 1 - s), 1 + s); None leaves it alone.
        contrast: the same, towards the mean brightness.
        saturation: the same, towards grey.
        hue: pair of shifts in turns of the colour circle inside -0.5..0.5, or a number h for (-h, h).

    Raises:
        ConfigError: a range is wrong.
    """

    def __init__(
        self, brightness: object = None, contrast: object = None, saturation: object = None, hue: object = None
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        self._ranges: list[Range | None] = [
            None if value is None else _unless_constant(as_factor_range(name, value), 1.0)
            for name, value in given.items()
        ]
        self._ranges.append(None if hue is None else _unless_constant(_hue_range(hue), 0.0))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 or float; hue and saturation leave single-channel images alone."""
        order = torch.randperm(4, generator=generator).tolist()
        factors = [None if bounds is None else uniform(bounds, generator) for bounds in self._ranges]
        for place in order:
            factor = factors[place]
            if factor is not None:
                images = _CHANGES[place](images, factor)
        return images


def adjust_brightness(images: Tensor, factor: float) -> Tensor:
    """Multiply all channels by a factor."""
    return (images * factor).clamp_(0.0, bound(images)).to(images.dtype)


def adjust_contrast(images: Tensor, factor: float) -> Tensor:
    """Move pixels away from (factor > 1) or towards the mean brightness of each image."""
    return blend(images, luma(images).mean(dim=(-3, -2, -1), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: float) -> Tensor:
    """Move pixels away from (factor > 1) or towards their own grey."""
    if images.shape[-3] == 1:
        return images
    return blend(images, luma(images), factor)


def adjust_hue(images: Tensor, shift: float) -> Tensor:
    """Turn all colours by a part of the colour circle.

    Args:
        images: (..., 3, H, W) uint8 or float; other numbers of channels are returned as they are.
        shift: turns, in -0.5..0.5.
    """
    if images.shape[-3] != 3:
        return images
    if images.is_floating_point():
        return _turn_hue(images, shift)
    turned = _turn_hue(images.to(torch.float32) / 255.0, shift)
    # 256 equal steps, so that 1.0 becomes 255 and bytes survive the way there and back.
    return turned.mul_(256.0 - 1e-3).to(torch.uint8)


def _turn_hue(images: Tensor, shift: float) -> Tensor:
    """Turn the hue of the hexagonal model: in each of its six sectors one channel rises or falls."""
    red, green, blue = images.unbind(dim=-3)
    value = images.amax(dim=-3)
    spread = value - images.amin(dim=-3)
    divisor = torch.where(spread == 0, 1.0, spread)
    sector = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2.0, (red - green) / divisor + 4.0),
    )
    sector.add_(6.0 * shift)
    # A channel is full for two sectors, falls for one, is empty for two, rises for one; the channels are two apart.
    channels = []
    for offset in (5.0, 3.0, 1.0):
        place = (sector + offset).remainder_(6.0)
        lack = torch.minimum(place, 4.0 - place).clamp_(0.0, 1.0)
        channels.append(torch.addcmul(value, lack, spread, value=-1.0).clamp_(0.0, 1.0))
    return torch.stack(channels, dim=-3)


_CHANGES: tuple[Callable[[Tensor, float], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


def _hue_range(value: object) -> Range:
    if isinstance(value, (int, float)):
        if not 0 <= value <= 0.5:
            raise ConfigError(f"`hue` of an image transform is {value!r}", "give a number in 0..0.5, or a pair")
        return -float(value), float(value)
    return as_range("hue", value, low=-0.5, high=0.5)


def _unless_constant(bounds: Range, neutral: float) -> Range | None:
    """None for a range that never changes anything; nothing is drawn for it."""
    return None if bounds == (neutral, neutral) else bounds
