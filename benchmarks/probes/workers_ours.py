"""Starts mimetic's loader as its training does. Argument: dataset folder."""

import sys

import numpy as np
from serve import serve

from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler

dataset = open_dataset("local/tiny_vec", root=sys.argv[1], delta_indices={"action": list(range(8))}, return_uint8=True)
dataset[0]
kept = []


def answer(workers: int) -> None:
    """Make a loader and wait for its first batch."""
    sampler = EpisodeSampler(np.array([0]), np.array([len(dataset)]), shuffle=True, seed=0)
    loader = BatchLoader(dataset, sampler, batch_size=8, num_workers=workers, prefetch_factor=4, seed=0)
    batches = loader.endless(0, 0)
    next(batches)
    kept.append((loader, batches))


serve(answer)
