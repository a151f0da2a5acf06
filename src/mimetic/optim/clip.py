"""The gradient's norm, and its limit (spec/training.md 5)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients so that their total L2 norm is at most `max_norm`; nothing is read back from the device.

    The factor is min(1, max_norm / (norm + 1e-6)). A norm that is not finite is no error here.

    Args:
        parameters: the policy's parameters, in their order; those without a gradient are left out.
        max_norm: the limit; 0 or less measures without touching the gradients.

    Returns:
        The norm before clipping (a norm of per-tensor norms), a scalar on the gradients' device; zero without any.
    """
    with_gradient = [p for p in parameters if p.grad is not None]
    if max_norm > 0:
        norm: Tensor = nn.utils.clip_grad_norm_(with_gradient, max_norm)
        return norm
    gradients = [p.grad for p in with_gradient if p.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    device = gradients[0].device
    norms = [torch.linalg.vector_norm(gradient.detach()).to(device) for gradient in gradients]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
