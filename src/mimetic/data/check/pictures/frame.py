"""What one picture looks like in numbers: how bright, how varied, how sharp (spec/dataset_quality.md 7.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Grey = npt.NDArray[np.uint8]

DARK, BRIGHT = 26, 245
SHARE = 0.98
"""Share of the pixels that make a picture black or washed out."""
BLACK_MEAN = 12.0
FLAT_STD = 2.0
LOW_LIGHT_MEAN = 45.0
COVERED_STD, COVERED_SHARPNESS, COVERED_MEAN = 8.0, 20.0, 0.7


@dataclass(frozen=True)
class Look:
    """Brightness and spread of one picture.

    Args:
        mean: mean grey level, 0..255.
        std: standard deviation of the grey levels.
        dark: share of pixels below `DARK`.
        bright: share of pixels above `BRIGHT`.
    """

    mean: float
    std: float
    dark: float
    bright: float

    @property
    def is_black(self) -> bool:
        """Whether nothing but darkness is in the picture."""
        return self.dark > SHARE or self.mean < BLACK_MEAN

    @property
    def is_washed_out(self) -> bool:
        """Whether nothing but white is in the picture."""
        return self.bright > SHARE

    @property
    def is_flat(self) -> bool:
        """Whether all pixels are alike."""
        return self.std < FLAT_STD


def look_of(grey: Grey) -> Look:
    """Measure a grey picture (h, w) uint8."""
    values = grey.astype(np.float32)
    return Look(float(values.mean()), float(values.std()), float((grey < DARK).mean()), float((grey > BRIGHT).mean()))


def sharpness(grey: Grey) -> tuple[float, float]:
    """How sharp a picture is, at full size.

    Args:
        grey: (H, W) uint8.

    Returns:
        Variance of the Laplacian, and the share of fine detail: that variance over the same at half the size. Blur
        lowers both; a plain wall lowers the first only.
    """
    values = grey.astype(np.float32)
    fine = _laplacian_variance(values)
    height, width = values.shape[0] // 2 * 2, values.shape[1] // 2 * 2
    half = values[:height, :width].reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3))
    coarse = _laplacian_variance(half)
    return fine, fine / coarse if coarse > 1e-6 else 0.0


def _laplacian_variance(values: npt.NDArray[np.float32]) -> float:
    if min(values.shape) < 3:
        return 0.0
    middle = values[1:-1, 1:-1]
    around = values[:-2, 1:-1] + values[2:, 1:-1] + values[1:-1, :-2] + values[1:-1, 2:]
    return float((around - 4.0 * middle).var())
