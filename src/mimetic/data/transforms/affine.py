"""Rotation, shift, scale and shear of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mimetic.data.transforms.draw import Range, as_range, uniform
from mimetic.errors import ConfigError


class RandomAffine:
    """Moves images by random amounts; nearest pixels, black where nothing is.

    Draws in torchvision's order: angle, shift in x, shift in y, scale, shear in x, shear in y; only what is given.

    Args:
        degrees: pair of angles [deg], or a number d for (-d, d).
        translate: largest shift as parts of (width, height), each in 0..1; None for none.
        scale: pair of factors above 0; None for none.
        shear: pair of angles [deg] for x, four for x and y, or a number s for (-s, s); None for none.

    Raises:
        ConfigError: a range is wrong.
    """

    def __init__(self, degrees: object, translate: object = None, scale: object = None, shear: object = None) -> None:
        self._degrees = _symmetric("degrees", degrees)
        self._translate = None if translate is None else _parts(translate)
        self._scale = None if scale is None else as_range("scale", scale, low=1e-6)
        self._shear = None if shear is None else _shear(shear)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Move images (..., C, H, W), uint8 or float."""
        height, width = images.shape[-2:]
        angle = uniform(self._degrees, generator)
        shift = (0, 0)
        if self._translate is not None:
            most = (self._translate[0] * width, self._translate[1] * height)
            shift_x = round(uniform((-most[0], most[0]), generator))
            shift = (shift_x, round(uniform((-most[1], most[1]), generator)))
        scale = 1.0 if self._scale is None else uniform(self._scale, generator)
        shear = [0.0, 0.0]
        for axis, bounds in enumerate(self._shear or ()):
            shear[axis] = uniform(bounds, generator)
        return move(images, angle, shift, scale, (shear[0], shear[1]))


def move(images: Tensor, angle: float, shift: tuple[int, int], scale: float, shear: tuple[float, float]) -> Tensor:
    """Rotate around the centre, scale, shear, then shift.

    Args:
        images: (..., C, H, W) uint8 or float.
        angle: clockwise [deg].
        shift: (x, y) [px].
        scale: factor of size.
        shear: (x, y) [deg].
    """
    height, width = images.shape[-2:]
    work = images.to(torch.float32) if not images.is_floating_point() else images
    flat = work.reshape(-1, images.shape[-3], height, width)
    grid = _source_grid(height, width, _inverse(angle, shift, scale, shear), flat.dtype, flat.device)
    moved = functional.grid_sample(
        flat, grid.expand(len(flat), -1, -1, -1), mode="nearest", padding_mode="zeros", align_corners=False
    )
    return moved.reshape(images.shape).to(images.dtype)


def _inverse(
    angle: float, shift: tuple[int, int], scale: float, shear: tuple[float, float]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Rows of the map from a target pixel to its source pixel, both measured from the centre.

    The forward map is shift * rotation(angle) * shear_y * shear_x * scale; its linear part has the determinant scale^2.
    """
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    b = -a * math.tan(shear_x) - math.sin(turn)
    d = -c * math.tan(shear_x) + math.cos(turn)
    first, second = (d / scale, -b / scale), (-c / scale, a / scale)
    x, y = shift
    return (
        (*first, first[0] * -x + first[1] * -y),
        (*second, second[0] * -x + second[1] * -y),
    )


def _source_grid(
    height: int, width: int, rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Source of every target pixel, (1, H, W, 2) as (x, y) in -1..1."""
    base = torch.ones(height, width, 3, dtype=dtype, device=device)
    base[..., 0] = torch.linspace(-width * 0.5 + 0.5, width * 0.5 - 0.5, width, dtype=dtype, device=device)
    base[..., 1] = torch.linspace(
        -height * 0.5 + 0.5, height * 0.5 - 0.5, height, dtype=dtype, device=device
    ).unsqueeze(-1)
    half = torch.tensor([0.5 * width, 0.5 * height], dtype=dtype, device=device)
    matrix = torch.tensor(rows, dtype=dtype, device=device).T / half
    return (base.reshape(1, -1, 3) @ matrix).reshape(1, height, width, 2)


def _symmetric(name: str, value: object) -> Range:
    if isinstance(value, (int, float)):
        if value < 0:
            raise ConfigError(f"`{name}` of an image transform is {value!r}", "give a number of at least 0, or a pair")
        return -float(value), float(value)
    return as_range(name, value)


def _parts(value: object) -> tuple[float, float]:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        parts = (float(value[0]), float(value[1]))
        if all(0 <= part <= 1 for part in parts):
            return parts
    raise ConfigError(f"`translate` of an image transform is {value!r}", "give two numbers in 0..1: (width, height)")


def _shear(value: object) -> list[Range]:
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 4:
        return [as_range("shear", value[:2]), as_range("shear", value[2:])]
    return [_symmetric("shear", value)]
