"""What training does to pictures, so that a few dozen demonstrations are enough: small shifts and other colours.

Source: Yarats et al., Image Augmentation Is All You Need: Regularizing Deep Reinforcement Learning from Pixels, 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def shifted(pictures: Tensor, most: int) -> Tensor:
    """Move each picture by whole pixels, up to `most` in each direction; the border is repeated.

    Args:
        pictures: (B, C, H, W).
        most: pixels.

    Returns:
        (B, C, H, W), channels last in memory.
    """
    moves = torch.randint(-most, most + 1, (2, len(pictures), 1), device=pictures.device)
    # Both give the same. Away from the CPU each picture of `_by_rows` would wait for the device; a move that is larger
    # than a picture needs no copy of it that is larger still.
    if pictures.device.type == "cpu" and most < pictures.shape[-1]:
        return _by_rows(pictures, moves, most)
    return _by_index(pictures, moves)


def _by_rows(pictures: Tensor, moves: Tensor, most: int) -> Tensor:
    """Picture by picture, whole rows at once, out of a copy with a border of `most` pixels; moves (2, B, 1)."""
    height, width = pictures.shape[2:]
    padded = F.pad(pictures, (most,) * 4, mode="replicate")
    moved = torch.empty_like(pictures, memory_format=torch.channels_last)
    for one, (row, column) in enumerate(moves[:, :, 0].T.add(most).tolist()):
        moved[one] = padded[one, :, row : row + height, column : column + width]
    return moved


def _by_index(pictures: Tensor, moves: Tensor) -> Tensor:
    """All pictures in one step on their device, pixel by pixel; moves (2, B, 1)."""
    n, _, height, width = pictures.shape
    rows = (torch.arange(height, device=pictures.device) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pictures.device) + moves[1]).clamp(0, width - 1)
    which = torch.arange(n, device=pictures.device)[:, None, None]
    # Indices around a slice put the sliced axis last, which is the layout that convolutions want.
    return pictures[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def jittered(pictures: Tensor, strength: float) -> Tensor:
    """Change contrast, tint and brightness of each picture.

    Args:
        pictures: (B, C, H, W), normalised.
        strength: largest share of the contrast that is added or taken away; tints get half of it. Brightness changes by
            up to this many standard deviations.

    Returns:
        (B, C, H, W).
    """
    n, n_colours = pictures.shape[:2]
    draw = torch.rand(n, n_colours + 2, 1, 1, dtype=pictures.dtype, device=pictures.device) * 2 - 1
    contrast = (1 + strength * draw[:, :1]) * (1 + 0.5 * strength * draw[:, 2:])
    return pictures * contrast + strength * draw[:, 1:2]
