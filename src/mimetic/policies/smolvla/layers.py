"""The transformer parts that the text model and the action expert share (spec/smolvla.md 5.2, 5.3, 5.5).

Weights keep the dtype that they are trained or stored in; `MasterLinear.compute_dtype` says what they are multiplied
in. That is how float32 master weights run at the speed of bfloat16.

Shapes: B batch, L positions, H width, n heads, k key heads, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.bricks.grouped_attention import Kernel, attend_grouped
from mimetic.policies.bricks.master_weights import MasterLinear, gated_down
from mimetic.policies.bricks.recompute import recomputed

ROPE_BASE = 10_000.0
"""Base of the rotary embedding, whatever the backbone's own config says (spec/smolvla.md 5.3)."""


class RMSNorm(nn.Module):
    """Root mean square normalisation, computed in float32, rounded to the input's dtype before the weight.

    Args:
        width: H.
        eps: added to the mean square.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        self.is_reference = False
        """Step by step as the reference does it, instead of in one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H); the wider of the dtypes of input and weight."""
        if not self.is_reference:
            dtype = torch.promote_types(x.dtype, self.weight.dtype)
            result: Tensor = F.rms_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), self.eps)
            return result
        return recomputed(_rms_norm_in_steps, x, self.weight, self.eps)


def _rms_norm_in_steps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


class Rope:
    """Tables of the rotary position embedding for given positions.

    Args:
        positions: (B, L) integers.
        head_dim: d.
    """

    def __init__(self, positions: Tensor, head_dim: int) -> None:
        half = head_dim // 2
        exponent = (2.0 / head_dim) * torch.arange(half, dtype=torch.float32, device=positions.device)
        angle = positions[..., None].float() / (ROPE_BASE**exponent)
        self.cos = angle.cos()[:, None]  # (B, 1, L, d / 2)
        self.sin = angle.sin()[:, None]

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate (B, heads, L, d); computed in float32, returned in the dtype of x."""
        first, second = x.float().chunk(2, dim=-1)
        rotated = torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)
        return rotated.to(x.dtype)


