"""Tensors made by a formula from their names, so that golden tests need no large files.

Element i (C order) of the tensor with key k: h = i * 0x9E3779B1 + crc32(k) mod 2^32, mixed by the finaliser of
MurmurHash3, gives u = h / 2^31 - 1 in [-1, 1); the value is b + a * u with a and b chosen by key and shape.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

_KEPT = ("vae_encoder_pos_enc", "pos_grid")


def formula_noise(key: str, shape: Sequence[int]) -> np.ndarray:
    """u of the formula: float64 in [-1, 1), of the given shape."""
    mask = np.uint64(0xFFFFFFFF)
    h = (
        np.arange(math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(zlib.crc32(key.encode()))
    ) & mask
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x85EBCA6B)) & mask
    h ^= h >> np.uint64(13)
    h = (h * np.uint64(0xC2B2AE35)) & mask
    h ^= h >> np.uint64(16)
    noise: np.ndarray = (h.astype(np.float64) / 2**31 - 1).reshape(tuple(shape))
    return noise


def formula_weight(key: str, shape: Sequence[int]) -> Tensor:
    """Value of a weight or buffer by its state-dict key: float32 of the given shape."""
    a, b = _scale_and_shift(key, shape)
    return torch.from_numpy((b + a * formula_noise(key, shape)).astype(np.float32))


def formula_image(key: str, shape: Sequence[int]) -> Tensor:
    """An image by its name: uint8 of the given shape."""
    levels = np.floor((formula_noise(key, shape) + 1) / 2 * 256)
    return torch.from_numpy(levels.clip(0, 255).astype(np.uint8))


def formula_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of the same names and shapes with the formula's values; fixed tables keep theirs."""
    return {
        key: tensor.clone() if key.endswith(_KEPT) else formula_weight(key, tensor.shape)
        for key, tensor in state.items()
    }


def _scale_and_shift(key: str, shape: Sequence[int]) -> tuple[float, float]:
    if key.endswith("running_var"):
        return 0.3, 1.0
    if key.endswith("running_mean"):
        return 0.1, 0.0
    if len(shape) <= 1:
        return (0.1, 1.0) if key.endswith("weight") else (0.05, 0.0)
    fan = math.prod(shape) / shape[0]
    return math.sqrt((6 if len(shape) == 4 else 3) / fan), 0.0
