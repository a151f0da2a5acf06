"""Which rows belong to which episode: one run of rows an episode, found in the rows themselves.

The table of episodes also says where rows are, but copies and merges get that wrong (spec/dataset.md 20.19, 20.21), so
the rows' own `episode_index` decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mimetic.data.episodes import Episodes, listed
from mimetic.errors import EpisodeError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Consecutive rows of one episode each; arrays of shape (R,).

    Args:
        episode: episode number of each run.
        start: first row.
        end: row after the last.
        of_row: (N,) int32 run of each row.
        table: row in the table of episodes, -1 for episodes that are not in it.
    """

    episode: Ints
    start: Ints
    end: Ints
    of_row: npt.NDArray[np.int32]
    table: Ints

    @property
    def length(self) -> Ints:
        """Rows of each run."""
        return self.end - self.start


def find_runs(episode_index: Ints, episodes: Episodes) -> Runs:
    """Find the runs of equal `episode_index`.

    Args:
        episode_index: (N,) column of the rows.
        episodes: table of episodes.

    Raises:
        EpisodeError: rows of one episode lie in several places.
    """
    changes = np.flatnonzero(np.diff(episode_index)) + 1
    start = np.concatenate([[0], changes]).astype(np.int64) if len(episode_index) else np.empty(0, dtype=np.int64)
    end = np.append(start[1:], len(episode_index)).astype(np.int64)[: len(start)]
    episode = episode_index[start]
    numbers, counts = np.unique(episode, return_counts=True)
    if (counts > 1).any():
        broken = numbers[counts > 1]
        raise EpisodeError(
            f"the rows of episodes {listed(broken)} lie in several places, with rows of other episodes between them",
            "two recordings may have been copied into one folder; merge datasets with a tool that renumbers episodes",
        )
    of_row = np.repeat(np.arange(len(start), dtype=np.int32), end - start)
    return Runs(episode, start, end, of_row, episodes.positions(episode))
