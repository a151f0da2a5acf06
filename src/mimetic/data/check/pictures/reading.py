"""Frames for the checks, one file at a time; what is damaged is noted and the rest is read.

A hostile file costs a bounded amount of memory: sizes are looked at before anything is decoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimetic.data.check.pictures.sample import FileFacts
from mimetic.data.images import FORMATS
from mimetic.data.parquet import read_footer, read_row_group
from mimetic.data.video.decoder import PyavDecoder
from mimetic.data.video.index import open_container
from mimetic.errors import DatasetError, DatasetFormatError, VideoError

MOST_PIXELS = 1 << 26
"""Largest picture that is decoded: 8192 x 8192."""
_AT_ONCE = 48 << 20
_MOST_FAILURES = 4
Picture = npt.NDArray[Any]


class OtherSize(DatasetFormatError):
    """A picture has another size than the camera's; nothing of it was decoded.

    Args:
        size: its (height, width).
    """

    def __init__(self, message: str, size: tuple[int, int]) -> None:
        super().__init__(message)
        self.size = size


class Frames(Protocol):
    """Frames of one file, by number in the file."""

    size: tuple[int, int]

    def __len__(self) -> int: ...

    def read(self, frames: Sequence[int]) -> Iterator[tuple[int, Picture | DatasetError]]:
        """Each frame with its picture, (3, H, W) uint8 or (H, W) depth, or with the reason why there is none."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class VideoFrames:
    """Frames of a video file.

    Args:
        path: the file.
        is_depth: give depth codes.

    Raises:
        VideoError: it cannot be opened, or its pictures are too large.
    """

    def __init__(self, path: Path, *, is_depth: bool) -> None:
        if path.exists() and not path.is_file():
            raise VideoError(f"`{path}` is no regular file")  # a pipe would be waited for
        # Sizes before the decoder starts to work.
        container, stream = open_container(path)
        context = stream.codec_context
        height, width = int(context.height), int(context.width)
        self.codec = str(getattr(context.codec, "canonical_name", "") or context.name)
        self.pix_fmt = str(context.pix_fmt or "")
        container.close()
        if not 0 < height * width <= MOST_PIXELS:
            raise VideoError(f"its pictures are {width}x{height} pixels; at most {MOST_PIXELS} pixels are decoded")
        self._decoder = PyavDecoder(path)
        self._is_depth = is_depth
        self.size = (height, width)
        self.index = self._decoder.index

    def __len__(self) -> int:
        return len(self._decoder.index)

    def read(self, frames: Sequence[int]) -> Iterator[tuple[int, Picture | DatasetError]]:
        """Decode frames, ascending; frames of a stretch that fails again and again are given up."""
        shape = self.size if self._is_depth else (3, *self.size)
        dtype = np.uint16 if self._is_depth else np.uint8
        at_once = max(1, min(16, _AT_ONCE // max(1, int(np.prod(shape)))))
        failures = 0
        for start in range(0, len(frames), at_once):
            batch = list(frames[start : start + at_once])
            if failures >= _MOST_FAILURES:
                yield from ((frame, VideoError("not tried: the frames before it could not be read")) for frame in batch)
                continue
            targets = np.empty((len(batch), *shape), dtype=dtype)
            try:
                self._decoder.read(batch, list(targets), is_depth=self._is_depth)
                yield from zip(batch, targets, strict=True)
            except VideoError:
                for frame, target in zip(batch, targets, strict=True):
                    outcome = self._one(frame, target)
                    failures += isinstance(outcome, DatasetError)
                    yield frame, outcome

    def _one(self, frame: int, target: Picture) -> Picture | DatasetError:
        try:
            self._decoder.read([frame], [target], is_depth=self._is_depth)
            return target
        except VideoError as error:
            return error

    def close(self) -> None:
        """Release the file."""
        self._decoder.close()


class CellFrames:
    """Pictures of one column of a data file; a row group is read once, and one is held at a time.

    Args:
        path: the data file.
        key: the column.
        size: declared (height, width); pictures of another size are not decoded.
        is_depth: give the stored numbers instead of colours.

    Raises:
        DatasetFormatError: the file cannot be opened.
    """

    def __init__(self, path: Path, key: str, *, size: tuple[int, int], is_depth: bool) -> None:
        self._path, self._key, self._is_depth = path, key, is_depth
        self._footer = read_footer(path)
        counts = [self._footer.row_group(group).num_rows for group in range(self._footer.num_row_groups)]
        self._starts = np.cumsum([0, *counts])
        self._held: tuple[int, Any] = (-1, None)
        self.size = size

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, frames: Sequence[int]) -> Iterator[tuple[int, Picture | DatasetError]]:
        """Decode pictures by row."""
        for frame in frames:
            try:
                yield frame, self._decode(self._bytes(frame))
            except DatasetError as error:
                yield frame, error

    def close(self) -> None:
        """Forget the row group that is held."""
        self._held = (-1, None)

    def _bytes(self, row: int) -> bytes:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        if self._held[0] != group:
            self._held = (-1, None)
            self._held = (group, read_row_group(self._path, group, self._key, self._footer))
        cell = self._held[1][row - int(self._starts[group])].as_py()
        value = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(value, bytes):
            raise DatasetFormatError("the row has no picture")
        return value

    def _decode(self, data: bytes) -> Picture:
        try:
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
            if (picture.height, picture.width) != self.size:
                raise OtherSize(
                    f"{picture.width}x{picture.height} pixels instead of {self.size[1]}x{self.size[0]}",
                    (picture.height, picture.width),
                )
            if self._is_depth:
                values = np.asarray(picture)
                return values if values.ndim == 2 else values[..., 0]
            return np.ascontiguousarray(np.asarray(picture.convert("RGB")).transpose(2, 0, 1))
        except DatasetFormatError:
            raise
        except Exception as error:  # Pillow lets many kinds through on damaged files
            raise DatasetFormatError(f"not a readable picture: {error!s:.200}") from error


def facts_of(path: Path, name: str, fps: float, frames: VideoFrames) -> FileFacts:
    """What an open video file says about itself.

    Args:
        path: the file.
        name: as it is shown.
        fps: the dataset's rate [Hz].
        frames: the open file.
    """
    index = frames.index
    base = float(index.time_base)
    times = (index.pts - index.pts[0]) * base
    expected = np.arange(len(times)) / max(fps, 1e-9)
    gaps = np.diff(np.append(index.keyframes, len(index)))
    height, width = frames.size
    pixels = max(1, len(index) * height * width)
    return FileFacts(
        path=name,
        codec=frames.codec,
        pix_fmt=frames.pix_fmt,
        height=height,
        width=width,
        frames=len(index),
        announced=index.announced,
        fps=float((len(times) - 1) / times[-1]) if len(times) > 1 and times[-1] > 0 else 0.0,
        off_grid_s=float(np.abs(times - expected).max()),
        gap=int(gaps.max()),
        bits=8.0 * path.stat().st_size / pixels,
    )
