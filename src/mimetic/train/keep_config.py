"""Which checkpoints stay on the disk, and when a run ends early (`--keep.*`, `--early_stop.*`)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Which checkpoints stay; a checkpoint that any rule keeps stays, and without a rule all stay."""

    last: int = setting(0, "Keep the newest N checkpoints; 0 keeps all", layer="mimetic", unit="checkpoints")
    best: int = setting(
        0,
        "Keep the N checkpoints of lowest held-out loss, and let `checkpoints/best` name the lowest; needs "
        "--eval_steps. A measurement that is better than all before is saved at once",
        layer="mimetic",
        unit="checkpoints",
    )
    every: int = setting(
        0, "With `last` or `best`: keep also each checkpoint of a multiple of this step", layer="mimetic", unit="steps"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [
            f"`--keep.{name}={getattr(self, name)}` must be at least 0"
            for name in ("last", "best", "every")
            if getattr(self, name) < 0
        ]


@dataclass(frozen=True, kw_only=True)
class EarlyStopConfig:
    """Ending a run whose held-out loss does not fall any more."""

    patience: int = setting(
        0,
        "End the run after this many measurements of the held-out loss in a row without a new lowest one; 0 never "
        "does. Needs --eval_steps",
        layer="mimetic",
        unit="measurements",
    )
    min_delta: float = setting(0.0, "How much lower a loss must be to count as a new lowest one", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.patience < 0:
            problems.append(f"`--early_stop.patience={self.patience}` must be at least 0")
        if not self.min_delta >= 0:
            problems.append(f"`--early_stop.min_delta={self.min_delta}` must be at least 0")
        return problems
