"""Decoded camera frames on disk: one array a camera, row by row, built once and shared by every later run.

    FOLDER/<camera>-<digest>/header.json   what the array is
                             frames.bin    the array, one row a frame of the dataset; rows that are not built are holes
                             marks.bin     one 32-bit number a row: 0 not built, 0xFFFFFFFF not decodable, else CRC-32
    FOLDER/<camera>-<digest>.lock          held by the run that builds it
    FOLDER/<camera>-<digest>.seen          times of the files that frames were kept from (`seen`)

A row is written, then synced, and only then marked: a killed build is continued, and a row that was not written is
never served. Folders are created aside and renamed. Everything can be deleted at any time while no run reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.cache_entry import entry_problem, read_marks
from mimetic.data.cache_folder import FRAMES, HEADER, MARKS
from mimetic.data.frames.resize import METHOD, FrameSize
from mimetic.errors import CacheError

FORMAT = 1
UNBUILT = 0
UNREADABLE = 0xFFFFFFFF
Marks = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class FrameContent:
    """What an array of frames holds; all of it but `about` decides whether two arrays are the same.

    Args:
        dataset: identity of the camera's frames, decoder included (`camera_fingerprint`).
        camera: the dataset's name of the camera.
        frames: rows: frames of the whole dataset.
        shape: of one row.
        dtype: "uint8" for colour, "uint16" for depth codes of videos, "float32" for depth pictures as stored.
        size: to which frames were resized; None: full size.
        about: remarks for listings.
    """

    dataset: str
    camera: str
    frames: int
    shape: tuple[int, ...]
    dtype: str
    size: FrameSize | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        """Bytes of one frame."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def name(self) -> str:
        """Name of the array's folder; other content, other name."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:24]
        return f"{file_name(self.camera)}-{digest}"

    def identity(self) -> dict[str, Any]:
        """What the header must repeat."""
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "camera": self.camera,
            "frames": self.frames,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "resize": f"{METHOD} {self.size}" if self.size is not None else "",
        }


@dataclass(frozen=True)
class FrameFile:
    """The place of one array.

    Args:
        folder: folder of all arrays.
        content: what this one holds.
    """

    folder: Path
    content: FrameContent

    @property
    def path(self) -> Path:
        """The array's own folder."""
        return self.folder / self.content.name

    @property
    def frames_path(self) -> Path:
        """The file of the rows."""
        return self.path / FRAMES

    def problem(self) -> str:
        """Why what lies there cannot be used; empty when it can, or when nothing is there."""
        return entry_problem(self.path, self.content.identity(), self._sizes())

    def marks(self) -> Marks:
        """(frames,) mark of each row; 0 for rows that are not there, also when nothing usable is."""
        return read_marks(self.path, self.content.frames, usable=not self.problem())

    def create(self) -> None:
        """Make an array without rows; damaged files of this name are replaced. Only under the lock.

        Raises:
            CacheError: a folder of this name holds files that no array has.
            OSError: the folder cannot be written.
        """
        self._clear_away()
        aside = self.folder / f"{self.content.name}.new"
        if aside.exists():
            shutil.rmtree(aside)
        aside.mkdir()
        for name, size in self._sizes().items():
            with (aside / name).open("wb") as file:
                file.truncate(size)  # a hole: takes no space until rows are written
        header = {**self.content.identity(), "stored": "little-endian rows in the order of frames"}
        (aside / HEADER).write_text(json.dumps({**header, "about": dict(self.content.about)}, indent=2))
        aside.rename(self.path)

    def _sizes(self) -> dict[str, int]:
        return {FRAMES: self.content.frames * self.content.row_bytes, MARKS: self.content.frames * 4}

    def _clear_away(self) -> None:
        if not self.path.exists():
            return
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else {self.path.name}
        if strange := sorted(names - {HEADER, FRAMES, MARKS}):
            raise CacheError(
                f"`{self.path}` should hold frames of `{self.content.camera}`, and holds `{strange[0]}`",
                "move that away, or choose another folder with `--dataset.cache_folder=FOLDER`",
            )
        # Another run may read the old files: they are unlinked, never shortened.
        shutil.rmtree(self.path)


def file_name(camera: str) -> str:
    """A camera's name as part of a file's name; not unique."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", camera)[-40:]


def frame_mark(row: bytes | memoryview) -> int:
    """CRC-32 of a row; never one of the two marks that mean something else."""
    found = zlib.crc32(row)
    return 1 if found in (UNBUILT, UNREADABLE) else found
