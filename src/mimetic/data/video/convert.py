"""Decoded pictures to arrays: planar RGB bytes and depth codes.

The reference of colour conversion is FFmpeg's packed `rgb24`. Converting to planar `gbrp` gives the layout that the
network needs without a transposition, in a quarter of the time; whether both give the same bytes depends on the
pixel format, the size and the processor, so it is tried once with noise for each combination before it is used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

DEPTH_FORMAT = "gray12le"
# What torchcodec, LeRobot's default, gives byte for byte. It matters only where FFmpeg must scale the colour planes,
# as in pictures of an odd height; PyAV's own default (bilinear) is up to 9 of 255 away there.
_SCALING = Interpolation.BICUBIC
_PLANES_OF_GBRP = ((0, 2), (1, 0), (2, 1))  # (channel of RGB, plane of GBR)


class Converter:
    """Writes decoded pictures into arrays; one per decoder, not shared by threads."""

    def __init__(self) -> None:
        # One conversion thread: swscale would start several for each picture. Kept apart because a reformatter
        # rebuilds its tables whenever the target format changes.
        self._planar = VideoReformatter()
        self._packed = VideoReformatter()

    def rgb(self, picture: Any, target: NDArray[np.uint8]) -> None:
        """Write a picture as RGB.

        Args:
            picture: decoded PyAV frame, H x W.
            target: (3, H, W) uint8, written in place.
        """
        key = (picture.format.name, picture.width, picture.height, int(picture.colorspace), int(picture.color_range))
        if planar_is_exact(*key):
            converted = self._planar.reformat(picture, format="gbrp", interpolation=_SCALING, threads=1)
            for channel, plane in _PLANES_OF_GBRP:
                target[channel] = _plane(converted.planes[plane], picture.height, picture.width)
        else:
            converted = self._packed.reformat(picture, format="rgb24", interpolation=_SCALING, threads=1)
            packed = _plane(converted.planes[0], picture.height, picture.width * 3)
            np.copyto(target, packed.reshape(picture.height, picture.width, 3).transpose(2, 0, 1))

    def depth(self, picture: Any, target: NDArray[np.uint16]) -> None:
        """Write a picture as 12-bit depth codes.

        Args:
            picture: decoded PyAV frame, H x W; anything but gray12le is converted to it.
            target: (H, W) uint16, written in place.
        """
        if picture.format.name != DEPTH_FORMAT:
            picture = self._packed.reformat(picture, format=DEPTH_FORMAT, threads=1)
        target[...] = _plane(picture.planes[0], picture.height, picture.width * 2).view("<u2")


@lru_cache(maxsize=256)
def planar_is_exact(name: str, width: int, height: int, colorspace: int, color_range: int) -> bool:
    """Whether `gbrp` conversion gives the bytes of `rgb24` for such pictures, tried with noise.

    Args:
        name: FFmpeg pixel format of the decoded picture.
        width: picture width [px].
        height: picture height [px].
        colorspace: FFmpeg colour space number of the picture.
        color_range: FFmpeg colour range number of the picture.
    """
    picture = VideoFrame(width, height, name)
    generator = np.random.default_rng(0)
    for plane in picture.planes:
        plane.update(generator.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    picture.colorspace = colorspace
    picture.color_range = color_range
    converted = VideoReformatter().reformat(picture, format="gbrp", interpolation=_SCALING, threads=1)
    packed = VideoReformatter().reformat(picture, format="rgb24", interpolation=_SCALING, threads=1)
    wanted = _plane(packed.planes[0], height, width * 3).reshape(height, width, 3)
    return all(
        np.array_equal(_plane(converted.planes[plane], height, width), wanted[..., channel])
        for channel, plane in _PLANES_OF_GBRP
    )


def _plane(plane: Any, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """View of a picture plane without the padding at the end of its rows."""
    data = np.frombuffer(plane, dtype=np.uint8)
    return data[: rows * plane.line_size].reshape(rows, plane.line_size)[:, :row_bytes]
