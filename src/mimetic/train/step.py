"""One training step: forward under autocast, backward, clip, update, schedule (spec/training.md 5 and 17.4).

Nothing here waits for the device: loss, norm and the policy's own values come back as tensors. (Splitting a batch for
which memory did not suffice does, once.)
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.memory import (
    describe_memory,
    generator_state,
    is_out_of_memory,
    release_memory,
    set_generator_state,
)
from mimetic.accelerators.precision import Precision
from mimetic.errors import TrainingError
from mimetic.optim.clip import clip_gradients
from mimetic.policies.base import Policy
from mimetic.train.pieces import batch_length, split_batch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """What a step gives to the log; all tensors are detached scalars on the device.

    Args:
        loss: loss of the micro-batch, not divided by the accumulation.
        outputs: further values that the policy reports.
        grad_norm: norm before clipping, unscaled; None between updates. Not finite when a float16 gradient overflowed.
    """

    loss: Tensor
    outputs: Mapping[str, Tensor]
    grad_norm: Tensor | None


class OutOfMemory(TrainingError):
    """A batch does not fit the device's memory.

    Args:
        message: what did not fit.
        hint: what to do.
        is_clean: whether the step left no trace, so that a checkpoint of the step before it may be written.
    """

    def __init__(self, message: str = "", hint: str = "", *, is_clean: bool = False) -> None:
        super().__init__(message, hint)
        self.is_clean = is_clean


@dataclass(frozen=True)
class _Replay:
    """A micro-batch of the accumulation that is under way, and the generators' states before it."""

    batch: dict[str, Any]
    generators: tuple[Tensor, ...]


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
        scaler: scales the loss in float16; None in other precisions.
        pieces: parts of a micro-batch that are computed one after the other.
        may_halve: whether a batch that does not fit the memory is computed in more pieces instead of ending the run.
        after_update: called after each update with whether it landed, a bool on the device; None where all do.
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
        scaler: LossScaler | None = None,
        pieces: int = 1,
        may_halve: bool = False,
        after_update: Callable[[Tensor | None], None] | None = None,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.precision = precision
        self.clip_norm = clip_norm
        self.accumulation = accumulation
        self.micro_step = micro_step
        self.scaler = scaler
        self.pieces = pieces
        self.may_halve = may_halve
        self.after_update = after_update
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._replay: list[_Replay] = []
        self._is_closed = False

    def forward_backward(self, batch: dict[str, Any]) -> StepResult:
        """Add one micro-batch's gradient; the update comes later, so that the caller can look at the loss first.

        Raises:
            OutOfMemory: the batch does not fit the device's memory, and may not or cannot be computed in smaller parts.
        """
        self._replay.append(_Replay(batch, self._generators()))
        while True:
            try:
                loss, outputs = self._add_gradient(batch)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            # Outside of the clause above, whose exception would keep the failed pass alive.
            self._make_smaller(batch, reason)
        self.micro_step += 1
        norm = None
        if self.micro_step == self.accumulation:
            self._replay.clear()
            if self.scaler is not None:
                self.scaler.unscale(self.optimizer)
            norm = clip_gradients(self._parameters, self.clip_norm)
        elif not self.may_halve:
            self._replay.clear()
        return StepResult(loss, outputs, norm)

    def update(self) -> Tensor | None:
        """Step the optimiser when an accumulation is complete or closed, and then, always, the schedule.

        Returns:
            Whether an update landed, a bool scalar on the device; None when none was due or none can fail.
        """
        landed = self.apply() if self._is_closed or self.micro_step == self.accumulation else None
        if self.scheduler is not None:
            with warnings.catch_warnings():
                # Schedules count micro-batches here, so the first of them may come before the first update by design.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                self.scheduler.step()
        return landed

    def close_accumulation(self) -> Tensor | None:
        """Give an unfinished accumulation the divisor of the micro-batches that it has, and clip it.

        `update` then makes an update of it, with the learning rate of this step as of any other.

        Returns:
            The gradient norm, to be looked at before `update`; None when nothing is left over.
        """
        if self.micro_step in (0, self.accumulation):
            return None
        self._is_closed = True
        if self.scaler is not None:
            self.scaler.unscale(self.optimizer)
        factor = self.accumulation / self.micro_step
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor)
        return clip_gradients(self._parameters, self.clip_norm)

    def is_finite(self) -> bool:
        """Whether every trained weight is a number; reads the device, for where the loop waits anyway."""
        weights = [parameter.detach() for parameter in self._parameters if parameter.numel()]
        return not weights or bool(torch.stack(torch._foreach_norm(weights, math.inf)).isfinite().all())

    def learning_rate(self) -> float:
        """Learning rate of the first group: the one of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def apply(self) -> Tensor | None:
        """Update the weights with the gradients as they are, and start a new accumulation.

        Returns:
            Whether the update landed, a bool scalar on the device; None where it cannot fail.
        """
        landed = None
        try:
            if self.scaler is None:
                self.optimizer.step()
            else:
                landed = self.scaler.step(self.optimizer)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"the state of the optimiser does not fit the memory of {self.precision.device}: {error}",
                "train fewer weights (`--peft.*`), or a smaller policy",
            ) from error
        self.optimizer.zero_grad(set_to_none=True)
        self.micro_step = 0
        self._is_closed = False
        if self.after_update is not None:
            self.after_update(landed)
        return landed

    def _add_gradient(self, batch: dict[str, Any]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss and values of a micro-batch, whose gradient is added in `self.pieces` parts."""
        if self.pieces == 1:
            return self._backward(batch, 1.0)
        length = batch_length(batch)
        losses, totals = [], dict[str, Tensor]()
        for piece in split_batch(batch, self.pieces):
            share = batch_length(piece) / length
            loss, outputs = self._backward(piece, share)
            losses.append(loss * share)
            for name, value in outputs.items():
                totals[name] = totals.get(name, torch.zeros_like(value)) + value * share
        return torch.stack(losses).sum(), totals

    def _backward(self, batch: dict[str, Any], share: float) -> tuple[Tensor, Mapping[str, Tensor]]:
        with self.precision.autocast():
            loss, outputs = self.policy.loss(batch)
        weighted = loss if share == 1.0 else loss * share
        if self.accumulation > 1:
            weighted = weighted / self.accumulation
        if self.scaler is not None:
            weighted = self.scaler.scale(weighted)
        weighted.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), outputs

    def _make_smaller(self, batch: dict[str, Any], reason: str) -> None:
        """After a batch did not fit: forget its gradient, and compute it and its accumulation's others in more pieces.

        Raises:
            OutOfMemory: that is not allowed or not possible.
        """
        device, length = self.precision.device, batch_length(batch)
        used = describe_memory(device)
        start = self._replay[0].generators
        is_whole = len(self._replay) == self.micro_step + 1
        if is_whole:
            self.optimizer.zero_grad(set_to_none=True)
            self._restore(start)
        release_memory(device)
        piece = -(-length // self.pieces)
        if not self.may_halve or piece == 1 or not is_whole:
            raise OutOfMemory(
                f"{piece} sample{'s' if piece > 1 else ''} at once do not fit the memory of {device}"
                f"{f' ({used})' if used else ''}: {reason}",
                _advice(self.may_halve, piece, is_whole),
                is_clean=self.micro_step == 0,
            )
        before = min(self.pieces, length)
        while -(-length // self.pieces) == piece:
            self.pieces *= 2
        logger.warning(
            "A batch does not fit the memory of %s%s: from now on each batch of %d is computed in %d parts instead of "
            "%d, and their gradients are added up; the update stays the same but for noise, which is drawn part by "
            "part, and a step takes longer",
            device,
            f" ({used})" if used else "",
            length,
            min(self.pieces, length),
            before,
        )
        earlier, self._replay = self._replay[:-1], self._replay[-1:]
        self._redo(earlier)

    def _redo(self, earlier: list[_Replay]) -> None:
        """Compute the accumulation's earlier micro-batches once more, whose gradients were spoilt by a failed one."""
        self.micro_step = 0
        for item in earlier:
            last = self._replay.pop()
            self.forward_backward(item.batch)
            self._replay.append(last)

    def _generators(self) -> tuple[Tensor, ...]:
        device = self.precision.device
        if device.type == "cpu":
            return (torch.get_rng_state(),)
        return torch.get_rng_state(), generator_state(device)

    def _restore(self, states: tuple[Tensor, ...]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            set_generator_state(self.precision.device, states[1])


def _advice(may_halve: bool, piece: int, is_whole: bool) -> str:
    ways = "`--accelerator.mixed_precision=bf16`, `--accelerator.activation_checkpointing.mode=full`"
    if piece == 1:
        return f"try {ways}, a smaller policy, or smaller camera pictures"
    if not may_halve:
        return f"`--out_of_memory=halve` computes each batch in parts that fit; or try {ways}"
    assert not is_whole
    return f"the update was begun before the run was resumed and cannot be redone: resume once more with {ways}"
