"""SmolVLM's vision transformer and the connector that turns its patches into visual tokens of the text model.

Parameter names, shapes and the order of operations are those of spec/smolvla.md 3.4 and 11, so that checkpoints load
by name. Without gradients the tower runs the same formulas with faster kernels: linear layers that apply the GELU or
add the residual themselves, and attention in tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.bricks.fused_linear import linear, linear_add, linear_gelu
from mimetic.policies.bricks.grouped_attention import Kernel, attend_grouped
from mimetic.policies.bricks.master_weights import MasterLinear
from mimetic.policies.smolvla.backbone import Backbone


class VisionTower(nn.Module):
    """Pre-norm vision transformer over square patches, without class token (spec/smolvla.md 3.4, steps 1 to 4).

    Args:
        backbone: sizes of the VLM.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.embeddings = PatchEmbeddings(backbone)
        self.encoder = Encoder(backbone)
        self.post_layernorm = nn.LayerNorm(backbone.vision_hidden, eps=backbone.vision_eps)

    def keep_reference_kernels(self) -> None:
        """From now on run every operation as LeRobot does, with the same bits in bfloat16, instead of by speed."""
        for layer in self.encoder.layers:
            assert isinstance(layer, VisionLayer)
            layer.fast = False

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of every patch.

        Args:
            pixels: (N, 3, S, S) in [-1, 1], any float dtype; S a multiple of the patch size, at most the image size.

        Returns:
            (N, (S / patch)**2, vision_hidden), row-major, in the dtype of the weights.
        """
        features: Tensor = self.post_layernorm(self.encoder(self.embeddings(pixels)))
        return features


class PatchEmbeddings(nn.Module):
    """Patches projected to the width of the transformer, plus a learned embedding of their place."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.patch_size = backbone.patch_size
        self.grid = backbone.image_size // backbone.patch_size
        self.patch_embedding = nn.Conv2d(3, backbone.vision_hidden, backbone.patch_size, stride=backbone.patch_size)
        self.position_embedding = nn.Embedding(self.grid**2, backbone.vision_hidden)

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, patches, width) in the dtype of the weights."""
        patches: Tensor = self.patch_embedding(pixels.to(self.patch_embedding.weight.dtype))
        return patches.flatten(2).transpose(1, 2) + self._positions(pixels.shape[-1] // self.patch_size)

    def _positions(self, grid: int) -> Tensor:
        """Place embeddings of a grid of that many patches a side (spec/smolvla.md 3.4, step 2)."""
        table = self.position_embedding.weight
        if grid == self.grid:
            return table
        ids = torch.arange(grid, device=table.device) * self.grid // grid
        return F.embedding((ids[:, None] * self.grid + ids[None, :]).flatten(), table)


class Encoder(nn.Module):
    """The transformer's layers."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VisionLayer(backbone) for _ in range(backbone.vision_layers))

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) -> the same shape."""
        for layer in self.layers:
            x = layer(x)
        return x


class VisionLayer(nn.Module):
    """Attention and MLP, each behind a LayerNorm and around a residual."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.fast = True
        """Whether kernels are chosen by speed."""
        self.self_attn = VisionAttention(backbone.vision_hidden, backbone.vision_heads)
        self.layer_norm1 = nn.LayerNorm(backbone.vision_hidden, eps=backbone.vision_eps)
        self.mlp = VisionMlp(backbone.vision_hidden, backbone.vision_mlp)
        self.layer_norm2 = nn.LayerNorm(backbone.vision_hidden, eps=backbone.vision_eps)

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) -> the same shape."""
        if not self.fast:
            x = x + self.self_attn(self.layer_norm1(x))
            x = x + self.mlp(self.layer_norm2(x))
            return x
        x = linear_add(self.self_attn.mix(self.layer_norm1(x), kernel=None), self.self_attn.out_proj, x)
        return linear_add(linear_gelu(self.layer_norm2(x), self.mlp.fc1), self.mlp.fc2, x)


class VisionAttention(nn.Module):
    """Every token attends to every token."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.k_proj = MasterLinear(width, width, bias=True)
        self.v_proj = MasterLinear(width, width, bias=True)
        self.q_proj = MasterLinear(width, width, bias=True)
        self.out_proj = MasterLinear(width, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) -> the same shape, through torch's attention."""
        attended: Tensor = self.out_proj(self.mix(x, kernel="fused"))
        return attended

    def mix(self, x: Tensor, kernel: Kernel | None) -> Tensor:
        """What the attention gathers for every token, before `out_proj`.

        Args:
            x: (N, tokens, width).
            kernel: see `attend_grouped`; None lets every operation choose its kernel by speed.

        Returns:
            (N, tokens, width).
        """
        batch, n_tokens, width = x.shape
        layers = (self.q_proj, self.k_proj, self.v_proj)
        if kernel is None:
            # A constant added to all keys shifts all logits of a query alike, which softmax does not see; without it
            # the logits are smaller, and so is what bfloat16 rounds away.
            projected = [linear(x, layer, may_drop_bias=layer is self.k_proj) for layer in layers]
        else:
            projected = [layer(x) for layer in layers]
        q, k, v = (y.view(batch, n_tokens, self.n_heads, -1).transpose(1, 2) for y in projected)
        return attend_grouped(q, k, v, kernel=kernel).transpose(1, 2).reshape(batch, n_tokens, width)


class VisionMlp(nn.Module):
    """Two linear layers around a tanh-approximated GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = MasterLinear(width, hidden, bias=True)
        self.fc2 = MasterLinear(hidden, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) -> the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class Connector(nn.Module):
    """Neighbouring patches packed into one visual token of the text model's width (spec 3.4, steps 5 and 6).

    Args:
        backbone: sizes of the VLM.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.scale_factor = backbone.scale_factor
        self.modality_projection = ModalityProjection(
            backbone.vision_hidden * backbone.scale_factor**2, backbone.text_hidden
        )

    def forward(self, features: Tensor) -> Tensor:
        """Visual tokens.

        Args:
            features: (N, patches, vision_hidden) of a square grid whose side is a multiple of the scale factor.

        Returns:
            (N, patches / scale_factor**2, text_hidden).
        """
        tokens: Tensor = self.modality_projection(pixel_shuffle(features, self.scale_factor))
        return tokens


class ModalityProjection(nn.Module):
    """The connector's linear layer, under the checkpoint's name."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.proj = MasterLinear(width_in, width_out)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width_in) -> (..., width_out)."""
        out: Tensor = self.proj(x)
        return out


def pixel_shuffle(features: Tensor, factor: int) -> Tensor:
    """Pack blocks of factor x factor neighbouring patches into one token.

    Args:
        features: (N, n * n, C), row-major.
        factor: side of a block, a divisor of n.

    Returns:
        (N, (n / factor)**2, factor**2 * C); a token's channels are ordered (row in block, column in block, C).

    Raises:
        ValueError: the patches are no square grid of whole blocks.
    """
    batch, n_patches, width = features.shape
    side = round(n_patches**0.5)
    if side * side != n_patches or side % factor != 0:
        raise ValueError(f"{n_patches} patches are no square grid of whole {factor} x {factor} blocks")
    blocks = side // factor
    rows = features.view(batch, blocks, factor, blocks, factor, width)
    return rows.permute(0, 1, 3, 2, 4, 5).reshape(batch, blocks**2, factor**2 * width)
