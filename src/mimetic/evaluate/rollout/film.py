"""What an episode looked like: a video, and a strip of a few pictures for the report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.store.atomic import temporary_name

STRIP_FRAMES = 6
_TALLEST_PX = 200
_GAP_PX, _GAP_GREY = 2, 128
_H264 = RgbEncoderConfig(vcodec="h264", g=30, crf=23, preset="veryfast")
Picture = NDArray[np.uint8]


class Film:
    """Takes the pictures of one episode, from its first observation to its last.

    Args:
        path: of the video, whose folder exists, and which needs the picture of every tick; None films nothing and keeps
            the strip only, for which some pictures are enough.
        fps: pictures a second [Hz].
    """

    def __init__(self, path: Path | None, fps: int) -> None:
        self._path, self._fps = path, fps
        self._encoder: VideoEncoder | None = None
        self._kept: list[Picture] = []
        self._last: Picture | None = None
        self._every = 1
        self.n_frames = 0

    def add(self, views: Mapping[str, NDArray[Any]]) -> None:
        """Take the next picture: all views (H, W, 3) uint8 side by side.

        Raises:
            VideoError: the encoder or the disk fails.
        """
        picture = _side_by_side(list(views.values()))
        if self._path is not None:
            if self._encoder is None:
                height, width = picture.shape[:2]
                self._encoder = VideoEncoder(
                    temporary_name(self._path),
                    fps=self._fps,
                    height=height,
                    width=width,
                    settings=_H264,
                    threads=1,
                )
            self._encoder.add(picture)
        self._keep(picture)
        self.n_frames += 1

    def close(self) -> bytes:
        """Finish the video, which appears complete or not at all.

        Returns:
            The strip as JPEG.
        """
        if self._encoder is not None and self._path is not None:
            self._encoder.close()
            self._encoder.path.replace(self._path)
            self._encoder = None
        return self._strip()

    def abort(self) -> None:
        """Leave no file behind."""
        if self._encoder is not None:
            self._encoder.abort()
            self._encoder = None

    def _keep(self, picture: Picture) -> None:
        """Keep every n-th picture, so few that memory stays small and so many that a strip can be chosen from them."""
        self._last = picture
        if self.n_frames % self._every:
            return
        self._kept.append(picture)
        if len(self._kept) == 4 * STRIP_FRAMES:
            self._kept = self._kept[::2]
            self._every *= 2

    def _strip(self) -> bytes:
        from PIL import Image

        if self._last is None:
            return b""
        pictures = [*self._kept[:-1], self._last] if len(self._kept) > 1 else [self._last]
        chosen = np.unique(np.linspace(0, len(pictures) - 1, STRIP_FRAMES).round().astype(int))
        parts = [_stacked(pictures[index]) for index in chosen]
        gap = np.full((parts[0].shape[0], _GAP_PX, 3), _GAP_GREY, dtype=np.uint8)
        row = [part for picture in parts for part in (picture, gap)][:-1]
        image = Image.fromarray(np.concatenate(row, axis=1))
        if image.height > 2 * _TALLEST_PX:
            image = image.resize((round(image.width * 2 * _TALLEST_PX / image.height), 2 * _TALLEST_PX))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=80)
        return buffer.getvalue()


def _side_by_side(views: list[NDArray[Any]]) -> Picture:
    """Views beside each other; smaller ones and odd sizes, which yuv420p does not know, are filled up with black."""
    height = max(view.shape[0] for view in views)
    width = sum(view.shape[1] for view in views)
    picture = np.zeros((height + height % 2, width + width % 2, 3), dtype=np.uint8)
    left = 0
    for view in views:
        picture[: view.shape[0], left : left + view.shape[1]] = view
        left += view.shape[1]
    return picture


def _stacked(picture: Picture) -> Picture:
    """Two views side by side as one above the other, which makes a strip of several moments readable."""
    height, width = picture.shape[:2]
    if width < 2 * height - 2 or width % 2:
        return picture
    return np.concatenate([picture[:, : width // 2], picture[:, width // 2 :]], axis=0)
