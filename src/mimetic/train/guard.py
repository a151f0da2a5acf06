"""Stops a run whose loss is no longer a number, and says which frames were in the batch.

On a CPU the loss is looked at before the update, so the weights stay good. On an accelerator the answer is copied to
the host without waiting and read a few steps later; a checkpoint is never written before every answer is in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mimetic.errors import TrainingError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX
from mimetic.train.deferred import Deferred


class FiniteGuard:
    """Watches losses and gradient norms.

    Args:
        device: where the losses live.
        explain: called with the batch's global frame indices when a run stops; returns a sentence on what is wrong
            in the data, or "".
    """

    def __init__(self, device: torch.device, explain: Callable[[np.ndarray], str] | None = None) -> None:
        self._explain = explain
        self._deferred = Deferred[tuple[int, dict[str, Tensor]]](device, self._settle)

    def watch(self, step: int, batch: dict[str, Any], *values: Tensor | None) -> None:
        """Check a step's scalars, at once on a CPU and later elsewhere.

        Args:
            step: number of the step.
            batch: the batch as the loader delivered it; only its address columns are kept.
            values: scalars that must be finite; None is left out.

        Raises:
            TrainingError: a value of this step, or of an earlier one whose answer has arrived, is not finite.
        """
        address = {key: batch[key] for key in (EPISODE_INDEX, FRAME_INDEX, INDEX) if isinstance(batch.get(key), Tensor)}
        numbers = torch.stack([value.detach().float() for value in values if value is not None])
        self._deferred.put(torch.isfinite(numbers).all(), (step, address))

    def wait(self) -> None:
        """Read every answer that is still on its way; call this where the loop waits anyway (log, checkpoint).

        Raises:
            TrainingError: a value was not finite.
        """
        self._deferred.wait()

    def _settle(self, is_finite: Tensor, note: tuple[int, dict[str, Tensor]]) -> None:
        if not bool(is_finite):
            self._stop(*note)

    def _stop(self, step: int, address: dict[str, Tensor]) -> None:
        message = f"the loss or its gradient is not finite at step {step}; the batch was {describe_frames(address)}"
        if self._explain is not None and INDEX in address:
            reason = self._explain(address[INDEX].cpu().numpy())
            if reason:
                message += f"; {reason}"
        raise TrainingError(message, "look at those frames; if the data are fine, lower the learning rate")


def describe_frames(address: dict[str, Tensor]) -> str:
    """Name a batch's frames: "episode 0 frames 3, 8; episode 2 frame 11 (index 3, 8, 31)"."""
    if EPISODE_INDEX not in address or FRAME_INDEX not in address:
        return f"index {address[INDEX].tolist()}" if INDEX in address else "of unknown frames"
    by_episode: dict[int, list[int]] = defaultdict(list)
    for episode, frame in zip(address[EPISODE_INDEX].tolist(), address[FRAME_INDEX].tolist(), strict=True):
        by_episode[int(episode)].append(int(frame))
    parts = [
        f"episode {episode} frame{'s' if len(frames) > 1 else ''} {', '.join(map(str, sorted(frames)))}"
        for episode, frames in sorted(by_episode.items())
    ]
    indices = f" (index {', '.join(str(int(i)) for i in address[INDEX].tolist())})" if INDEX in address else ""
    return "; ".join(parts) + indices
