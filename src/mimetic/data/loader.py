"""Batches for training, built ahead by threads.

Decoding and array copies release Python's lock, so threads are enough: no process is started, nothing is pickled and
decoders are shared. Batches come in order, and are the same, bit for bit, for every number of workers: each sample's
augmentation has a generator of its own, seeded by (seed, epoch, place in the epoch). The global random generators are
never touched, so that loading data cannot change training.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mimetic.data.sampler import EpisodeSampler, shard_batches

logger = logging.getLogger(__name__)

Batch = dict[str, Tensor | list[str]]
_N_NAMED = 8  # frames named in the note of an error


class BatchSource(Protocol):
    """What the loader needs of a dataset."""

    def batch(self, positions: Sequence[int], generators: Sequence[torch.Generator] | None = None) -> Batch:
        """Samples at the given positions, collated; augmentation draws from one generator a sample."""
        ...

    def address(self, position: int) -> Any:
        """Where a sample comes from: an object with `episode` and `frame`."""
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
    """One batch to build: its number in the epoch, and its samples as places in the epoch and in the dataset."""

    epoch: int
    number: int
    places: list[int]
    positions: list[int]


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
    """

    def __init__(
        self,
        dataset: BatchSource,
        sampler: EpisodeSampler,
        *,
        batch_size: int,
        num_workers: int,
        prefetch_factor: int,
        seed: int,
        pin_memory: bool = False,
        num_processes: int = 1,
        rank: int = 0,
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
        self._lock = threading.Lock()
        self._pools: set[ThreadPoolExecutor] = set()

    def batches(self, epoch: int, start_index: int = 0) -> Iterator[Batch]:
        """Batches of one epoch.

        Args:
            epoch: number of the epoch.
            start_index: first sample not used yet; see `resume_position`.

        Raises:
            Exception: what building a batch raised, when its turn comes, with a note that names the frames.
        """
        return self._deliver(self._jobs(epoch, start_index))

    def endless(self, epoch: int, start_index: int = 0) -> Iterator[Batch]:
        """Batches from one place on, epoch after epoch, built ahead across the epochs' ends (errors as `batches`)."""
        return self._deliver(self._endless_jobs(epoch, start_index))

    def close(self) -> None:
        """End all threads; batches that are being built are finished and thrown away. Iterators end."""
        with self._lock:
            pools, self._pools = self._pools, set()
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)

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
            positions: NDArray[np.int64] = order[places % len(order)]
            yield _Job(epoch, number, places.tolist(), positions.tolist())

    def _endless_jobs(self, epoch: int, start_index: int) -> Iterator[_Job]:
        while True:
            yield from self._jobs(epoch, start_index)
            epoch, start_index = epoch + 1, 0

    def _deliver(self, jobs: Iterator[_Job]) -> Iterator[Batch]:
        if self.num_workers == 0:
            for job in jobs:
                with _one_torch_thread():
                    batch = self._build(job)
                yield batch
            return
        pool = _start_pool(self.num_workers)
        with self._lock:
            self._pools.add(pool)
        try:
            yield from self._from_pool(pool, jobs)
        finally:
            with self._lock:
                self._pools.discard(pool)
            pool.shutdown(wait=True, cancel_futures=True)

    def _from_pool(self, pool: ThreadPoolExecutor, jobs: Iterator[_Job]) -> Iterator[Batch]:
        """Keep the workers supplied; hand out results in the order of the jobs."""
        waiting: deque[Future[Batch]] = deque()
        for job in jobs:
            if not self._submit(pool, job, waiting):
                return
            if len(waiting) > self.num_workers * self.prefetch_factor:
                yield waiting.popleft().result()
        while waiting and not waiting[0].cancelled():
            yield waiting.popleft().result()

    def _submit(self, pool: ThreadPoolExecutor, job: _Job, waiting: deque[Future[Batch]]) -> bool:
        """Hand a job to the workers; False when the loader was closed meanwhile."""
        with self._lock:
            if pool not in self._pools:
                return False
            waiting.append(pool.submit(self._build, job))
        return True

    def _build(self, job: _Job) -> Batch:
        try:
            batch = self.dataset.batch(job.positions, SampleGenerators(self.seed, job.epoch, job.places))
            if self.pin_memory:
                batch = _pinned(batch)
        except Exception as error:
            error.add_note(self._describe(job))
            raise
        return batch

    def _describe(self, job: _Job) -> str:
        """Which batch it was and which frames are in it."""
        names = []
        for position in job.positions[:_N_NAMED]:
            try:
                address = self.dataset.address(position)
                names.append(f"episode {address.episode} frame {address.frame}")
            except Exception:  # the dataset is in trouble already; the first error is the one to show
                logger.debug("Address of sample %d is unknown", position, exc_info=True)
                names.append(f"sample {position}")
        rest = f" and {len(job.positions) - _N_NAMED} more" if len(job.positions) > _N_NAMED else ""
        return f"while building batch {job.number} of epoch {job.epoch}: {', '.join(names)}{rest}"


def _pinned(batch: Batch) -> Batch:
    return {key: value.pin_memory() if isinstance(value, Tensor) else value for key, value in batch.items()}


def _start_pool(num_workers: int) -> ThreadPoolExecutor:
    """Start threads in which torch computes single-threaded, leaving torch's setting everywhere else as it is.

    Workers are the parallelism; a team of OpenMP threads for each would fight with the training step. Besides, sums
    split over another number of threads may round differently, and batches must not depend on the machine's cores.
    The pool's threads are joined by Python itself when the interpreter ends, so an interrupted run does not hang.
    """
    before = torch.get_num_threads()
    together = threading.Barrier(num_workers)
    pool = ThreadPoolExecutor(num_workers, "mimetic-loader", initializer=_compute_in_one_thread)
    for started in [pool.submit(together.wait) for _ in range(num_workers)]:
        started.result()
    torch.set_num_threads(before)
    return pool


def _compute_in_one_thread() -> None:
    # Asking first matters: a thread's first question sets its count to the common one, undoing what was set before.
    torch.get_num_threads()
    torch.set_num_threads(1)


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
