"""Loss on held-out episodes during training (spec/training.md 14, "mimetic:").

The mean weighs every sample alike, noise comes from a generator of its own so that checkpoints compare, and the
generators of the training that follows are left as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mimetic.accelerators.precision import Precision
from mimetic.data.reader import Dataset
from mimetic.policies.base import Policy
from mimetic.processing.pipeline import Pipeline

_NOISE_SEED = 0


@dataclass(frozen=True)
class HeldoutLoss:
    """Result of one measurement.

    Args:
        loss: mean over samples.
        per_task: mean over the samples of each task, by task text.
    """

    loss: float
    per_task: dict[str, float]


class Heldout:
    """Measures the loss on fixed samples.

    Args:
        dataset: held-out episodes, with the policy's windows and without augmentation.
        preprocessor: the training pipeline.
        precision: autocast decision.
        batch_size: samples a forward pass.
        positions: samples to use by task index.
        tasks: task text by task index.
    """

    def __init__(
        self,
        dataset: Dataset,
        preprocessor: Pipeline,
        precision: Precision,
        *,
        batch_size: int,
        positions: Mapping[int, Sequence[int]],
        tasks: Mapping[int, str],
    ) -> None:
        self.dataset = dataset
        self.preprocessor = preprocessor
        self.precision = precision
        self.batch_size = batch_size
        self.positions = positions
        self.tasks = tasks

    def measure(self, policy: Policy) -> HeldoutLoss:
        """Measure; the policy is put into eval mode and back into training mode."""
        devices = [self.precision.device] if self.precision.device.type == "cuda" else []
        policy.eval()
        try:
            with torch.random.fork_rng(devices=devices), torch.inference_mode():
                torch.manual_seed(_NOISE_SEED)
                sums = {task: self._sum(policy, positions) for task, positions in self.positions.items()}
        finally:
            policy.train()
        count = sum(len(positions) for positions in self.positions.values())
        return HeldoutLoss(
            sum(sums.values()) / count,
            {self.tasks.get(task, str(task)): sums[task] / len(self.positions[task]) for task in sums},
        )

    def _sum(self, policy: Policy, positions: Sequence[int]) -> float:
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, len(positions), self.batch_size):
            chunk = positions[start : start + self.batch_size]
            batch = self.preprocessor(self.dataset.batch(chunk))
            with self.precision.autocast():
                loss, _ = policy.loss(batch)
            total += loss.double().cpu() * len(chunk)
        return float(total)


def heldout_positions(dataset: Dataset, max_samples: int) -> dict[int, list[int]]:
    """Samples by task index: all, or the first max(1, max_samples // tasks) frames of each task (spec/dataset.md
    11.3).
    """
    task_index = np.asarray(dataset.column("task_index")).reshape(-1)
    tasks = np.unique(task_index)
    most = max(1, max_samples // len(tasks)) if max_samples > 0 else len(task_index)
    return {int(task): np.flatnonzero(task_index == task)[:most].tolist() for task in tasks}
