"""Settings of ACT, in the order of `config.json` (spec/act.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mimetic.features import NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.names import STATE
from mimetic.optim.config import AdamWConfig
from mimetic.policies.config import PolicyConfig
from mimetic.policies.fixed_inputs import fixed_input_problems

_BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_NOT_DILATABLE = ("resnet18", "resnet34")


def _mean_std() -> dict[str, NormalizationMode]:
    return dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class ACTConfig(PolicyConfig):
    """Action Chunking with Transformers.

    Source: Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, 2023; spec/act.md.
    """

    type_name: ClassVar[str] = "act"
    neutral_unknown: ClassVar[Mapping[str, Any]] = {}

    chunk_size: int = setting(100, "Actions predicted at once", unit="frames")
    n_action_steps: int = setting(100, "Actions executed before the next prediction, at most chunk_size", unit="frames")
    normalization_mapping: dict[str, NormalizationMode] = setting(
        factory=_mean_std, help="Normalisation mode by feature type; a type that is absent is not normalised"
    )
    vision_backbone: str = setting("resnet18", "ResNet that encodes the cameras", choices=_BACKBONES)
    pretrained_backbone_weights: str | None = setting(
        "ResNet18_Weights.IMAGENET1K_V1",
        "ImageNet weights of the backbone when a new policy is made; null starts it at random",
    )
    replace_final_stride_with_dilation: int = setting(
        False, "Dilate instead of striding in the last stage (only for ResNet-50 and larger)"
    )
    pre_norm: bool = setting(False, "Normalise before each transformer block instead of after it")
    dim_model: int = setting(512, "Width of the transformer")
    n_heads: int = setting(8, "Attention heads")
    dim_feedforward: int = setting(3200, "Width of the feed-forward blocks")
    feedforward_activation: str = setting(
        "relu", "Activation of the feed-forward blocks", choices=("relu", "gelu", "glu")
    )
    n_encoder_layers: int = setting(4, "Layers of the encoder")
    n_decoder_layers: int = setting(1, "Layers of the decoder")
    use_vae: bool = setting(True, "Train with a variational encoder of the action chunk")
    latent_dim: int = setting(32, "Size of the latent")
    n_vae_encoder_layers: int = setting(4, "Layers of the variational encoder")
    temporal_ensemble_coeff: float | None = setting(
        None, "Weighted mean of overlapping chunks, w_i = exp(-coeff * i); needs n_action_steps=1"
    )
    dropout: float = setting(0.1, "Dropout")
    kl_weight: float = setting(10.0, "Weight of the KL term of the loss")
    optimizer_lr: float = setting(1e-5, "Learning rate of the preset")
    optimizer_weight_decay: float = setting(1e-4, "Weight decay of the preset")
    optimizer_lr_backbone: float = setting(1e-5, "Learning rate of the camera backbone in the preset")

    def check(self) -> list[str]:
        """Problems of this config, one sentence each."""
        problems = super().check()
        if self.n_obs_steps != 1:
            problems.append(
                f"`--policy.n_obs_steps={self.n_obs_steps}`: ACT reads one observation frame, so it must be 1"
            )
        if self.n_action_steps > self.chunk_size:
            problems.append(
                f"`--policy.n_action_steps={self.n_action_steps}` is larger than "
                f"`--policy.chunk_size={self.chunk_size}`"
            )
        if self.temporal_ensemble_coeff is not None and self.n_action_steps != 1:
            problems.append(
                f"`--policy.temporal_ensemble_coeff` needs `--policy.n_action_steps=1`, which is {self.n_action_steps}"
            )
        if self.dim_model % self.n_heads:
            problems.append(
                f"`--policy.dim_model={self.dim_model}` is not a multiple of `--policy.n_heads={self.n_heads}`"
            )
        if self.image_features and self.dim_model % 4:
            problems.append(f"`--policy.dim_model={self.dim_model}` is not a multiple of 4, which cameras need")
        if self.feedforward_activation == "glu":
            problems.append(
                "`--policy.feedforward_activation=glu` halves the width and cannot work with ACT's layers; "
                "use relu or gelu"
            )
        if self.replace_final_stride_with_dilation and self.vision_backbone in _NOT_DILATABLE:
            problems.append(
                f"`--policy.replace_final_stride_with_dilation=true` does not work with `{self.vision_backbone}`"
            )
        for name in ("chunk_size", "n_action_steps", "dim_model", "n_heads", "n_encoder_layers", "n_decoder_layers"):
            if getattr(self, name) < 1:
                problems.append(f"`--policy.{name}={getattr(self, name)}` must be at least 1")
        if self.input_features and not self.image_features and self.env_state_feature is None:
            problems.append("ACT needs at least one camera or `observation.environment_state` among its inputs")
        return problems

    def input_problems(self, available: Mapping[str, PolicyFeature]) -> list[str]:
        """Inputs that are not offered or have another shape: ACT needs each exactly as it was built for."""
        return fixed_input_problems(self, available)

    @property
    def unread_inputs(self) -> list[str]:
        """Whatever is neither a camera nor `observation.state` nor the first input of type ENV."""
        read = {*self.image_features, self.env_state_key, STATE if self.robot_state_feature is not None else None}
        return [key for key in self.input_features or {} if key not in read]

    @property
    def action_delta_indices(self) -> list[int]:
        """0 .. chunk_size - 1."""
        return list(range(self.chunk_size))

    def optimizer_preset(self) -> AdamWConfig:
        """AdamW; the backbone has its own learning rate in the policy's parameter groups."""
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay)
