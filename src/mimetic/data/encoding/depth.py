"""Depth pictures to 12-bit codes, the inverse of `data/depth.py` (spec/dataset.md 18)."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import numpy.typing as npt

from mimetic.data.encoding.config import DepthEncoderConfig
from mimetic.errors import DatasetError

DepthUnit = Literal["mm", "m"]
Codes = npt.NDArray[np.uint16]
_LARGEST_CODE = 4095


def depth_unit(dtype: np.dtype[np.generic]) -> DepthUnit:
    """Unit of depth values by their type: uint16 is millimetres, float32 is metres.

    Raises:
        DatasetError: another type.
    """
    if dtype == np.uint16:
        return "mm"
    if dtype == np.float32:
        return "m"
    raise DatasetError(f"depth pictures must be uint16 (millimetres) or float32 (metres), not {dtype}")


def quantise(depth: npt.NDArray[np.uint16] | npt.NDArray[np.float32], settings: DepthEncoderConfig) -> Codes:
    """Codes 0..4095 of a depth picture.

    Args:
        depth: (H, W) uint16 [mm] or float32 [m]; values outside the range of `settings` get the nearest code.
        settings: range and spacing of the codes.

    Returns:
        (H, W) uint16.
    """
    if depth_unit(depth.dtype) == "mm":
        # Only 65536 values are possible: a table replaces the logarithm of every pixel.
        codes: Codes = _table(settings.depth_min, settings.depth_max, settings.shift, settings.use_log)[depth]
        return codes
    return _codes(depth.astype(np.float32, copy=False), 1.0, settings)


@functools.lru_cache(maxsize=8)
def _table(depth_min: float, depth_max: float, shift: float, use_log: bool) -> Codes:
    settings = DepthEncoderConfig(depth_min=depth_min, depth_max=depth_max, shift=shift, use_log=use_log)
    return _codes(np.arange(1 << 16, dtype=np.float32), 1000.0, settings)


def _codes(depth: npt.NDArray[np.float32], units_per_m: float, settings: DepthEncoderConfig) -> Codes:
    low, high, shift = (
        np.float32(value * units_per_m) for value in (settings.depth_min, settings.depth_max, settings.shift)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        if settings.use_log:
            first, last = np.log(low + shift), np.log(high + shift)
            # Values below -shift have no logarithm; they are nearer than anything that is kept.
            share = (np.log(np.maximum(depth, low) + shift) - first) / (last - first)
        else:
            share = (depth - low) / (high - low)
        scaled = np.clip(np.rint(share * np.float32(_LARGEST_CODE)), 0, _LARGEST_CODE)
    codes: Codes = np.nan_to_num(scaled, nan=0.0).astype(np.uint16)
    return codes
