"""Attention in which several query heads share a key and value head, with a choice of kernels.

Shapes: B batch, M query heads, G key and value heads (M a multiple of G; head h reads group h // (M / G)), L query
positions, S key positions, d head width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mimetic.policies.bricks.recompute import recomputed

Kernel = Literal["reference", "plain", "fused"]

# From how many keys on the fused kernel is the faster one on a CPU (spec/environment.md 6). Its bfloat16 forward
# converts so much that tiles of matmul, softmax and matmul always beat it (benchmarks/vision_tower.py).
_CPU_MIN_KEYS_TRAINING = 512
_CPU_MIN_KEYS_INFERENCE = 300
# Without gradient the plain kernel works in tiles of so many logits: 2 MB in bfloat16, which the second-level caches
# hold until the second product has read them.
_TILE_LOGITS = 1 << 20
_TILE_ROWS = 512
# Added to the logits of hidden keys. A quarter of the smallest number stays finite when a kernel multiplies it by
# log2(e), and a row without any visible key becomes a mean over all keys instead of NaN.
_HIDDEN = 0.25


def choose_kernel(
    device_type: str, dtype: torch.dtype, *, n_queries: int, n_keys: int, needs_grad: bool
) -> Literal["plain", "fused"]:
    """Which kernel is the fastest.

    Args:
        device_type: "cpu", "cuda", ...
        dtype: of the values.
        n_queries: query positions L.
        n_keys: key positions S.
        needs_grad: whether a backward pass follows.
    """
    if device_type != "cpu":
        return "fused"
    if dtype == torch.bfloat16 and not needs_grad:
        return "plain"
    least = _CPU_MIN_KEYS_TRAINING if needs_grad else _CPU_MIN_KEYS_INFERENCE
    return "fused" if n_keys >= least else "plain"


def attend_grouped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, kernel: Kernel | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over the keys that the mask shows.

    A query that sees no key gets the mean of all values (never NaN).

    Args:
        q: (B, M, L, d).
        k: (B, G, S, d).
        v: (B, G, S, d).
        mask: bool, broadcastable to (B, 1, L, S), true where a query may attend to a key; None: everywhere.
        kernel: "reference": logits, softmax and their casts exactly as spec/smolvla.md 5.5 states them, head by head
            (to reproduce LeRobot's numbers in bfloat16); "plain": matmul, softmax in float32, matmul, in the dtype of
            v; "fused": torch's scaled_dot_product_attention in the dtype of v; None: "plain" or "fused", the faster.

    Returns:
        (B, M, L, d) in the dtype of v.

    Raises:
        ValueError: M is not a multiple of G, or the mask has a heads axis.
    """
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly")
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        if mask.shape[1] != 1:
            raise ValueError(f"a mask is shared by all heads: expected (B, 1, L, S), got {tuple(mask.shape)}")
    if kernel == "reference":
        return recomputed(_reference, q, k, v, mask)  # its float32 logits of repeated heads would be most of the memory
    needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if kernel is None:
        lengths = {"n_queries": q.shape[2], "n_keys": k.shape[2]}
        kernel = choose_kernel(v.device.type, v.dtype, **lengths, needs_grad=needs_grad)
        if torch.compiler.is_compiling() and not needs_grad:
            kernel = "fused"  # the compiler of torch 2.13 fails on "plain" while it tries to recognise an attention
    q, k = q.to(v.dtype), k.to(v.dtype)
    return _fused(q, k, v, mask) if kernel == "fused" else _plain(q, k, v, mask, needs_grad)


def _reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    n_shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(n_shared, dim=1) for x in (k, v))
    logits = torch.matmul(q.float(), k.float().transpose(2, 3)) * q.shape[-1] ** -0.5
    if mask is not None:
        logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)  # autocast may narrow them
    return torch.matmul(logits.softmax(dim=-1).to(v.dtype), v)


def _plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, needs_grad: bool) -> Tensor:
    """The query heads of a group become more rows of one product, so that keys and values are never repeated."""
    batch, n_heads, n_queries, width = q.shape
    n_groups, n_keys = k.shape[1:3]
    rows = n_heads // n_groups * n_queries
    q = (q * width**-0.5).reshape(batch * n_groups, rows, width)
    k = k.reshape(batch * n_groups, n_keys, width).transpose(1, 2)
    v = v.reshape(batch * n_groups, n_keys, width)
    if mask is None and not needs_grad:
        return _tiled(q, k, v).view(batch, n_heads, n_queries, width)
    logits = torch.bmm(q, k)
    if mask is not None:
        by_head = logits.view(batch, n_heads, n_queries, n_keys)
        bias = _bias(mask, v.dtype)
        logits = (by_head + bias if needs_grad else by_head.add_(bias)).view_as(logits)
    # torch computes the softmax of bfloat16 numbers in float32 and rounds the result.
    return torch.bmm(logits.softmax(dim=-1), v).view(batch, n_heads, n_queries, width)


def _tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled queries (N, rows, d), keys (N, d, S), values (N, S, d) -> (N, rows, d), few logits at a time."""
    n_stacked, rows, _ = q.shape
    tile_rows = min(rows, _TILE_ROWS)
    tile_stack = max(1, _TILE_LOGITS // max(1, tile_rows * k.shape[2]))
    out = torch.empty_like(q)
    for first in range(0, n_stacked, tile_stack):
        stack = slice(first, first + tile_stack)
        for row in range(0, rows, tile_rows):
            part = slice(row, row + tile_rows)
            torch.bmm(torch.bmm(q[stack, part], k[stack]).softmax(dim=-1), v[stack], out=out[stack, part])
    return out


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    batch, n_heads, n_queries, width = q.shape
    n_groups, n_keys = k.shape[1:3]
    n_shared = n_heads // n_groups
    bias = None
    if mask is not None:
        bias = _bias(mask, v.dtype).expand(-1, n_shared, n_queries, n_keys)
        bias = bias.reshape(mask.shape[0], 1, n_shared * n_queries, n_keys).expand(batch, n_groups, -1, -1)
    folded = q.reshape(batch, n_groups, n_shared * n_queries, width)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=bias)
    return out.reshape(batch, n_heads, n_queries, width)


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    hidden = _HIDDEN * torch.finfo(dtype).min
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, hidden)
