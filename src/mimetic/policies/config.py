"""Settings that every policy has, in the order of `config.json` (spec/policies.md 2).

A policy's config declares its needs as plain values, so that no other room knows a policy by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.names import ACTION, STATE
from mimetic.optim.config import OptimizerConfig, SchedulerConfig


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Base of all policy configs."""

    type_name: ClassVar[str] = ""
    """Name in `--policy.type` and `config.json`."""
    neutral_unknown: ClassVar[Mapping[str, Any]] = {}
    """Fields of newer LeRobot versions and the value at which they change nothing."""

    n_obs_steps: int = setting(1, "Observation frames given to the policy")
    input_features: dict[str, PolicyFeature] | None = setting(
        factory=dict, help="Inputs by name, each with type and shape; taken from the dataset when empty"
    )
    output_features: dict[str, PolicyFeature] | None = setting(
        factory=dict, help="Outputs by name, each with type and shape; taken from the dataset"
    )
    device: str | None = setting(None, "Device such as cpu, cuda, cuda:1, mps or xpu; found automatically when null")
    use_amp: bool = setting(False, "LeRobot's older precision switch; use --accelerator.mixed_precision")
    use_peft: bool = setting(
        False, "Whether the checkpoint is an adapter", not_yet="adapters are not part of mimetic yet"
    )
    push_to_hub: bool = setting(
        True, "Push the trained policy to --policy.repo_id; nothing is pushed without a repo id"
    )
    repo_id: str | None = setting(None, "Hub repository to push to")
    private: bool | None = setting(None, "Whether the pushed repository is private")
    tags: list[str] | None = setting(None, "Tags of the model card")
    license: str | None = setting(None, "Licence of the model card")
    pretrained_path: str | None = setting(None, "Where the starting weights come from; set by --policy.path", flag=True)
    pretrained_revision: str | None = setting(None, "Revision of the starting weights on the hub")

    def check(self) -> list[str]:
        """Problems of this config, one sentence each; subclasses add theirs."""
        return []

    def input_problems(self, available: Mapping[str, PolicyFeature]) -> list[str]:
        """Why this policy, whose inputs are fixed, cannot be fed with what a dataset or robot offers."""
        return []

    @property
    def observation_delta_indices(self) -> list[int] | None:
        """Frame offsets of observations; None: the current frame only, without a time axis."""
        return None

    @property
    def action_delta_indices(self) -> list[int] | None:
        """Frame offsets of the actions that the policy is trained to predict."""
        return None

    @property
    def reward_delta_indices(self) -> list[int] | None:
        """Frame offsets of rewards; None: no rewards."""
        return None

    @property
    def drop_n_last_frames(self) -> int:
        """How many frames at the end of every episode are not used as samples."""
        return 0

    def optimizer_preset(self) -> OptimizerConfig:
        """The policy's own optimiser settings."""
        raise NotImplementedError

    def scheduler_preset(self) -> SchedulerConfig | None:
        """The policy's own learning-rate schedule; None: constant."""
        return None

    @property
    def norm_map(self) -> dict[str, NormalizationMode]:
        """Normalisation mode by feature type name; a type that is absent is not normalised."""
        return dict(getattr(self, "normalization_mapping", {}))

    @property
    def image_features(self) -> dict[str, PolicyFeature]:
        """Cameras in the order of `input_features`, which is part of the model."""
        return {k: f for k, f in (self.input_features or {}).items() if f.type is FeatureType.VISUAL}

    @property
    def robot_state_feature(self) -> PolicyFeature | None:
        """The feature `observation.state`, if it is an input."""
        feature = (self.input_features or {}).get(STATE)
        return feature if feature is not None and feature.type is FeatureType.STATE else None

    @property
    def env_state_feature(self) -> PolicyFeature | None:
        """The first input of type ENV, if any."""
        return next((f for f in (self.input_features or {}).values() if f.type is FeatureType.ENV), None)

    @property
    def env_state_key(self) -> str | None:
        """Name of the first input of type ENV, if any."""
        return next((k for k, f in (self.input_features or {}).items() if f.type is FeatureType.ENV), None)

    @property
    def action_feature(self) -> PolicyFeature | None:
        """The feature `action`, if it is an output."""
        feature = (self.output_features or {}).get(ACTION)
        return feature if feature is not None and feature.type is FeatureType.ACTION else None
