"""Temporal ensembling: a running weighted mean of overlapping action chunks (spec/act.md, Inference).

Source: Zhao et al. 2023, algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor


class TemporalEnsemble:
    """Averages what successive chunks say about the same tick.

    The weights are w_i = exp(-coeff * i), i = 0 for the oldest prediction, so a positive coefficient trusts old
    predictions more and 0 weighs all equally.

    Args:
        coeff: decay of the weights.
        chunk_size: actions of a chunk, K.
    """

    def __init__(self, coeff: float, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.weights = torch.exp(-coeff * torch.arange(chunk_size))
        self.cumsum = torch.cumsum(self.weights, dim=0)
        self._mean: Tensor | None = None  # (B, K - 1, A) means for the coming ticks
        self._count: Tensor | None = None  # (K - 1, 1) predictions in each mean

    def reset(self) -> None:
        """Forget the episode."""
        self._mean = self._count = None

    def update(self, chunk: Tensor) -> Tensor:
        """Take in the newest chunk and emit the mean for the current tick.

        Args:
            chunk: (B, K, A), float32.

        Returns:
            (B, A).
        """
        weights, cumsum = self.weights.to(chunk.device), self.cumsum.to(chunk.device)
        if self._mean is None or self._count is None:
            mean = chunk.clone()
            count = torch.ones(self.chunk_size, 1, dtype=torch.long, device=chunk.device)
        else:
            count = self._count
            mean = self._mean * cumsum[count - 1]
            mean = (mean + chunk[:, :-1] * weights[count]) / cumsum[count]
            count = torch.clamp(count + 1, max=self.chunk_size)
            mean = torch.cat([mean, chunk[:, -1:]], dim=1)
            count = torch.cat([count, torch.ones_like(count[-1:])])
        action, self._mean, self._count = mean[:, 0], mean[:, 1:], count[1:]
        return action
