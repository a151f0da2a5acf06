"""One check of one dataset: reads it once, applies the rules of the level, sorts what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.consistency import check_neighbours
from mimetic.data.check.data_rules import check_data
from mimetic.data.check.expected import accept, read_expected
from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.follow_rules import check_following
from mimetic.data.check.habit_rules import check_habits
from mimetic.data.check.meta_rules import check_files, check_ledger, check_rows_against_ledger
from mimetic.data.check.motion import prepare
from mimetic.data.check.motion_rules import check_motion
from mimetic.data.check.pictures.run import PictureChecks
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.policy_rules import check_policy
from mimetic.data.check.results import Results
from mimetic.data.check.review import check_review
from mimetic.data.check.rules import RULES
from mimetic.data.check.source import CheckSource, open_source
from mimetic.data.check.state_rules import check_state
from mimetic.data.check.stats_rules import check_statistics
from mimetic.data.check.task_rules import check_tasks
from mimetic.data.check.time_rules import check_clocks, check_times
from mimetic.data.check.unreadable import Part
from mimetic.data.check.variety_rules import check_amount, check_variety
from mimetic.data.check.video_rules import check_videos

LEVELS = ("quick", "rows", "video", "full")
_ORDER = {Claim.DEFECT: 0, Claim.RISK: 1, Claim.FACT: 2, Claim.NOT_CHECKED: 3}
_SAME_FAULT = {
    "meta.video_span": ("meta.video_span", "meta.video_file"),
    "image.damaged": ("meta.video_file",),
    "data.image_shape": ("data.image_shape",),
}
"""Rule of the pictures -> rules by which the same fault was found in the headers already."""

PictureCheck = Callable[[CheckSource], PictureChecks]


def check_dataset(
    root: Path,
    *,
    level: str = "rows",
    needs: PolicyNeeds | None = None,
    pictures: PictureCheck | None = None,
    expected: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Check a dataset.

    Args:
        root: folder of the dataset, v3.0 or v2.x.
        level: `quick` (metadata only), `rows`, `video` (rows, and a sample of the pictures) or `full`.
        needs: the policy that will be trained; its rules are not checked without it.
        pictures: looks at the pictures, for the levels `video` and `full`.
        expected: file of accepted findings; the dataset's own without it.
        say: told what is being done.

    Returns:
        What was found; nothing that is wrong with the dataset is raised.

    Raises:
        DatasetNotFound: there is no dataset.
        ConfigError: the file of accepted findings is not there.
        DatasetFormatError: the file of accepted findings is damaged.
    """
    began = time.perf_counter()
    accepted = read_expected(Path(root).expanduser(), expected)
    with_rows = level != "quick"
    say("reading the rows" if with_rows else "reading the metadata")
    source = open_source(root, with_rows=with_rows)
    results = Results(source.root)
    _check_meta(source, results, with_rows=with_rows)
    if with_rows:
        say("checking the rows")
        _check_rows(source, results, needs=needs, full=level == "full", say=say)
    else:
        _skip_rows(results)
    say("checking tasks and statistics")
    check_tasks(source, results)
    check_amount(source, results)
    check_statistics(source, results, needs)
    check_policy(source, results, needs)
    if pictures is not None and source.camera_keys:
        say("looking at the pictures")
        _add_pictures(pictures(source), results)
    return _report(source, results, level, accepted, time.perf_counter() - began)


def _check_meta(source: CheckSource, results: Results, *, with_rows: bool) -> None:
    check_files(source, results)
    check_ledger(source, results)
    if with_rows:
        check_rows_against_ledger(source, results)
    check_videos(source, results, with_headers=with_rows)
    for item in source.lost(Part.CLOCKS):
        results.skip("time.true_rate", f"`{source.relative(item.path)}` cannot be read: {item.reason}")


