"""Flow matching: noise, time, targets, reductions and the Euler sampler (spec/smolvla.md 6 and 7.1).

Shapes: B batch, N draws, T chunk, D padded action width, A action width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mimetic.policies.smolvla.guidance import Guidance

_ALPHA, _BETA = 1.5, 1.0
_SCALE, _SHIFT = 0.999, 0.001


def draw_noise(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Standard normal float32 from the generator of the device."""
    return torch.randn(shape, dtype=torch.float32, device=device)


def draw_time(size: int, device: torch.device) -> Tensor:
    """(size,) times in [0.001, 1]: Beta(1.5, 1) scaled, always from the CPU's generator, as in the reference."""
    alpha, beta = (torch.tensor(value, dtype=torch.float32, device="cpu") for value in (_ALPHA, _BETA))
    time = torch.distributions.Beta(alpha, beta).sample((size,)) * _SCALE + _SHIFT
    if device.type == "cuda":
        return time.pin_memory().to(device, non_blocking=True)
    return time.to(device)


@dataclass(frozen=True)
class FlowTarget:
    """A point on the way from noise to actions, and the velocity there.

    Args:
        x_t: noisy actions.
        u_t: velocity, noise minus actions.
    """

    x_t: Tensor
    u_t: Tensor


def flow_target(actions: Tensor, noise: Tensor, time: Tensor) -> FlowTarget:
    """x_t = t noise + (1 - t) actions.

    Args:
        actions: (R, T, D).
        noise: (R, T, D).
        time: (R,) in [0, 1].
    """
    t = time[:, None, None]
    return FlowTarget(t * noise + (1 - t) * actions, noise - actions)


def mean_loss(errors: Tensor, valid: Tensor | None, divisor: Tensor | None = None) -> Tensor:
    """Mean squared error over the valid actions of all samples.

    Args:
        errors: (R, T, A) squared errors.
        valid: (R, T, 1) bool; None: all.
        divisor: scalar that the sum over the valid ones is divided by; None: their number.
    """
    if valid is None:
        return errors.mean()
    kept = torch.where(valid, errors, torch.zeros_like(errors))
    return kept.sum() / ((valid.sum() * errors.shape[-1]).clamp(min=1) if divisor is None else divisor)


def loss_per_sample(errors: Tensor, valid: Tensor | None) -> Tensor:
    """(R,): like `mean_loss`, for each sample by itself."""
    if valid is None:
        return errors.mean(dim=(1, 2))
    kept = torch.where(valid, errors, torch.zeros_like(errors))
    return kept.sum(dim=(1, 2)) / (valid.sum(dim=(1, 2)) * errors.shape[-1]).clamp(min=1)


def euler_times(num_steps: int) -> list[float]:
    """Times at which the velocity is evaluated: 1 down to 1 / num_steps."""
    return [1.0 + step * (-1.0 / num_steps) for step in range(num_steps)]


def integrate(
    noise: Tensor, num_steps: int, velocity: Callable[[Tensor, int], Tensor], guidance: Guidance | None = None
) -> Tensor:
    """From noise to actions in Euler steps.

    Args:
        noise: (B, T, D).
        num_steps: steps.
        velocity: of (x, number of the step).
        guidance: towards the previous chunk.

    Returns:
        (B, T, D).
    """
    x, step_size = noise, -1.0 / num_steps
    for step, time in enumerate(euler_times(num_steps)):
        v = velocity(x, step)
        if guidance is not None:
            v = guidance.apply(x, v, time)
        x = x + step_size * v
    return x
