"""Where the rules put what they find, what they applied, and what they could not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.rules import RULES

MOST_SPANS = 200


class Results:
    """Collects findings; ids that `RULES` does not have are a mistake of the programmer.

    Args:
        root: folder of the dataset, for repair commands.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.findings: list[Finding] = []
        self.applied: dict[str, None] = {}
        self.measures: dict[str, npt.NDArray[np.float64]] = {}
        self.facts: dict[str, Any] = {}

    def apply(self, *ids: str) -> None:
        """Note that rules were applied."""
        for rule in ids:
            assert rule in RULES, rule
            self.applied[rule] = None

    def add(
        self,
        rule: str,
        message: str,
        *,
        claim: Claim | None = None,
        episodes: Iterable[int] = (),
        spans: Sequence[tuple[int, int, int]] = (),
        feature: str = "",
        value: float | str | None = None,
        threshold: float | str | None = None,
        unit: str = "",
        repair: str | None = None,
        impact: str | None = None,
    ) -> None:
        """Add a finding; claim, impact and repair command default to the rule's."""
        entry = RULES[rule]
        claim = entry.claim if claim is None else claim
        mends = entry.mends and claim in (Claim.DEFECT, Claim.RISK)
        self.apply(rule)
        self.findings.append(
            Finding(
                id=rule,
                claim=claim,
                message=message,
                impact=entry.impact if impact is None else impact,
                repair=(self.repair(rule) if mends else "") if repair is None else repair,
                episodes=tuple(sorted({int(episode) for episode in episodes})),
                spans=tuple(spans[:MOST_SPANS]),
                feature=feature,
                value=value,
                threshold=threshold,
                unit=unit,
            )
        )

    def skip(self, rules: str | Iterable[str], reason: str) -> None:
        """Note rules that could not be applied, and why."""
        for rule in [rules] if isinstance(rules, str) else rules:
            assert rule in RULES, rule
            self.findings.append(Finding(id=rule, claim=Claim.NOT_CHECKED, message=reason))

    def repair(self, rule: str) -> str:
        """The command that mends what a rule found."""
        return f"mimetic dataset repair --root={self.root} --only={rule} --apply=true"

    def delete(self, episodes: Iterable[int]) -> str:
        """The command that takes episodes out."""
        numbers = ",".join(str(int(episode)) for episode in sorted(set(episodes)))
        edit = f"mimetic dataset edit --root={self.root} --operation.type=delete_episodes"
        return f"{edit} --operation.episode_indices=[{numbers}]"

    def measure(self, name: str, values: npt.NDArray[np.float64]) -> None:
        """Keep one value an episode."""
        self.measures[name] = np.asarray(values, dtype=np.float64)
