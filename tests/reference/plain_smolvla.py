"""SmolVLA without any shortcut: what the product is compared with.

Every step as the specification states it (spec/smolvla.md, sections 3 to 10): one camera at a time, the state token
inside the prefix, padding computed like content, one joint pass over prefix and suffix, keys and values of the prefix
projected again at every Euler step, hand-written attention, and autograd through everything. It reads weights by the names of section 11 and casts where section 10.3
says so, following the dtypes of the weights that it is given.

Shape letters: B batch, P prefix tokens, T chunk, D padded action dim, A action dim, H text width, E expert width,
q heads, g key/value heads, d head width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

VLM = "model.vlm_with_expert.vlm."
VISION = VLM + "model.vision_model."
CONNECTOR = VLM + "model.connector."
TEXT = VLM + "model.text_model."
EXPERT = "model.vlm_with_expert.lm_expert."

Record = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """What the plain computation must know besides the shapes of the weights."""

    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_rms_eps: float
    vision_heads: int
    vision_eps: float
    image_size: int
    patch_size: int
    scale_factor: int
    fake_image_token: int
    global_image_token: int

    @classmethod
    def of_folder(cls, folder: Path) -> Sizes:
        """Read them from the folder of a VLM (`config.json`, `tokenizer.json`)."""
        config = json.loads((folder / "config.json").read_text())
        text, vision = config["text_config"], config["vision_config"]
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        return cls(
            text_heads=text["num_attention_heads"],
            text_kv_heads=text["num_key_value_heads"],
            text_head_dim=text["head_dim"],
            text_rms_eps=text["rms_norm_eps"],
            vision_heads=vision["num_attention_heads"],
            vision_eps=vision.get("layer_norm_eps", 1e-6),
            image_size=vision["image_size"],
            patch_size=vision["patch_size"],
            scale_factor=config["scale_factor"],
            fake_image_token=ids["<fake_token_around_image>"],
            global_image_token=ids["<global-img>"],
        )


@dataclass(frozen=True)
class PlainSmolVLA:
    """The plain computation.

    Args:
        state: weights by their checkpoint names; those that require gradients get them.
        config: the content of `config.json`.
        sizes: of the VLM.
    """

    state: Mapping[str, Tensor]
    config: Mapping[str, Any]
    sizes: Sizes
    vlm_layers: int = field(init=False)
    expert_layers: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vlm_layers", self._count(TEXT))
        object.__setattr__(self, "expert_layers", self._count(EXPERT))

    # -- training (section 6) ----------------------------------------------------------------------------------------

    def loss(self, batch: Mapping[str, Any], noise: Tensor, time: Tensor, record: Record | None = None) -> Tensor:
        """Scalar loss, `reduction="mean"`.

        Args:
            batch: preprocessed batch with float cameras in [0, 1].
            noise: (B, T, D).
            time: (B,).
            record: filled with intermediate results by name.
        """
        losses, valid = self._masked_losses(batch, noise, time, record)
        if valid is None:
            return losses.mean()
        return losses.sum() / max(1, int(valid.sum()) * losses.shape[-1])

    def loss_per_sample(self, batch: Mapping[str, Any], noise: Tensor, time: Tensor) -> Tensor:
        """(B,), `reduction="none"`."""
        losses, valid = self._masked_losses(batch, noise, time, None)
        if valid is None:
            return losses.mean(dim=(1, 2))
        return losses.sum(dim=(1, 2)) / (valid.sum(dim=1) * losses.shape[-1]).clamp(min=1)

    def _masked_losses(
        self, batch: Mapping[str, Any], noise: Tensor, time: Tensor, record: Record | None
    ) -> tuple[Tensor, Tensor | None]:
        record = {} if record is None else record
        actions = batch["action"]
        if self.config["adapt_to_pi_aloha"]:
            actions = aloha_encode_actions(actions)
        actions = pad_last(actions, self.config["max_action_dim"])
        t = time[:, None, None]
        x_t = t * noise + (1 - t) * actions
        u_t = noise - actions
        v_t = self.velocity(self.prefix(batch, record), x_t, time, record)
        losses = (u_t - v_t) ** 2
        record.update(x_t=x_t, u_t=u_t, v_t=v_t, losses_full=losses)
        losses = losses[:, :, : self.config["output_features"]["action"]["shape"][0]]
        if "action_is_pad" not in batch:
            return losses, None
        valid = ~batch["action_is_pad"]
        return losses * valid[:, :, None], valid

    # -- inference (section 7) ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def chunk(self, batch: Mapping[str, Any], noise: Tensor, record: Record | None = None, **rtc: Any) -> Tensor:
        """Actions (B, T, A) by Euler steps from `noise` (B, T, D).

        Args:
            batch: preprocessed observations.
            noise: (B, T, D).
            record: filled with timesteps (N, B), x_t and v_t (N, B, T, D) before each step.
            rtc: inference_delay, prev_chunk_left_over, execution_horizon.
        """
        cache = self._cache(self.prefix(batch, {}))
        steps = self.config["num_steps"]
        dt = -1.0 / steps
        x = noise
        seen: dict[str, list[Tensor]] = {"timesteps": [], "x_t": [], "v_t": []}
        for step in range(steps):
            time = torch.full((x.shape[0],), 1.0 + step * dt, dtype=torch.float32)
            v = self._cached_velocity(cache, x, time)
            if rtc.get("prev_chunk_left_over") is not None:
                v = self._guided(x, v, 1.0 + step * dt, **rtc)
            for name, value in (("timesteps", time), ("x_t", x), ("v_t", v)):
                seen[name].append(value)
            x = x + dt * v
        if record is not None:
            record.update({name: torch.stack(values) for name, values in seen.items()})
        actions = x[:, :, : self.config["output_features"]["action"]["shape"][0]]
        return aloha_decode_actions(actions) if self.config["adapt_to_pi_aloha"] else actions

    def _guided(
        self,
        x: Tensor,
        v: Tensor,
        time: float,
        *,
        inference_delay: int,
        prev_chunk_left_over: Tensor,
        execution_horizon: int | None = None,
    ) -> Tensor:
        """Guided velocity (7.4); the correction is the error itself, because v does not depend on x there."""
        settings = self.config["rtc_config"]
        previous = prev_chunk_left_over[None] if prev_chunk_left_over.ndim == 2 else prev_chunk_left_over
        horizon = settings["execution_horizon"] if execution_horizon is None else execution_horizon
        horizon = min(horizon, previous.shape[1])
        target = torch.zeros_like(x)
        target[:, : previous.shape[1], : previous.shape[2]] = previous
        weights = prefix_weights(settings["prefix_attention_schedule"], inference_delay, horizon, x.shape[1])
        error = (target - (x - time * v)) * weights[None, :, None]
        tau, most = 1 - time, float(settings["max_guidance_weight"])
        c = (1 - tau) / tau if tau > 0 else math.inf
        inv_r2 = ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2
        return v - min(c * inv_r2, most) * error

    # -- prefix (sections 3 and 4) -----------------------------------------------------------------------------------

    def prefix(self, batch: Mapping[str, Any], record: Record) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (B, P, H), pad mask (B, P) and block flags (B, P) of cameras, language and state."""
        parts: list[tuple[Tensor, Tensor, int]] = []
        images, masks = self._images(batch)
        table = self.state[TEXT + "embed_tokens.weight"]
        for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
            tokens = self.image_embedding(image)
            record.update(
                {f"image_prepared_first_sample.{i}": image[:1], f"image_mask.{i}": mask, f"image_embedding.{i}": tokens}
            )
            tokens = tokens * torch.tensor(tokens.shape[-1] ** 0.5, dtype=tokens.dtype)
            around = [self.sizes.fake_image_token, self.sizes.global_image_token]
            if self.config["add_image_special_tokens"]:
                parts.append(self._special(table, around, len(image)))
            parts.append((tokens, mask[:, None].expand(-1, tokens.shape[1]), 0))
            if self.config["add_image_special_tokens"]:
                parts.append(self._special(table, around[:1], len(image)))
        language = F.embedding(batch["observation.language.tokens"], table) * math.sqrt(table.shape[-1])
        parts.append((language, batch["observation.language.attention_mask"].bool(), 0))
        state = batch["observation.state"]
        state = state[:, -1] if state.ndim == 3 else state
        if self.config["adapt_to_pi_aloha"]:
            state = aloha_decode_state(state)
        state = self._linear("model.state_proj", pad_last(state, self.config["max_state_dim"]))[:, None]
        parts.append((state, torch.ones(len(state), 1, dtype=torch.bool), 1))

        missing = self.config["prefix_length"] - sum(tokens.shape[1] for tokens, _, _ in parts)
        if missing > 0:
            padding = torch.zeros(len(state), missing, state.shape[-1], dtype=state.dtype)
            parts.append((padding, torch.zeros(len(state), missing, dtype=torch.bool), 0))
        embeddings = torch.cat([tokens for tokens, _, _ in parts], dim=1)
        valid = torch.cat([mask for _, mask, _ in parts], dim=1)
        flags = torch.cat([torch.full(mask.shape, flag, dtype=torch.bool) for _, mask, flag in parts], dim=1)
        record.update(prefix_embs=embeddings, prefix_pad_masks=valid, prefix_att_masks=flags)
        return embeddings, valid, flags

    def _special(self, table: Tensor, tokens: Sequence[int], size: int) -> tuple[Tensor, Tensor, int]:
        embedded = F.embedding(torch.tensor(tokens), table)[None].expand(size, -1, -1)
        return embedded, torch.ones(size, len(tokens), dtype=torch.bool), 0

    def _images(self, batch: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
        keys = [key for key, feature in self.config["input_features"].items() if feature["type"] == "VISUAL"]
        present = [key for key in keys if key in batch]
        images, masks = [], []
        for key in present:
            image = batch[key][:, -1] if batch[key].ndim == 5 else batch[key]
            resize = self.config["resize_imgs_with_padding"]
            images.append(resize_with_padding(image, resize[1], resize[0]) * 2 - 1)
            mask = batch.get(f"{key}_padding_mask")
            masks.append(torch.ones(len(image), dtype=torch.bool) if mask is None else mask.bool())
        for _ in range(min(len(keys) - len(present), self.config["empty_cameras"])):
            images.append(torch.full_like(images[-1], -1))
            masks.append(torch.zeros_like(masks[-1]))
        return images, masks

    def image_embedding(self, image: Tensor) -> Tensor:
        """(B, 3, S, S) in [-1, 1] -> (B, tokens, H), before scaling (3.4)."""
        weight = self.state[VISION + "embeddings.patch_embedding.weight"]
        x = F.conv2d(
            image.to(weight.dtype),
            weight,
            self.state[VISION + "embeddings.patch_embedding.bias"],
            stride=self.sizes.patch_size,
        )
        side, native = x.shape[-1], self.sizes.image_size // self.sizes.patch_size
        place = torch.arange(side) * native // side
        ids = (place[:, None] * native + place[None]).flatten()
        x = x.flatten(2).transpose(1, 2) + self.state[VISION + "embeddings.position_embedding.weight"][ids]
        for i in range(self._count(VISION + "encoder.")):
            name = f"{VISION}encoder.layers.{i}."
            h = self._layer_norm(name + "layer_norm1", x)
            split = (*h.shape[:2], self.sizes.vision_heads, -1)
            q, k, v = (self._linear(f"{name}self_attn.{p}_proj", h).view(split).transpose(1, 2) for p in "qkv")
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self._linear(name + "self_attn.out_proj", mixed)
            h = self._linear(name + "mlp.fc1", self._layer_norm(name + "layer_norm2", x))
            x = x + self._linear(name + "mlp.fc2", F.gelu(h, approximate="tanh"))
        x = self._layer_norm(VISION + "post_layernorm", x)
        s = self.sizes.scale_factor
        blocks = x.view(len(x), side // s, s, side // s, s, x.shape[-1])
        shuffled = blocks.permute(0, 1, 3, 2, 4, 5).reshape(len(x), (side // s) ** 2, -1)
        return self._linear(CONNECTOR + "modality_projection.proj", shuffled)

    # -- transformer (section 5) -------------------------------------------------------------------------------------

    def velocity(
        self, prefix: tuple[Tensor, Tensor, Tensor], x_t: Tensor, time: Tensor, record: Record | None = None
    ) -> Tensor:
        """v (B, T, D) of noisy actions x_t (B, T, D) at times (B,)."""
        record = {} if record is None else record
        embeddings, valid, flags = prefix
        suffix = self._suffix(x_t, time, record)
        size, chunk = x_t.shape[:2]
        valid = torch.cat([valid, torch.ones(size, chunk, dtype=torch.bool)], dim=1)
        blocks = torch.cat([flags, torch.ones(size, chunk, dtype=torch.bool)], dim=1).cumsum(dim=1)
        mask = (blocks[:, None, :] <= blocks[:, :, None]) & valid[:, None, :] & valid[:, :, None]
        positions = valid.cumsum(dim=1) - 1
        record.update(att_2d_masks=mask, position_ids=positions)
        streams = (embeddings, suffix)
        share = self.vlm_layers // self.expert_layers
        for i in range(self.vlm_layers):
            expert = f"{EXPERT}layers.{i // share}." if i % share == 0 else None
            streams = self._layer(i, expert, streams, mask, positions, record)
        record["prefix_out"] = self._rms_norm(TEXT + "norm", streams[0])
        record["suffix_out"] = self._rms_norm(EXPERT + "norm", streams[1])
        return self._linear("model.action_out_proj", record["suffix_out"][:, -chunk:].float())

    def _cache(self, prefix: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Pad mask of the prefix, and keys after rotation and values of every layer (7.1)."""
        x, valid, flags = prefix
        blocks = flags.long().cumsum(dim=1)
        mask = (blocks[:, None, :] <= blocks[:, :, None]) & valid[:, None, :] & valid[:, :, None]
        positions = valid.cumsum(dim=1) - 1
        kept = []
        for i in range(self.vlm_layers):
            q, k, v = self._qkv(f"{TEXT}layers.{i}.", x)
            q, k = rope(q, positions), rope(k, positions)
            kept.append((k, v))
            x = self._tail(f"{TEXT}layers.{i}.", attend(q, k, v, mask), x)
        return valid, kept

    def _cached_velocity(self, cache: tuple[Tensor, list[tuple[Tensor, Tensor]]], x_t: Tensor, time: Tensor) -> Tensor:
        """The velocity at inference: the expert alone, over the keys and values of the prefix (7.1)."""
        valid, kept = cache
        y = self._suffix(x_t, time, {})
        steps = torch.arange(x_t.shape[1])
        causal = (steps[None, :] <= steps[:, None]).expand(len(y), -1, -1)
        over_prefix = valid[:, None, :].expand(-1, len(steps), -1)
        positions = valid.sum(dim=1, keepdim=True) + steps
        share = self.vlm_layers // self.expert_layers
        for i in range(0, self.vlm_layers, share):
            expert = f"{EXPERT}layers.{i // share}."
            k, v = kept[i]
            if self._is_joint(i):
                q, ek, ev = self._qkv(expert, y)
                q, ek = rope(q, positions), rope(ek, positions)
                mask = torch.cat([over_prefix, causal], dim=2)
                mixed = attend(q, torch.cat([k, ek], dim=1), torch.cat([v, ev], dim=1), mask)
            else:
                mixed = attend(*self._cross(expert, y, k, v, positions), over_prefix)
            y = self._tail(expert, mixed, y)
        return self._linear("model.action_out_proj", self._rms_norm(EXPERT + "norm", y).float())

    def _is_joint(self, index: int) -> bool:
        every = self.config["self_attn_every_n_layers"]
        return "cross" not in self.config["attention_mode"] or (every > 0 and index % every == 0)

    def _suffix(self, x_t: Tensor, time: Tensor, record: Record) -> Tensor:
        actions = self._linear("model.action_in_proj", x_t)
        embedded = time_embedding(time, actions.shape[-1], self.config["min_period"], self.config["max_period"])
        repeated = embedded.to(actions.dtype)[:, None].expand_as(actions)
        both = torch.cat([actions, repeated], dim=-1)
        out = self._linear("model.action_time_mlp_out", F.silu(self._linear("model.action_time_mlp_in", both)))
        record.update(time_embedding=embedded, suffix_embs=out)
        return out

    def _layer(
        self,
        index: int,
        expert: str | None,
        streams: tuple[Tensor, Tensor],
        mask: Tensor,
        positions: Tensor,
        record: Record,
    ) -> tuple[Tensor, Tensor]:
        x, y = streams
        p = x.shape[1]
        vlm = f"{TEXT}layers.{index}."
        q, k, v = self._qkv(vlm, x)
        q, k = rope(q, positions[:, :p]), rope(k, positions[:, :p])
        record.update({f"prefix_keys.{index}": k.transpose(1, 2), f"prefix_values.{index}": v.transpose(1, 2)})
        if expert is not None and self._is_joint(index):
            eq, ek, ev = self._qkv(expert, y)
            eq, ek = rope(eq, positions[:, p:]), rope(ek, positions[:, p:])
            q, k, v = (torch.cat(pair, dim=1) for pair in ((q, eq), (k, ek), (v, ev)))
            mixed = attend(q, k, v, mask)
            return self._tail(vlm, mixed[:, :p], x), self._tail(expert, mixed[:, p:], y)
        if expert is not None:
            mixed = attend(*self._cross(expert, y, k, v, positions[:, p:]), mask[:, p:, :p])
            y = self._tail(expert, mixed, y)
        return self._tail(vlm, attend(q, k, v, mask[:, :p, :p]), x), y

    def _cross(self, expert: str, y: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key, value of a cross layer: projections of the VLM's keys, which are not rotated again (5.5b)."""
        h = self._rms_norm(expert + "input_layernorm", y)
        q = rope(self._heads(expert + "self_attn.q_proj", h), positions - positions.min(dim=1, keepdim=True).values)
        k = self._heads(expert + "self_attn.k_proj", k.flatten(2))
        return q, k, self._heads(expert + "self_attn.v_proj", v.flatten(2))

    def _qkv(self, layer: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self._rms_norm(layer + "input_layernorm", x)
        q, k, v = (self._heads(f"{layer}self_attn.{s}_proj", h) for s in "qkv")
        return q, k, v

    def _heads(self, name: str, x: Tensor) -> Tensor:
        """(B, n, width) -> (B, n, heads, d), multiplied in the dtype of the weight."""
        out = self._linear(name, x.to(self.state[name + ".weight"].dtype))
        return out.view(*out.shape[:2], -1, self.sizes.text_head_dim)

    def _tail(self, layer: str, mixed: Tensor, x: Tensor) -> Tensor:
        name = layer + "self_attn.o_proj"
        out = self._linear(name, mixed.to(self.state[name + ".weight"].dtype))
        out = (out + x).to(out.dtype)  # in place in the reference: the residual stream takes the projection's dtype
        h = self._rms_norm(layer + "post_attention_layernorm", out)
        gate = F.silu(self._linear(layer + "mlp.gate_proj", h))
        return self._linear(layer + "mlp.down_proj", gate * self._linear(layer + "mlp.up_proj", h)) + out

    # -- weights -----------------------------------------------------------------------------------------------------

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.state[name + ".weight"], self.state.get(name + ".bias"))

    def _layer_norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.state[name + ".weight"]
        return F.layer_norm(x, weight.shape, weight, self.state[name + ".bias"], self.sizes.vision_eps)

    def _rms_norm(self, name: str, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(dim=-1, keepdim=True) + self.sizes.text_rms_eps)
        return self.state[name + ".weight"] * y.to(x.dtype)

    def _count(self, prefix: str) -> int:
        start = prefix + "layers."
        return 1 + max(int(name[len(start) :].split(".")[0]) for name in self.state if name.startswith(start))

    # -- freezing (10.1) ---------------------------------------------------------------------------------------------

    def trainable(self) -> list[str]:
        """Names of the trainable parameters, in the order of the weights."""
        frozen = [VLM] if self.config["train_expert_only"] else [VLM + "lm_head.", TEXT + "norm."]
        if not self.config["train_expert_only"]:
            last = 2 if self.expert_layers < self.vlm_layers else 1
            frozen += [f"{TEXT}layers.{self.vlm_layers - 1 - i}." for i in range(last)]
        if self.config["freeze_vision_encoder"]:
            frozen.append(VISION)
        if not self.config["train_state_proj"]:
            frozen.append("model.state_proj.")
        return [name for name in self.state if not name.startswith(tuple(frozen))]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of (B, n, q, d) to (B, m, g, d) under mask (B, n, m): (B, n, q·d), in the dtype of v (5.5)."""
    share = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(share, dim=2), v.repeat_interleave(share, dim=2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    logits = torch.matmul(q.float(), k.float().transpose(2, 3)) * q.shape[-1] ** -0.5
    logits = torch.where(mask[:, None], logits.float(), torch.finfo(torch.float32).min)
    mixed = torch.matmul(logits.softmax(dim=-1).to(v.dtype), v)
    return mixed.transpose(1, 2).flatten(2)


def rope(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate (B, n, heads, d) by positions (B, n), base 10000, in float32 (5.3)."""
    half = x.shape[-1] // 2
    period = 10000 ** (2 * torch.arange(half, dtype=torch.float32) / x.shape[-1])
    angle = (positions[:, :, None].float() / period)[:, :, None]
    x1, x2 = x.float()[..., :half], x.float()[..., half:]
    sin, cos = angle.sin(), angle.cos()
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).to(x.dtype)


def time_embedding(time: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """(B,) -> (B, width) float64: sines, then cosines (6, step 3)."""
    fraction = torch.linspace(0, 1, width // 2, dtype=torch.float64)
    period = min_period * (max_period / min_period) ** fraction
    angle = time[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def pad_last(x: Tensor, width: int) -> Tensor:
    """Zeros at the end of the last dimension, up to `width`."""
    return F.pad(x, (0, width - x.shape[-1]))


def resize_with_padding(image: Tensor, height: int, width: int) -> Tensor:
    """(B, C, H, W) into (height, width), the ratio kept, zeros at the left and the top (3.2)."""
    h, w = image.shape[-2:]
    if (h, w) == (height, width):
        return image
    ratio = max(w / width, h / height)
    size = (int(h / ratio), int(w / ratio))
    small = F.interpolate(image, size=size, mode="bilinear", align_corners=False)
    return F.pad(small, (width - size[1], 0, height - size[0], 0), value=0)


def draw(size: int, chunk: int, width: int) -> tuple[Tensor, Tensor]:
    """Noise (B, T, D) and then times (B,) from torch's generator, as in a training step (6, step 1)."""
    noise = torch.randn(size, chunk, width)
    return noise, draw_time(size)


def draw_time(size: int) -> Tensor:
    """Times (B,) in (0.001, 1]."""
    beta = torch.distributions.Beta(torch.tensor(1.5), torch.tensor(1.0))
    return beta.sample((size,)) * 0.999 + 0.001


def prefix_weights(schedule: str, start: int, end: int, total: int) -> Tensor:
    """Weights (total,) of the guidance of each step of the chunk (7.4)."""
    start = min(start, end)
    steps = torch.arange(total)
    if schedule == "ZEROS":
        return (steps < start).float()
    if schedule == "ONES":
        return (steps < end).float()
    end = min(end, total)
    ramp = torch.linspace(1, 0, end - start + 2)[1:-1] if end > start else torch.zeros(0)
    weights = torch.cat([torch.ones(min(start, total)), ramp, torch.zeros(total)])[:total]
    if schedule == "EXP":
        weights = weights * (torch.expm1(weights) / (math.e - 1))
    return weights


# -- ALOHA (8.4) -----------------------------------------------------------------------------------------------------

FLIPPED = [1, 2, 8, 9]
GRIPPERS = [6, 13]


def to_angular(x: Tensor) -> Tensor:
    """Gripper position -> angle, both normalised."""
    y = x * (0.05800 - 0.01844) + 0.01844
    z = torch.arcsin(((0.022**2 + y**2 - 0.036**2) / (2 * 0.022 * y)).clamp(-1, 1))
    return (z - 0.4) / (1.5 - 0.4)


def from_angular(x: Tensor) -> Tensor:
    """Angle -> gripper command, both normalised."""
    y = x * (1.5 - 0.4) + 0.4
    return (y + 0.6213) / (1.4910 + 0.6213)


def from_angular_inv(x: Tensor) -> Tensor:
    """Gripper command -> angle, both normalised."""
    y = x * (1.4910 + 0.6213) - 0.6213
    return (y - 0.4) / (1.5 - 0.4)


def aloha_decode_state(state: Tensor) -> Tensor:
    """(..., 14) of the robot -> of the model."""
    return _aloha(state, to_angular)


def aloha_encode_actions(actions: Tensor) -> Tensor:
    """Training actions (..., 14) -> of the model."""
    return _aloha(actions, from_angular_inv)


def aloha_decode_actions(actions: Tensor) -> Tensor:
    """Predicted actions (..., 14) -> of the robot."""
    return _aloha(actions, from_angular)


def _aloha(x: Tensor, gripper: Any) -> Tensor:
    x = x.clone()
    x[..., FLIPPED] = -x[..., FLIPPED]
    x[..., GRIPPERS] = gripper(x[..., GRIPPERS])
    return x
