"""Reading rows of arrays of features (`feature_cache`), mapped into memory, by any number of threads and processes."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimetic.data.cache_folder import FEATURES, MARKS
from mimetic.data.feature_cache import FeatureFile, checksum
from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]


class FeatureReader:
    """Rows of one array, or of several that hold variants of the same frames; safe to use from several threads.

    Args:
        files: the array, or the variants from which each sample picks one at random.

    Raises:
        CacheError: an array is missing or damaged.
    """

    def __init__(self, files: Sequence[FeatureFile]) -> None:
        self._arrays = [_Mapped(file) for file in files]
        self.content = files[0].content

    def read(self, frames: Ints, generators: Sequence[torch.Generator]) -> Tensor:
        """Features of some frames.

        Args:
            frames: (B,) numbers of the frames in the whole dataset.
            generators: one source of chance a sample; not drawn from when there is one array.

        Returns:
            (B, *shape) in the array's dtype.

        Raises:
            CacheError: a row is not built, or is damaged.
        """
        out = np.empty((len(frames), self.content.row_bytes), dtype=np.uint8)
        for array in self._arrays:
            array.require_whole()
        for place, frame in enumerate(frames.tolist()):
            array = self._arrays[self._pick(generators[place]) if len(self._arrays) > 1 else 0]
            array.read_into(frame, out[place])
        return torch.from_numpy(out).view(self.content.dtype).reshape(len(frames), *self.content.shape)

    def _pick(self, generator: torch.Generator) -> int:
        return int(torch.randint(len(self._arrays), (), generator=generator))


class _Mapped:
    """One array, mapped into memory; each row's checksum is compared when it is first read."""

    def __init__(self, file: FeatureFile) -> None:
        self._file = file
        problem = file.problem() if file.path.exists() else "it is not there"
        if problem:
            raise CacheError(f"features in `{file.path}` cannot be read: {problem}", "start again to build them")
        self._marks = file.marks()
        self._is_checked = np.zeros(len(self._marks), dtype=np.bool_)
        try:
            with (file.path / FEATURES).open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # it has gone, or was emptied, since it was looked at
            raise CacheError(f"features in `{file.path}` cannot be read: {error}", "start again") from error
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    def require_whole(self) -> None:
        """Look whether the file was cut off since: touching mapped bytes that have gone would end the process.

        Raises:
            CacheError: it was.
        """
        if self._map.size() < len(self._bytes):
            raise CacheError(
                f"`{self._file.path / FEATURES}` was shortened while it was read",
                "start again to build what is missing; nothing else may write there",
            )

    def read_into(self, frame: int, out: npt.NDArray[np.uint8]) -> None:
        """Copy one row."""
        start = frame * len(out)
        out[...] = self._bytes[start : start + len(out)]
        if not self._is_checked[frame]:
            if self._marks[frame] == 0:
                raise CacheError(
                    f"the features of frame {frame} are not in `{self._file.path}`", "start again to build them"
                )
            if checksum(out.data) not in (self._marks[frame], self._mark_now(frame)):
                raise self._damaged(frame)
            self._is_checked[frame] = True
        self._forget(start, start + len(out))

    def _mark_now(self, frame: int) -> int:
        """The row's mark on disk: another run may have found it damaged and built it again."""
        return int(self._file.marks()[frame])

    def _damaged(self, frame: int) -> CacheError:
        """Unmark this row and all others that are damaged, so that the next start builds them again, in one go."""
        size, marks = self._file.content.row_bytes, self._file.marks()
        rows = [n for n in np.flatnonzero(marks).tolist() if self._sum(n * size, size) != marks[n]]
        try:
            with (self._file.path / MARKS).open("r+b") as opened:
                for row in rows:
                    opened.seek(row * 4)
                    opened.write(bytes(4))
        except OSError as error:
            logger.warning("%s could not be changed: %s; delete the folder", self._file.path, error)
        others = f", and those of {len(rows) - 1} others" if len(rows) > 1 else ""
        return CacheError(
            f"the features of frame {frame} in `{self._file.path}` are damaged{others}: the checksum is wrong",
            "the next start builds these rows again; if it happens often, check the disk",
        )

    def _sum(self, start: int, size: int) -> int:
        self.require_whole()
        found = checksum(self._bytes[start : start + size].data)
        self._forget(start, start + size)
        return found

    def _forget(self, start: int, stop: int) -> None:
        # Pages stay in the system's cache; without this, the whole array would in time count as the process's memory.
        if hasattr(mmap, "MADV_DONTNEED"):
            first = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)
