"""Random access with mimetic's Dataset; arguments: folder, video backend or `none`, window, threads or `default`."""

import sys

import numpy as np
import torch
from serve import serve

from mimetic.data.reader import open_dataset

root, backend, window, threads = sys.argv[1:5]
if threads != "default":
    torch.set_num_threads(int(threads))
dataset = open_dataset(
    "benchmark/two_cameras",
    root=root,
    delta_indices={"action": list(range(int(window)))},
    video_backend="auto" if backend == "none" else backend,
    return_uint8=True,
)


def answer(mode: str, seed: int, samples: int) -> dict:
    """`item`: one at a time; `batch`: 8 at a time; `digest`: sums of items, for equality."""
    positions = np.random.default_rng(seed).integers(0, len(dataset), samples).tolist()
    if mode == "item":
        for position in positions:
            dataset[position]
    elif mode == "batch":
        for start in range(0, samples, 8):
            dataset.batch(positions[start : start + 8])
    else:
        items = [dataset[position] for position in positions]
        return {"digest": [{k: v.double().sum().item() for k, v in i.items() if k != "task"} for i in items]}
    return {"samples": samples}


serve(answer)
