"""Random samples of LeRobotDataset, resized; arguments: folder of the dataset, height, width (0: full size)."""

import sys

import numpy as np
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from serve import serve
from torch.utils.data import default_collate
from torchvision.transforms import v2

try:
    import torchcodec.decoders  # noqa: F401 - needs FFmpeg's libraries

    backend = "torchcodec"
except (ImportError, OSError, RuntimeError):
    backend = "pyav"

root, height, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dataset = LeRobotDataset(
    "benchmark/two_cameras",
    root=root,
    delta_timestamps={"action": [step / 30 for step in range(50)]},
    video_backend=backend,
    return_uint8=True,
    image_transforms=v2.Resize((height, width), antialias=False) if height else None,
)
cameras = dataset.meta.camera_keys


def answer(mode: str, seed: int = 0, samples: int = 0) -> dict:
    """`decoder`: its name; `batch`: 16 random samples at a time and torch's collate; `sum`: of some samples."""
    if mode == "decoder":
        return {"decoder": backend}
    positions = np.random.default_rng(seed).integers(0, len(dataset), samples).tolist()
    if mode == "sum":
        return {"sums": [float(dataset[place][camera].double().mean()) for place in positions for camera in cameras]}
    for start in range(0, samples, 16):
        default_collate([dataset[position] for position in positions[start : start + 16]])
    return {"samples": samples}


serve(answer)
