"""Small pictures: what most rules look at instead of the full frames."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]

WIDTH = 160
"""Width of a thumbnail [px]; pictures that are smaller keep their size."""
_MOST_DIFFERENT = 4
_QUALITY = 62


def thumbnail(picture: Bytes) -> Bytes:
    """A small copy of a colour picture, every pixel the mean of those that it stands for.

    Args:
        picture: (3, H, W) uint8, RGB.

    Returns:
        (3, h, w) uint8: luminance, blue and red chroma (YCbCr); w is at most `WIDTH`.
    """
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    small = _reduced(image).convert("YCbCr")
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def green_thumbnail(picture: Bytes) -> Bytes:
    """A small grey copy (h, w) of a colour picture (3, H, W): its green plane, to compare frames in a row.

    A third of the work of `thumbnail`, and no plane has more of the luminance.
    """
    return np.asarray(_reduced(Image.fromarray(np.ascontiguousarray(picture[1]))))


def depth_thumbnail(picture: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """A small copy of a depth picture.

    Args:
        picture: (H, W), any number type.

    Returns:
        (1, h, w) float32 in the same unit; w is at most `WIDTH`.
    """
    step = max(1, -(-picture.shape[1] // WIDTH))
    return np.asarray(picture[::step, ::step], dtype=np.float32)[None]


def luminance(picture: Bytes) -> Bytes:
    """Luminance of a colour picture (3, H, W) uint8 as (H, W) uint8."""
    red, green, blue = (picture[channel].astype(np.uint16) for channel in range(3))
    return np.asarray((red * 77 + green * 150 + blue * 29) >> 8, dtype=np.uint8)


def shrink(picture: Bytes, factor: int = 4) -> Bytes:
    """A grey picture (h, w) uint8 with `factor` times fewer rows and columns (means of blocks, the rest cut off)."""
    height, width = max(1, picture.shape[0] // factor), max(1, picture.shape[1] // factor)
    if picture.shape[0] < factor or picture.shape[1] < factor:
        return picture
    blocks = picture[: height * factor, : width * factor].reshape(height, factor, width, factor)
    return np.asarray(np.rint(blocks.mean(axis=(1, 3), dtype=np.float32)), dtype=np.uint8)


def jpeg(thumb: Bytes) -> bytes:
    """A thumbnail (3, h, w) in YCbCr, or a grey one (h, w), as a JPEG file."""
    if thumb.ndim == 2:
        image = Image.fromarray(thumb)
    else:
        image = Image.merge("YCbCr", [Image.fromarray(np.ascontiguousarray(plane)) for plane in thumb])
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=_QUALITY)
    return buffer.getvalue()


def picture_jpeg(picture: npt.NDArray[Any], *, width: int = 0) -> bytes:
    """A decoded picture as a JPEG file for people.

    Args:
        picture: (3, H, W) uint8 colour, or (H, W) depth: near is bright, what was not measured is black.
        width: width of the result [px]; 0 keeps it, as does a larger one.
    """
    if picture.ndim == 3:
        image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    else:
        image = Image.fromarray(depth_as_grey(picture))
    if 0 < width < image.width:
        image = image.resize((width, max(1, round(image.height * width / image.width))), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def depth_as_grey(depth: npt.NDArray[Any]) -> Bytes:
    """A depth picture (H, W) as grey levels: near is bright, what was not measured is black."""
    values = depth.astype(np.float32)
    known = np.isfinite(values) & (values > 0)
    if not known.any():
        return np.zeros(depth.shape, dtype=np.uint8)
    low, high = np.quantile(values[known], (0.02, 0.98))
    share = np.clip((values - low) / max(float(high - low), 1e-9), 0, 1)
    return np.where(known, 255 - 215 * share, 0).astype(np.uint8)


def difference(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> tuple[float, float]:
    """How much two thumbnails differ.

    A gripper far away changes few pixels, which the mean over the picture hides; the mean of the block that changed
    most shows it.

    Args:
        one: (h, w) grey levels.
        two: the same.

    Returns:
        Mean absolute difference, and the largest mean over a block of 8 x 8 pixels.
    """
    gap = np.abs(one.astype(np.float32) - two.astype(np.float32))
    height, width = gap.shape
    side = min(8, height, width)
    rows, columns = height // side, width // side
    blocks = gap[: rows * side, : columns * side].reshape(rows, side, columns, side).mean(axis=(1, 3))
    return float(gap.mean()), float(blocks.max())


def is_drawn(grey: Bytes) -> bool:
    """Whether a picture has but a few grey levels, as test patterns have and photographs never.

    Args:
        grey: (h, w) uint8.
    """
    counts = np.bincount(grey.reshape(-1), minlength=256).astype(np.float64)
    # lossy compression spreads a level over its neighbours
    spread = np.convolve(counts, np.ones(13), mode="same")
    covered = 0.0
    levels: list[int] = []
    for _ in range(_MOST_DIFFERENT):
        peak = int(spread.argmax())
        covered += float(spread[peak])
        levels.append(peak)
        counts[max(0, peak - 6) : peak + 7] = 0
        spread = np.convolve(counts, np.ones(13), mode="same")
        if covered >= 0.97 * grey.size:
            break
    return covered >= 0.97 * grey.size and len(levels) <= 2 and max(levels) - min(levels) > 60


def _reduced(image: Image.Image) -> Image.Image:
    if image.width <= WIDTH:
        return image
    height = max(1, round(image.height * WIDTH / image.width))
    return image.resize((WIDTH, height), Image.Resampling.BOX)
