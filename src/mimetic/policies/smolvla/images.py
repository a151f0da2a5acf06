"""Cameras to the square pictures that the vision tower reads (spec/smolvla.md 3.1 to 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mimetic.errors import ShapeError
from mimetic.names import FEATURES_PREFIX, OBSERVATION
from mimetic.policies.smolvla.config import fitted_size

MASK_SUFFIX = "_padding_mask"


def features_key(camera: str) -> str:
    """Key of the cached features of a camera."""
    return FEATURES_PREFIX + camera.removeprefix(OBSERVATION + ".")


@dataclass(frozen=True)
class CameraInput:
    """One camera of a batch.

    Args:
        key: its name.
        frames: (B, C, H, W) float in [0, 1]; None when its features are given.
        features: (B, tokens, width), cached features; None when the frames are given.
        mask: (B,) bool, false where the camera is to be ignored; None: used everywhere.
    """

    key: str
    frames: Tensor | None
    features: Tensor | None
    mask: Tensor | None


def select_cameras(batch: Mapping[str, object], cameras: Sequence[str]) -> list[CameraInput]:
    """The cameras of a batch that the policy knows, in the policy's order.

    Args:
        batch: preprocessed batch.
        cameras: the policy's cameras.

    Raises:
        ShapeError: none of them is in the batch, or a frame has a wrong dtype, range or shape.
    """
    found = []
    for key in cameras:
        features, frames = batch.get(features_key(key)), batch.get(key)
        mask = batch.get(key + MASK_SUFFIX)
        mask = mask.bool() if isinstance(mask, Tensor) else None
        if isinstance(features, Tensor):
            found.append(CameraInput(key, None, features, mask))
        elif isinstance(frames, Tensor):
            found.append(CameraInput(key, _checked(key, frames), None, mask))
    if not found:
        there = sorted(key for key, value in batch.items() if isinstance(value, Tensor))
        raise ShapeError(
            f"the batch has none of the policy's cameras {', '.join(f'`{key}`' for key in cameras)}; "
            f"it has {', '.join(f'`{key}`' for key in there) or 'no tensors'}",
            "rename the cameras with `--rename_map`",
        )
    return found


def _checked(key: str, frames: Tensor) -> Tensor:
    if frames.ndim == 5:  # a time axis: only the last frame is read
        frames = frames[:, -1]
    if frames.ndim != 4 or frames.shape[1] != 3:
        raise ShapeError(
            f"`{key}` has shape {tuple(frames.shape)}, and SmolVLA reads (batch, 3, height, width)",
            "give colour frames with the channel axis before height and width",
        )
    if not frames.is_floating_point():
        raise ShapeError(
            f"`{key}` has dtype {frames.dtype}, and SmolVLA reads frames in [0, 1]",
            "divide 8-bit frames by 255 first; the dataset reader and the robot path do",
        )
    return frames


def resize_with_padding(frames: Tensor, width: int, height: int) -> Tensor:
    """Fit frames into a rectangle, keeping their shape; the rest is black, on the left and on top.

    Args:
        frames: (B, C, H, W) floating point.
        width: of the result [pixels].
        height: of the result [pixels].

    Returns:
        (B, C, height, width).
    """
    old_height, old_width = frames.shape[-2:]
    if (old_height, old_width) == (height, width):
        return frames
    new_height, new_width = fitted_size(old_height, old_width, width, height)
    resized = F.interpolate(frames, size=(new_height, new_width), mode="bilinear", align_corners=False)
    return F.pad(resized, (max(0, width - new_width), 0, max(0, height - new_height), 0))


def prepare_frames(frames: Tensor, size: tuple[int, int]) -> Tensor:
    """Frames as the vision tower takes them.

    Args:
        frames: (B, C, H, W) float in [0, 1].
        size: (width, height) [pixels].

    Returns:
        (B, C, height, width) in [-1, 1]; padding is -1.
    """
    return resize_with_padding(frames, *size) * 2.0 - 1.0


def all_true(mask: Tensor | None) -> Tensor | None:
    """None for a mask that hides nothing, where finding that out does not wait for a device."""
    if mask is None or (mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all())):
        return None
    return mask
