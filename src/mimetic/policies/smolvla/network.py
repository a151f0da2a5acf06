"""The SmolVLA network: a prefix of pictures and words, a state token, and an expert that reads both.

Pictures and words never attend to the state or to actions (spec/smolvla.md 4.6), so they go through the backbone by
themselves, without gradients when it is frozen; the state token follows on its own path, and only that path and the
expert are differentiated (10.5). The numbers are those of the joint pass.

Shapes: B batch, P prefix tokens without the state, T chunk, H and He widths of text model and expert, k key heads,
d head width, N noise draws a sample.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.bricks.master_weights import MasterLinear
from mimetic.policies.smolvla.backbone import Backbone
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.images import all_true
from mimetic.policies.smolvla.layers import DecoderLayer, ExpertLayer, RMSNorm, Rope, TextLayer
from mimetic.policies.smolvla.vision import Connector, VisionTower


class Prefix(NamedTuple):
    """What the expert reads, computed once for all noise draws and Euler steps; never changed.

    Args:
        keys: one (B, k, P + 1, d) an expert layer; of cross layers already projected by the expert.
        values: likewise.
        mask: (B, P + 1) bool, true where there is something to read; None: everywhere.
        length: (B,), valid tokens.
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask: Tensor | None
    length: Tensor


class TextModel(nn.Module):
    """Token embeddings and the first layers of the text model.

    Args:
        sizes: of the backbone.
        n_layers: layers that are kept.
    """

    def __init__(self, sizes: Backbone, n_layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.text_hidden)
        self.layers = nn.ModuleList(
            TextLayer(
                sizes.text_hidden,
                sizes.text_heads,
                sizes.text_kv_heads,
                sizes.text_head_dim,
                sizes.text_mlp,
                sizes.text_rms_eps,
                bias=sizes.text_bias,
            )
            for _ in range(n_layers)
        )
        self.norm = RMSNorm(sizes.text_hidden, sizes.text_rms_eps)  # in the checkpoint, never used


class VLMModel(nn.Module):
    """Vision tower, connector and text model, under the checkpoint's names."""

    def __init__(self, sizes: Backbone, n_layers: int) -> None:
        super().__init__()
        self.vision_model = VisionTower(sizes)
        self.connector = Connector(sizes)
        self.text_model = TextModel(sizes, n_layers)


class VLM(nn.Module):
    """The vision-language model with its language head, which only checkpoints need."""

    def __init__(self, sizes: Backbone, n_layers: int) -> None:
        super().__init__()
        self.model = VLMModel(sizes, n_layers)
        self.lm_head = MasterLinear(sizes.text_hidden, sizes.vocab_size)


