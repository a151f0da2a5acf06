"""Batches for training, built ahead by threads.

Decoding and array copies release Python's lock, so threads are enough: no process is started, nothing is pickled and
decoders are shared. Batches come in order, and are the same, bit for bit, for every number of workers: each sample's
augmentation has a generator of its own, seeded by (seed, epoch, place in the epoch). The global random generators are
never touched, so that loading data cannot change training.

A sample that cannot be read ends the iteration, or gives its place to the next one of the epoch's order that can be
read (`on_bad_frame`). Which one that is depends on the order and the files alone: a resumed run delivers the same.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mimetic.data.bad_frames import BadFrame, BadFrames, is_data_fault
from mimetic.data.loader_threads import LoaderThreads, Task, Watch, one_torch_thread
from mimetic.data.sampler import FrameOrder, shard_batches
from mimetic.errors import DatasetError, MimeticError, TrainingError

logger = logging.getLogger(__name__)

Batch = dict[str, Tensor | list[str]]
OnBadFrame = Literal["stop", "skip", "drop"]
PATIENCE_S = 60.0
"""A batch that takes longer is reported [s]."""
_N_NAMED = 8  # frames named in the note of an error
_N_FILES = 3


class BatchSource(Protocol):
    """What the loader needs of a dataset."""

    def batch(self, positions: Sequence[int], generators: Sequence[torch.Generator] | None = None) -> Batch:
        """Samples at the given positions, collated; augmentation draws from one generator a sample."""
        ...

    def address(self, position: int) -> Any:
        """Where a sample comes from: an object with `episode` and `frame`."""
        ...

    def files_in_use(self) -> Sequence[tuple[Path, float]]:
        """Files that threads are reading at this moment, and for how long [s], the longest first."""
        ...


class SampleGenerators(Sequence[torch.Generator]):
    """One random generator a sample, made when it is first asked for; several cameras go on drawing from it.

    Args:
        seed: training seed.
        epoch: number of the epoch.
        places: places of the samples in the epoch's order.
    """

    def __init__(self, seed: int, epoch: int, places: Sequence[int]) -> None:
        self._seed = seed
        self._epoch = epoch
        self._places = places
        self._made: dict[int, torch.Generator] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...

    @overload
    def __getitem__(self, index: slice) -> list[torch.Generator]: ...

    def __getitem__(self, index: int | slice) -> torch.Generator | list[torch.Generator]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = self._places[index]
        if place not in self._made:
            entropy = np.random.SeedSequence([self._seed, self._epoch, place])
            self._made[place] = torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
        return self._made[place]


@dataclass(frozen=True)
class _Job:
    """One batch to build: its number in the epoch, and its samples as places in the epoch's order of positions."""

    epoch: int
    number: int
    places: list[int]
    order: NDArray[np.int64]

    def position(self, place: int) -> int:
        """Position of a place; places beyond the end of the order begin it again."""
        return int(self.order[place % len(self.order)])

    @property
    def positions(self) -> list[int]:
        """Positions of all places."""
        return [self.position(place) for place in self.places]


@dataclass(frozen=True)
class _Built:
    """A batch, None when nothing of it could be read; and the samples that were left out of it."""

    batch: Batch | None
    left_out: Sequence[BadFrame] = ()


