"""Settings of the keypoint policy, which is mimetic's own: LeRobot has no policy of this kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mimetic.features import NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.names import STATE
from mimetic.optim.config import AdamWConfig, CosineAnnealingWithWarmupConfig
from mimetic.policies.config import PolicyConfig
from mimetic.policies.fixed_inputs import fixed_input_problems

SMALLEST_PICTURE = 16


def _mean_std() -> dict[str, NormalizationMode]:
    return dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.MEAN_STD)


@dataclass(frozen=True, kw_only=True)
class KeypointConfig(PolicyConfig):
    """A small policy for small computers: keypoints in the pictures, then a chunk of actions.

    Source: Levine et al., End-to-End Training of Deep Visuomotor Policies, 2016 (spatial softmax); Yarats et al.,
    Image Augmentation Is All You Need, 2020 (random shifts); Zhao et al., 2023 (action chunks).
    """

    type_name: ClassVar[str] = "keypoint"

    chunk_size: int = setting(30, "Actions predicted at once", unit="frames", layer="mimetic")
    n_action_steps: int = setting(
        10, "Actions executed before the next prediction, at most chunk_size", unit="frames", layer="mimetic"
    )
    normalization_mapping: dict[str, NormalizationMode] = setting(
        factory=_mean_std,
        help="Normalisation mode by feature type; a type that is absent is not normalised",
        layer="mimetic",
    )
    n_keypoints: int = setting(32, "Keypoints looked for in each camera", layer="mimetic")
    n_channels: int = setting(32, "Width of the convolutions; the first one has half of it", layer="mimetic")
    dim_hidden: int = setting(256, "Width of the two layers between keypoints and actions", layer="mimetic")
    image_shift: int = setting(
        2, "Training moves each picture by up to so many pixels in each direction", unit="px", layer="mimetic"
    )
    color_jitter: float = setting(
        0.15,
        "Training changes the contrast of each picture by up to this share, its tints by half of it, and its "
        "brightness by up to so many standard deviations",
        layer="mimetic",
    )
    state_noise: float = setting(
        0.3,
        "Noise on the joint positions that training shows to the layers after the pictures, in standard deviations, "
        "so that a policy does not recognise an episode by them",
        layer="mimetic",
    )
    motion_frames: int = setting(
        10,
        "The policy also reads how far the joints have moved in so many frames, which tells a grip that is closing "
        "from one that has closed; 0: it does not",
        unit="frames",
        layer="mimetic",
    )
    optimizer_lr: float = setting(1e-3, "Learning rate of the preset", layer="mimetic")
    optimizer_weight_decay: float = setting(
        1.0, "Weight decay of the preset, for the layers between keypoints and actions", layer="mimetic"
    )
    optimizer_weight_decay_cameras: float = setting(
        0.01, "Weight decay of the preset, for the convolutions", layer="mimetic"
    )
    scheduler_warmup_steps: int = setting(50, "Warm-up of the preset, before a cosine to zero", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of this config, one sentence each."""
        problems = super().check()
        if self.n_obs_steps != 1:
            problems.append(
                f"`--policy.n_obs_steps={self.n_obs_steps}`: this policy reads pictures of one frame, so it must be 1"
            )
        if self.n_action_steps > self.chunk_size:
            problems.append(
                f"`--policy.n_action_steps={self.n_action_steps}` is larger than "
                f"`--policy.chunk_size={self.chunk_size}`"
            )
        for name in ("chunk_size", "n_action_steps", "n_keypoints", "n_channels", "dim_hidden"):
            if getattr(self, name) < 1:
                problems.append(f"`--policy.{name}={getattr(self, name)}` must be at least 1")
        if self.n_channels % 2:
            problems.append(f"`--policy.n_channels={self.n_channels}` must be even: the first layer has half of it")
        for name in ("image_shift", "color_jitter", "state_noise", "motion_frames"):
            if getattr(self, name) < 0:
                problems.append(f"`--policy.{name}={getattr(self, name)}` is negative")
        if self.color_jitter >= 1:
            problems.append(f"`--policy.color_jitter={self.color_jitter}` must be below 1, which leaves one colour")
        if self.input_features and not self.image_features:
            problems.append("the keypoint policy needs at least one camera among its inputs")
        for key, feature in self.image_features.items():
            if len(feature.shape) != 3 or min(feature.shape[1:]) < SMALLEST_PICTURE:
                problems.append(
                    f"`{key}` has shape {tuple(feature.shape)}; the keypoint policy reads pictures (channels, height, "
                    f"width) of at least {SMALLEST_PICTURE} pixels"
                )
        return problems

    def input_problems(self, available: Mapping[str, PolicyFeature]) -> list[str]:
        """Cameras and joint positions that are not offered or have another shape."""
        return fixed_input_problems(self, available)

    @property
    def unread_inputs(self) -> list[str]:
        """Whatever is neither a camera nor `observation.state`."""
        read = {*self.image_features, STATE if self.robot_state_feature is not None else None}
        return [key for key in self.input_features or {} if key not in read]

    def observation_deltas(self, key: str) -> list[int] | None:
        """Joint positions `motion_frames` ago and now; of everything else the current frame, without a time axis."""
        return [-self.motion_frames, 0] if key == STATE and self.motion_frames else None

    @property
    def action_delta_indices(self) -> list[int]:
        """0 .. chunk_size - 1."""
        return list(range(self.chunk_size))

    def optimizer_preset(self) -> AdamWConfig:
        """AdamW; the convolutions and the straight way have their own weight decay in the policy's groups."""
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay)

    def scheduler_preset(self) -> CosineAnnealingWithWarmupConfig:
        """A short warm-up, then a cosine to zero at the end of the run."""
        return CosineAnnealingWithWarmupConfig(num_warmup_steps=self.scheduler_warmup_steps)
