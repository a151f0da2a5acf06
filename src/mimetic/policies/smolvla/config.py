"""Settings of SmolVLA, in the order of `config.json` (spec/smolvla.md 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.fields import carried, setting
from mimetic.names import IMAGES_PREFIX, STATE
from mimetic.optim.config import AdamWConfig, CosineDecayWithWarmupConfig
from mimetic.policies.config import PolicyConfig
from mimetic.policies.fixed_inputs import fixed_input_problem
from mimetic.policies.smolvla.checks import ATTENTION_MODES, PADDINGS, PRECISIONS, layer_problems, setting_problems

if TYPE_CHECKING:
    from mimetic.processing.pipeline import Pipeline
    from mimetic.processing.stats import Stats

DEFAULT_VLM = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
_FILLER_SHAPE = (3, 480, 640)
RTC_SCHEDULES = ("ZEROS", "ONES", "LINEAR", "EXP")


def _normalization() -> dict[str, NormalizationMode]:
    return {
        "VISUAL": NormalizationMode.IDENTITY,
        "STATE": NormalizationMode.MEAN_STD,
        "ACTION": NormalizationMode.MEAN_STD,
    }


@dataclass(frozen=True, kw_only=True)
class RTCConfig:
    """Real-time chunking: a new chunk is guided towards what is left of the one before (spec/smolvla.md 7.4)."""

    # The LeRobot after 0.6.1 also has a mode "trained", which it refuses for SmolVLA.
    neutral_unknown: ClassVar[Mapping[str, Any]] = {"mode": "guided"}

    enabled: bool = setting(True, "Guide each chunk by what is left of the one before")
    prefix_attention_schedule: str = setting(
        "LINEAR", "How the guidance fades over the old chunk", choices=RTC_SCHEDULES
    )
    max_guidance_weight: float = setting(10.0, "Largest weight of the guidance")
    execution_horizon: int = setting(10, "Actions over which the guidance fades", unit="frames")
    debug: bool = setting(False, "Accepted for LeRobot's sake; nothing is recorded")
    debug_maxlen: int = setting(100, "Accepted for LeRobot's sake")

    def problems(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        found = [
            f"`--policy.rtc_config.{name}={getattr(self, name)}` must be above 0"
            for name in ("max_guidance_weight", "execution_horizon", "debug_maxlen")
            if not 0 < getattr(self, name) < math.inf
        ]
        if self.prefix_attention_schedule not in RTC_SCHEDULES:
            found.append(
                f"`--policy.rtc_config.prefix_attention_schedule={self.prefix_attention_schedule}` "
                f"must be one of {', '.join(RTC_SCHEDULES)}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(PolicyConfig):
    """SmolVLA: a small vision-language model with an action expert that predicts chunks by flow matching.

    Source: Shukor et al., SmolVLA: A Vision-Language-Action Model for Affordable and Efficient Robotics, 2025;
    spec/smolvla.md.
    """

    type_name: ClassVar[str] = "smolvla"
    reads_instructions: ClassVar[bool] = True
    step_settings: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "tokenizer_processor": {
            "max_length": "tokenizer_max_length",
            "padding": "pad_language_to",
            "tokenizer_name": "vlm_model_name",
        }
    }
    neutral_unknown: ClassVar[Mapping[str, Any]] = {}

    chunk_size: int = setting(50, "Actions predicted at once", unit="frames")
    n_action_steps: int = setting(50, "Actions executed before the next prediction, at most chunk_size", unit="frames")
    normalization_mapping: dict[str, NormalizationMode] = setting(
        factory=_normalization, help="Normalisation mode by feature type; a type that is absent is not normalised"
    )
    max_state_dim: int = setting(32, "Width to which joint positions are padded with zeros")
    max_action_dim: int = setting(32, "Width to which actions are padded with zeros")
    resize_imgs_with_padding: tuple[int, int] | None = setting(
        (512, 512), "Width and height of the camera frames as the model sees them; square", unit="pixels"
    )
    empty_cameras: int = setting(0, "Absent cameras that LeRobot fills with masked frames; mimetic skips these frames")
    adapt_to_pi_aloha: bool = setting(False, "Convert joints between the ALOHA robot and the pi models; 14 dimensions")
    use_delta_joint_actions_aloha: bool = setting(False, "Not usable in LeRobot either; must be false")
    tokenizer_max_length: int = setting(48, "Tokens of the task at most", unit="tokens")
    num_steps: int = setting(10, "Euler steps from noise to actions")
    use_cache: bool = setting(True, "Compute the prefix once for all Euler steps; must be true")
    freeze_vision_encoder: bool = setting(True, "Keep the vision transformer as it is")
    train_expert_only: bool = setting(True, "Keep the whole vision-language model as it is")
    train_state_proj: bool = setting(True, "Train the projection of the joint positions")
    optimizer_lr: float = setting(1e-4, "Learning rate of the preset")
    optimizer_betas: tuple[float, float] = setting((0.9, 0.95), "Decay of the running means of AdamW in the preset")
    optimizer_eps: float = setting(1e-8, "Epsilon of AdamW in the preset")
    optimizer_weight_decay: float = setting(1e-10, "Weight decay of the preset")
    # LeRobot's default is a whole number, which its files show.
    optimizer_grad_clip_norm: int | float = setting(10, "Largest L2 norm of the gradient in the preset")
    scheduler_warmup_steps: int = setting(1000, "Steps of linear warm-up in the preset", unit="steps")
    scheduler_decay_steps: int = setting(
        30_000, "Step at which the preset's learning rate reaches its floor; a shorter run shortens it", unit="steps"
    )
    scheduler_decay_lr: float = setting(2.5e-6, "Floor of the preset's learning rate")
    vlm_model_name: str = setting(DEFAULT_VLM, "Vision-language model under the policy: a folder or a hub id")
    # False in LeRobot, which by default freezes a vision-language model with random weights (spec 17.4).
    load_vlm_weights: bool = setting(
        True, "Load the vision-language model's own weights into a new policy; no effect when a checkpoint is loaded"
    )
    add_image_special_tokens: bool = setting(False, "Put marker tokens around the tokens of each camera")
    attention_mode: str = setting(
        "cross_attn", "How the expert reads the vision-language model", choices=ATTENTION_MODES
    )
    prefix_length: int = setting(-1, "Tokens to which LeRobot pads the prefix; without influence on the actions")
    pad_language_to: str = setting("longest", "Padding of the task's tokens within a batch", choices=PADDINGS)
    num_expert_layers: int = setting(-1, "Layers of the expert; 0 or less: as many as of the vision-language model")
    num_vlm_layers: int = setting(16, "Layers of the vision-language model that are used; 0 or less: all")
    self_attn_every_n_layers: int = setting(
        2, "Every n-th layer attends jointly instead of across; 0 or less: none does"
    )
    expert_width_multiplier: float = setting(0.75, "Width of the expert as a share of the vision-language model's")
    min_period: float = setting(4e-3, "Shortest period of the embedding of the flow time")
    max_period: float = setting(4.0, "Longest period of the embedding of the flow time")
    rtc_config: RTCConfig | None = setting(None, "Real-time chunking; null: every chunk for itself")
    compile_model: bool = setting(False, "Compile the model")
    compile_mode: str = setting("max-autotune", "How hard the compiler tries")
    precision: Literal["auto", "mixed", "released", "float32"] = setting(
        "auto",
        "Numbers of the model: mixed (frozen weights bfloat16, trained ones float32), released (LeRobot's dtypes), "
        "float32; auto chooses by the device",
        choices=PRECISIONS,
        layer="mimetic",
    )
    noise_draws: int = setting(
        1,
        "Draws of noise and flow time for each sample of a training batch; the camera frames are read once",
        layer="mimetic",
    )
    int8: bool = setting(
        False,
        "Run the frozen vision-language model in 8-bit integers on a CPU; changes the actions slightly",
        layer="mimetic",
    )
    backbone_folder: Path | None = carried(None)
    """Checkpoint folder that may hold `backbone/` and `tokenizer/`; set by `located`."""

    def check(self) -> list[str]:
        """Problems of this config, one sentence each."""
        return super().check() + setting_problems(self)

    def layer_problems(self, vlm_layers: int) -> list[str]:
        """What is wrong with the expert's layers beside a vision-language model of which `vlm_layers` are used."""
        return layer_problems(self, vlm_layers)

    def input_problems(self, available: Mapping[str, PolicyFeature]) -> list[str]:
        """Inputs that are missing or have another width: SmolVLA needs its state and one of its cameras or more.

        Cameras may have any size, because every frame is resized.
        """
        problems = []
        cameras = [key for key in self.image_features if key not in self.filler_inputs]
        if cameras and not any(_is_camera(available.get(key)) for key in cameras):
            listed = ", ".join(f"`{key}`" for key in cameras)
            problems.append(f"the policy reads one or more of the cameras {listed}, and the dataset has none of them")
        state = self.robot_state_feature
        if state is not None and (problem := fixed_input_problem(STATE, state, available)):
            problems.append(problem)
        return problems

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
        """New pipelines, with steps that turn the task's words into tokens."""
        from mimetic.policies.smolvla.pipelines import smolvla_pipelines

        return smolvla_pipelines(
            self,
            input_features=input_features,
            output_features=output_features,
            norm_map=norm_map,
            stats=stats,
            device=device,
            rename_map=rename_map,
            exact=exact,
            where=where,
        )

    def located(self, folder: Path) -> Self:
        """These settings, with the checkpoint's folder in which the backbone's sizes and tokenizer may lie."""
        return replace(self, backbone_folder=folder)

    @property
    def lora_targets(self) -> str:
        """Queries and values of the expert, and all projections: 37 layers of the published model (spec 13)."""
        return (
            r"(model\.vlm_with_expert\.lm_expert\..*\.(q|v)_proj"
            r"|model\.(state_proj|action_in_proj|action_out_proj|action_time_mlp_in|action_time_mlp_out))"
        )

    @property
    def has_camera_slots(self) -> bool:
        """True: the model tells cameras apart by their order only, resizes their frames, and pads the state."""
        return True

    def frame_size(self, height: int, width: int) -> tuple[int, int] | None:
        """The part of `resize_imgs_with_padding` that a frame fills; the rest of it is padding."""
        if self.resize_imgs_with_padding is None:
            return None
        return fitted_size(height, width, *self.resize_imgs_with_padding)

    @property
    def filler_inputs(self) -> dict[str, PolicyFeature]:
        """The entries that LeRobot adds for `empty_cameras` (spec/smolvla.md 2)."""
        names = [f"{IMAGES_PREFIX}empty_camera_{i}" for i in range(self.empty_cameras)]
        return {name: PolicyFeature(FeatureType.VISUAL, _FILLER_SHAPE) for name in names}

    @property
    def noise_shape(self) -> tuple[int, int]:
        """Chunk and padded action dimensions."""
        return (self.chunk_size, self.max_action_dim)

    @property
    def action_delta_indices(self) -> list[int]:
        """0 .. chunk_size - 1."""
        return list(range(self.chunk_size))

    def optimizer_preset(self) -> AdamWConfig:
        """AdamW with one group."""
        return AdamWConfig(
            lr=self.optimizer_lr,
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
        )

    def scheduler_preset(self) -> CosineDecayWithWarmupConfig:
        """Warm-up and cosine decay, both shortened with a shorter run."""
        return CosineDecayWithWarmupConfig(
            num_warmup_steps=self.scheduler_warmup_steps,
            num_decay_steps=self.scheduler_decay_steps,
            peak_lr=self.optimizer_lr,
            decay_lr=self.scheduler_decay_lr,
        )


def _is_camera(feature: PolicyFeature | None) -> bool:
    return feature is not None and feature.type is FeatureType.VISUAL


def fitted_size(height: int, width: int, wanted_width: int, wanted_height: int) -> tuple[int, int]:
    """Height and width of a frame that is fitted into a rectangle, keeping its shape [pixels]."""
    if (height, width) == (wanted_height, wanted_width):
        return height, width
    ratio = max(width / wanted_width, height / wanted_height)
    return int(height / ratio), int(width / ratio)
