"""In which order frames are visited (spec/dataset.md 11.1, spec/training.md 6).

The order of an epoch depends on the seed and the epoch's number alone, so any position can be returned to exactly, and
every process of a distributed run can work out its own share. The global random generators are never touched.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mimetic.errors import ConfigError

logger = logging.getLogger(__name__)


class FrameOrder(Protocol):
    """In which order the samples of each epoch are visited."""

    def __len__(self) -> int:
        """Samples of one epoch."""
        ...

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Positions of all samples of an epoch, (n,) int64."""
        ...


class EpisodeSampler:
    """Orders the frames of episodes, epoch after epoch.

    Iterating gives one epoch and moves on to the next one at once; a position that was loaded with `load_state_dict`
    applies to the next epoch iterated only. `order` gives any epoch without changing the state.

    Args:
        from_indices: (n,) first frame of every episode.
        to_indices: (n,) frame after the last one of every episode.
        episodes: numbers of the episodes to use, as places in the two lists; their order and repeats do not matter.
        drop_n_first_frames: frames left out at the start of each episode.
        drop_n_last_frames: frames left out at the end of each episode.
        shuffle: shuffle each epoch.
        seed: seed of the shuffling.
        remap: frame of the whole dataset -> position in the filtered one, if the dataset is filtered.

    Raises:
        ConfigError: a negative number of dropped frames, an unknown episode, or no frame is left.
    """

    def __init__(
        self,
        from_indices: ArrayLike,
        to_indices: ArrayLike,
        *,
        episodes: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        remap: Mapping[int, int] | None = None,
    ) -> None:
        for name, value in (("first", drop_n_first_frames), ("last", drop_n_last_frames)):
            if value < 0:
                raise ConfigError(f"drop_n_{name}_frames is {value}, it must be at least 0")
        self.shuffle = shuffle
        self.seed = seed
        self._frames = _usable_frames(
            np.asarray(from_indices, dtype=np.int64).reshape(-1),
            np.asarray(to_indices, dtype=np.int64).reshape(-1),
            episodes,
            drop_n_first_frames,
            drop_n_last_frames,
        )
        if remap is not None:
            self._frames = np.asarray([remap[frame] for frame in self._frames.tolist()], dtype=np.int64)
        self._epoch = 0
        self._start_index = 0

    def __len__(self) -> int:
        """Samples of one epoch, wherever iteration starts."""
        return len(self._frames)

    def __iter__(self) -> Iterator[int]:
        """Positions of the current epoch from the start index on; the sampler moves on to the next epoch at once."""
        order = self.order(self._epoch)[self._start_index :]
        self._epoch += 1
        self._start_index = 0
        return iter(order.tolist())

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Positions of all samples of an epoch, (n,) int64.

        Args:
            epoch: number of the epoch, from 0.
        """
        if not self.shuffle:
            return self._frames.copy()
        generator = torch.Generator().manual_seed(epoch_seed(self.seed, epoch))
        permutation: NDArray[np.int64] = torch.randperm(len(self._frames), generator=generator).numpy()
        return self._frames[permutation]

    def state_dict(self) -> dict[str, int]:
        """The epoch that is iterated next and the sample it starts at."""
        return {"epoch": self._epoch, "start_index": self._start_index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Return to a state that `state_dict` or `resume_position` gave."""
        self._epoch = int(state["epoch"])
        self._start_index = int(state["start_index"])


def epoch_seed(seed: int, epoch: int) -> int:
    """Seed of the generator that shuffles an epoch; may exceed 2**63."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])


def steps_per_epoch(num_frames: int, batch_size: int, num_processes: int = 1) -> int:
    """Training steps of one epoch: batches are dealt to the processes in turn, the last round counts as a whole."""
    return math.ceil(math.ceil(num_frames / batch_size) / num_processes)


def resume_position(step: int, num_frames: int, batch_size: int, num_processes: int = 1) -> tuple[int, int]:
    """Where training stands in the data after some steps.

    Args:
        step: finished steps.
        num_frames: samples of an epoch.
        batch_size: samples of a batch in one process, of the run that made the steps.
        num_processes: processes of the run that made the steps.

    Returns:
        Epoch and the first sample in it that is not used yet.
    """
    epoch, batch = divmod(step, steps_per_epoch(num_frames, batch_size, num_processes))
    return epoch, min(batch * batch_size * num_processes, num_frames)


def shard_batches(
    num_frames: int, batch_size: int, *, num_processes: int = 1, rank: int = 0, start_index: int = 0
) -> list[NDArray[np.int64]]:
    """Batches of one process in one epoch, as places in the epoch's order.

    Global batch j goes to process `j % num_processes`. So that every process makes the same number of equally large
    steps, several processes go on from the *beginning of the epoch's order* when it ends (a few samples repeat); the
    result counts on past `num_frames` there, and `place % num_frames` is the place meant. One process has a smaller
    last batch instead. Starting later gives the tail of the whole epoch's batches.

    Args:
        num_frames: samples of the epoch.
        batch_size: samples of a batch in one process.
        num_processes: number of processes.
        rank: which process.
        start_index: first sample not used yet, as `resume_position` gives it.

    Returns:
        One int64 array a step.
    """
    if num_processes == 1:
        starts = range(start_index, num_frames, batch_size)
        return [np.arange(start, min(start + batch_size, num_frames), dtype=np.int64) for start in starts]
    a_round = batch_size * num_processes
    total = steps_per_epoch(num_frames, batch_size, num_processes)
    first = math.ceil(start_index / a_round)
    starts = range(first * a_round + rank * batch_size, total * a_round, a_round)
    return [np.arange(start, start + batch_size, dtype=np.int64) for start in starts]


def _usable_frames(
    first: NDArray[np.int64], end: NDArray[np.int64], episodes: Sequence[int] | None, drop_first: int, drop_last: int
) -> NDArray[np.int64]:
    """Frames of the used episodes in dataset order, each episode shortened at both ends."""
    unknown = sorted({episode for episode in episodes or () if not 0 <= episode < len(first)})
    if unknown:
        raise ConfigError(f"episodes {unknown} do not exist, there are {len(first)} episodes")
    used = range(len(first)) if episodes is None else sorted(set(episodes))
    parts = []
    skipped = []
    for episode in used:
        part = np.arange(first[episode] + drop_first, end[episode] - drop_last, dtype=np.int64)
        if len(part):
            parts.append(part)
        else:
            skipped.append(episode)
    if not parts:
        raise ConfigError(
            f"no frame is left for training: {len(skipped)} episodes, {drop_first} frames dropped at the start and "
            f"{drop_last} at the end of each",
            "use longer episodes, or a policy that drops fewer frames",
        )
    if skipped:
        logger.warning(
            "Episodes %s are left out: nothing is left of them after dropping %d frames at the start and %d at the end",
            skipped,
            drop_first,
            drop_last,
        )
    return np.concatenate(parts)
