"""Guidance towards the rest of the previous chunk, for real-time chunking (spec/smolvla.md 7.4).

The correction of the published method is the gradient of <x1, err> with respect to x, where the velocity is held
constant; that gradient is err itself, so nothing has to be differentiated.

Source: Black et al., Real-Time Execution of Action Chunking Flow Policies, 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mimetic.errors import ConfigError, ShapeError
from mimetic.policies.smolvla.config import RTCConfig


def prefix_weights(schedule: str, start: int, end: int, total: int) -> Tensor:
    """How strongly each action of a new chunk is held to the previous one.

    Args:
        schedule: "ZEROS", "ONES", "LINEAR" or "EXP".
        start: actions that will have been executed before the chunk is there: weight 1.
        end: first action without guidance.
        total: T.

    Returns:
        (T,) float32 in [0, 1].

    Raises:
        ConfigError: the schedule is unknown.
    """
    start = min(start, end)
    index = torch.arange(total)
    if schedule == "ZEROS":
        return (index < start).float()
    if schedule == "ONES":
        return (index < end).float()
    if schedule not in ("LINEAR", "EXP"):
        raise ConfigError(f"`prefix_attention_schedule` is `{schedule}`", "use ZEROS, ONES, LINEAR or EXP")
    n_between = max(0, min(end, total) - start)
    ramp = torch.linspace(1.0, 0.0, n_between + 2)[1:-1]
    weights = torch.cat([torch.ones(min(start, total)), ramp, torch.zeros(max(0, total - max(start, min(end, total))))])
    weights = weights[:total]
    return weights * torch.expm1(weights) / (math.e - 1) if schedule == "EXP" else weights


@dataclass(frozen=True)
class Guidance:
    """What a new chunk is guided to.

    Args:
        target: (B, T, max_action_dim), the previous chunk's rest, padded with zeros.
        weights: (T,) in [0, 1].
        max_weight: bound of the guidance.
    """

    target: Tensor
    weights: Tensor
    max_weight: float

    def apply(self, x: Tensor, velocity: Tensor, time: float) -> Tensor:
        """The guided velocity.

        Args:
            x: (B, T, max_action_dim), noisy actions.
            velocity: of x.
            time: in [0, 1]; 1 is pure noise.
        """
        tau = 1.0 - time
        error = (self.target - (x - time * velocity)) * self.weights[:, None]
        return velocity - guidance_weight(tau, self.max_weight) * error


def guidance_weight(tau: float, largest: float) -> float:
    """Weight of the correction at progress tau in [0, 1], at most `largest`."""
    c = (1.0 - tau) / tau if tau > 0 else largest
    square = (1.0 - tau) ** 2
    inverse = (square + tau**2) / square if square > 0 else math.inf
    weight = c * inverse
    return min(weight, largest) if math.isfinite(weight) else largest


def make_guidance(
    config: RTCConfig,
    previous: Tensor | None,
    *,
    delay: int | None,
    horizon: int | None,
    shape: tuple[int, int, int],
    device: torch.device,
) -> Guidance | None:
    """Guidance of a prediction, or None without a previous chunk.

    Args:
        config: settings of real-time chunking.
        previous: (B, T', A') or (T', A'), the actions of the previous chunk that are not executed yet, normalised.
        delay: ticks that the prediction will take.
        horizon: actions that are guided; None: the config's `execution_horizon`.
        shape: (B, T, max_action_dim).
        device: of the policy.

    Raises:
        ShapeError: the previous chunk is longer or wider than a chunk, or of another batch.
        ConfigError: no delay is given.
    """
    if previous is None:
        return None
    if delay is None:
        raise ConfigError(
            "guidance by the previous chunk needs `inference_delay`", "give the number of ticks a prediction takes"
        )
    batch, length, width = shape
    previous = previous[None] if previous.ndim == 2 else previous
    fits = previous.ndim == 3 and previous.shape[0] in (1, batch)
    if not fits or previous.shape[1] > length or previous.shape[2] > width:
        raise ShapeError(
            f"the previous chunk has shape {tuple(previous.shape)}, and a chunk is {length} actions of at "
            f"most {width}, for {batch} samples",
            "give the actions that are left over of the last chunk, normalised",
        )
    end = min(config.execution_horizon if horizon is None else horizon, previous.shape[1])
    padded = F.pad(previous, (0, width - previous.shape[2], 0, length - previous.shape[1])).to(device, torch.float32)
    weights = prefix_weights(config.prefix_attention_schedule, delay, end, length).to(device)
    return Guidance(padded.expand(batch, -1, -1), weights, config.max_guidance_weight)
