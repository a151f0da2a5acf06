"""What a check says about a dataset (spec/dataset_quality.md 1): findings, in classes that are never mixed."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Claim(enum.StrEnum):
    """How much a finding claims."""

    DEFECT = "DEFECT"
    """Objectively wrong: training fails, or learns from wrong data."""
    RISK = "RISK"
    """A sign that often goes with bad results; never a reason to delete by itself."""
    FACT = "FACT"
    """Inventory; neither good nor bad."""
    NOT_CHECKED = "NOT CHECKED"
    """Could not be judged; the message says why. Never a pass."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found.

    Args:
        id: stable name of the rule, such as `meta.ledger`.
        claim: how much it claims.
        message: what was found, one sentence with the numbers.
        impact: what it does to training or to the robot, one sentence.
        repair: the exact command that mends it; empty where none can.
        episodes: `episode_index` of every episode concerned; empty means the whole dataset.
        spans: (episode, first frame, last frame) where it is known more precisely; both ends belong to it.
        feature: camera, feature or channel concerned, such as `action[gripper.pos]`.
        value: what was measured.
        threshold: what it was compared with.
        unit: of both, such as "s" or "px".
        accepted: reason why it was accepted on purpose (the expected-findings file); empty otherwise.
    """

    id: str
    claim: Claim
    message: str
    impact: str = ""
    repair: str = ""
    episodes: tuple[int, ...] = ()
    spans: tuple[tuple[int, int, int], ...] = ()
    feature: str = ""
    value: float | str | None = None
    threshold: float | str | None = None
    unit: str = ""
    accepted: str = ""

    @property
    def counts(self) -> bool:
        """Whether it decides pass or fail: a defect that nobody accepted."""
        return self.claim is Claim.DEFECT and not self.accepted


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Everything that one check of one dataset found.

    Args:
        root: folder of the dataset.
        level: `quick`, `rows`, `video` or `full`.
        episodes: every `episode_index` of the table, in order.
        lengths: frames of each of them.
        fps: declared rate [Hz].
        findings: defects first, then risks, facts, and what was not checked.
        rules: ids of the rules that were applied.
        measures: one value an episode, by name (`idle_head_s`, `sal`, ...), NaN where there is none.
        facts: inventory for tables and charts, JSON data.
        keep: episodes without a defect that counts.
        seconds: how long the check took.
    """

    root: Path
    level: str
    episodes: Sequence[int]
    lengths: Sequence[int]
    fps: int
    findings: Sequence[Finding]
    rules: Sequence[str] = ()
    measures: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    keep: Sequence[int] = ()
    seconds: float = 0.0

    @property
    def defects(self) -> list[Finding]:
        """The findings that decide pass or fail."""
        return [finding for finding in self.findings if finding.counts]

    @property
    def passed(self) -> bool:
        """Whether rules were applied and none of them found a defect that counts."""
        return bool(self.rules) and not self.defects

    @property
    def grade(self) -> int:
        """100 times the share of episodes that the worst class of defects leaves; defects of the whole set give 0."""
        worst, total = 0.0, max(len(self.episodes), 1)
        by_rule: dict[str, set[int]] = {}
        for finding in self.defects:
            by_rule.setdefault(finding.id, set()).update(finding.episodes or self.episodes)
        for concerned in by_rule.values():
            worst = max(worst, len(concerned) / total)
        return round(100 * (1 - worst))
