"""The network of ACT: tensors in, tensors out (spec/act.md).

Attribute names and their order are a file format: names are the keys of checkpoints, the order numbers the optimiser's
state, and random draws at construction follow it, so that a seed gives the same initial weights as LeRobot.

Shape letters: B batch, K action chunk, A action dim, P state dim, E environment state dim, N cameras, S sequence,
D width (dim_model), Z latent dim. Sequences are (S, B, D): dropout draws in memory order, so the layout is part of the
random stream.

Source: Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.act.config import ACTConfig
from mimetic.policies.bricks.attention import MultiheadAttention, padding_bias
from mimetic.policies.bricks.positions import sine_map, sinusoid_table
from mimetic.policies.bricks.resnet import ResNet


class Prediction(NamedTuple):
    """What a forward pass yields.

    Attributes:
        actions: (B, K, A), normalised.
        mu: (B, Z) at least float32, mean of the latent; None without the variational encoder.
        log_sigma_x2: (B, Z) at least float32, log of the latent's variance; None without the variational encoder.
    """

    actions: Tensor
    mu: Tensor | None
    log_sigma_x2: Tensor | None


class ACTNetwork(nn.Module):
    """Transformer over latent, states and camera features that decodes a whole action chunk at once.

    Args:
        config: settings with input and output features.
    """

    vae_encoder_pos_enc: Tensor

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        state, env_state, action = config.robot_state_feature, config.env_state_feature, config.action_feature
        if action is None:
            raise ValueError("the config has no feature `action`")
        dim = config.dim_model
        self.latent_dim = config.latent_dim
        self.chunk_size = config.chunk_size
        self.n_heads = config.n_heads
        self.use_vae = config.use_vae

        # From here on every attribute is a checkpoint name, in the order of the file format.
        if config.use_vae:
            n_tokens = 1 + (state is not None) + config.chunk_size
            self.vae_encoder = Encoder(config, n_layers=config.n_vae_encoder_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, dim)
            if state is not None:
                self.vae_encoder_robot_state_input_proj = nn.Linear(state.shape[0], dim)
            self.vae_encoder_action_input_proj = nn.Linear(action.shape[0], dim)
            self.vae_encoder_latent_output_proj = nn.Linear(dim, 2 * config.latent_dim)
            self.register_buffer("vae_encoder_pos_enc", sinusoid_table(n_tokens, dim)[None])
        if config.image_features:
            self.backbone = ResNet(config.vision_backbone, dilate_last=bool(config.replace_final_stride_with_dilation))
        self.encoder = Encoder(config, n_layers=config.n_encoder_layers)
        self.decoder = Decoder(config)
        if state is not None:
            self.encoder_robot_state_input_proj = nn.Linear(state.shape[0], dim)
        if env_state is not None:
            self.encoder_env_state_input_proj = nn.Linear(env_state.shape[0], dim)
        self.encoder_latent_input_proj = nn.Linear(config.latent_dim, dim)
        if config.image_features:
            self.encoder_img_feat_input_proj = nn.Conv2d(self.backbone.n_channels, dim, kernel_size=1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + (state is not None) + (env_state is not None), dim)
        self.decoder_pos_embed = nn.Embedding(config.chunk_size, dim)
        self.action_head = nn.Linear(dim, action.shape[0])
        for part in (self.encoder, self.decoder):
            for parameter in part.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def forward(
        self,
        *,
        state: Tensor | None = None,
        env_state: Tensor | None = None,
        images: Sequence[Tensor] = (),
        actions: Tensor | None = None,
        action_is_pad: Tensor | None = None,
    ) -> Prediction:
        """Predict a chunk; with `actions` the latent is sampled from their encoding, otherwise it is zero.

        Args:
            state: (B, P) normalised joint positions.
            env_state: (B, E).
            images: N cameras in the config's order, each (B, 3, H, W), normalised.
            actions: (B, K, A) normalised demonstration, only for training with the variational encoder.
            action_is_pad: (B, K) bool, true after the end of the episode; goes with `actions`.
        """
        reference = next(x for x in (state, env_state, *images) if x is not None)
        mu = log_sigma_x2 = None
        if self.use_vae and actions is not None:
            if action_is_pad is None:
                raise ValueError("`actions` need `action_is_pad`")
            mu, log_sigma_x2 = self.encode_actions(state, actions, action_is_pad)
            latent = mu + log_sigma_x2.div(2).exp() * torch.randn_like(mu)
        else:
            latent = torch.zeros(reference.shape[0], self.latent_dim, device=reference.device)
        latent = latent.to(self.encoder_latent_input_proj.weight.dtype)
        tokens, positions = self.embed(latent, state, env_state, images)
        memory = self.encoder(tokens, positions)
        queries = self.decoder_pos_embed.weight[:, None]
        decoded = self.decoder(memory, positions, queries, batch_size=reference.shape[0])
        return Prediction(self.action_head(decoded.transpose(0, 1)), mu, log_sigma_x2)

    def encode_actions(self, state: Tensor | None, actions: Tensor, action_is_pad: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the latent, (B, Z) each, at least float32.

        Args:
            state: (B, P), or None when the policy has no joint positions.
            actions: (B, K, A).
            action_is_pad: (B, K) bool.
        """
        batch_size = actions.shape[0]
        tokens = [self.vae_encoder_cls_embed.weight[None].expand(batch_size, -1, -1)]
        if state is not None:
            tokens.append(self.vae_encoder_robot_state_input_proj(state)[:, None])
        projected = self.vae_encoder_action_input_proj(actions)
        tokens = [token.to(projected.dtype) for token in tokens]
        # Not made contiguous: torch's linear sums bias gradients in another order then, and the bits would differ.
        sequence = torch.cat([*tokens, projected], dim=1).transpose(0, 1)
        padding = F.pad(action_is_pad, (len(tokens), 0), value=False)
        bias = padding_bias(padding, self.n_heads, sequence.dtype)
        positions = self.vae_encoder_pos_enc.transpose(0, 1)
        summary = self.vae_encoder(sequence, positions, bias, only_first=True)[0]
        latent = self.vae_encoder_latent_output_proj(summary)
        # Noise and KL term in float32 also under autocast; float64 stays.
        latent = latent.to(torch.promote_types(latent.dtype, torch.float32))
        mu, log_sigma_x2 = latent.split(self.latent_dim, dim=-1)
        return mu, log_sigma_x2

    def embed(
        self, latent: Tensor, state: Tensor | None, env_state: Tensor | None, images: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Tokens (S, B, D) and their positions (S, 1, D): latent, state, environment state, pixels of each camera."""
        rows = [self.encoder_latent_input_proj(latent)]
        if state is not None:
            rows.append(self.encoder_robot_state_input_proj(state))
        if env_state is not None:
            rows.append(self.encoder_env_state_input_proj(env_state))
        tokens = [torch.stack(rows)]
        positions = [self.encoder_1d_feature_pos_embed.weight[:, None]]
        for features in self.encode_cameras(images):
            height, width = features.shape[2:]
            dim = features.shape[1]
            tokens.append(features.flatten(2).permute(2, 0, 1))
            place = sine_map(height, width, dim, positions[0].dtype, features.device)
            positions.append(place.flatten(2).permute(2, 0, 1))
        return torch.cat(tokens), torch.cat(positions)

    def encode_cameras(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Projected feature maps (B, D, h, w) of each camera; one backbone call when all have the same size."""
        if len({image.shape for image in images}) == 1:
            features = self.encoder_img_feat_input_proj(self.backbone(torch.cat(list(images))))
            return list(features.chunk(len(images)))
        return [self.encoder_img_feat_input_proj(self.backbone(image)) for image in images]


class Encoder(nn.Module):
    """Stack of encoder layers.

    Args:
        config: widths, activation, dropout and the place of the norms.
        n_layers: number of layers.
    """

    def __init__(self, config: ACTConfig, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(n_layers))
        self.norm = nn.LayerNorm(config.dim_model) if config.pre_norm else nn.Identity()

    def forward(
        self, x: Tensor, positions: Tensor, key_bias: Tensor | None = None, *, only_first: bool = False
    ) -> Tensor:
        """Encode a sequence.

        Args:
            x: (S, B, D).
            positions: (S, 1, D).
            key_bias: (B * heads, 1, S), see `padding_bias`.
            only_first: return only the first token; the last layer then computes nothing else where that is exact.

        Returns:
            (S, B, D), or (1, B, D).
        """
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)
            n_rows = 1 if only_first and i == last and layer.may_skip_rows(x) else None
            x = layer(x, positions, key_bias, n_rows=n_rows)
        x = self.norm(x)
        return x[:1] if only_first else x


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward block."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        dim = config.dim_model
        self.self_attn = MultiheadAttention(dim, config.n_heads, config.dropout)
        self.linear1 = nn.Linear(dim, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = config.dropout
        self.activation = config.feedforward_activation
        self.pre_norm = config.pre_norm

    def forward(
        self, x: Tensor, positions: Tensor, key_bias: Tensor | None = None, n_rows: int | None = None
    ) -> Tensor:
        """(S, B, D) -> (S, B, D), or (n_rows, B, D): the first rows of the same result.

        Dropout is drawn for all S rows in any case, so that leaving rows out does not shift the random stream.
        """
        n_all = x.shape[0]
        # No slicing of whole sequences: its backward node would change the order in which gradients are summed.
        skip = x if n_rows is None else x[:n_rows]
        if self.pre_norm:
            x = self.norm1(x)
        qk = x + positions
        q = qk if n_rows is None else qk[:n_rows]
        attended = self.self_attn(q, qk, x, key_bias, n_queries=n_all)
        x = skip + self._drop(attended, n_all)
        if self.pre_norm:
            return x + self._feed_forward(self.norm2(x), n_all)
        x = self.norm1(x)
        return _tensor(self.norm2(x + self._feed_forward(x, n_all)))

    def may_skip_rows(self, x: Tensor) -> bool:
        """Whether computing only some rows keeps the reference's bits where those can be compared.

        On a CPU a seed reproduces LeRobot's training with dropout bit for bit, and a shorter matrix product rounds
        differently; without dropout, and on accelerators, the last bit is free.
        """
        return x.device.type != "cpu" or self.dropout == 0.0 or not self.training

    def _feed_forward(self, x: Tensor, n_all: int) -> Tensor:
        hidden = self._drop(_activate(self.linear1(x), self.activation), n_all)
        return self._drop(self.linear2(hidden), n_all)

    def _drop(self, x: Tensor, n_all: int) -> Tensor:
        if not self.training or self.dropout == 0.0 or x.shape[0] == n_all:
            return F.dropout(x, self.dropout, self.training)
        keep = F.dropout(x.new_ones(n_all, *x.shape[1:]), self.dropout)
        return x * keep[: x.shape[0]]


class Decoder(nn.Module):
    """Stack of decoder layers over learned query positions; the queries start at zero.

    Args:
        config: widths, activation, dropout and the place of the norms.
    """

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        self.norm = nn.LayerNorm(config.dim_model)

    def forward(self, memory: Tensor, memory_positions: Tensor, positions: Tensor, *, batch_size: int) -> Tensor:
        """Decode a chunk.

        Args:
            memory: (S, B, D), the encoder's output.
            memory_positions: (S, 1, D).
            positions: (K, 1, D).
            batch_size: B.

        Returns:
            (K, B, D).
        """
        n_queries, _, dim = positions.shape
        x = torch.zeros(n_queries, batch_size, dim, dtype=memory.dtype, device=memory.device)
        for i, layer in enumerate(self.layers):
            x = layer(x, positions, memory, memory_positions, is_first=i == 0)
        return _tensor(self.norm(x))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output, and a feed-forward block."""

    def __init__(self, config: ACTConfig) -> None:
        super().__init__()
        dim = config.dim_model
        self.self_attn = MultiheadAttention(dim, config.n_heads, config.dropout)
        self.multihead_attn = MultiheadAttention(dim, config.n_heads, config.dropout)
        self.linear1 = nn.Linear(dim, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.dropout = config.dropout
        self.activation = config.feedforward_activation
        self.pre_norm = config.pre_norm

    def forward(
        self, x: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor, *, is_first: bool = False
    ) -> Tensor:
        """One layer.

        Args:
            x: (K, B, D).
            positions: (K, 1, D).
            memory: (S, B, D).
            memory_positions: (S, 1, D).
            is_first: x is zero everywhere, so self-attention has a closed form when nothing is dropped.

        Returns:
            (K, B, D).
        """
        h = self.norm1(x) if self.pre_norm else x
        # Not in training: there the closed form would give the query and key weights a gradient of exactly zero
        # instead of rounding noise, and Adam turns such noise into steps, so the weights would leave LeRobot's path.
        if not self.training and is_first:
            attended = self.self_attn.constant(h[0, 0]).expand_as(x)
        else:
            qk = h + positions
            attended = self._drop(self.self_attn(qk, qk, h))
        x = x + attended
        if not self.pre_norm:
            x = self.norm1(x)
        h = self.norm2(x) if self.pre_norm else x
        # The sum is made anew in each layer: sharing it would change the order in which gradients are summed.
        x = x + self._drop(self.multihead_attn(h + positions, memory + memory_positions, memory))
        if self.pre_norm:
            return x + self._feed_forward(self.norm3(x))
        x = self.norm2(x)
        return _tensor(self.norm3(x + self._feed_forward(x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self._drop(self.linear2(self._drop(_activate(self.linear1(x), self.activation))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def _activate(x: Tensor, name: str) -> Tensor:
    if name == "relu":
        return F.relu(x)
    if name == "gelu":
        return F.gelu(x)
    raise ValueError(f"unknown activation {name}")


def _tensor(x: Tensor) -> Tensor:
    return x  # nn.Module calls are untyped
