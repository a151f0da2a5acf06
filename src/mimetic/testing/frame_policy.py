"""A tiny policy with a frozen encoder of camera frames, to test what keeps its results (`--cache.features`).

Its encoder picks every eighth pixel and mixes the colours with frozen weights, number by number, so that the features
of a frame have the same bits in every batch. Register it under its name with the row `ENTRY`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mimetic.catalog import Entry
from mimetic.features import FeatureType, NormalizationMode
from mimetic.fields import setting
from mimetic.names import ACTION, FEATURES_PREFIX, OBSERVATION, STATE
from mimetic.optim.config import AdamWConfig
from mimetic.policies.base import Batch, FrameEncoder, Policy, take_input, valid_divisor
from mimetic.policies.config import PolicyConfig

ENTRY = Entry("mimetic.testing.frame_policy:FramePolicy", config="mimetic.testing.frame_policy:FramePolicyConfig")
NAME = "frame_policy"
STRIDE, WIDTH = 8, 5


def _normalization() -> dict[str, NormalizationMode]:
    return {
        "VISUAL": NormalizationMode.IDENTITY,
        "STATE": NormalizationMode.MEAN_STD,
        "ACTION": NormalizationMode.MEAN_STD,
    }


@dataclass(frozen=True, kw_only=True)
class FramePolicyConfig(PolicyConfig):
    """Settings of the tiny policy."""

    type_name: ClassVar[str] = NAME
    normalization_mapping: dict[str, NormalizationMode] = setting(factory=_normalization, help="Modes by feature type")
    chunk_size: int = setting(4, "Actions predicted at once")
    freeze: bool = setting(True, "Keep the encoder as it is")
    feature_dtype: str = setting("float32", "Dtype of features", choices=("float32", "bfloat16"))
    first_weight: float = setting(0.5, "Where the encoder's weights begin")

    @property
    def action_delta_indices(self) -> list[int]:
        """The chunk."""
        return list(range(self.chunk_size))

    def optimizer_preset(self) -> AdamWConfig:
        """AdamW."""
        return AdamWConfig(lr=1e-2, weight_decay=0.0, grad_clip_norm=10.0)


class FramePolicy(Policy):
    """Mean features and state to a chunk, with noise in the loss.

    Args:
        config: settings with features.
        init_backbone: not used.
    """

    config: FramePolicyConfig
    encoded: ClassVar[int] = 0
    """Frames that went through the encoder in this process."""

    def __init__(self, config: FramePolicyConfig, *, init_backbone: bool = True) -> None:
        super().__init__(config)
        first = config.first_weight
        self.colours = nn.Parameter(torch.linspace(first, first + 1, 3 * WIDTH).reshape(3, WIDTH), not config.freeze)
        state, action = config.robot_state_feature, config.action_feature
        assert state is not None
        assert action is not None
        self.head = nn.Linear(WIDTH * len(config.image_features) + state.shape[0], config.chunk_size * action.shape[0])

    def encode(self, pixels: Tensor) -> Tensor:
        """(N, 3, H, W) float in [0, 1] -> (N, tokens, WIDTH)."""
        FramePolicy.encoded += len(pixels)
        red, green, blue = pixels[:, :, ::STRIDE, ::STRIDE].flatten(2).unsqueeze(-1).unbind(1)
        mixed = red * self.colours[0] + green * self.colours[1] + blue * self.colours[2]
        return mixed.to(getattr(torch, self.config.feature_dtype))

    def frame_encoder(self) -> FrameEncoder | str:
        """The encoder, while it is frozen."""
        if not self.config.freeze:
            return "the encoder is trained"
        digest = hashlib.sha256(self.colours.detach().cpu().numpy().tobytes()).hexdigest()
        cameras = self.config.image_features
        height, width = next(iter(cameras.values())).shape[1:]
        return FrameEncoder(
            key=f"{NAME}-1-{digest[:16]}-{self.config.feature_dtype}",
            shape=(-(-height // STRIDE) * -(-width // STRIDE), WIDTH),
            dtype=getattr(torch, self.config.feature_dtype),
            cameras=tuple(cameras),
            encode=self.encode,
        )

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error over the valid actions."""
        actions, valid = batch[ACTION], ~batch[f"{ACTION}_is_pad"][..., None]
        error = (self._chunk(batch) + 0.1 * torch.randn_like(actions) - actions).square() * valid
        loss = error.sum() / valid_divisor(batch, valid, actions.shape[-1])
        return loss, {"mse": loss.detach()}

    @torch.no_grad()
    def predict_chunk(self, batch: Batch) -> Tensor:
        """One chunk (B, K, A)."""
        self.eval()
        return self._chunk(batch)

    def select_action(self, batch: Batch) -> Tensor:
        """The first action of a new chunk (B, A)."""
        return self.predict_chunk(batch)[:, 0]

    def reset(self) -> None:
        """Nothing is remembered."""

    def optim_groups(self) -> list[dict[str, Any]]:
        """All trainable parameters."""
        return [{"params": [parameter for parameter in self.parameters() if parameter.requires_grad]}]

    def _chunk(self, batch: Batch) -> Tensor:
        state = self.config.robot_state_feature
        assert state is not None
        inputs = [self._features(batch, key).float().mean(1) for key in self.config.image_features]
        values: Tensor = self.head(torch.cat([*inputs, take_input(batch, STATE, state.shape)], dim=-1))
        return values.reshape(len(values), self.config.chunk_size, -1)

    def _features(self, batch: Mapping[str, Any], key: str) -> Tensor:
        kept = batch.get(FEATURES_PREFIX + key.removeprefix(OBSERVATION + "."))
        if isinstance(kept, Tensor):
            return kept
        assert self.config.image_features[key].type is FeatureType.VISUAL
        return self.encode(take_input(batch, key, self.config.image_features[key].shape))
