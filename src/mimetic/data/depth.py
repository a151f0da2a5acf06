"""Depth cameras: from 12-bit codes or stored values to metres or millimetres (spec/dataset.md 18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.errors import DatasetFormatError

CODES = 4096
UNITS = ("mm", "m")


def depth_table(info: Mapping[str, Any], unit: str) -> npt.NDArray[np.float32]:
    """Depth of each of the 4096 codes.

    A code has one depth, so a look-up replaces the exponential of every pixel.

    Args:
        info: the camera's info block (`video.depth_min`, `video.depth_max`, `video.shift`, `video.use_log`).
        unit: "mm" or "m", the unit of the result.

    Returns:
        (4096,) float32.

    Raises:
        DatasetFormatError: parameters that cannot be inverted.
    """
    given = [
        info.get(f"video.{name}", default)
        for name, default in (("depth_min", 0.01), ("depth_max", 10.0), ("shift", 3.5))
    ]
    use_log = bool(info.get("video.use_log", True))
    is_usable = all(isinstance(value, (int, float)) and -1e6 < value < 1e6 for value in given)
    if not is_usable or not given[1] > given[0] or (use_log and given[0] + given[2] <= 0):
        raise DatasetFormatError(
            "depth parameters cannot be used: depth_min {!r:.40}, depth_max {!r:.40}, shift {!r:.40}".format(*given)
            + f", use_log {use_log}",
            "correct the camera's `info` in meta/info.json",
        )
    low, high, shift = (float(value) for value in given)
    codes = np.arange(CODES, dtype=np.float32)
    first, last = (np.log(low + shift), np.log(high + shift)) if use_log else (low, high)
    metres = codes * np.float32((last - first) / (CODES - 1)) + np.float32(first)
    if use_log:
        # In float64, rounded once: numpy's float32 exponential is off by a bit, which moves two codes by a millimetre.
        metres = np.exp(metres.astype(np.float64)).astype(np.float32) - np.float32(shift)
    metres = np.clip(metres, np.float32(low), np.float32(high))
    depth = metres if unit == "m" else np.clip(np.round(metres * np.float32(1000.0)), 0.0, 65535.0)
    return np.asarray(depth, dtype=np.float32)


def unit_factor(info: Mapping[str, Any], unit: str) -> float:
    """Factor from the stored unit of a depth picture to `unit`; 1 when the stored unit is unknown."""
    stored = info.get("depth_unit")
    if stored == unit or stored not in UNITS:
        return 1.0
    return 1000.0 if unit == "mm" else 0.001
