"""What both sides of the SmolVLA benchmarks share: the inputs, and measures taken from outside a model.

Imports torch and numpy only, because it runs in both interpreters.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

CAMERAS = ("observation.images.front", "observation.images.wrist")
CHUNK, ACTION, WIDTH = 50, 6, 32
"""Steps of a chunk, action dimensions of the robot, padded action dimensions of the network."""


def training_batch(size: int, slots: int, *, images: bool = True) -> dict[str, Any]:
    """A preprocessed batch: two cameras 640x480 in [0, 1], 12 language tokens in `slots` slots, chunks of 50 steps."""
    rng = np.random.default_rng(7)
    batch: dict[str, Any] = {}
    for camera in CAMERAS:
        frames = rng.integers(0, 256, (size, 1, 3, 480, 640), dtype=np.uint8)
        if images:
            batch[camera] = torch.from_numpy(frames).float().div_(255)
    batch["observation.state"] = torch.from_numpy(rng.standard_normal((size, 1, 6), dtype=np.float32))
    batch["action"] = torch.from_numpy(rng.standard_normal((size, CHUNK, ACTION), dtype=np.float32))
    batch["action_is_pad"] = torch.zeros(size, CHUNK, dtype=torch.bool)
    return batch | _language(size, slots)


def observation(slots: int) -> dict[str, Any]:
    """One preprocessed observation, the first sample of `training_batch`."""
    batch = training_batch(1, slots)
    kept = {name: batch[name][:, -1] for name in (*CAMERAS, "observation.state")}
    return kept | _language(1, slots)


def noise() -> torch.Tensor:
    """Starting noise of one chunk (1, 50, 32)."""
    return torch.from_numpy(np.random.default_rng(11).standard_normal((1, CHUNK, WIDTH), dtype=np.float32))


def _language(size: int, slots: int) -> dict[str, Any]:
    tokens = torch.full((size, slots), 2)
    tokens[:, :12] = torch.arange(40, 52)
    mask = torch.zeros(size, slots, dtype=torch.bool)
    mask[:, :12] = True
    return {"observation.language.tokens": tokens, "observation.language.attention_mask": mask}


def memory_mb() -> dict[str, float]:
    """Resident memory now and at its highest [MiB], of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Vm")}
    return {"rss_mb": found["VmRSS"], "peak_rss_mb": found["VmHWM"]}


def forget_peak() -> None:
    """Give freed memory back and start the highest mark anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


class KeptForBackward:
    """Bytes of the distinct storages that autograd keeps, without the parameters themselves."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        self._kept: dict[int, torch.UntypedStorage] = {}

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._kept[storage.data_ptr()] = storage  # held, so that the address is not used again
        return tensor

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts what is saved inside."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    @property
    def mb(self) -> float:
        """MB (1e6 bytes) seen so far."""
        return sum(storage.nbytes() for storage in self._kept.values()) / 1e6


class Clocks:
    """Wall and processor seconds of calls by name."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Replace `owner.method` with itself and a clock."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.span(name):
                return inner(*args, **kwargs)

        object.__setattr__(owner, method, timed)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Times what is inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(time.process_time() - cpu)

    def found(self) -> dict[str, Any]:
        """All of it, as an answer carries it."""
        return {"wall": self.wall, "cpu": self.cpu}


def run_steps(
    steps: int,
    loss: Callable[[], torch.Tensor],
    clip: Callable[[], object],
    optimizer: torch.optim.Optimizer,
    clocks: Clocks,
) -> float:
    """Forward, backward, clipping, update, clear; returns the last loss."""
    value = torch.tensor(0.0)
    for _ in range(steps):
        with clocks.span("step"):
            with clocks.span("forward"):
                value = loss()
            with clocks.span("backward"):
                value.backward()
            with clocks.span("clip"):
                clip()
            with clocks.span("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
    return float(value.detach())


def run_chunks(repeats: int, predict: Callable[[], torch.Tensor], clocks: Clocks) -> list[list[float]]:
    """Predict the same chunk several times; returns it."""
    actions = torch.empty(1, 0, 0)
    for _ in range(repeats):
        with clocks.span("chunk"):
            actions = predict()
    rows: list[list[float]] = actions[0].float().tolist()
    return rows
