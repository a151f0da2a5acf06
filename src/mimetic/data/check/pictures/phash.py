"""A picture as 64 bits that stay nearly the same when it is compressed or made brighter (perceptual hash)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image

_SIDE, _KEPT = 32, 8
_POPULATION = np.asarray([bin(value).count("1") for value in range(256)], dtype=np.uint8)


def perceptual_hash(grey: npt.NDArray[np.uint8]) -> int:
    """Hash of a grey picture (h, w) uint8: signs of its 64 lowest frequencies against their median."""
    small = np.asarray(Image.fromarray(grey).resize((_SIDE, _SIDE), Image.Resampling.BOX), dtype=np.float64)
    basis = _cosines()
    low = (basis @ small @ basis.T).reshape(-1)
    bits = low > np.median(low[1:])
    return int("".join("1" if bit else "0" for bit in bits), 2)


def distances(one: npt.NDArray[np.uint64], two: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Bits in which hashes differ, element by element (arrays that broadcast)."""
    differing = np.ascontiguousarray(np.bitwise_xor(one, two))
    bits = _POPULATION[differing.view(np.uint8)]
    return np.asarray(bits.reshape(*differing.shape, 8).sum(axis=-1), dtype=np.int64)


@lru_cache(maxsize=1)
def _cosines() -> npt.NDArray[np.float64]:
    """(8, 32) lowest rows of the discrete cosine transform."""
    rows = np.arange(_KEPT)[:, None]
    return np.cos(np.pi * rows * (2 * np.arange(_SIDE)[None] + 1) / (2 * _SIDE))