def _check_rows(
    source: CheckSource,
    results: Results,
    *,
    needs: PolicyNeeds | None,
    full: bool,
    say: Callable[[str], None],
) -> None:
    check_data(source, results)
    check_times(source, results)
    check_clocks(source, results)
    if source.rows is None or not len(source.rows.episode):
        skipped = [rule for rule in RULES if rule.split(".")[0] in ("action", "state", "motion", "gripper", "variety")]
        results.skip([*skipped, "consistency.neighbours"], "there are no rows that could be read")
        return
    say("measuring the motion")
    motion = prepare(source, results)
    check_state(motion, results)
    check_following(motion, results)
    check_motion(motion, results, chunk=needs.chunk if needs is not None and needs.chunk > 1 else None)
    check_habits(motion, results)
    say("comparing the episodes")
    check_variety(motion, results)
    if full:
        say("comparing similar situations")
        check_neighbours(motion, results)
    else:
        results.skip("consistency.neighbours", "it takes minutes; --full looks for it")
    check_review(source, results)


def _skip_rows(results: Results) -> None:
    groups = ("data", "time", "action", "state", "motion", "gripper", "variety", "consistency", "review", "units")
    facts = ("action.semantics", "gripper.channel", "units.inferred", "variety.amount", "variety.balance")
    rules = [rule for rule in RULES if rule.split(".")[0] in groups and rule not in facts]
    results.skip(["meta.data_file", "meta.orphans", *rules], "--quick reads the metadata only")


def _add_pictures(found: PictureChecks, results: Results) -> None:
    told = [finding for finding in results.findings if finding.claim is not Claim.NOT_CHECKED]
    for finding in found.findings:
        same = _SAME_FAULT.get(finding.id, ())
        if any(
            other.id in same
            and other.feature == finding.feature
            and (not finding.episodes or not other.episodes or set(finding.episodes) & set(other.episodes))
            for other in told
        ):
            continue
        results.findings.append(finding)
        if finding.claim is not Claim.NOT_CHECKED:
            results.applied[finding.id] = None
    results.measures.update(found.measures)
    results.facts["pictures"] = found.facts
    results.facts["thumbnails"] = found.thumbnails
    results.facts["comparisons"] = found.comparisons
    results.applied.update(dict.fromkeys(found.rules))


def _report(source: CheckSource, results: Results, level: str, accepted: Sequence[Any], seconds: float) -> CheckReport:
    findings = sorted(accept(results.findings, accepted), key=lambda item: (_ORDER[item.claim], item.id))
    episodes = source.episodes.tolist()
    facts = {**_inventory(source), **results.facts}
    report = CheckReport(
        root=source.root,
        level=level,
        episodes=episodes,
        lengths=source.lengths.tolist(),
        fps=source.fps,
        findings=findings,
        rules=sorted(results.applied),
        measures=_full_length(results.measures, len(episodes)),
        facts=facts,
        seconds=seconds,
    )
    bad = {episode for finding in report.defects for episode in finding.episodes}
    return replace(report, keep=[episode for episode in episodes if episode not in bad])


def _full_length(measures: Mapping[str, npt.NDArray[np.float64]], count: int) -> dict[str, npt.NDArray[np.float64]]:
    return {name: values for name, values in measures.items() if len(values) == count}


def _inventory(source: CheckSource) -> dict[str, Any]:
    lengths = source.lengths
    return {
        "name": source.root.resolve().name,
        "version": "" if source.info is None else f"v{source.info.version[0]}.{source.info.version[1]}",
        "robot_type": None if source.info is None else source.info.robot_type,
        "fps": source.fps,
        "frames": int(lengths.sum()),
        "duration_s": round(float(lengths.sum()) / source.fps, 3) if source.fps else 0.0,
        "camera_keys": source.camera_keys,
    }


def keep_list(report: CheckReport, drop: Sequence[str] = ()) -> list[int]:
    """Episodes without a defect that counts, and without the named risks.

    Args:
        report: what a check found.
        drop: ids of risks whose episodes go, too.
    """
    bad = {
        episode
        for finding in report.findings
        if finding.id in drop and finding.claim in (Claim.RISK, Claim.DEFECT) and not finding.accepted
        for episode in finding.episodes
    }
    return [episode for episode in report.keep if episode not in bad]


def worst_claim(findings: Sequence[Finding]) -> Claim | None:
    """The most serious class among findings that were not accepted; None without defects and risks."""
    claims = {finding.claim for finding in findings if not finding.accepted}
    return next((claim for claim in (Claim.DEFECT, Claim.RISK) if claim in claims), None)
