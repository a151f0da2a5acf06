"""Samples whose data cannot be read: what counts as one, their list, and how many a run may leave out.

A sample is bad when any row or camera frame of its windows cannot be read, or when a value that is learnt from is not
finite. Whether it is bad depends on the files alone, so nothing about it is stored in checkpoints.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimetic.errors import CacheError, DatasetError, HubError

logger = logging.getLogger(__name__)

# The process has run out of something: the file may be sound.
_OWN_TROUBLE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC}


@dataclass(frozen=True)
class BadFrame:
    """A sample that cannot be read.

    Args:
        position: its position in the dataset's view.
        address: where it lies: an object with `episode` and `frame`.
        cause: what is wrong, with file, frame and camera where they are known.
    """

    position: int
    address: Any
    cause: str

    @property
    def episode(self) -> int:
        """Episode number."""
        return int(self.address.episode)

    @property
    def frame(self) -> int:
        """Frame number in the episode."""
        return int(self.address.frame)

    def __str__(self) -> str:
        return f"episode {self.episode}, frame {self.frame}: {self.cause}"

    def record(self) -> dict[str, Any]:
        """The sample for a file of metrics."""
        return {"episode": self.episode, "frame": self.frame, "cause": self.cause}


def is_data_fault(error: BaseException) -> bool:
    """Whether an error says that data cannot be read, and neither that the program is wrong nor that it lacks memory.

    Args:
        error: what reading a sample raised; what it was raised from counts too.
    """
    if isinstance(error, (CacheError, HubError)) or not isinstance(error, (DatasetError, OSError)):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) in _OWN_TROUBLE:
            return False
        cause = cause.__cause__
    return True


def exclude_flag(episodes: Iterable[int], already: Iterable[int] = ()) -> str:
    """The flag that leaves episodes out, and those that the run leaves out already.

    Args:
        episodes: episodes to leave out.
        already: episodes that are left out now; a new flag replaces the old one.
    """
    numbers = sorted({int(number) for number in (*episodes, *already)})
    return f"--dataset.exclude_episodes=[{','.join(map(str, numbers))}]"


class BadFrames:
    """The bad samples of a run; safe to share between threads.

    Workers add what they find (`add`) ahead of time; what is counted and told is what was delivered (`deliver`), in the
    order of the batches, so that it is the same for every number of workers.

    Args:
        most: how many different samples may be left out.
        excluded: episodes that the run leaves out already, for the hint.
    """

    def __init__(self, most: int, excluded: Sequence[int] = ()) -> None:
        self.most = most
        self.delivered: list[BadFrame] = []
        self._excluded = excluded
        self._known: dict[int, BadFrame] = {}
        self._counted: set[int] = set()
        self._lock = threading.Lock()

    @property
    def known(self) -> Mapping[int, BadFrame]:
        """Every sample that was found bad so far, by position."""
        return self._known

    def add(self, position: int, address: Any, cause: str) -> None:
        """Remember a sample, so that it is not read again."""
        with self._lock:
            self._known.setdefault(position, BadFrame(position, address, cause))

    def deliver(self, met: Iterable[BadFrame]) -> None:
        """Count and tell the samples that were left out of the batch that is delivered now.

        Raises:
            DatasetError: these are more than may be left out.
        """
        for bad in met:
            if bad.position in self._counted:
                continue
            self._counted.add(bad.position)
            self.delivered.append(bad)
            if len(self.delivered) <= self.most:
                logger.warning("left out (%d of at most %d): %s", len(self.delivered), self.most, bad)
        if len(self.delivered) > self.most:
            raise self._too_many()

    def _too_many(self) -> DatasetError:
        by_episode = Counter(bad.episode for bad in self.delivered)
        listed = ", ".join(f"{episode} ({count})" for episode, count in sorted(by_episode.items()))
        return DatasetError(
            f"{len(self.delivered)} samples cannot be read, and `--max_bad_frames={self.most}` allows {self.most}; by "
            f"episode: {listed}; the last one is {self.delivered[-1]}",
            f"leave these episodes out with `{exclude_flag(by_episode, self._excluded)}`, repair their files, or allow "
            "more with `--max_bad_frames`",
        )
