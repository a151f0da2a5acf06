"""Which checkpoints stay on the disk, and when a run ends early (`--keep.*`, `--early_stop.*`)."""

from __future__ import annotations

import math
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
        problems = [
            f"`--keep.{name}={getattr(self, name)}` must be at least 0"
            for name in ("last", "best", "every")
            if getattr(self, name) < 0
        ]
        if self.every > 0 and not (self.last or self.best):
            problems.append(
                f"`--keep.every={self.every}` has no effect alone, since every checkpoint stays then; "
                "add `--keep.last=1` to remove those in between"
            )
        return problems


@dataclass(frozen=True, kw_only=True)
class EarlyStopConfig:
    """Ending a run whose held-out loss does not fall any more."""

    patience: int = setting(
        0,
        "End the run, with a checkpoint and exit code 0, after this many measurements of the held-out loss in a row "
        "that have not fallen; 0 never does. Needs --eval_steps",
        layer="mimetic",
        unit="measurements",
    )
    min_delta: float = setting(
        0.0,
        "How much the loss must fall for `patience` to count from 0 again; the best checkpoint is the lowest anyway",
        layer="mimetic",
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.patience < 0:
            problems.append(f"`--early_stop.patience={self.patience}` must be at least 0")
        if not 0 <= self.min_delta < math.inf:
            problems.append(f"`--early_stop.min_delta={self.min_delta}` must be at least 0 and finite")
        return problems