class BatchLoader:
    """Delivers the batches of a dataset in the sampler's order, built ahead by threads.

    Threads live as long as the iterator that `batches` or `endless` gave: they end when it is exhausted, closed,
    dropped, or when the loader is closed.

    Args:
        dataset: where samples come from.
        sampler: in which order.
        batch_size: samples of a batch; the last one of an epoch may be smaller.
        num_workers: threads that build batches; 0 builds each batch when it is asked for, in the asking thread.
        prefetch_factor: batches that each worker may be ahead.
        seed: training seed, for the augmentation.
        pin_memory: put tensors into page-locked memory, for copies to a CUDA device.
        num_processes: processes of a distributed run, which share the batches (`shard_batches`).
        rank: number of this process.
        on_bad_frame: when a sample cannot be read: "stop" raises; "skip" puts the next sample of the epoch's order that
            can be read in its place, so that batches stay full and everything after it stays where it is; "drop" leaves
            it out, so that batches shrink.
        max_bad_frames: samples that may be left out, each counted once; one more raises.
        row_faults: positions -> what is wrong with those that must not be learnt from, by place in the list; asked
            unless bad frames stop.
        excluded: episodes that the run leaves out already, for hints.
        patience_s: a batch that takes longer is reported, again after twice that time, and so on [s].

    Attributes:
        on_wait: called about twice a second, in the asking thread, while a batch of the workers is waited for; what it
            raises ends the waiting.
    """

    on_wait: Callable[[], None] | None = None

    def __init__(
        self,
        dataset: BatchSource,
        sampler: FrameOrder,
        *,
        batch_size: int,
        num_workers: int,
        prefetch_factor: int,
        seed: int,
        pin_memory: bool = False,
        num_processes: int = 1,
        rank: int = 0,
        on_bad_frame: OnBadFrame = "stop",
        max_bad_frames: int = 100,
        row_faults: Callable[[Sequence[int]], Mapping[int, str]] | None = None,
        excluded: Sequence[int] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.seed = seed
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.num_processes = num_processes
        self.rank = rank
        self.on_bad_frame = on_bad_frame
        self.patience_s = patience_s
        self._row_faults = row_faults
        self._bad = BadFrames(max_bad_frames, excluded)
        self._lock = threading.Lock()
        self._pools: set[_Threads] = set()
        self._watches: set[Watch[_Job]] = set()

    @property
    def bad_frames(self) -> Sequence[BadFrame]:
        """Samples that were left out of the delivered batches, each once, in the order in which they were met."""
        return self._bad.delivered

    @property
    def skipped(self) -> int:
        """How many these are."""
        return len(self._bad.delivered)

    def batches(self, epoch: int, start_index: int = 0) -> Iterator[Batch]:
        """Batches of one epoch.

        Args:
            epoch: number of the epoch.
            start_index: first sample not used yet; see `resume_position`.

        Raises:
            DatasetError: a sample cannot be read, or more of them than may be left out, when its turn comes.
            TrainingError: memory ran out in a worker, or the workers are gone.
            Exception: what else building a batch raised, when its turn comes, with a note that names the frames.
        """
        return self._deliver(self._jobs(epoch, start_index))

    def endless(self, epoch: int, start_index: int = 0) -> Iterator[Batch]:
        """Batches from one place on, epoch after epoch, built ahead across the epochs' ends (errors as `batches`)."""
        return self._deliver(self._endless_jobs(epoch, start_index))

    def close(self) -> None:
        """End all threads; batches that are being built are finished and thrown away. Iterators end."""
        with self._lock:
            pools, self._pools = self._pools, set()
            watches, self._watches = self._watches, set()
        for pool in pools:
            pool.close(self._tell_busy)
        for watch in watches:
            watch.close()

    def _jobs(self, epoch: int, start_index: int) -> Iterator[_Job]:
        order = self.sampler.order(epoch)
        shards = shard_batches(
            len(order),
            self.batch_size,
            num_processes=self.num_processes,
            rank=self.rank,
            start_index=start_index,
        )
        for places in shards:
            number = int(places[0]) // (self.batch_size * self.num_processes)
            yield _Job(epoch, number, places.tolist(), order)

    def _endless_jobs(self, epoch: int, start_index: int) -> Iterator[_Job]:
        while True:
            yield from self._jobs(epoch, start_index)
            epoch, start_index = epoch + 1, 0

    def _deliver(self, jobs: Iterator[_Job]) -> Iterator[Batch]:
        for built in self._built_here(jobs) if self.num_workers == 0 else self._built_by_threads(jobs):
            self._bad.deliver(built.left_out)
            if built.batch is not None:
                yield built.batch

    def _built_here(self, jobs: Iterator[_Job]) -> Iterator[_Built]:
        watch = Watch[_Job](lambda job, seconds: self._tell_overdue(job, f"{seconds:.0f} s"), self.patience_s)
        with self._lock:
            self._watches.add(watch)
        try:
            for job in jobs:
                with one_torch_thread(), watch.making(job):
                    built = self._build(job)
                yield built
        finally:
            with self._lock:
                self._watches.discard(watch)
            watch.close()

    def _built_by_threads(self, jobs: Iterator[_Job]) -> Iterator[_Built]:
        pool = _Threads(self.num_workers, self._build, self._tell_waiting, self.patience_s)
        with self._lock:
            self._pools.add(pool)
        try:
            yield from self._from_pool(pool, jobs)
        finally:
            with self._lock:
                self._pools.discard(pool)
            pool.close(self._tell_busy)

    def _from_pool(self, pool: _Threads, jobs: Iterator[_Job]) -> Iterator[_Built]:
        """Keep the workers supplied; hand out results in the order of the jobs."""
        waiting: deque[_Task] = deque()
        for job in jobs:
            if not self._submit(pool, job, waiting):
                return
            if len(waiting) > self.num_workers * self.prefetch_factor:
                yield pool.result(waiting.popleft(), self.on_wait)
        while waiting and not waiting[0].future.cancelled():
            yield pool.result(waiting.popleft(), self.on_wait)

    def _submit(self, pool: _Threads, job: _Job, waiting: deque[_Task]) -> bool:
        """Hand a job to the workers; False when the loader was closed meanwhile."""
        with self._lock:
            if pool not in self._pools:
                return False
            waiting.append(pool.submit(job))
        return True

    def _build(self, job: _Job) -> _Built:
        try:
            if self.on_bad_frame == "stop":
                built = _Built(self._read(job, job.places, job.positions))
            else:
                built = self._build_without_bad(job)
            if self.pin_memory and built.batch is not None:
                built = _Built(_pinned(built.batch), built.left_out)
        except MemoryError as error:
            raise TrainingError(
                f"memory ran out {self._describe(job)}",
                "keep fewer batches ready (`--prefetch_factor`, `--num_workers`), or take a smaller `--batch_size`",
            ) from error
        except Exception as error:
            if is_data_fault(error) and not isinstance(error, MimeticError):
                raise DatasetError(f"data cannot be read {self._describe(job)}: {error}") from error
            error.add_note(self._describe(job))
            raise
        return built

    def _read(self, job: _Job, places: Sequence[int], positions: Sequence[int]) -> Batch:
        # Generators are made anew for every attempt: one that was drawn from would give another augmentation.
        return self.dataset.batch(positions, SampleGenerators(self.seed, job.epoch, places))

    def _build_without_bad(self, job: _Job) -> _Built:
        """A batch with the samples that can be read.

        The samples known to be bad are replaced first. When reading fails all the same, each sample is tried alone.
        """
        wholes = 0
        while True:
            places, positions, left_out = self._choose(job, self._is_known)
            if self._has_row_faults(positions):
                continue
            if len(left_out) > self._bad.most or not positions:
                return _Built(None, left_out)
            try:
                return _Built(self._read(job, places, positions), left_out)
            except (DatasetError, OSError) as error:
                if not is_data_fault(error):
                    raise
                n_known = len(self._bad.known)
                self._choose(job, lambda place, position: self._is_bad(job, place, position))
                # What cannot be read in company but alone is worth one more attempt: the fault may have passed.
                wholes += len(self._bad.known) == n_known
                if wholes > 1:
                    raise

    def _choose(self, job: _Job, is_bad: Callable[[int, int], bool]) -> tuple[list[int], list[int], Sequence[BadFrame]]:
        """Places and positions of the samples of a batch without the bad ones, and the bad ones that were met.

        It ends early when so many are met that the run stops in any case.
        """
        met: dict[int, BadFrame] = {}
        places, positions = [], []
        for place in job.places:
            reach = len(job.order) if self.on_bad_frame == "skip" else 1
            for offset in range(reach):
                position = job.position(place + offset)
                if not is_bad(place, position):
                    places.append(place)
                    positions.append(position)
                    break
                met.setdefault(position, self._bad.known[position])
                if len(met) > self._bad.most:
                    return places, positions, list(met.values())
            else:
                if self.on_bad_frame == "skip":
                    raise DatasetError(f"none of the {reach} samples can be read; the first one: {self._first(met)}")
        return places, positions, list(met.values())

    def _first(self, met: Mapping[int, BadFrame]) -> BadFrame:
        return next(iter(met.values()))

    def _is_known(self, place: int, position: int) -> bool:
        return position in self._bad.known

    def _is_bad(self, job: _Job, place: int, position: int) -> bool:
        if position not in self._bad.known and not self._has_row_faults([position]):
            try:
                self._read(job, [place], [position])
            except (DatasetError, OSError) as error:
                if not is_data_fault(error):
                    raise
                self._bad.add(position, self.dataset.address(position), str(error))
        return position in self._bad.known

    def _has_row_faults(self, positions: Sequence[int]) -> bool:
        """Whether rows must not be learnt from; these are known from now on."""
        faults = self._row_faults(positions) if self._row_faults is not None else {}
        for place, cause in faults.items():
            self._bad.add(positions[place], self.dataset.address(positions[place]), cause)
        return bool(faults)

    def _tell_waiting(self, task: _Task, seconds: float) -> None:
        self._tell_overdue(task.job, f"{seconds:.0f} s" if task.begun is not None else f"{seconds:.0f} s, not begun")

    def _tell_overdue(self, job: _Job, seconds: str) -> None:
        logger.warning(
            "still waiting (%s) %s%s; if it goes on, look at the disk or the network file system",
            seconds,
            self._describe(job),
            self._describe_files(),
        )

    def _tell_busy(self, seconds: float) -> None:
        logger.warning(
            "loader threads have not ended for %.0f s%s; `kill -9 %d` ends the program at once",
            seconds,
            self._describe_files(),
            os.getpid(),
        )

    def _describe_files(self) -> str:
        files = [f"`{path}` for {seconds:.0f} s" for path, seconds in self.dataset.files_in_use()]
        more = f" and {len(files) - _N_FILES} more" if len(files) > _N_FILES else ""
        return f"; being read: {', '.join(files[:_N_FILES])}{more}" if files else ""

    def _describe(self, job: _Job) -> str:
        """Which batch it was and which frames are in it."""
        names = []
        for position in [job.position(place) for place in job.places[:_N_NAMED]]:
            try:
                address = self.dataset.address(position)
                names.append(f"episode {address.episode} frame {address.frame}")
            except Exception:  # the dataset is in trouble already; the first error is the one to show
                logger.debug("Address of sample %d is unknown", position, exc_info=True)
                names.append(f"sample {position}")
        rest = f" and {len(job.places) - _N_NAMED} more" if len(job.places) > _N_NAMED else ""
        return f"while building batch {job.number} of epoch {job.epoch}: {', '.join(names)}{rest}"


def _pinned(batch: Batch) -> Batch:
    return {key: value.pin_memory() if isinstance(value, Tensor) else value for key, value in batch.items()}


_Task = Task[_Job, _Built]
_Threads = LoaderThreads[_Job, _Built]
