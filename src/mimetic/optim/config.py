"""Settings of optimisers and learning-rate schedules (`--optimizer.*`, `--scheduler.*`; spec/training.md 7 and 8).

Field order is the order in `train_config.json`. A choice is stored with its name under the key `type`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What every optimiser has."""

    lr: float = setting(1e-3, "Learning rate")
    weight_decay: float = setting(0.0, "Weight decay")
    grad_clip_norm: float = setting(10.0, "Largest L2 norm of the gradient; 0 or less measures without clipping")


@dataclass(frozen=True, kw_only=True)
class AdamConfig(OptimizerConfig):
    """Adam (`adam`)."""

    betas: tuple[float, float] = setting((0.9, 0.999), "Decay of the running means of gradient and squared gradient")
    eps: float = setting(1e-8, "Added to the denominator")


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """AdamW, with decoupled weight decay (`adamw`)."""

    weight_decay: float = setting(1e-2, "Weight decay")
    betas: tuple[float, float] = setting((0.9, 0.999), "Decay of the running means of gradient and squared gradient")
    eps: float = setting(1e-8, "Added to the denominator")


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent (`sgd`)."""

    momentum: float = setting(0.0, "Momentum")
    dampening: float = setting(0.0, "Dampening of the momentum")
    nesterov: bool = setting(False, "Nesterov momentum")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What every schedule has: nothing but a name."""


@dataclass(frozen=True, kw_only=True)
class DiffuserSchedulerConfig(SchedulerConfig):
    """The named schedules of the diffusers library (`diffuser`)."""

    num_warmup_steps: int | None = setting(None, "Steps of linear warm-up")
    name: str = setting(
        "cosine",
        "Shape after the warm-up",
        choices=(
            "linear",
            "cosine",
            "cosine_with_restarts",
            "polynomial",
            "constant",
            "constant_with_warmup",
            "piecewise_constant",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class VQBeTSchedulerConfig(SchedulerConfig):
    """Constant, then warm-up, then cosine (`vqbet`)."""

    num_warmup_steps: int = setting(help="Steps of linear warm-up")
    num_vqvae_training_steps: int = setting(help="Steps at the full rate before the warm-up")
    num_cycles: float = setting(0.5, "Cosine cycles after the warm-up")


@dataclass(frozen=True, kw_only=True)
class CosineDecayWithWarmupConfig(SchedulerConfig):
    """Warm-up, then a cosine down to a floor (`cosine_decay_with_warmup`)."""

    num_warmup_steps: int = setting(help="Steps of linear warm-up")
    num_decay_steps: int = setting(
        help="Step at which the floor is reached; shortened with the warm-up when the run is shorter"
    )
    peak_lr: float = setting(help="Peak of the curve")
    decay_lr: float = setting(help="Floor of the curve")


@dataclass(frozen=True, kw_only=True)
class ConstantWithWarmupConfig(SchedulerConfig):
    """Warm-up, then constant (`constant_with_warmup`)."""

    num_warmup_steps: int = setting(1000, "Steps of linear warm-up")


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingWithWarmupConfig(SchedulerConfig):
    """Warm-up, then a cosine to zero at the end of the run (`cosine_annealing_with_warmup`)."""

    num_warmup_steps: int = setting(help="Steps of linear warm-up")


def as_kwargs(config: Any) -> dict[str, Any]:
    """Fields of an optimiser config that torch's constructor takes (all but the clipping norm)."""
    from dataclasses import fields

    return {item.name: getattr(config, item.name) for item in fields(config) if item.name != "grad_clip_norm"}
