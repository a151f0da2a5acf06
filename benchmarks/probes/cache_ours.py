"""Random samples from kept frames; arguments: folders of the dataset and the cache, height, width (0: full size)."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from serve import serve

from mimetic.data.frames.builder import Workers, build_on_disk
from mimetic.data.frames.content import FrameFile
from mimetic.data.frames.plan import frame_content
from mimetic.data.frames.reader import DiskRows, KeptFrames
from mimetic.data.frames.resize import FrameSize
from mimetic.data.reader import open_dataset

root, folder, height, width = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dataset = open_dataset(root=root, delta_indices={"action": list(range(50))}, return_uint8=True)
size = FrameSize(height, width) if height else None
rows = np.arange(len(dataset))
kept, built_s = {}, time.process_time()
for camera in dataset.meta.camera_keys:
    file = FrameFile(folder, frame_content(dataset.source, camera, size))
    build_on_disk(file, dataset.source, rows, Workers(1))
    kept[camera] = KeptFrames(DiskRows(file))
built_s = time.process_time() - built_s
view = dataset.with_kept(kept)


def answer(mode: str, seed: int = 0, samples: int = 0) -> dict:
    """`first`: every frame once, checksums included; `batch`: 16 random samples at a time; `sum`: of some samples."""
    if mode == "first":
        for start in range(0, len(view), 16):
            view.batch(range(start, min(start + 16, len(view))))
        return {"samples": len(view)}
    if mode == "built":
        return {"built_s": built_s, "frames": len(view) * len(kept)}
    positions = np.random.default_rng(seed).integers(0, len(view), samples).tolist()
    if mode == "sum":
        return {"sums": [float(view[place][camera].double().mean()) for place in positions for camera in kept]}
    for start in range(0, samples, 16):
        view.batch(positions[start : start + 16])
    return {"samples": samples}


serve(answer)
