"""Fixed sinusoidal positions: a table for sequences and a map for feature maps (spec/act.md)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_TEMPERATURE = 10000.0


def sinusoid_table(n_positions: int, width: int) -> Tensor:
    """Positions of a sequence as sines (even channels) and cosines (odd channels).

    angle(p, j) = p / 10000^(2 * floor(j / 2) / width), computed in float64 because the table is part of checkpoints.

    Args:
        n_positions: number of rows.
        width: number of channels.

    Returns:
        (n_positions, width), float32.
    """
    channel = torch.arange(width, dtype=torch.float64)
    position = torch.arange(n_positions, dtype=torch.float64)
    angle = position[:, None] / torch.pow(_TEMPERATURE, 2 * torch.floor(channel / 2) / width)
    table = torch.empty_like(angle)
    table[:, 0::2] = angle[:, 0::2].sin()
    table[:, 1::2] = angle[:, 1::2].cos()
    return table.to(torch.float32)


@lru_cache(maxsize=64)
def sine_map(height: int, width: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fixed positions of a feature map, y half first, then x; cached, so treat the result as read-only.

    Per axis: positions 1 .. last, divided by (last + 1e-6), times 2 pi, divided by 10000^(2 * floor(j / 2) / d) with
    d = dim / 2; sines and cosines alternate.

    Args:
        height: rows of the map.
        width: columns of the map.
        dim: number of channels, a multiple of 4.
        dtype: of the result; the arithmetic is float32.
        device: of the result.

    Returns:
        (1, dim, height, width).
    """
    # The cache outlives the caller's mode: a tensor made under inference_mode could never be used in training.
    with torch.inference_mode(False), torch.no_grad():
        rows = _sine_axis(height, dim // 2)  # (H, D/2)
        columns = _sine_axis(width, dim // 2)  # (W, D/2)
        half = (height, width, dim // 2)
        both = torch.cat([rows[:, None, :].expand(half), columns[None, :, :].expand(half)], dim=2)
        return both.permute(2, 0, 1)[None].contiguous().to(device=device, dtype=dtype)


def _sine_axis(length: int, dim: int) -> Tensor:
    position = torch.arange(1, length + 1, dtype=torch.float32)
    position = position / (position[-1] + 1e-6) * (2 * math.pi)
    channel = torch.arange(dim, dtype=torch.float32)
    angle = position[:, None] / _TEMPERATURE ** (2 * torch.div(channel, 2, rounding_mode="floor") / dim)
    return torch.stack([angle[:, 0::2].sin(), angle[:, 1::2].cos()], dim=-1).flatten(1)
