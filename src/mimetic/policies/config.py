"""Settings that every policy has, in the order of `config.json` (spec/policies.md 2).

A policy's config declares its needs as plain values, so that no other room knows a policy by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.names import ACTION, STATE
from mimetic.optim.config import OptimizerConfig, SchedulerConfig

if TYPE_CHECKING:
    from mimetic.processing.pipeline import Pipeline
    from mimetic.processing.stats import Stats


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Base of all policy configs."""

    type_name: ClassVar[str] = ""
    """Name in `--policy.type` and `config.json`."""
    neutral_unknown: ClassVar[Mapping[str, Any]] = {}
    """Fields of newer LeRobot versions and the value at which they change nothing."""
    reads_instructions: ClassVar[bool] = False
    """Whether the policy reads the text of the task."""
    step_settings: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Stored processing step -> its argument -> the setting here that it was made from."""

    n_obs_steps: int = setting(1, "Observation frames given to the policy")
    input_features: dict[str, PolicyFeature] | None = setting(
        factory=dict, help="Inputs by name, each with type and shape; taken from the dataset when empty"
    )
    output_features: dict[str, PolicyFeature] | None = setting(
        factory=dict, help="Outputs by name, each with type and shape; taken from the dataset"
    )
    device: str | None = setting(None, "Device such as cpu, cuda, cuda:1, mps or xpu; found automatically when null")
    use_amp: bool = setting(False, "LeRobot's older precision switch; use --accelerator.mixed_precision")
    use_peft: bool = setting(False, "Whether the checkpoint is an adapter; set by training with --peft.*")
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

    def located(self, folder: Path) -> Self:
        """These settings as read from a checkpoint's folder, whose companion files they may need."""
        return self

    def make_pipelines(
        self,
        *,
        input_features: Mapping[str, PolicyFeature],
        output_features: Mapping[str, PolicyFeature],
        norm_map: Mapping[str, NormalizationMode],
        stats: Stats,
        device: str = "cpu",
        rename_map: Mapping[str, str] | None = None,
        exact: bool = False,
        where: str = "the dataset's statistics",
    ) -> tuple[Pipeline, Pipeline]:
        """New pipelines before and after the policy; arguments, returns and errors of `standard_pipelines`.

        A policy with steps of its own overrides this, and names the settings that they hold in `step_settings`.
        """
        from mimetic.processing.standard import standard_pipelines

        return standard_pipelines(
            input_features=input_features,
            output_features=output_features,
            norm_map=norm_map,
            stats=stats,
            device=device,
            rename_map=rename_map,
            exact=exact,
            where=where,
        )

    @property
    def has_camera_slots(self) -> bool:
        """Whether cameras are told apart by their order only and may have any size, and the state is padded.

        Cameras of a dataset under other names are then matched to the policy's (`policies/cameras.py`).
        """
        return False

    def frame_size(self, height: int, width: int) -> tuple[int, int] | None:
        """Height and width to which the policy itself resizes a camera frame, bilinearly and without antialiasing;
        frames of that size stay as they are. None: it reads frames in their own size.
        """
        return None

    @property
    def filler_inputs(self) -> Mapping[str, PolicyFeature]:
        """Inputs that stand in `input_features` for nothing that a dataset or robot could offer."""
        return {}

    @property
    def unread_inputs(self) -> list[str]:
        """Inputs that stand in `input_features`, as a dataset gave them, and that the policy never looks at."""
        return []

    @property
    def lora_targets(self) -> str | None:
        """Regular expression for the layers that get an adapter when `--peft.target_modules` is null."""
        return None

    @property
    def observation_delta_indices(self) -> list[int] | None:
        """Frame offsets of observations; None: the current frame only, without a time axis."""
        return None

    def observation_deltas(self, key: str) -> list[int] | None:
        """Frame offsets of one observation, by its name: those of all, where a policy does not say otherwise."""
        return self.observation_delta_indices

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
    def noise_shape(self) -> tuple[int, ...] | None:
        """Shape of the noise that one sample's prediction starts from, and `predict_chunk` takes as `noise`."""
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
