"""Multi-head attention with torch's parameter names, and the choice of its kernel.

The plain kernel (matmul, softmax, dropout, matmul) draws dropout from the generator in the same order as
`torch.nn.MultiheadAttention` with attention weights, which is what LeRobot trains with: the same seed gives the same
losses. The fused kernel computes the same without storing the weights.

Shapes: L query positions, S key positions, B batch, M heads, D width, d = D / M.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# On a CPU the fused kernel's backward is slower than the plain one below about 512 keys, and its forward is faster
# from about 300 keys on (spec/environment.md 6).
_CPU_MIN_KEYS_TRAINING = 512
_CPU_MIN_KEYS_INFERENCE = 300


class MultiheadAttention(nn.Module):
    """Attention over (position, batch, width) tensors with packed input projections.

    Args:
        dim: width D of queries, keys and values.
        n_heads: number of heads M, a divisor of D.
        dropout: dropout of the attention weights in training.
    """

    def __init__(self, dim: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))  # checkpoint name
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))  # checkpoint name
        self.out_proj = nn.Linear(dim, dim)  # checkpoint name
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_bias: Tensor | None = None, n_queries: int | None = None
    ) -> Tensor:
        """Attend from every query position to every key position.

        Args:
            query: (L, B, D).
            key: (S, B, D).
            value: (S, B, D).
            key_bias: (B * M, 1, S), added to the logits; -inf hides a key (see `padding_bias`).
            n_queries: length of the whole sequence when `query` holds only its first L rows; dropout is then drawn
                for the whole sequence, so that leaving rows out does not shift the random stream.

        Returns:
            (L, B, D).
        """
        weight_q, weight_k, weight_v = self.in_proj_weight.chunk(3)
        bias_q, bias_k, bias_v = self.in_proj_bias.chunk(3)
        q = self._split_heads(F.linear(query, weight_q, bias_q))
        k = self._split_heads(F.linear(key, weight_k, bias_k))
        v = self._split_heads(F.linear(value, weight_v, bias_v))
        dropout = self.dropout if self.training else 0.0
        out = attend(q, k, v, n_heads=self.n_heads, bias=key_bias, dropout=dropout, n_queries=n_queries)
        length, batch, dim = query.shape
        out = out.transpose(0, 1).reshape(length * batch, dim)
        return F.linear(out, self.out_proj.weight, self.out_proj.bias).view(length, batch, dim)

    def constant(self, value: Tensor) -> Tensor:
        """The output when all positions hold the same value and no attention weight is dropped.

        Rows of attention weights sum to one, so queries, keys and softmax have no effect.

        Args:
            value: (D,), the value at every position.

        Returns:
            (D,), the output at every position.
        """
        dim = value.shape[-1]
        hidden = F.linear(value, self.in_proj_weight[2 * dim :], self.in_proj_bias[2 * dim :])
        return F.linear(hidden, self.out_proj.weight, self.out_proj.bias)

    def _split_heads(self, x: Tensor) -> Tensor:
        length, batch, dim = x.shape
        return x.view(length, batch * self.n_heads, dim // self.n_heads).transpose(0, 1)


def padding_bias(padding: Tensor, n_heads: int, dtype: torch.dtype) -> Tensor:
    """Logits' bias that hides padded keys.

    Args:
        padding: (B, S) bool, true where a key is padding.
        n_heads: number of heads M.
        dtype: of the attention's queries.

    Returns:
        (B * M, 1, S): 0 for keys, -inf for padding.
    """
    bias = torch.zeros(padding.shape, dtype=dtype, device=padding.device).masked_fill_(padding, -math.inf)
    return bias.repeat_interleave(n_heads, dim=0)[:, None, :]


def choose_kernel(
    device_type: str, *, n_keys: int, needs_grad: bool, dropout: float = 0.0
) -> Literal["plain", "fused"]:
    """Which attention kernel to run.

    Args:
        device_type: "cpu", "cuda", ...
        n_keys: key positions S.
        needs_grad: whether a backward pass follows.
        dropout: dropout of the attention weights; above zero the plain kernel keeps the random stream.
    """
    if dropout > 0.0:
        return "plain"
    if device_type != "cpu":
        return "fused"
    least = _CPU_MIN_KEYS_TRAINING if needs_grad else _CPU_MIN_KEYS_INFERENCE
    return "fused" if n_keys >= least else "plain"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    n_heads: int,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    n_queries: int | None = None,
    kernel: Literal["plain", "fused"] | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v, with dropout on the weights.

    Args:
        q: (B * M, L, d).
        k: (B * M, S, d).
        v: (B * M, S, d).
        n_heads: number of heads M.
        bias: (B * M, 1, S), added to the logits.
        dropout: probability with which a weight is dropped.
        n_queries: see `MultiheadAttention.forward`.
        kernel: forces a kernel; None chooses.

    Returns:
        (B * M, L, d).
    """
    needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    kernel = kernel or choose_kernel(q.device.type, n_keys=k.shape[1], needs_grad=needs_grad, dropout=dropout)
    if kernel == "fused":
        return _fused(q, k, v, n_heads, bias, dropout)
    scaled = q * math.sqrt(1.0 / q.shape[-1])
    if bias is None:
        logits = torch.bmm(scaled, k.transpose(1, 2))
    else:
        logits = torch.baddbmm(bias.to(q.dtype), scaled, k.transpose(1, 2))
    weights = logits.softmax(dim=-1)
    if dropout > 0.0:
        weights = _dropout_first_rows(weights, dropout, n_queries)
    return torch.bmm(weights, v)


def _fused(q: Tensor, k: Tensor, v: Tensor, n_heads: int, bias: Tensor | None, dropout: float) -> Tensor:
    q4, k4, v4 = (x.view(-1, n_heads, *x.shape[1:]) for x in (q, k, v))
    mask = None
    if bias is not None:
        mask = bias.to(q.dtype).view(-1, n_heads, 1, k.shape[1]).expand(-1, -1, q.shape[1], -1)
    out = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=mask, dropout_p=dropout)
    return out.flatten(0, 1)


def _dropout_first_rows(weights: Tensor, dropout: float, n_queries: int | None) -> Tensor:
    n_rows = weights.shape[1]
    if n_queries is None or n_queries == n_rows:
        return F.dropout(weights, dropout)
    keep = F.dropout(weights.new_ones(weights.shape[0], n_queries, weights.shape[2]), dropout)
    return weights * keep[:, :n_rows]
