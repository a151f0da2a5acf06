"""A renderer without graphics: one ray a pixel, by the physics engine, shaded in numpy.

It needs no library of the system, its pictures depend on the versions of MuJoCo and numpy only, and at 96 x 96 pixels
it is fast enough for everything here. Light is ambient plus Lambert's law for the lamp and for a lamp at the camera, as
in MuJoCo's OpenGL renderer; no shadows, no gloss. The table's pattern is computed from the point that a ray meets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.envs.engine import mujoco
from mimetic.envs.scene import TILE_CONTRAST, TILE_M

_CUTOFF_M = 20.0


class RayRenderer:
    """Draws by `mj_multiRay`."""

    name = "rays"

    def __init__(self) -> None:
        self._directions: dict[tuple[float, int, int], NDArray[np.float64]] = {}
        self._mujoco = mujoco()

    def picture(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """See `Renderer`."""
        view = model.camera(camera).id
        rays = self._rays(model, data, view, width, height)
        geoms, distances, normals = self._cast(model, data, view, rays)
        light = model.light("lamp").id
        head = model.vis.headlight
        facing_lamp = np.maximum(normals @ -data.light_xdir[light], 0)
        facing_camera = np.maximum(normals @ data.cam_xmat[view].reshape(3, 3)[:, 2], 0)
        shade = (
            (head.ambient + model.light_ambient[light]).astype(np.float64)
            + facing_lamp[:, None] * model.light_diffuse[light]
            + facing_camera[:, None] * head.diffuse
        )
        # Row -1, that of rays which meet nothing, is black.
        base = np.vstack([model.geom_rgba[:, :3], np.zeros((1, 3))])[geoms]
        table = np.flatnonzero(geoms == model.geom("table").id)
        points = data.cam_xpos[view, :2] + rays[table, :2] * distances[table, None]
        tiles = np.floor(points / TILE_M).astype(np.int64).sum(axis=1)
        base[table] *= np.where(tiles % 2 == 0, TILE_CONTRAST, 1.0)[:, None]
        colours = np.minimum(base * np.minimum(shade, 1.0), 1.0)
        result: NDArray[np.uint8] = (colours * 255 + 0.5).astype(np.uint8).reshape(height, width, 3)
        return result

    def segmentation(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.int32]:
        """See `Renderer`."""
        view = model.camera(camera).id
        geoms, _, _ = self._cast(model, data, view, self._rays(model, data, view, width, height))
        return geoms.reshape(height, width)

    def close(self) -> None:
        """See `Renderer`; there is nothing to give back."""

    def _rays(self, model: Any, data: Any, view: int, width: int, height: int) -> NDArray[np.float64]:
        """Unit vectors (height * width, 3) through the middles of the pixels, in the world, row by row."""
        key = (float(model.cam_fovy[view]), width, height)
        if key not in self._directions:
            edge = np.tan(np.radians(key[0]) / 2) / (height / 2)
            x = (np.arange(width) + 0.5 - width / 2) * edge
            y = -(np.arange(height) + 0.5 - height / 2) * edge
            local = np.stack([*np.meshgrid(x, y), np.full((height, width), -1.0)], axis=-1).reshape(-1, 3)
            self._directions[key] = local / np.linalg.norm(local, axis=1, keepdims=True)
        rays: NDArray[np.float64] = self._directions[key] @ data.cam_xmat[view].reshape(3, 3).T
        return np.ascontiguousarray(rays)

    def _cast(
        self, model: Any, data: Any, view: int, rays: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
        count = len(rays)
        geoms, distances, normals = np.full(count, -1, np.int32), np.zeros(count), np.zeros(count * 3)
        self._mujoco.mj_multiRay(
            model, data, data.cam_xpos[view], rays.ravel(), None, 1, -1, geoms, distances, normals, count, _CUTOFF_M
        )
        return geoms, distances, normals.reshape(count, 3)
