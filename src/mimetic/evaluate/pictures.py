"""Small pictures of what the policy saw, for the report."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from mimetic.data.dataset import Dataset
from mimetic.evaluate.recording import Span
from mimetic.evaluate.result import Picture

LARGEST_PX = 360
MOST_CAMERAS = 4


def take_pictures(dataset: Dataset, span: Span, cameras: Sequence[str]) -> tuple[Picture, ...]:
    """First, middle and last frame of an episode as JPEG, for the first few colour cameras.

    Args:
        dataset: without windows on the cameras; frames as uint8.
        span: rows of the episode.
        cameras: names of the cameras.
    """
    from PIL import Image

    chosen = [key for key in cameras if key in dataset.meta.colour_keys][:MOST_CAMERAS]
    if not chosen:
        return ()
    rows = sorted({span.first, (span.first + span.last - 1) // 2, span.last - 1})
    batch = dataset.batch(rows)
    pictures = []
    for camera in chosen:
        for row, frame in zip(rows, batch[camera].numpy(), strict=True):
            image = Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0).squeeze()))
            image.thumbnail((LARGEST_PX, LARGEST_PX))
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=82)
            pictures.append(
                Picture(camera=camera, episode=span.episode, frame=row - span.first, jpeg=buffer.getvalue())
            )
    return tuple(pictures)
