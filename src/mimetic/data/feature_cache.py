"""Features of camera frames on disk: one array a camera, row by row, built once and shared by every later run.

An array is a plain file of `frames` rows, little-endian, that is mapped into memory for reading; several processes
share it through the operating system's page cache. Beside it lies one 32-bit checksum a row, 0 while the row is not
built. A row is written, then synced, and only then marked: a killed build is continued, and a row that was not written
is never served. Files are created aside and renamed; one process at a time writes, under a lock. The names in
`cache_folder` say where everything lies.
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
import torch

from mimetic.data.cache_entry import entry_problem, read_marks
from mimetic.data.cache_folder import FEATURES, HEADER, MARKS
from mimetic.errors import CacheError

FORMAT = 1
DTYPES = {torch.bfloat16: 2, torch.float16: 2, torch.float32: 4}
"""Kinds of numbers that an array may hold, and the bytes of one."""
Marks = npt.NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class FeatureContent:
    """What an array of features holds; all of it but `about` decides whether two arrays are the same.

    Args:
        encoder: identity of the function from a frame to its features, weights included.
        dataset: identity of the camera's frames (`camera_fingerprint`).
        camera: the dataset's name of the camera.
        frames: rows: frames of the whole dataset.
        shape: of one frame's features.
        dtype: of the features, one of `DTYPES`.
        augmentation: identity of the change that frames went through first; empty for frames as they are.
        variant: number of the change, from 1; 0 for frames as they are.
        about: remarks for listings.
    """

    encoder: str
    dataset: str
    camera: str
    frames: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    augmentation: str = ""
    variant: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def row_bytes(self) -> int:
        """Bytes of one frame's features."""
        return int(np.prod(self.shape, dtype=np.int64)) * DTYPES[self.dtype]

    @property
    def name(self) -> str:
        """Name of the array's folder; other content, other name."""
        digest = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:24]
        return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', self.camera)[-40:]}-{digest}"

    def identity(self) -> dict[str, Any]:
        """What the header must repeat."""
        return {
            "format": FORMAT,
            "encoder": self.encoder,
            "dataset": self.dataset,
            "camera": self.camera,
            "frames": self.frames,
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "augmentation": self.augmentation,
            "variant": self.variant,
        }


@dataclass(frozen=True)
class FeatureFile:
    """The place of one array.

    Args:
        folder: folder of all arrays.
        content: what this one holds.
    """

    folder: Path
    content: FeatureContent

    @property
    def path(self) -> Path:
        """The array's own folder."""
        return self.folder / self.content.name

    def problem(self) -> str:
        """Why what lies there cannot be used; empty when it can, or when nothing is there."""
        return entry_problem(self.path, self.content.identity(), self._sizes())

    def marks(self) -> Marks:
        """(frames,) checksum of each row; 0 for rows that are not there, also when nothing usable is."""
        return read_marks(self.path, self.content.frames, usable=not self.problem())

    def _sizes(self) -> dict[str, int]:
        return {FEATURES: self.content.frames * self.content.row_bytes, MARKS: self.content.frames * 4}

    def create(self) -> None:
        """Make an array without rows; damaged or foreign files of this name are replaced. Only under the lock.

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

    def _clear_away(self) -> None:
        if not self.path.exists():
            return
        names = {path.name for path in self.path.iterdir()} if self.path.is_dir() else {self.path.name}
        if strange := sorted(names - {HEADER, FEATURES, MARKS}):
            raise CacheError(
                f"`{self.path}` should hold features of `{self.content.camera}`, and holds `{strange[0]}`",
                "move that away, or choose another folder with `--cache.folder=FOLDER`",
            )
        # Another run may have mapped the old files: they are unlinked, never shortened.
        shutil.rmtree(self.path)


def checksum(data: bytes | memoryview) -> int:
    """CRC-32 of a row, never 0."""
    return zlib.crc32(data) or 1
