"""Findings for the viewer: of a check that was saved, or of a quick one that runs while people look already."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.run import check_dataset
from mimetic.data.store.atomic import read_json
from mimetic.errors import DatasetFormatError, MimeticError

logger = logging.getLogger(__name__)

_SHOWN = (Claim.DEFECT, Claim.RISK)
_MOST_SPANS = 500


@dataclass
class Marks:
    """What is known of each episode; grows when a check ends.

    Args:
        state: "none", "running", "done" or "failed".
        note: one sentence for people.
        findings: defects and risks.
    """

    state: str = "none"
    note: str = "not checked"
    findings: list[Finding] = field(default_factory=list)

    def episodes(self) -> dict[int, str]:
        """The worst claim by episode; findings on the whole dataset mark none."""
        found: dict[int, str] = {}
        for claim in reversed(_SHOWN):
            for finding in self.findings:
                if finding.claim is claim:
                    found.update(dict.fromkeys(finding.episodes, claim.value))
        return found

    def of(self, episode: int) -> list[dict[str, Any]]:
        """Findings on one episode in JSON data, with their spans of frames."""
        return [
            {
                "id": finding.id,
                "claim": finding.claim.value,
                "message": finding.message,
                "impact": finding.impact,
                "feature": finding.feature,
                "spans": [[first, last] for number, first, last in finding.spans if number == episode][:_MOST_SPANS],
            }
            for finding in self.findings
            if episode in finding.episodes
        ]

    def of_dataset(self) -> list[dict[str, Any]]:
        """Findings that name no episode."""
        return [
            {"id": finding.id, "claim": finding.claim.value, "message": finding.message, "impact": finding.impact}
            for finding in self.findings
            if not finding.episodes
        ]

    def take(self, findings: Iterable[Finding], note: str) -> None:
        """Use the findings of a finished check."""
        self.findings = [item for item in findings if item.claim in _SHOWN and not item.accepted]
        self.state, self.note = "done", note


def read_findings(path: Path) -> list[Finding]:
    """Findings of `mimetic dataset check --json`.

    Raises:
        DatasetFormatError: it is not such a file.
    """
    hint = "write it with `mimetic dataset check --root=FOLDER --json > FILE`"
    try:
        data = read_json(path)
    except DatasetFormatError as error:
        raise DatasetFormatError(error.message, hint) from error
    rows = data.get("findings") if isinstance(data, Mapping) else None
    if not isinstance(rows, list):
        raise DatasetFormatError(f"`{path}` holds no findings", hint)
    found = []
    for row in rows:
        try:
            found.append(
                Finding(
                    id=str(row["id"]),
                    claim=Claim(row["claim"]),
                    message=str(row["message"]),
                    impact=str(row.get("impact") or ""),
                    episodes=tuple(int(episode) for episode in row.get("episodes") or ()),
                    spans=tuple((int(a), int(b), int(c)) for a, b, c in row.get("spans") or ()),
                    feature=str(row.get("feature") or ""),
                    accepted=str(row.get("accepted") or ""),
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetFormatError(f"`{path}` holds a finding that cannot be read: {row!r:.120}") from error
    return found


def check_in_background(root: Path, level: str, marks: Marks) -> threading.Thread:
    """Check the dataset in a thread; `marks` tells how far it is."""
    marks.state, marks.note = "running", "checking ..."

    def run() -> None:
        try:
            report = check_dataset(root, level=level)
        except MimeticError as error:
            marks.state, marks.note = "failed", error.message
            return
        except Exception as error:  # whatever the dataset does to a rule: the page must not wait for ever
            logger.warning("the check of %s failed", root, exc_info=True)
            marks.state, marks.note = "failed", f"the check failed: {type(error).__name__}"
            return
        words = "metadata" if level == "quick" else "metadata and rows"
        marks.take(report.findings, f"checked: {words}, {len(report.rules)} rules")

    thread = threading.Thread(target=run, name="dataset-check", daemon=True)
    thread.start()
    return thread
