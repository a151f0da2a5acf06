"""Adding rows to an array of features (`feature_cache`), by one process at a time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimetic.data.cache_folder import FEATURES, MARKS
from mimetic.data.feature_cache import FeatureFile, checksum
from mimetic.data.file_lock import FileLock
from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

SYNC_S = 5.0
"""At most this much work is lost when a build is killed [s]."""

Ints = npt.NDArray[np.int64]


class FeatureWriter:
    """While active, the only process that adds rows to an array.

    Args:
        file: the array; made when it is not there, made anew when it is damaged.
        give_up: called while another process is waited for; raises to stop that.

    Raises:
        CacheError: the folder has no locks, holds strange files, cannot be written, or its disk is full.
    """

    def __init__(self, file: FeatureFile, give_up: Callable[[], None] = lambda: None) -> None:
        self.file = file
        self._lock = FileLock(
            file.folder / f"{file.content.name}.lock",
            purpose=f"building the features of `{file.content.camera}`",
            give_up=give_up,
        )
        self._features: BinaryIO | None = None
        self._marks: BinaryIO | None = None
        self._unsynced: dict[int, int] = {}
        self._synced = time.monotonic()

    def __enter__(self) -> FeatureWriter:
        try:
            self.file.folder.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
        except OSError as error:
            raise self._failed(error) from error
        try:
            self._open()
        except BaseException as error:
            self._lock.__exit__(None, None, None)
            if isinstance(error, OSError) and not isinstance(error, CacheError):
                raise self._failed(error) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._features is not None
        assert self._marks is not None
        try:
            if kind is None or not issubclass(kind, CacheError):  # after a failed write, a second failure says nothing
                self.flush()
        finally:
            self._features.close()
            self._marks.close()
            self._lock.__exit__(kind, error, trace)

    def missing(self, frames: Ints) -> npt.NDArray[np.bool_]:
        """(N,) which of the given frames have no features yet."""
        return np.asarray(self.file.marks()[frames] == 0)

    def write(self, frames: Sequence[int], features: Tensor) -> None:
        """Add rows; they count as built after the next `flush`, which happens by itself every few seconds.

        Args:
            frames: (N,) numbers of the frames in the whole dataset.
            features: (N, *shape) in the array's dtype, on the CPU.

        Raises:
            CacheError: the disk is full or fails.
        """
        assert self._features is not None
        content = self.file.content
        assert features.dtype == content.dtype
        assert tuple(features.shape[1:]) == content.shape
        rows = features.contiguous().flatten(1).view(torch.uint8).numpy()
        try:
            for frame, row in zip(frames, rows, strict=True):
                data = row.tobytes()
                self._features.seek(frame * content.row_bytes)
                _write_all(self._features, data)
                self._unsynced[frame] = checksum(data)
        except OSError as error:
            raise self._failed(error) from error
        if time.monotonic() - self._synced >= SYNC_S:
            self.flush()

    def flush(self) -> None:
        """Sync the rows, then mark them as built.

        Raises:
            CacheError: the disk is full or fails.
        """
        assert self._features is not None
        assert self._marks is not None
        try:
            os.fsync(self._features.fileno())
            for frame, mark in self._unsynced.items():
                self._marks.seek(frame * 4)
                _write_all(self._marks, np.asarray(mark, dtype="<u4").tobytes())
            os.fsync(self._marks.fileno())
        except OSError as error:
            raise self._failed(error) from error
        self._unsynced.clear()
        self._synced = time.monotonic()

    def _open(self) -> None:
        problem = self.file.problem()
        if problem:
            logger.warning("features in %s are damaged and are built anew: %s", self.file.path, problem)
        if problem or not self.file.path.exists():
            self.file.create()
        self._features = (self.file.path / FEATURES).open("r+b", buffering=0)
        self._marks = (self.file.path / MARKS).open("r+b", buffering=0)

    def _failed(self, error: OSError) -> CacheError:
        return CacheError(
            f"features cannot be written below `{self.file.folder}`: {error.strerror or error}",
            "choose another folder with `--cache.folder=FOLDER` (what is built stays and is continued), "
            "or train without them: `--cache.features=off`",
        )


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
