"""Runs inside the peer's environment: LeRobot 0.6.1 opens, continues or records a dataset (tests/interop/test_writer_peer.py).

python peer_datasets.py read ROOT OUT.npz
python peer_datasets.py resume ROOT
python peer_datasets.py record ROOT [KILL_AFTER_EPISODES]
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset


def read(root, out):
    """Every item as arrays; texts as JSON."""
    dataset = LeRobotDataset("local/written", root=root)
    arrays, texts = {}, []
    for row in range(len(dataset)):
        item = dataset[row]
        texts.append({key: value for key, value in item.items() if not hasattr(value, "numpy")})
        arrays |= {f"{row}/{key}": value.numpy() for key, value in item.items() if hasattr(value, "numpy")}
        texts[-1]["__order__"] = list(item)
    about = {
        "texts": texts,
        "episodes": dataset.num_episodes,
        "frames": dataset.num_frames,
        "stats": sorted(dataset.meta.stats or {}),
        "tasks": list(dataset.meta.tasks.index),
        "robot_type": dataset.meta.robot_type,
    }
    np.savez(out, about=np.array(json.dumps(about, default=str)), **arrays)


def frames(features, episode, length):
    """Deterministic frames of any features."""
    for frame in range(length):
        value = {}
        for key, feature in features.items():
            shape = tuple(feature["shape"])
            if feature["dtype"] in ("video", "image"):
                value[key] = np.full(shape, (40 * episode + 3 * frame) % 256, dtype=np.uint8)
            elif key not in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
                value[key] = np.full(shape, episode + frame / 10, dtype=feature["dtype"])
        yield {**value, "task": f"task {episode % 2}"}


def resume(root):
    """Add one episode of 4 frames."""
    dataset = LeRobotDataset.resume("local/written", root=root)
    for frame in frames(dataset.meta.features, dataset.meta.total_episodes, 4):
        dataset.add_frame(frame)
    dataset.save_episode()
    dataset.finalize()


def record(root, kill_after):
    """A new dataset of 3 episodes; killed in the middle of the next one where asked."""
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
        "observation.images.top": {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "grid": {"dtype": "float32", "shape": (2, 2), "names": None},
    }
    dataset = LeRobotDataset.create("local/written", 10, features, root=root, robot_type="toy")
    for episode in range(kill_after or 3):
        for frame in frames(features, episode, 10 + episode):
            dataset.add_frame(frame)
        dataset.save_episode()
    if kill_after:
        for frame in frames(features, kill_after, 3):
            dataset.add_frame(frame)
        os.kill(os.getpid(), signal.SIGKILL)
    dataset.finalize()


if __name__ == "__main__":
    command, root = sys.argv[1], Path(sys.argv[2])
    if command == "read":
        read(root, sys.argv[3])
    elif command == "resume":
        resume(root)
    else:
        record(root, int(sys.argv[3]) if len(sys.argv) > 3 else 0)
