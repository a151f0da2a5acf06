"""Kept frames as a source of a camera's frames: what is kept is copied, everything else is decoded.

A frame that is not built, cannot be decoded or whose row is damaged is read from the dataset's own files. So a cache
changes no value and no error: what fails without it fails with it, with the same message.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mimetic.data.cache_folder import MARKS
from mimetic.data.frames.content import UNBUILT, UNREADABLE, FrameContent, FrameFile, frame_mark
from mimetic.data.frames.resize import resized
from mimetic.data.source import Source
from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Rows(Protocol):
    """Where rows are kept."""

    content: FrameContent

    def read_into(self, number: int, out: Bytes) -> bool:
        """Copy the row of a frame into (row_bytes,) uint8; False when it is not there."""
        ...


class KeptFrames:
    """Frames of one camera from a cache; safe to use from several threads.

    Args:
        rows: what is kept.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def content(self) -> FrameContent:
        """What is kept."""
        return self.rows.content

    def read(self, source: Source, key: str, rows: Ints) -> npt.NDArray[np.generic]:
        """Frames of a camera for some rows, as `Source.read_camera` gives them, resized if the cache holds them so.

        Args:
            source: the dataset.
            key: camera.
            rows: (B, K) rows.

        Raises:
            VideoError: a frame that is not kept cannot be read.
            DatasetFormatError: a picture that is not kept cannot be read.
        """
        content, flat = self.content, rows.reshape(-1)
        raw = np.empty((len(flat), *content.shape), dtype=content.dtype)
        lines = raw.reshape(len(flat), math.prod(content.shape)).view(np.uint8)
        numbers = source.frame_numbers(flat).tolist()
        missing = [place for place, number in enumerate(numbers) if not self.rows.read_into(number, lines[place])]
        if missing:
            decoded = source.read_raw(key, flat[missing])
            raw[missing] = decoded if content.size is None else resized(decoded, content.size)
        frames = source.finish(key, raw)
        return frames.reshape(*rows.shape, *frames.shape[1:])


class DiskRows:
    """Rows of one array on disk. Each is compared with its checksum when it is first read.

    Rows are read straight into the batch's memory. All processes share them through the system's page cache.

    Args:
        file: the array.

    Raises:
        CacheError: it is missing or cannot be used.
    """

    def __init__(self, file: FrameFile) -> None:
        self.content = file.content
        self._file = file
        problem = file.problem() if file.path.exists() else "it is not there"
        if problem:
            raise CacheError(f"frames in `{file.path}` cannot be read: {problem}", "start again to build them")
        self._marks = file.marks()
        self._is_checked = np.zeros(len(self._marks), dtype=np.bool_)
        self._lock = threading.Lock()
        self._n_damaged = 0
        try:
            self._handle = os.open(file.frames_path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            self._map = None if hasattr(os, "preadv") else mmap.mmap(self._handle, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CacheError(f"frames in `{file.path}` cannot be read: {error}", "start again") from error

    def __del__(self) -> None:
        if getattr(self, "_handle", -1) >= 0:
            os.close(self._handle)

    def read_into(self, number: int, out: Bytes) -> bool:
        """Copy a row; False when it is not built, unreadable or damaged."""
        mark = self._marks[number]
        if mark in (UNBUILT, UNREADABLE):
            return False
        is_whole = self._copy(number * len(out), out)
        if is_whole and self._is_checked[number]:
            return True
        if not is_whole or frame_mark(out.data) != mark:
            self._note_damage(number)
            return False
        self._is_checked[number] = True
        return True

    def _copy(self, start: int, out: Bytes) -> bool:
        if self._map is not None:
            part = self._map[start : start + len(out)]
            out[: len(part)] = np.frombuffer(part, dtype=np.uint8)
            return len(part) == len(out)
        done = 0
        try:
            while done < len(out):
                count = os.preadv(self._handle, [out[done:].data], start + done)
                if count == 0:  # the file was cut off
                    return False
                done += count
        except OSError as error:
            logger.debug("%s: %s", self._file.frames_path, error)
            return False
        return True

    def _note_damage(self, number: int) -> None:
        """Decode this frame from now on, and let the next start build its row again."""
        with self._lock:
            self._marks[number] = UNBUILT
            self._n_damaged += 1
            is_first = self._n_damaged == 1
            try:
                with (self._file.path / MARKS).open("r+b") as opened:
                    opened.seek(number * 4)
                    opened.write(bytes(4))
            except OSError as error:
                logger.warning("%s could not be changed: %s; delete the folder", self._file.path, error)
        if is_first:
            logger.warning(
                "the kept row of frame %d in %s is damaged; it is decoded instead, and the next start builds it again. "
                "If it happens often, check the disk",
                number,
                self._file.path,
            )


class MemoryRows:
    """Rows in this process's memory, for the frames that it was made for.

    Args:
        content: what is kept.
        numbers: (n,) numbers of the frames in the whole dataset.

    Raises:
        CacheError: they do not fit into memory.
    """

    def __init__(self, content: FrameContent, numbers: Ints) -> None:
        self.content = content
        self._slots = np.full(content.frames, -1, dtype=np.int32)
        self._slots[numbers] = np.arange(len(numbers), dtype=np.int32)
        try:
            self._rows = np.empty((len(numbers), content.row_bytes), dtype=np.uint8)
        except MemoryError as error:
            raise CacheError(
                f"{len(numbers) * content.row_bytes / 1e9:.1f} GB of frames of `{content.camera}` do not fit into "
                "memory",
                "`--dataset.cache=frames` keeps them on disk, `--dataset.cache=off` decodes them at every visit",
            ) from error
        self._is_there = np.zeros(len(numbers), dtype=np.bool_)

    def write(self, number: int, row: Bytes) -> None:
        """Keep the row of one of the frames."""
        slot = self._slots[number]
        self._rows[slot] = row
        self._is_there[slot] = True

    def read_into(self, number: int, out: Bytes) -> bool:
        """Copy a row; False when it is not kept."""
        slot = self._slots[number]
        if slot < 0 or not self._is_there[slot]:
            return False
        out[...] = self._rows[slot]
        return True
