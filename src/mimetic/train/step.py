"""One training step: forward under autocast, backward, clip, update, schedule (spec/training.md 5).

Nothing here waits for the device: loss, norm and the policy's own values come back as tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.accelerators.precision import Precision
from mimetic.optim.clip import clip_gradients
from mimetic.policies.base import Policy


@dataclass(frozen=True)
class StepResult:
    """What a step gives to the log; all tensors are detached scalars on the device.

    Args:
        loss: loss of the micro-batch, not divided by the accumulation.
        outputs: further values that the policy reports.
        grad_norm: norm before clipping; None between updates.
    """

    loss: Tensor
    outputs: Mapping[str, Tensor]
    grad_norm: Tensor | None


class Stepper:
    """Turns pre-processed batches into optimiser updates.

    Args:
        policy: in training mode, on its device.
        optimizer: over the policy's parameters.
        scheduler: stepped every micro-batch; None keeps the learning rate.
        precision: autocast decision.
        clip_norm: largest gradient norm; 0 or less measures only.
        accumulation: micro-batches an update.
        micro_step: micro-batches since the last update (a resumed run may start between two).
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        precision: Precision,
        *,
        clip_norm: float,
        accumulation: int = 1,
        micro_step: int = 0,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.precision = precision
        self.clip_norm = clip_norm
        self.accumulation = accumulation
        self.micro_step = micro_step
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]

    def forward_backward(self, batch: dict[str, Any]) -> StepResult:
        """Add one micro-batch's gradient; the update comes later, so that the caller can look at the loss first."""
        with self.precision.autocast():
            loss, outputs = self.policy.loss(batch)
        scaled = loss if self.accumulation == 1 else loss / self.accumulation
        scaled.backward()  # type: ignore[no-untyped-call]
        self.micro_step += 1
        norm = None
        if self.micro_step == self.accumulation:
            norm = clip_gradients(self._parameters, self.clip_norm)
        return StepResult(loss.detach(), outputs, norm)

    def update(self) -> None:
        """Step the optimiser when an accumulation is complete, and the schedule always."""
        if self.micro_step == self.accumulation:
            self.apply()
        if self.scheduler is not None:
            with warnings.catch_warnings():
                # Schedules count micro-batches here, so the first of them may come before the first update by design.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.scheduler.step()

    def close_accumulation(self) -> Tensor | None:
        """Give an unfinished accumulation the divisor of the micro-batches that it has, and clip it.

        Returns:
            The gradient norm, to be looked at before `apply`; None when nothing was left over.
        """
        if self.micro_step == 0:
            return None
        factor = self.accumulation / self.micro_step
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor)
        return clip_gradients(self._parameters, self.clip_norm)

    def learning_rate(self) -> float:
        """Learning rate of the first group: the one of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def apply(self) -> None:
        """Update the weights with the gradients as they are, and start a new accumulation."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.micro_step = 0
