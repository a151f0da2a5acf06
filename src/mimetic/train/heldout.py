"""Loss on held-out episodes during training (spec/training.md 14, "mimetic:").

The mean weighs every sample alike, noise comes from a generator of its own so that checkpoints compare, and the
generators of the training that follows are left as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mimetic.accelerators.memory import is_out_of_memory, release_memory
from mimetic.accelerators.precision import Precision
from mimetic.data.reader import Dataset
from mimetic.policies.base import Policy
from mimetic.processing.pipeline import Pipeline
from mimetic.train.pieces import batch_length, split_batch
from mimetic.train.step import OutOfMemory

logger = logging.getLogger(__name__)

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
        may_halve: whether batches that do not fit the memory are computed in parts instead of ending the run.
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
        may_halve: bool = False,
    ) -> None:
        self.dataset = dataset
        self.preprocessor = preprocessor
        self.precision = precision
        self.batch_size = batch_size
        self.positions = positions
        self.tasks = tasks
        self.may_halve = may_halve
        self.pieces = 1

    def measure(self, policy: Policy) -> HeldoutLoss:
        """Measure; the policy is put into eval mode and back into training mode.

        Raises:
            OutOfMemory: a batch does not fit, and may not or cannot be computed in smaller parts.
        """
        while True:
            try:
                return self._measure(policy)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            # Outside of the clause above, whose exception would keep the failed pass alive.
            self._make_smaller(reason)

    def _make_smaller(self, reason: str) -> None:
        device = self.precision.device
        release_memory(device)
        size = -(-self.batch_size // self.pieces)
        if not self.may_halve or size == 1:
            raise OutOfMemory(
                f"{size} held-out sample{'s' if size > 1 else ''} at once do not fit the memory of {device}: {reason}",
                "a smaller policy, or smaller camera pictures, or `--eval_steps=0`"
                if size == 1
                else "`--out_of_memory=halve` computes each batch in parts that fit, or lower `--batch_size`",
            )
        self.pieces *= 2
        logger.warning(
            "A held-out batch does not fit the memory of %s: from now on each is computed in %d parts; a policy that "
            "draws noise draws it anew for that, so compare losses with care with those before",
            device,
            self.pieces,
        )

    def _measure(self, policy: Policy) -> HeldoutLoss:
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
            for piece in split_batch(batch, self.pieces) if self.pieces > 1 else [batch]:
                with self.precision.autocast():
                    loss, _ = policy.loss(piece)
                total += loss.double().cpu() * (len(chunk) if self.pieces == 1 else batch_length(piece))
        return float(total)


def heldout_positions(dataset: Dataset, max_samples: int) -> dict[int, list[int]]:
    """Samples by task index: all, or the first max(1, max_samples // tasks) frames of each task (spec/dataset.md
    11.3).
    """
    task_index = np.asarray(dataset.column("task_index")).reshape(-1)
    tasks = np.unique(task_index)
    most = max(1, max_samples // len(tasks)) if max_samples > 0 else len(task_index)
    return {int(task): np.flatnonzero(task_index == task)[:most].tolist() for task in tasks}
