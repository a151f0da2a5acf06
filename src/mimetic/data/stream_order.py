"""In which order a stream visits frames: near in the files, shuffled within a buffer, worked out beforehand.

An epoch's order follows from the table of episodes, the seed and the epoch's number alone. So nothing has to be read to
know it, any place of it can be returned to exactly, and every worker and process can work out its own share.

    episodes, shuffled file by file -> a few read at the same time -> a buffer from which the next one is drawn

With several processes, each gets one stretch of the dataset: equally many frames, in file order, and only their files.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mimetic.data.sampler import epoch_seed
from mimetic.errors import ConfigError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """Consecutive frames of one episode, as positions in the view.

    Args:
        start: first position.
        end: position after the last.
        unit: number of the group of files that holds them.
    """

    start: int
    end: int
    unit: int


class StreamOrder:
    """Orders the frames of a stream, epoch after epoch; in the place of an `EpisodeSampler`.

    Args:
        spans: one an episode, in file order.
        shuffle: shuffle each epoch; without it, frames come in file order.
        seed: seed of the shuffling.
        buffer_size: frames among which the next one is drawn.
        max_num_shards: episodes that are read at the same time.
        batch_size: samples of a batch in one process; matters with several processes only.
        num_processes: processes of a distributed run.
        drop_n_last_frames: frames left out at the end of each episode.
        on_epoch: told about each epoch whose order is asked for: for each process, the groups of files as they are
            needed.

    Raises:
        ConfigError: no frame is left, or a number is too small.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        shuffle: bool = True,
        seed: int = 0,
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        batch_size: int = 1,
        num_processes: int = 1,
        drop_n_last_frames: int = 0,
        on_epoch: Callable[[list[list[int]]], None] | None = None,
    ) -> None:
        for name, value in (
            ("buffer_size", buffer_size),
            ("max_num_shards", max_num_shards),
            ("batch_size", batch_size),
            ("num_processes", num_processes),
        ):
            if value < 1:
                raise ConfigError(f"`{name}={value}` must be at least 1")
        shortened = [Span(span.start, span.end - drop_n_last_frames, span.unit) for span in spans]
        self._spans = [span for span in shortened if span.end > span.start]
        if not self._spans:
            raise ConfigError(
                f"no frame is left for training: {drop_n_last_frames} frames are dropped at the end of each of "
                f"{len(spans)} episodes",
                "use longer episodes, or a policy that drops fewer frames",
            )
        self.shuffle = shuffle
        self.seed = seed
        self.buffer_size = buffer_size
        self.max_num_shards = max_num_shards
        self.batch_size = batch_size
        self.num_processes = num_processes
        self._on_epoch = on_epoch
        self._length = sum(span.end - span.start for span in self._spans)

    def __len__(self) -> int:
        """Samples of one epoch."""
        return self._length

    def order(self, epoch: int) -> Ints:
        """Positions of all samples of an epoch, (n,) int64; `sampler.shard_batches` deals them to the processes.

        Args:
            epoch: number of the epoch, from 0.
        """
        lanes = [self._shuffled_spans(lane, epoch, rank) for rank, lane in enumerate(self._lanes())]
        if self._on_epoch is not None:
            self._on_epoch([list(dict.fromkeys(span.unit for span in lane)) for lane in lanes])
        orders = [self._lane_order(lane, epoch, rank) for rank, lane in enumerate(lanes)]
        return orders[0] if len(orders) == 1 else _dealt(orders, self.batch_size)

    def _lanes(self) -> list[list[Span]]:
        """The stretch of each process: equal numbers of frames up to one."""
        count = self.num_processes
        bounds = [self._length * number // count for number in range(count + 1)]
        lanes: list[list[Span]] = [[] for _ in range(count)]
        before = 0
        for span in self._spans:
            size = span.end - span.start
            for lane, first, last in zip(lanes, bounds[:-1], bounds[1:], strict=True):
                start, end = max(first, before), min(last, before + size)
                if start < end:
                    lane.append(Span(span.start + start - before, span.start + end - before, span.unit))
            before += size
        return lanes

    def _shuffled_spans(self, lane: Sequence[Span], epoch: int, rank: int) -> list[Span]:
        """Groups of files in random order, and in each of them the episodes."""
        if not self.shuffle:
            return list(lane)
        chance = self._chance(epoch, rank, 0)
        units: dict[int, list[Span]] = {}
        for span in lane:
            units.setdefault(span.unit, []).append(span)
        numbers = list(units)
        chance.shuffle(numbers)
        for spans in units.values():
            chance.shuffle(spans)
        return [span for number in numbers for span in units[number]]

    def _lane_order(self, lane: Sequence[Span], epoch: int, rank: int) -> Ints:
        if not self.shuffle:
            return np.concatenate([np.arange(span.start, span.end) for span in lane] or [np.empty(0, dtype=np.int64)])
        return _buffered(lane, self._chance(epoch, rank, 1), self.buffer_size, self.max_num_shards)

    def _chance(self, epoch: int, rank: int, part: int) -> random.Random:
        # Python's generator is specified for good and, one number at a time, several times as fast as numpy's.
        return random.Random(epoch_seed(self.seed, epoch) + (rank * 2 + part << 64))


def _buffered(spans: Sequence[Span], chance: random.Random, buffer_size: int, max_num_shards: int) -> Ints:
    """Frames of a few episodes at a time, the next one always from a random one of them, through a shuffling buffer."""
    draw = chance.random
    waiting = list(reversed(spans))
    heads: list[int] = []
    ends: list[int] = []
    buffer: list[int] = []
    out = array("q")  # a list of Python's own numbers would take five times the room
    while True:
        while waiting and len(heads) < max_num_shards:
            span = waiting.pop()
            heads.append(span.start)
            ends.append(span.end)
        if not heads:
            break
        place = int(draw() * len(heads))
        frame = heads[place]
        heads[place] += 1
        if heads[place] == ends[place]:
            heads[place], ends[place] = heads[-1], ends[-1]
            heads.pop()
            ends.pop()
        if len(buffer) < buffer_size:
            buffer.append(frame)
            continue
        slot = int(draw() * buffer_size)
        out.append(buffer[slot])
        buffer[slot] = frame
    chance.shuffle(buffer)
    out.extend(buffer)
    return np.frombuffer(out, dtype=np.int64)


def _dealt(orders: Sequence[Ints], batch_size: int) -> Ints:
    """One order from which `shard_batches` gives each process its own; only the last round mixes what is left."""
    whole = min(len(order) for order in orders) // batch_size * batch_size
    rounds = np.stack([order[:whole].reshape(-1, batch_size) for order in orders], axis=1).reshape(-1)
    return np.concatenate([rounds, *(order[whole:] for order in orders)])
