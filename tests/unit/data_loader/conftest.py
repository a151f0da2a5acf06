"""A dataset without files: each sample says which it is and draws from its generator."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from mimetic.errors import VideoError


def damaged(position):
    return VideoError(f"`video.mp4` has 8 frames, frame {position} was asked", "copy it again")


class FakeDataset:
    """The two methods of a dataset that the loader calls.

    Args:
        n: samples.
        broken: positions whose reading fails; or the error of each, as a function of the position.
        gate: event to wait for before any batch is built.
    """

    def __init__(self, n, broken=(), gate=None):
        self.n = n
        self.broken = broken if isinstance(broken, dict) else dict.fromkeys(broken, damaged)
        self.gate = gate
        self.threads = set()
        self.asked = []
        self.torch_threads = set()

    def batch(self, positions, generators=None):
        self.threads.add(threading.current_thread().name)
        self.torch_threads.add(torch.get_num_threads())
        self.asked.append(list(positions))
        if self.gate is not None:
            self.gate.wait(120)
        # Later batches are ready first, so that order is not given by luck.
        time.sleep(0.0005 * (positions[0] % 3))
        for position in positions:
            if position in self.broken:
                raise self.broken[position](position)
        noise = [[torch.rand(2, generator=generators[place]) for _ in range(2)] for place in range(len(positions))]
        return {
            "index": torch.tensor(positions),
            "noise": torch.stack([torch.stack(pair) for pair in noise]),
            "task": [f"task of {position}" for position in positions],
        }

    def address(self, position):
        return SimpleNamespace(episode=position // 10, frame=position % 10)

    def files_in_use(self):
        return []


@pytest.fixture
def fake_dataset():
    return FakeDataset
