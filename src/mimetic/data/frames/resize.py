"""Resizing frames to what a policy reads, in whole numbers, and how far that is from the policy's own resize.

A policy resizes in floating point, after the frames were divided by 255. Kept frames are whole numbers, so a resized
frame is rounded once: by at most half of 1/255 in each value. Frames are never enlarged, since that would only take
space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

METHOD = "bilinear"
"""torch's bilinear interpolation of float32 without antialiasing, which is what policies that resize do."""

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FrameSize:
    """Size to which frames are resized [pixels].

    Args:
        height: rows.
        width: columns.
    """

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


def smaller(shape: tuple[int, ...], wanted: FrameSize | None) -> FrameSize | None:
    """The wanted size when it saves space, else None.

    Args:
        shape: (C, H, W) of the camera.
        wanted: size that the policy reads; None: it reads frames as they are.
    """
    if wanted is None or wanted.height > shape[1] or wanted.width > shape[2]:
        return None
    return None if (wanted.height, wanted.width) == tuple(shape[1:]) else wanted


def resized(frames: Frames, size: FrameSize) -> Frames:
    """Frames in another size, rounded to whole numbers.

    Args:
        frames: (N, 3, H, W) uint8.
        size: of the result.

    Returns:
        (N, 3, height, width) uint8.
    """
    return _interpolated(frames, size).mul_(255.0).round_().to(torch.uint8).numpy()


def rounding(frames: Frames, size: FrameSize) -> tuple[float, float]:
    """How far kept frames are from those that a policy resizes itself.

    Args:
        frames: (N, 3, H, W) uint8.
        size: of the kept frames.

    Returns:
        Largest and mean absolute difference of the values, which lie in [0, 1].
    """
    exact = _interpolated(frames, size)
    difference = (torch.from_numpy(resized(frames, size)).to(torch.float32).div_(255.0) - exact).abs_()
    return float(difference.max()), float(difference.mean())


def _interpolated(frames: npt.NDArray[Any], size: FrameSize) -> torch.Tensor:
    pixels = torch.from_numpy(np.ascontiguousarray(frames)).to(torch.float32).div_(255.0)
    return F.interpolate(pixels, size=(size.height, size.width), mode=METHOD, align_corners=False)
