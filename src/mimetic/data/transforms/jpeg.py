"""Traces of JPEG compression."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mimetic.data.transforms.draw import as_integer_range, integer
from mimetic.data.transforms.pixels import in_unit_range
from mimetic.errors import ConfigError


class JPEGCompression:
    """Encodes and decodes images as JPEG of a random quality.

    Args:
        quality: pair of qualities in 1..100, both included.

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, quality: object = (15, 75)) -> None:
        self._range = as_integer_range("quality", quality, low=1, high=100)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W) with one or three channels, uint8 or float.

        Raises:
            ConfigError: another number of channels.
        """
        quality = integer(*self._range, generator)
        if images.shape[-3] not in (1, 3):
            raise ConfigError(f"JPEGCompression needs 1 or 3 channels, the images have {images.shape[-3]}")
        if images.is_floating_point():
            return in_unit_range(images, lambda work: _compress_all(_bytes(work), quality).to(work) / 255.0)
        return _compress_all(images, quality)


def _bytes(work: Tensor) -> Tensor:
    return (work * 255.0).round().clamp(0.0, 255.0).to(torch.uint8)


def _compress_all(images: Tensor, quality: int) -> Tensor:
    flat = images.reshape(-1, *images.shape[-3:]).cpu()
    return torch.stack([_compress(image, quality) for image in flat]).reshape(images.shape).to(images.device)


def _compress(image: Tensor, quality: int) -> Tensor:
    """One image (C, H, W) uint8 through JPEG."""
    pixels = image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels if image.shape[0] == 3 else pixels[..., 0])).save(
        buffer, format="JPEG", quality=quality
    )
    buffer.seek(0)
    decoded = np.array(Image.open(buffer)).reshape(pixels.shape)
    return torch.from_numpy(decoded).permute(2, 0, 1)
