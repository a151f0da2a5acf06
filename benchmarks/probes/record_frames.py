"""The frames that both recorders get: two 640x480 cameras, six joints; made before anything is measured."""

from __future__ import annotations

import numpy as np

FPS = 30
HEIGHT, WIDTH = 480, 640
CAMERAS = ("observation.images.front", "observation.images.wrist")
JOINTS = [f"joint_{number}.pos" for number in range(6)]
DISTINCT = 90
"""Pictures of a camera that exist; a recording goes through them again and again, forwards and backwards."""
FEATURES = {
    "action": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    "observation.state": {"dtype": "float32", "shape": (6,), "names": JOINTS},
    **{
        camera: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]}
        for camera in CAMERAS
    },
}


def pictures(camera: int) -> list[np.ndarray]:
    """`DISTINCT` pictures (H, W, 3) uint8: a textured background, moving shapes, slight noise."""
    chance = np.random.default_rng(camera)
    coarse = chance.integers(40, 216, (HEIGHT // 16 + 2, WIDTH // 16 + 2, 3)).astype(np.float64)
    # Bilinear enlargement by hand: the peer's environment need not have the same libraries.
    y, x = np.arange(HEIGHT) / 16, np.arange(WIDTH) / 16
    rows, columns = y.astype(int), x.astype(int)
    v, u = (y - rows)[:, None, None], (x - columns)[None, :, None]
    upper = coarse[rows][:, columns] * (1 - u) + coarse[rows][:, columns + 1] * u
    lower = coarse[rows + 1][:, columns] * (1 - u) + coarse[rows + 1][:, columns + 1] * u
    background = upper * (1 - v) + lower * v
    noise = chance.normal(0, 2, (8, HEIGHT, WIDTH, 3)).round()
    colours = chance.integers(0, 256, (4, 3))
    found = []
    for frame in range(DISTINCT):
        image = background.copy()
        for shape, colour in enumerate(colours):
            phase = frame / FPS * (0.6 + 0.2 * shape) + camera + shape
            top = int((0.5 + 0.35 * np.sin(phase)) * (HEIGHT - 80))
            left = int((0.5 + 0.35 * np.cos(1.3 * phase)) * (WIDTH - 80))
            image[top : top + 70, left : left + 70] = colour
        found.append(np.clip(image + noise[(frame * 7) % 8], 0, 255).astype(np.uint8))
    return found


def frames(count: int):
    """The frames of one episode, made as they are asked for out of pictures that exist."""
    views = [pictures(number) for number in range(len(CAMERAS))]
    cycle = [*range(DISTINCT), *range(DISTINCT - 2, 0, -1)]
    for number in range(count):
        joints = np.sin(np.arange(6) + number / FPS).astype(np.float32)
        value = {"action": joints, "observation.state": joints * 0.9, "task": "pick up the cube"}
        for camera, view in zip(CAMERAS, views, strict=True):
            value[camera] = view[cycle[number % len(cycle)]]
        yield value
