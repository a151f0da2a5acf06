"""Settings of device use and precision (`--accelerator.*`, spec/training.md 2.9 and 17)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mimetic.fields import setting

# torch keeps the scale as a float32 and counts the updates since its last change as an int32.
_LARGEST_SCALE = 2.0**127
_LARGEST_INTERVAL = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class GradientAccumulationConfig:
    """How many micro-batches make one optimiser update."""

    steps: int = setting(
        1, "Micro-batches an optimiser update; steps, log_freq and save_freq count micro-batches", layer="next"
    )

    def check(self) -> list[str]:
        """Problems of this group, one sentence each."""
        if self.steps < 1:
            return [f"`--accelerator.gradient_accumulation.steps={self.steps}` must be at least 1"]
        return []


@dataclass(frozen=True, kw_only=True)
class GradScalerConfig:
    """Scaling of the loss in fp16 (`torch.amp.GradScaler`); the other precisions need none."""

    init_scale: float = setting(65536.0, "Factor on the loss at the start of a run", layer="next")
    growth_factor: float = setting(
        2.0, "Factor on the scale after growth_interval updates without an overflow", layer="next"
    )
    backoff_factor: float = setting(0.5, "Factor on the scale after an overflow", layer="next")
    growth_interval: int = setting(2000, "Updates without an overflow until the scale grows", layer="next")
    enabled: bool = setting(
        True,
        "false trains fp16 without scaling: small gradients become zero unseen; only to find out what the scale does",
        layer="mimetic",
    )

    def check(self) -> list[str]:
        """Problems of this group, one sentence each."""
        problems, prefix = [], "--accelerator.grad_scaler"
        if not (0 < self.init_scale < math.inf):
            problems.append(f"`{prefix}.init_scale={self.init_scale}` must be above 0 and finite")
        elif self.init_scale > _LARGEST_SCALE:
            problems.append(f"`{prefix}.init_scale={self.init_scale}` must be at most 2^127, a float32")
        if not (1 < self.growth_factor < math.inf):
            problems.append(f"`{prefix}.growth_factor={self.growth_factor}` must be above 1 and finite")
        if not 0 < self.backoff_factor < 1:
            problems.append(f"`{prefix}.backoff_factor={self.backoff_factor}` must be between 0 and 1")
        if self.growth_interval < 1:
            problems.append(f"`{prefix}.growth_interval={self.growth_interval}` must be at least 1")
        elif self.growth_interval > _LARGEST_INTERVAL:
            problems.append(f"`{prefix}.growth_interval={self.growth_interval}` must be at most {_LARGEST_INTERVAL}")
        return problems


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """`torch.compile` of what is trained."""

    enabled: bool = setting(
        False,
        "Compile the policy's training pass: a minute or more at the start; meant for GPUs, on a CPU steps are hardly "
        "faster",
        layer="next",
    )
    backend: str = setting("inductor", "Backend of torch.compile", layer="next")
    mode: str | None = setting(
        None, "Mode of torch.compile: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs", layer="next"
    )
    regional: bool = setting(
        True,
        "Compile one layer of each repeated kind and use it for all of them, which starts much sooner; false compiles "
        "the whole loss",
        layer="next",
    )


@dataclass(frozen=True, kw_only=True)
class ActivationCheckpointingConfig:
    """What the forward pass keeps for the backward pass."""

    mode: str = setting(
        "none",
        "full keeps only the inputs of each layer and computes the rest again in the backward pass: less memory, the "
        "same gradients, a slower step",
        choices=("none", "full"),
        layer="next",
    )


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Precision, accumulation, compilation."""

    mixed_precision: str = setting(
        "no",
        "Precision of forward and backward: float32, or bfloat16 or float16 autocast with float32 weights; float16 "
        "scales the loss and needs a GPU",
        choices=("no", "bf16", "fp16"),
        layer="next",
    )
    gradient_accumulation: GradientAccumulationConfig = setting(
        factory=GradientAccumulationConfig, help="Gradient accumulation", layer="next"
    )
    grad_scaler: GradScalerConfig = setting(factory=GradScalerConfig, help="Loss scaling, in fp16 only", layer="next")
    compile: CompileConfig = setting(factory=CompileConfig, help="torch.compile", layer="next")
    activation_checkpointing: ActivationCheckpointingConfig = setting(
        factory=ActivationCheckpointingConfig, help="Memory of the backward pass", layer="next"
    )
