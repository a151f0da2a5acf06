"""A piece of a shuffled epoch, as a map-style dataset or as a stream; arguments: folder, `map` or `stream`."""

import itertools
import sys

import torch
from serve import serve

from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler
from mimetic.data.stream import open_stream

root, kind = sys.argv[1:3]
torch.set_num_threads(1)
opened = open_stream if kind == "stream" else open_dataset
dataset = opened(root=root, delta_indices={"action": list(range(50))}, return_uint8=True)
starts, ends = dataset.episode_bounds()
order = dataset.order() if kind == "stream" else EpisodeSampler(starts, ends, shuffle=True)
loader = BatchLoader(dataset, order, batch_size=8, num_workers=0, prefetch_factor=1, seed=0)


def answer(epoch: int, samples: int) -> dict:
    """Batches of 8 from the beginning of an epoch."""
    found = 0
    for batch in itertools.islice(loader.batches(epoch), samples // 8):
        found += len(batch["index"])
    return {"samples": found}


serve(answer)
