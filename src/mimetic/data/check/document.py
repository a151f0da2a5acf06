"""A report as JSON data, and as JUnit XML for continuous integration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

import numpy as np

from mimetic.data.check.checklist import checklist, propose_split
from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.rules import RULES

FORMAT = 1
_PICTURES = ("thumbnails", "comparisons")


def to_json(report: CheckReport) -> dict[str, Any]:
    """Everything in a report but pictures, as JSON data."""
    split = propose_split(report)
    return {
        "format": FORMAT,
        "root": str(report.root),
        "level": report.level,
        "passed": report.passed,
        "grade": report.grade,
        "episodes": list(report.episodes),
        "lengths": list(report.lengths),
        "fps": report.fps,
        "seconds": round(report.seconds, 3),
        "findings": [_finding(finding) for finding in report.findings],
        "rules": list(report.rules),
        "keep": list(report.keep),
        "checklist": [asdict(answer) for answer in checklist(report)],
        "split": None if split is None else asdict(split),
        "measures": {name: [_number(value) for value in values] for name, values in report.measures.items()},
        "facts": {name: _plain(value) for name, value in report.facts.items() if name not in _PICTURES},
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding),
        "claim": str(finding.claim),
        "episodes": list(finding.episodes),
        "spans": [list(span) for span in finding.spans],
    }


def _number(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def to_junit(report: CheckReport, *, fail_on: Claim = Claim.DEFECT) -> str:
    """One test case a rule: failed by findings that count, skipped where it could not be applied.

    Args:
        report: what was found.
        fail_on: with RISK, risks fail, too.
    """
    failing = (Claim.DEFECT, Claim.RISK) if fail_on is Claim.RISK else (Claim.DEFECT,)
    by_rule: dict[str, list[Finding]] = {rule: [] for rule in RULES}
    for finding in report.findings:
        by_rule.setdefault(finding.id, []).append(finding)
    cases: list[ElementTree.Element] = []
    failures = skipped = 0
    for rule, findings in by_rule.items():
        bad = [finding for finding in findings if finding.claim in failing and not finding.accepted]
        unchecked = [finding for finding in findings if finding.claim is Claim.NOT_CHECKED]
        if rule not in report.rules and not findings:
            continue
        case = ElementTree.Element("testcase", classname=f"dataset.{rule.split('.')[0]}", name=rule)
        if bad:
            failures += 1
            failure = ElementTree.SubElement(case, "failure", message=_clean(bad[0].message), type=str(bad[0].claim))
            failure.text = _clean("\n".join(f"{finding.message}\n{finding.repair}".strip() for finding in bad))
        elif unchecked and rule not in report.rules:
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=_clean(unchecked[0].message))
        notes = [finding for finding in findings if finding not in bad and finding.claim is not Claim.NOT_CHECKED]
        if notes:
            out = ElementTree.SubElement(case, "system-out")
            out.text = _clean("\n".join(_note(finding) for finding in notes))
        cases.append(case)
    suite = ElementTree.Element(
        "testsuite",
        name="mimetic dataset check",
        tests=str(len(cases)),
        failures=str(failures),
        errors="0",
        skipped=str(skipped),
        time=f"{report.seconds:.3f}",
    )
    suite.extend(cases)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _note(finding: Finding) -> str:
    return f"{finding.claim}: {finding.message}" + (f" (accepted: {finding.accepted})" if finding.accepted else "")


def _clean(text: str) -> str:
    """Without the control characters that XML cannot hold; task strings may hold anything."""
    return "".join(char for char in text if char in "\t\n" or (ord(char) >= 32 and not 0xD800 <= ord(char) <= 0xDFFF))
