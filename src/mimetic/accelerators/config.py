"""Settings of device use and precision (`--accelerator.*`, spec/training.md 2.9 and 17)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.fields import setting


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
class AcceleratorConfig:
    """Precision and accumulation."""

    mixed_precision: str = setting(
        "no",
        "Precision of forward and backward: float32, or bfloat16 autocast with float32 weights; fp16 is not there yet",
        choices=("no", "bf16", "fp16"),
        layer="next",
    )
    gradient_accumulation: GradientAccumulationConfig = setting(
        factory=GradientAccumulationConfig, help="Gradient accumulation", layer="next"
    )
