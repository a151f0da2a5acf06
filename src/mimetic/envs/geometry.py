"""Quaternions (w, x, y, z) and look-at, in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def rotation(quaternion: ArrayLike) -> Array:
    """Rotation matrix (3, 3) of a quaternion (w, x, y, z) of any length but zero."""
    q = np.asarray(quaternion, dtype=np.float64)
    w, x, y, z = q / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def quaternion(matrix: ArrayLike) -> Array:
    """Quaternion (w, x, y, z), w >= 0, of a rotation matrix (3, 3)."""
    m = np.asarray(matrix, dtype=np.float64)
    # The eigenvector for the largest eigenvalue of this symmetric matrix is the quaternion, without any special case.
    symmetric = np.array(
        [
            [m[0, 0] + m[1, 1] + m[2, 2], m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0]],
            [m[0, 2] - m[2, 0], m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1]],
            [m[1, 0] - m[0, 1], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1]],
        ]
    )
    vector = np.linalg.eigh(symmetric)[1][:, -1]
    result: Array = vector if vector[0] >= 0 else -vector
    return result


def turn(yaw: float) -> Array:
    """Quaternion of a turn about the vertical [rad]."""
    return np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])


def look_at(position: ArrayLike, target: ArrayLike, up: ArrayLike) -> Array:
    """Orientation (3, 3) of a camera: it looks along its -z axis, its y axis points up in the picture."""
    back = np.asarray(position, dtype=np.float64) - np.asarray(target, dtype=np.float64)
    back /= np.linalg.norm(back)
    right = np.cross(np.asarray(up, dtype=np.float64), back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], axis=1)
