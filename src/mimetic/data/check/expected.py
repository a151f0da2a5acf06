"""Findings that were accepted on purpose: meta/mimetic/expected_findings.json of a dataset, or a file of the user's.

    {"expected": [{"checks": ["action.saturation"], "episodes": [3, 4], "reason": "pressing a button"}]}

Without `episodes` an entry covers every finding of these rules. Accepted findings stay listed and do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimetic.data.check.finding import Finding
from mimetic.data.check.rules import RULES
from mimetic.data.jsonfile import parse_json
from mimetic.data.layout import require_inside
from mimetic.errors import ConfigError, DatasetFormatError

EXPECTED_JSON = "meta/mimetic/expected_findings.json"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Accepted:
    """One entry of the file.

    Args:
        checks: ids of rules.
        episodes: episodes concerned; None for all.
        reason: why these findings are no fault.
    """

    checks: frozenset[str]
    episodes: frozenset[int] | None
    reason: str


def read_expected(root: Path, path: Path | None) -> list[Accepted]:
    """Read the accepted findings of a dataset.

    Args:
        root: folder of the dataset.
        path: a file of the user's, instead of the dataset's own.

    Raises:
        ConfigError: the named file is not there.
        DatasetFormatError: the file is not what is described above.
    """
    place = path if path is not None else require_inside(root, root / EXPECTED_JSON)
    if not place.is_file():
        if path is None:
            return []
        raise ConfigError(f"`--expected={path}` is not there", "it is a JSON file, see docs/guides/check_datasets.md")
    try:
        if place.stat().st_size > _MOST_BYTES:
            raise ValueError("it is too large")
        raw = parse_json(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DatasetFormatError(f"`{place}` cannot be read: {error}", "correct the file, or move it away") from error
    entries = raw.get("expected") if isinstance(raw, Mapping) else raw
    if not isinstance(entries, list):
        raise DatasetFormatError(f"`{place}` must hold a list of accepted findings under `expected`")
    return [_entry(item, number, place) for number, item in enumerate(entries)]


def _entry(item: Any, number: int, place: Path) -> Accepted:
    where = f"entry {number} of `{place}`"
    if not isinstance(item, Mapping):
        raise DatasetFormatError(f"{where} is {item!r:.60} instead of an object")
    checks, episodes, reason = item.get("checks"), item.get("episodes"), item.get("reason")
    if not isinstance(checks, list) or not checks or not all(isinstance(check, str) for check in checks):
        raise DatasetFormatError(f"{where} needs `checks`, a list of rule ids")
    unknown = sorted(check for check in checks if check not in RULES and "." not in check)
    if unknown:
        raise DatasetFormatError(f"{where} names {', '.join(unknown)}, which are no rule ids")
    if episodes is not None and not (isinstance(episodes, list) and all(isinstance(e, int) for e in episodes)):
        raise DatasetFormatError(f"{where}: `episodes` is {episodes!r:.60} instead of a list of episode numbers")
    if not isinstance(reason, str) or not reason.strip():
        raise DatasetFormatError(f"{where} needs a `reason`, so that others know why it is accepted")
    return Accepted(frozenset(checks), None if episodes is None else frozenset(episodes), reason.strip())


def accept(findings: Sequence[Finding], expected: Sequence[Accepted]) -> list[Finding]:
    """Mark accepted findings; one that also concerns other episodes is split in two."""
    result: list[Finding] = []
    for finding in findings:
        result += _accept_one(finding, [item for item in expected if finding.id in item.checks])
    return result


def _accept_one(finding: Finding, expected: Sequence[Accepted]) -> list[Finding]:
    for item in expected:
        if item.episodes is None or (finding.episodes and set(finding.episodes) <= item.episodes):
            return [replace(finding, accepted=item.reason)]
    for item in expected:
        assert item.episodes is not None
        inside = tuple(episode for episode in finding.episodes if episode in item.episodes)
        if inside:
            outside = tuple(episode for episode in finding.episodes if episode not in item.episodes)
            kept = replace(finding, episodes=outside, spans=_of(finding, outside))
            accepted = replace(finding, episodes=inside, spans=_of(finding, inside), accepted=item.reason)
            return [*_accept_one(kept, [other for other in expected if other is not item]), accepted]
    return [finding]


def _of(finding: Finding, episodes: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    return tuple(span for span in finding.spans if span[0] in episodes)
