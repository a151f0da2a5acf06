"""Decoding frames one after the other, for building a cache: the part of the work that one task is.

A task is plain values, so that it may run in another process. Frames of one video file are decoded in the order of the
file, which is several times as fast as in random order; only the frames that are asked for are converted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.bad_frames import is_data_fault
from mimetic.data.features import DatasetFeature
from mimetic.data.frames.content import UNBUILT, UNREADABLE, FrameContent, Marks, frame_mark
from mimetic.data.frames.resize import resized
from mimetic.data.images import ImageCells, decode_colour, decode_depth
from mimetic.data.source import Source
from mimetic.errors import DatasetError

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.generic]

FRAMES_A_TASK = 400
"""About a second of work: what a stop waits for, and what a kill loses for each worker."""
_AT_ONCE = 16


@dataclass(frozen=True)
class DecodeTask:
    """Frames of one camera in one file.

    Args:
        path: video or data file.
        camera: the dataset's name of the camera.
        is_video: whether `path` is a video.
        is_depth: whether the frames are depth.
        shape: (C, H, W) of the camera as declared.
        places: (n,) frame numbers in the video, or rows in the data file; ascending.
        numbers: (n,) numbers of the frames in the whole dataset.
        content: what the rows are kept as.
        fps: the dataset's rate [Hz].
        tolerance_s: allowed difference of a frame's time in its file [s].
        backend: video decoder.
        target: file of rows that gets them; None: the caller takes them.
    """

    path: Path
    camera: str
    is_video: bool
    is_depth: bool
    shape: tuple[int, ...]
    places: Ints
    numbers: Ints
    content: FrameContent
    fps: int
    tolerance_s: float
    backend: str
    target: Path | None = None


@dataclass(frozen=True)
class Decoded:
    """What became of a task.

    Args:
        numbers: (n,) frames of the dataset.
        marks: (n,) their marks; 0 for frames that are still missing.
        problem: why writing ended early; empty when it did not.
    """

    numbers: Ints
    marks: Marks
    problem: str = ""


def raw_kind(feature: DatasetFeature) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a camera's frames before depth becomes a length: what is kept at full size."""
    if not feature.is_depth:
        return (3, *feature.chw[1:]), "uint8"
    return (feature.chw[1:], "uint16") if feature.dtype == "video" else ((1, *feature.chw[1:]), "float32")


def make_tasks(source: Source, camera: str, content: FrameContent, rows: Ints) -> list[DecodeTask]:
    """Tasks that decode some rows of a camera.

    Args:
        source: the dataset.
        camera: one of its cameras.
        content: what the frames are kept as.
        rows: rows of the dataset, ascending, without repeats.
    """
    feature = source.metadata.features[camera]
    if not len(rows):
        return []
    is_video = feature.dtype == "video"
    if is_video:
        files, places = source.video_frames(camera, rows)
        paths: Sequence[Path] = source.cameras[camera].files
    else:
        files = source.rows.file_of(rows)
        places, paths = rows - source.rows.starts[files], source.rows.files
    numbers = source.frame_numbers(rows)
    order = np.lexsort((places, files))
    tasks = []
    for file in np.unique(files).tolist():
        chosen = order[files[order] == file]
        for first in range(0, len(chosen), FRAMES_A_TASK):
            part = chosen[first : first + FRAMES_A_TASK]
            tasks.append(
                DecodeTask(
                    path=paths[file],
                    camera=camera,
                    is_video=is_video,
                    is_depth=feature.is_depth,
                    shape=feature.chw,
                    places=places[part],
                    numbers=numbers[part],
                    content=content,
                    fps=source.metadata.fps,
                    tolerance_s=source.tolerance_s,
                    backend=source.backend if is_video else "",
                )
            )
    return tasks


def head(task: DecodeTask, count: int) -> DecodeTask:
    """The first frames of a task."""
    return replace(task, places=task.places[:count], numbers=task.numbers[:count])


