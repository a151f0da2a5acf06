"""Updates that were left out because a float16 gradient overflowed: counted, explained once, and bounded.

A few at the start of a run are how the loss scale finds its size (spec/training.md 17.4). Many in a row, or a scale
that has no room left, mean that something else is wrong.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from mimetic.errors import TrainingError
from mimetic.train.deferred import Deferred

logger = logging.getLogger(__name__)

MOST_IN_A_ROW = 50
SMALLEST_SCALE = 1.0


class OverflowWatch:
    """Counts landed and skipped updates, and stops a run whose scale collapses.

    Args:
        device: where the flags live.
        landed: updates that landed before, in a resumed run.
        skipped: updates that were left out before.
        in_a_row: how many of the latest ones.
    """

    def __init__(self, device: torch.device, *, landed: int = 0, skipped: int = 0, in_a_row: int = 0) -> None:
        self.landed = landed
        self.skipped = skipped
        self.in_a_row = in_a_row
        self._has_explained = skipped > 0
        self._in_window = 0
        self._deferred = Deferred[int](device, self._settle)

    def watch(self, step: int, landed: Tensor, scale: Tensor) -> None:
        """Note one attempted update; nothing is read back from an accelerator before it has arrived.

        Args:
            step: number of the step.
            landed: whether the weights changed, a bool scalar.
            scale: loss scale after the update, a scalar.

        Raises:
            TrainingError: the scale has collapsed, in this update or in an earlier one that has arrived now.
        """
        self._deferred.put(torch.stack([landed.float(), scale.float()]), step)

    def wait(self) -> None:
        """Read what is still on its way (errors as in `watch`)."""
        self._deferred.wait()

    def take_window(self) -> int:
        """Updates left out since the last call; after `wait`."""
        count, self._in_window = self._in_window, 0
        return count

    def _settle(self, values: Tensor, step: int) -> None:
        landed, scale = values.tolist()
        if landed:
            self.landed += 1
            self.in_a_row = 0
            return
        self.skipped += 1
        self.in_a_row += 1
        self._in_window += 1
        if not self._has_explained:
            self._has_explained = True
            logger.info(
                "step %d: a float16 gradient overflowed, so this update is left out and the loss scale falls to %g; "
                "skipped updates in the first steps are normal while the scale adapts",
                step,
                scale,
            )
        if self.in_a_row >= MOST_IN_A_ROW or scale < SMALLEST_SCALE:
            self._stop(step, scale)

    def _stop(self, step: int, scale: float) -> None:
        raise TrainingError(
            f"the loss scale has collapsed to {scale:g} at step {step}: the last {self.in_a_row} updates overflowed "
            f"in float16 and were left out ({self.landed} updates of this run landed)",
            "train with `--accelerator.mixed_precision=bf16` (its range is that of float32) or `no`; if the loss is "
            "not finite there either, lower the learning rate and look at the data with `mimetic dataset info`",
        )