class SelfAttention(nn.Module):
    """Projections of one attention layer, under the checkpoint's names.

    Args:
        width: H.
        n_heads: query heads.
        n_kv_heads: key and value heads.
        head_dim: d.
        bias: whether q, k, v and o have biases.
        kv_width: width of the input of k and v; None: H.
        kv_bias: whether k and v have biases; None: as `bias`.
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        kv_width: int | None = None,
        kv_bias: bool | None = None,
    ) -> None:
        super().__init__()
        kv_bias = bias if kv_bias is None else kv_bias
        self.head_dim = head_dim
        self.q_proj = MasterLinear(width, n_heads * head_dim, bias)
        self.k_proj = MasterLinear(kv_width or width, n_kv_heads * head_dim, kv_bias)
        self.v_proj = MasterLinear(kv_width or width, n_kv_heads * head_dim, kv_bias)
        self.o_proj = MasterLinear(n_heads * head_dim, width, bias)

    def split(self, x: Tensor) -> Tensor:
        """(B, L, heads * d) -> (B, heads, L, d)."""
        batch, length, _ = x.shape
        return x.view(batch, length, -1, self.head_dim).transpose(1, 2)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)).

    Args:
        width: H.
        hidden: width inside.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = MasterLinear(width, hidden)
        self.up_proj = MasterLinear(width, hidden)
        self.down_proj = MasterLinear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return gated_down(self.gate_proj(x), self.up_proj(x), self.down_proj)


class DecoderLayer(nn.Module):
    """One pre-norm layer in pieces, so that its attention can read what other streams computed.

    Args:
        width: H.
        n_heads: query heads.
        n_kv_heads: key and value heads.
        head_dim: d.
        mlp: width of the gated MLP.
        eps: epsilon of the norms.
        bias: whether attention projections have biases.
        kv_width: width of what keys and values are projected from; None: H.
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        mlp: int,
        eps: float,
        *,
        bias: bool = False,
        kv_width: int | None = None,
    ) -> None:
        super().__init__()
        self.self_attn = SelfAttention(width, n_heads, n_kv_heads, head_dim, bias=bias, kv_width=kv_width)
        self.mlp = GatedMLP(width, mlp)
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.wide_residual = False
        """Keep the residual stream float32 instead of rounding it to what the projections return."""

    def normed(self, x: Tensor) -> Tensor:
        """The stream (B, L, H) normalised for the attention, in the dtype in which queries are projected."""
        normed: Tensor = self.input_layernorm(x)
        return normed.to(self.self_attn.q_proj.dtype)

    def query(self, normed: Tensor) -> Tensor:
        """Queries (B, n, L, d) of a normalised stream (B, L, H), not rotated."""
        return self.self_attn.split(self.self_attn.q_proj(normed))

    def key_value(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys, not rotated, and values (B, k, L, d) of what they are projected from (B, L, width)."""
        attention = self.self_attn
        return attention.split(attention.k_proj(source)), attention.split(attention.v_proj(source))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, MLP and both residual connections.

        Args:
            x: (B, L, H), the stream before the layer.
            attended: (B, n, L, d).

        Returns:
            (B, L, H), the stream after the layer.
        """
        batch, _, length, _ = attended.shape
        out = self._add(self.self_attn.o_proj(attended.transpose(1, 2).reshape(batch, length, -1)), x)
        normed = self.post_attention_layernorm(out).to(self.mlp.gate_proj.dtype)
        return self._add(self.mlp(normed), out)

    def _add(self, update: Tensor, x: Tensor) -> Tensor:
        total = update + x
        return total if self.wide_residual else total.to(update.dtype)


class TextLayer(DecoderLayer):
    """A layer of the text model, for one stream of tokens after another."""

    def forward(
        self,
        x: Tensor,
        rope: Rope,
        mask: Tensor | None,
        earlier: tuple[Tensor, Tensor] | None = None,
        *,
        kernel: Kernel | None = None,
        keys_only: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Let tokens attend to those of earlier streams and to themselves.

        Args:
            x: (B, L, H).
            rope: of the L positions.
            mask: (B, 1, 1, E + L) bool, true where a token may be attended to; None: everywhere.
            earlier: rotated keys and values (B, k, E, d) of the streams before; None: E is 0.
            kernel: see `attend_grouped`.
            keys_only: leave out what follows keys and values; the stream is returned as it came.

        Returns:
            The stream (B, L, H) after the layer, and keys, rotated, and values (B, k, E + L, d).
        """
        normed = self.normed(x)
        key, value = self.key_value(normed)
        key = rope(key)
        if earlier is not None:
            key, value = torch.cat([earlier[0], key], dim=2), torch.cat([earlier[1], value], dim=2)
        if not keys_only:
            x = self.finish(x, attend_grouped(rope(self.query(normed)), key, value, mask, kernel=kernel))
        return x, key, value


class ExpertLayer(DecoderLayer):
    """A layer of the action expert, which reads the backbone's keys and values.

    Shapes: N noise draws a sample, which stand together; P + 1 tokens of the backbone; T actions.
    """

    def forward(
        self,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        rope: Rope,
        mask: Tensor | None,
        *,
        is_cross: bool,
        draws: int,
        kernel: Kernel | None = None,
    ) -> Tensor:
        """Let actions attend to the backbone, and to each other where the layer is no cross layer.

        Args:
            x: (B * N, T, H).
            key: (B, k, P + 1, d).
            value: (B, k, P + 1, d).
            rope: of the actions' positions.
            mask: bool, true where an action may attend; cross layers: (B, 1, 1, P + 1), others: (B * N, 1, T,
                P + 1 + T); None: everywhere.
            is_cross: whether only the backbone is read.
            draws: N.
            kernel: see `attend_grouped`.

        Returns:
            (B * N, T, H).
        """
        # The order of the operations is that in which their gradients are summed: another one changes the last bits.
        normed = self.normed(x)
        if is_cross:
            # All draws of a sample read the same keys, so their queries stand in one row.
            query = _fold_draws(rope(self.query(normed)), draws)
            attended = _unfold_draws(attend_grouped(query, key, value, mask, kernel=kernel), draws)
        else:
            own_key, own_value = self.key_value(normed)
            if draws > 1:
                key, value = key.repeat_interleave(draws, dim=0), value.repeat_interleave(draws, dim=0)
            key = torch.cat([key, rope(own_key).to(key.dtype)], dim=2)
            value = torch.cat([value, own_value.to(value.dtype)], dim=2)
            attended = attend_grouped(rope(self.query(normed)), key, value, mask, kernel=kernel)
        return self.finish(x, attended)


def _fold_draws(x: Tensor, draws: int) -> Tensor:
    """(B * N, n, T, d) -> (B, n, N * T, d)."""
    if draws == 1:
        return x
    rows, heads, length, width = x.shape
    return x.view(rows // draws, draws, heads, length, width).transpose(1, 2).reshape(-1, heads, draws * length, width)


def _unfold_draws(x: Tensor, draws: int) -> Tensor:
    """(B, n, N * T, d) -> (B * N, n, T, d)."""
    if draws == 1:
        return x
    batch, heads, length, width = x.shape
    split = x.view(batch, heads, draws, length // draws, width)
    return split.transpose(1, 2).reshape(batch * draws, heads, length // draws, width)