def write_rows(task: DecodeTask) -> Decoded:
    """Decode a task's frames and write them into their file of rows, which is synced; a task for any process.

    Never raises for what lies in the data or on the disk: frames that cannot be decoded are marked as such, and a disk
    that fails is a `problem`.
    """
    assert task.target is not None
    size = task.content.row_bytes
    marks = np.zeros(len(task.numbers), dtype=np.uint32)
    try:
        handle = os.open(task.target, os.O_WRONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        return Decoded(task.numbers, marks, error.strerror or str(error))
    pending = np.zeros_like(marks)
    try:
        for start, rows, found in decode_rows(task):
            for place in np.flatnonzero((found != UNBUILT) & (found != UNREADABLE)).tolist():
                _write_at(handle, memoryview(rows[place]), int(task.numbers[start + place]) * size)
            pending[start : start + len(found)] = found
        os.fsync(handle)
        marks[:] = pending
    except OSError as error:
        return Decoded(task.numbers, marks, error.strerror or str(error))
    finally:
        os.close(handle)
    return Decoded(task.numbers, marks)


def decode_rows(task: DecodeTask) -> Iterator[tuple[int, npt.NDArray[np.uint8], Marks]]:
    """Frames of a task, a few at a time.

    Returns:
        Place of the first in the task; (n, row_bytes) uint8, little-endian; (n,) marks.
    """
    read, close = _video_frames(task) if task.is_video else _pictures(task)
    shape, dtype = _raw_shape(task), task.content.dtype
    try:
        for start in range(0, len(task.places), _AT_ONCE):
            places = task.places[start : start + _AT_ONCE].tolist()
            raw = np.empty((len(places), *shape), dtype=dtype)
            marks = _read_each(read, places, raw)
            if task.content.size is not None:
                raw = resized(raw.astype(np.uint8, copy=False), task.content.size)
            rows = raw.astype(raw.dtype.newbyteorder("<"), copy=False).reshape(len(places), -1).view(np.uint8)
            for place in np.flatnonzero(marks == 1).tolist():
                marks[place] = frame_mark(memoryview(rows[place]))
            yield start, rows, marks
    finally:
        close()


def _read_each(read: Callable[[list[int], Rows], None], places: list[int], out: Rows) -> Marks:
    """Read frames, all at once or, if that fails, each alone; 1 for each that was read."""
    marks = np.ones(len(places), dtype=np.uint32)
    try:
        read(places, out)
        return marks
    except (DatasetError, OSError):
        pass
    for number, place in enumerate(places):
        try:
            read([place], out[number : number + 1])
        except (DatasetError, OSError) as error:
            # Where only this process is in trouble, the frame is left to the run itself and to the next build.
            marks[number] = UNREADABLE if is_data_fault(error) else UNBUILT
            out[number] = 0
    return marks


def _raw_shape(task: DecodeTask) -> tuple[int, ...]:
    if not task.is_depth:
        return (3, *task.shape[1:])
    return tuple(task.shape[1:]) if task.is_video else (1, *task.shape[1:])


def _video_frames(task: DecodeTask) -> tuple[Callable[[list[int], Rows], None], Callable[[], None]]:
    from mimetic.data.video.frames import FrameReader  # data sets of pictures need no decoder

    reader = FrameReader(task.backend, max_open=1)

    def read(places: list[int], out: Rows) -> None:
        reader.read_into(
            task.path, places, list(out), fps=task.fps, is_depth=task.is_depth, tolerance_s=task.tolerance_s
        )

    return read, reader.close


def _pictures(task: DecodeTask) -> tuple[Callable[[list[int], Rows], None], Callable[[], None]]:
    from mimetic.data.parquet import read_footer

    cells: list[ImageCells] = []

    def read(places: list[int], out: Rows) -> None:
        if not cells:
            starts = np.asarray([0, read_footer(task.path).num_rows], dtype=np.int64)
            cells.append(ImageCells([task.path], starts))
        for place, target in zip(places, out, strict=True):
            where = f"`{task.camera}` in row {place} of `{task.path}`"
            data = cells[0].read(task.camera, place)
            if task.is_depth:
                decode_depth(data, target, where=where)
            else:
                decode_colour(data, target, where=where)

    return read, cells.clear


def _write_at(handle: int, data: memoryview, offset: int) -> None:
    os.lseek(handle, offset, os.SEEK_SET)
    while data:
        data = data[os.write(handle, data) :]