class Expert(nn.Module):
    """The action expert: narrower layers with the heads of the text model.

    Args:
        sizes: of the backbone.
        width: He.
        cross: for each layer, whether it reads the backbone's keys and values instead of having its own.
    """

    def __init__(self, sizes: Backbone, width: int, cross: list[bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ExpertLayer(
                width,
                sizes.text_heads,
                sizes.text_kv_heads,
                sizes.text_head_dim,
                gated_width(width),
                sizes.text_rms_eps,
                bias=sizes.text_bias,
                kv_width=sizes.text_kv_heads * sizes.text_head_dim if is_cross else None,
            )
            for is_cross in cross
        )
        self.norm = RMSNorm(width, sizes.text_rms_eps)


class VLMWithExpert(nn.Module):
    """Backbone and expert, under the checkpoint's names."""

    def __init__(self, sizes: Backbone, n_layers: int, width: int, cross: list[bool]) -> None:
        super().__init__()
        self.vlm = VLM(sizes, n_layers)
        self.lm_expert = Expert(sizes, width, cross)


def gated_width(width: int) -> int:
    """Width of the expert's gated MLP (spec/smolvla.md 5.2)."""
    return 256 * -(-int(4 * int(2 * width / 3)) // 256)


def time_embedding(time: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """Sine and cosine of a time at geometrically spaced periods (spec/smolvla.md 6).

    Args:
        time: (B,) in [0, 1].
        width: He, even.
        min_period: shortest period.
        max_period: longest period.

    Returns:
        (B, He) float64, or float32 on devices without it.
    """
    dtype = torch.float32 if time.device.type in ("mps", "xpu") else torch.float64
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=dtype, device=time.device)
    period = min_period * (max_period / min_period) ** fraction
    angle = (1.0 / period * 2 * torch.pi)[None, :] * time.to(dtype)[:, None]
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class SmolVLANetwork(nn.Module):
    """The whole network.

    Args:
        config: settings.
        sizes: of the backbone.
    """

    def __init__(self, config: SmolVLAConfig, sizes: Backbone) -> None:
        super().__init__()
        n_layers = sizes.kept_layers(config.num_vlm_layers)
        n_expert = config.num_expert_layers if config.num_expert_layers > 0 else n_layers
        width = int(sizes.text_hidden * config.expert_width_multiplier)
        every, has_cross = config.self_attn_every_n_layers, "cross" in config.attention_mode
        self.sizes = sizes
        self.chunk_size = config.chunk_size
        self.periods = (config.min_period, config.max_period)
        self.special_tokens = config.add_image_special_tokens
        self.stride = n_layers // n_expert
        """Backbone layer i has an expert layer beside it when i is a multiple of this."""
        self.cross = [has_cross and not (every > 0 and (i * self.stride) % every == 0) for i in range(n_expert)]
        self.kernel: Literal["reference", "plain", "fused"] | None = None
        """Attention kernel; None chooses by device, dtype and length."""
        self.split_time = False
        """Project the time embedding once a sample instead of once an action; equal up to summation order."""
        self.vlm_with_expert = VLMWithExpert(sizes, n_layers, width, self.cross)
        self.state_proj = MasterLinear(config.max_state_dim, sizes.text_hidden, bias=True)
        self.action_in_proj = MasterLinear(config.max_action_dim, width, bias=True)
        self.action_out_proj = MasterLinear(width, config.max_action_dim, bias=True)
        self.action_time_mlp_in = MasterLinear(2 * width, width, bias=True)
        self.action_time_mlp_out = MasterLinear(width, width, bias=True)

    @property
    def vlm(self) -> VLMModel:
        """The backbone without its head."""
        return self.vlm_with_expert.vlm.model

    @property
    def expert(self) -> Expert:
        """The action expert."""
        return self.vlm_with_expert.lm_expert

    def encode_frames(self, pixels: Tensor) -> Tensor:
        """Prepared frames (N, 3, S, S) in [-1, 1] -> their features (N, image tokens, H), not scaled."""
        vision, connector = self.vlm.vision_model, self.vlm.connector
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_trained(vision)):
            hidden = vision(pixels)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (hidden.requires_grad or _is_trained(connector))):
            features: Tensor = connector(hidden)
        return features

    def embed_prefix(
        self, features: list[Tensor], masks: list[Tensor | None], tokens: Tensor, token_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pictures and words as one sequence (spec/smolvla.md 4.1 to 4.3), without the state.

        Args:
            features: of each camera (B, image tokens, H).
            masks: of each camera (B,) bool; None: valid.
            tokens: (B, n) token ids.
            token_mask: (B, n) bool.

        Returns:
            Embeddings (B, P, H) float32 and mask (B, P) bool.
        """
        batch, embeds, valid = tokens.shape[0], [], []
        yes = token_mask.new_ones(batch, 1)
        table = self.vlm.text_model.embed_tokens
        scale = self.sizes.text_hidden**0.5
        start, end = self._image_marks(tokens.device)
        for camera, mask in zip(features, masks, strict=True):
            here = yes if mask is None else mask[:, None]
            if mask is not None:  # nobody reads a hidden camera, but 0 * NaN would spread
                camera = camera.masked_fill(~mask[:, None, None], 0.0)
            parts = [camera * camera.new_full((), scale)]  # the factor is rounded to the features' dtype
            shown = [here.expand(-1, camera.shape[1])]
            if start is not None and end is not None:
                parts = [table(start).expand(batch, -1, -1), *parts, table(end).expand(batch, -1, -1)]
                shown = [yes.expand(-1, 2), *shown, yes]
            embeds += parts
            valid += shown
        words = table(tokens)
        embeds.append(words * scale)
        valid.append(token_mask)
        return torch.cat([part.float() for part in embeds], dim=1), torch.cat(valid, dim=1)

    def _image_marks(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        if not self.special_tokens:
            return None, None
        end = torch.full((1, 1), self.sizes.fake_image_token, device=device)
        return torch.cat([end, torch.full_like(end, self.sizes.global_image_token)], dim=1), end

    def embed_state(self, state: Tensor) -> Tensor:
        """State (B, S), padded with zeros here -> its token (B, 1, H)."""
        padded = F.pad(state, (0, self.state_proj.in_features - state.shape[-1]))
        token: Tensor = self.state_proj(padded)
        return token[:, None]

    def read_prefix(self, embeds: Tensor, mask: Tensor, state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of the backbone's layers for pictures, words and state.

        Layers after the last one that the expert reads are not computed, nor is what follows its keys and values.

        Args:
            embeds: (B, P, H).
            mask: (B, P) bool.
            state: (B, 1, H).

        Returns:
            Keys, rotated, and values, (B, k, P + 1, d) of each backbone layer up to the last one that is read.
        """
        layers = self.vlm.text_model.layers[: (len(self.cross) - 1) * self.stride + 1]
        positions = mask.cumsum(dim=1) - 1
        shown = all_true(mask)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (embeds.requires_grad or _is_trained(layers))):
            keys, values = self._run_stream(layers, embeds, Rope(positions, self.sizes.text_head_dim), shown)
        rope = Rope(mask.sum(dim=1, keepdim=True), self.sizes.text_head_dim)
        if shown is not None:
            shown = torch.cat([shown, shown.new_ones(shown.shape[0], 1)], dim=1)
        # In one sequence with pictures and words, the state would have their dtype (spec/smolvla.md 4.2).
        return self._run_stream(layers, state.to(embeds.dtype), rope, shown, keys, values)

    def _run_stream(
        self,
        layers: nn.ModuleList,
        x: Tensor,
        rope: Rope,
        mask: Tensor | None,
        keys: list[Tensor] | None = None,
        values: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run tokens through the backbone, attending to earlier keys and values and to themselves."""
        mask = None if mask is None else mask[:, None, None, :]
        all_keys, all_values = [], []
        for i, layer in enumerate(layers):
            earlier = None if keys is None or values is None else (keys[i], values[i])
            x, key, value = layer(x, rope, mask, earlier, kernel=self.kernel, keys_only=i + 1 == len(layers))
            all_keys.append(key)
            all_values.append(value)
        return all_keys, all_values

    def prepare_prefix(self, keys: list[Tensor], values: list[Tensor], mask: Tensor) -> Prefix:
        """What the expert reads of the backbone; its cross layers project keys and values once (spec/smolvla.md 5.5b).

        Args:
            keys: of `read_prefix`.
            values: of `read_prefix`.
            mask: (B, P) bool.
        """
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
        ready_keys, ready_values = [], []
        for i, (layer, is_cross) in enumerate(zip(self.expert.layers, self.cross, strict=True)):
            assert isinstance(layer, DecoderLayer)
            key, value = keys[i * self.stride], values[i * self.stride]
            if is_cross:
                attention = layer.self_attn
                key = attention.split(attention.k_proj(key.transpose(1, 2).flatten(2)))
                value = attention.split(attention.v_proj(value.transpose(1, 2).flatten(2)))
            ready_keys.append(key)
            ready_values.append(value)
        return Prefix(ready_keys, ready_values, all_true(mask), mask.sum(dim=1))

    def velocity(self, prefix: Prefix, x_t: Tensor, time: Tensor) -> Tensor:
        """Velocity of the flow (spec/smolvla.md 6, 7.1).

        Args:
            prefix: of B samples.
            x_t: (B * N, T, max_action_dim) float32, noisy actions; the N draws of a sample stand together.
            time: (B * N,) in [0, 1]; 1 is pure noise.

        Returns:
            (B * N, T, max_action_dim) float32.
        """
        return self.velocity_at(prefix, x_t, self.embed_time(time))

    def embed_time(self, time: Tensor) -> Tensor:
        """Times (B,) in [0, 1] -> (B, He), as `velocity_at` takes them."""
        width = self.action_in_proj.out_features
        return time_embedding(time, width, *self.periods).to(self.action_in_proj.weight.dtype)

    def velocity_at(self, prefix: Prefix, x_t: Tensor, embedded_time: Tensor) -> Tensor:
        """`velocity` at a time that is already embedded, (B * N, He)."""
        hidden = self._embed_actions(x_t, embedded_time)
        samples, length = prefix.length.shape[0], x_t.shape[1]
        draws = x_t.shape[0] // samples
        steps = torch.arange(length, device=x_t.device)
        head_dim = self.sizes.text_head_dim
        rope_cross = Rope(steps[None], head_dim)
        rope_joint = Rope((prefix.length[:, None] + steps).repeat_interleave(draws, dim=0), head_dim)
        shown = None if prefix.mask is None else prefix.mask[:, None, None, :]
        joint_mask = self._joint_mask(prefix, length, draws, x_t.device)
        for i, (layer, is_cross) in enumerate(zip(self.expert.layers, self.cross, strict=True)):
            hidden = layer(
                hidden,
                prefix.keys[i],
                prefix.values[i],
                rope_cross if is_cross else rope_joint,
                shown if is_cross else joint_mask,
                is_cross=is_cross,
                draws=draws,
                kernel=self.kernel,
            )
        velocity: Tensor = self.action_out_proj(self.expert.norm(hidden).float())
        return velocity.float()

    def _embed_actions(self, x_t: Tensor, embedded_time: Tensor) -> Tensor:
        actions = self.action_in_proj(x_t)
        mix = self.action_time_mlp_in
        if self.split_time and type(mix) is MasterLinear:  # an adapter in its place wants the whole input
            of_actions, of_time = mix.weight.chunk(2, dim=1)
            dtype = mix.compute_dtype or mix.weight.dtype
            per_sample = F.linear(embedded_time.to(dtype), of_time.to(dtype), mix.bias.to(dtype))
            mixed = F.linear(actions.to(dtype), of_actions.to(dtype)) + per_sample[:, None]
        else:
            mixed = mix(torch.cat([actions, embedded_time[:, None].expand_as(actions)], dim=2))
        embedded: Tensor = self.action_time_mlp_out(F.silu(mixed))
        return embedded

    @staticmethod
    def _joint_mask(prefix: Prefix, length: int, draws: int, device: torch.device) -> Tensor:
        """(B * N, 1, T, P + 1 + T): the valid prefix, and the actions up to the own one."""
        causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]
        if prefix.mask is None:
            n_prefix = prefix.keys[0].shape[2]
            return torch.cat([causal.new_ones(1, 1, length, n_prefix), causal], dim=3)
        shown = prefix.mask.repeat_interleave(draws, dim=0)[:, None, None, :].expand(-1, -1, length, -1)
        return torch.cat([shown, causal.expand(shown.shape[0], -1, -1, -1)], dim=3)


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
