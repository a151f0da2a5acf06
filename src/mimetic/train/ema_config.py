"""Settings of the averaged weights (`--ema.*`, spec/training.md 2.9 and 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """An exponential moving average of the weights, kept beside them."""

    enable: bool = setting(
        False,
        "Keep a moving average of the weights; each checkpoint holds it as a policy of its own, pretrained_model_ema/",
        layer="next",
    )
    decay: float | None = setting(
        None, "Constant share of the old average that stays at an update; null warms it up", layer="next"
    )
    update_after_step: int = setting(0, "Updates during which the average just copies the weights", layer="next")
    inv_gamma: float = setting(1.0, "Warm-up: decay = 1 - (1 + updates / inv_gamma) ^ -power", layer="next")
    power: float = setting(0.75, "Warm-up: see inv_gamma; 2/3 suits a million updates, 3/4 fewer", layer="next")
    min_decay: float = setting(0.0, "Smallest decay of the warm-up", layer="next")
    max_decay: float = setting(0.9999, "Largest decay of the warm-up", layer="next")
    use_for_eval: bool = setting(True, "Evaluate the average instead of the weights during training", layer="next")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        for name in ("decay", "min_decay", "max_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                problems.append(f"`--ema.{name}={value}` must be between 0 and 1")
        if self.min_decay > self.max_decay:
            problems.append(f"`--ema.min_decay={self.min_decay}` is above `--ema.max_decay={self.max_decay}`")
        if self.update_after_step < 0:
            problems.append(f"`--ema.update_after_step={self.update_after_step}` must be at least 0")
        for name in ("inv_gamma", "power"):
            if not 0 < getattr(self, name) < math.inf:
                problems.append(f"`--ema.{name}={getattr(self, name)}` must be above 0 and finite")
        return problems
