"""Pictures of recordings as (H, W, 3) uint8, red first."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimetic.errors import DatasetFormatError

_FORMATS = ("JPEG", "PNG")
_MOST_PIXELS = 1 << 26


def decode_picture(data: bytes, size: tuple[int, int] | None, *, where: str) -> npt.NDArray[np.uint8]:
    """Decode a JPEG or PNG file; bytes after its end (padding) do not matter.

    Args:
        data: the file.
        size: wanted (height, width); None takes any.
        where: for messages.

    Raises:
        DatasetFormatError: no picture, or another size.
    """
    try:
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        if picture.size[0] * picture.size[1] > _MOST_PIXELS:
            raise DatasetFormatError(f"{where} claims {picture.size[0]}x{picture.size[1]} pixels")
        if size is not None and picture.size != (size[1], size[0]):
            raise DatasetFormatError(
                f"{where} is {picture.size[0]}x{picture.size[1]} pixels; the first picture is {size[1]}x{size[0]}"
            )
        return np.asarray(picture.convert("RGB"))
    except DatasetFormatError:
        raise
    except Exception as error:  # Pillow lets many kinds through on damaged files
        raise DatasetFormatError(f"{where} is not a readable picture: {error!s:.200}") from error


def to_rgb(picture: npt.NDArray[Any], *, is_bgr: bool, largest: float, where: str) -> npt.NDArray[np.uint8]:
    """A raw picture (H, W, 3) as bytes, red first.

    Args:
        picture: bytes, or other numbers from 0 to `largest`.
        is_bgr: whether blue comes first.
        largest: what white is in pictures that are not bytes.
        where: for messages.

    Raises:
        DatasetFormatError: numbers out of it.
    """
    if picture.dtype != np.uint8:
        values = picture.astype(np.float64)
        if not np.isfinite(values).all() or values.min() < 0 or values.max() > largest:
            raise DatasetFormatError(
                f"{where} holds values from {values.min():g} to {values.max():g}; `--picture_max={largest:g}` was given"
            )
        picture = np.rint(values * (255.0 / largest)).astype(np.uint8)
    if is_bgr:
        picture = picture[..., ::-1]
    return np.ascontiguousarray(picture, dtype=np.uint8)


def is_depth_like(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether an array looks like pictures with one channel."""
    return len(shape) in (3, 4) and dtype == np.uint16
