"""What a renderer is."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Renderer(Protocol):
    """Draws what a camera of a model sees."""

    @property
    def name(self) -> str:
        """One of "egl", "osmesa", "native", "rays"."""

    def picture(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """Colours (height, width, 3) uint8; the first row is the top one."""

    def segmentation(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.int32]:
        """Number of the geom at each pixel (height, width) int32; -1 where there is none."""

    def close(self) -> None:
        """Give back what it holds."""
