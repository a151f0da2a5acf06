"""`mimetic dataset check`: what is wrong with a dataset, what is risky, and what could not be checked."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic.cli import output
from mimetic.data.engine.config import EngineConfig
from mimetic.errors import ConfigError, MimeticError
from mimetic.fields import setting
from mimetic.policies.config import PolicyConfig

if TYPE_CHECKING:
    from mimetic.data.check.finding import CheckReport, Finding
    from mimetic.data.check.policy_needs import PolicyNeeds
    from mimetic.data.check.run import PictureCheck

SUMMARY = "Find what is wrong with a dataset before training does: files, rows, clocks, motion, statistics, pictures"
COULD_NOT_RUN = 2
_SWITCHES = ("quick", "video", "full", "json", "propose_split")
_STYLES = {"DEFECT": "red", "RISK": "yellow", "FACT": "cyan", "NOT CHECKED": "bold"}
_WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class DatasetCheckConfig(EngineConfig):
    """Settings of `mimetic dataset check`; the folder may also stand alone, `mimetic dataset check data/pick`."""

    repo_id: str = setting(
        "", "Name of the dataset; without a folder it is looked up as training does", layer="mimetic"
    )
    root: Path | None = setting(None, "Folder of the dataset", layer="mimetic")
    quick: bool = setting(False, "Read the metadata only: seconds for any size", layer="mimetic")
    video: bool = setting(False, "Also look at a sample of the pictures", layer="mimetic")
    full: bool = setting(
        False, "Also look at every picture, and compare actions in similar situations", layer="mimetic"
    )
    policy: PolicyConfig | None = setting(
        None,
        "The policy that will be trained: adds what it needs of the dataset (--policy.type or --policy.path)",
        catalog="mimetic.policies.catalog:POLICIES",
    )
    rename_map: dict[str, str] = setting(factory=dict, help="Dataset feature to policy feature, as for training")
    fail_on: str = setting(
        "defect", "From which class on the exit code is 1", choices=("defect", "risk"), layer="mimetic"
    )
    expected: Path | None = setting(
        None,
        "JSON file of findings that are accepted; without it meta/mimetic/expected_findings.json of the dataset",
        layer="mimetic",
    )
    json: bool = setting(False, "Print JSON instead of text", layer="mimetic")
    junit: Path | None = setting(None, "Also write a JUnit XML file here, for continuous integration", layer="mimetic")
    html: Path | None = setting(None, "Also write a page with charts here", layer="mimetic")
    keep_list: Path | None = setting(
        None, "Write the episodes without a defect here, a JSON list for --dataset.episodes", layer="mimetic"
    )
    drop_risk: list[str] = setting(
        factory=list,
        help="Rule ids, such as motion.idle_head, whose episodes the keep list leaves out, too",
        layer="mimetic",
    )
    propose_split: bool = setting(
        False, "Print flags that hold a whole start situation out of training", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = self.engine_problems()
        if not self.root and not self.repo_id:
            problems.append("no dataset is named: `mimetic dataset check --root=FOLDER`")
        if self.quick and (self.video or self.full):
            problems.append("`--quick` reads no pictures; leave out `--video` and `--full`")
        if self.drop_risk and self.keep_list is None:
            problems.append("`--drop_risk` changes the keep list and needs `--keep_list=FILE`")
        if self.propose_split and self.quick:
            problems.append("`--propose_split` needs the rows; leave out `--quick`")
        return problems

    @property
    def level(self) -> str:
        """`quick`, `rows`, `video` or `full`."""
        return "quick" if self.quick else "full" if self.full else "video" if self.video else "rows"


def main(argv: list[str], *, debug: bool) -> int:
    """Check a dataset and print what was found.

    Args:
        argv: flags; a bare first word is the folder, and `--quick`, `--video`, `--full`, `--json` need no value.
        debug: not used here.

    Returns:
        0; 1 for findings of the class `--fail_on`; 2 when the check could not run.
    """
    from mimetic.config.parse import parse

    parsed = parse(DatasetCheckConfig, with_values(argv), prog="mimetic dataset check", load_policy=load_policy)
    for text in parsed.notes:
        output.note(f"note: {text}")
    try:
        return run(parsed.value)
    except MimeticError as error:
        output.print_error(error)
        return COULD_NOT_RUN


def load_policy(place: str, revision: str | None = None) -> Mapping[str, Any]:
    """Settings of the policy behind `--policy.path`: a folder, a run, or a hub id."""
    from mimetic.policies.own_settings import stored_settings

    return stored_settings(place, revision)


def with_values(argv: Sequence[str]) -> list[str]:
    """The words with a leading bare path, bare switches, and lists without brackets written out."""
    from mimetic.cli.dataset_info import with_root_flag

    words = []
    for word in with_root_flag(argv):
        name, equals, value = word.partition("=")
        if not equals and name.removeprefix("--") in _SWITCHES:
            word = f"{name}=true"
        elif name == "--drop_risk" and equals and not value.startswith("["):
            word = f"{name}=[{value}]"
        words.append(word)
    return words


def run(config: DatasetCheckConfig) -> int:
    """Check, show, write what was asked for; the exit code."""
    from mimetic.data.check.finding import Claim
    from mimetic.data.check.rules import RULES
    from mimetic.data.check.run import check_dataset, keep_list, worst_claim

    unknown = [rule for rule in config.drop_risk if "." not in rule or (rule not in RULES and not _is_image(rule))]
    if unknown:
        from mimetic.catalog import closest_hint

        raise ConfigError(
            f"`--drop_risk={unknown[0]}` is no rule of the check",
            closest_hint(unknown[0], RULES) or "docs/concepts/dataset_checks.md lists them",
        )
    root = config.root
    if root is None:
        from mimetic.data.reader import find_dataset

        root = find_dataset(config.repo_id)
    report = check_dataset(
        root,
        level=config.level,
        needs=describe_policy(config, root),
        pictures=picture_check(config) if config.level in ("video", "full") else None,
        expected=config.expected,
        say=_progress(),
    )
    if config.json:
        from mimetic.data.check.document import to_json

        output.say_json(to_json(report))
    else:
        show(report, fail_on=config.fail_on, propose_split=config.propose_split)
    if config.keep_list is not None:
        _write(config.keep_list, json.dumps(keep_list(report, config.drop_risk)))
        output.note(f"wrote {config.keep_list}")
    if config.junit is not None:
        from mimetic.data.check.document import to_junit

        _write(config.junit, to_junit(report, fail_on=Claim.RISK if config.fail_on == "risk" else Claim.DEFECT))
        output.note(f"wrote {config.junit}")
    if config.html is not None:
        from mimetic.report.dataset_check import write_check_report

        write_check_report(report, config.html)
        output.note(f"wrote {config.html}")
    if not report.rules:
        output.note("no rule could be applied, so nothing is known about this dataset")
        return COULD_NOT_RUN
    worst = worst_claim(report.findings)
    return 1 if worst is Claim.DEFECT or (worst is Claim.RISK and config.fail_on == "risk") else 0


def _is_image(rule: str) -> bool:
    return rule.startswith("image.")


def _progress() -> Callable[[str], None]:
    """Says on a terminal what is being done, in one line that is overwritten."""
    if not sys.stderr.isatty():
        return lambda _: None
    from rich.console import Console

    console = Console(stderr=True)
    return lambda text: console.print(f"{text} ...", end="\r")


def _write(path: Path, text: str) -> None:
    from mimetic.data.store.atomic import write_bytes

    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode("utf-8"))


def picture_check(config: DatasetCheckConfig) -> PictureCheck:
    """What looks at the pictures, in the processes that were asked for."""
    from mimetic.data.check.pictures.run import check_pictures

    return lambda source: check_pictures(source, full=config.full, engine=config)


def describe_policy(config: DatasetCheckConfig, root: Path) -> PolicyNeeds | None:
    """The policy of the command line as plain values; None without one."""
    policy = config.policy
    if policy is None:
        return None
    from mimetic.data.check.source import open_source
    from mimetic.hub.policies import find_policy
    from mimetic.policies.inspection import inspect_checkpoint
    from mimetic.train.needs import policy_needs, trained_fps

    source = open_source(root, with_rows=False)
    problems: tuple[tuple[str, str], ...] = ()
    fps = 0.0
    rename = dict(config.rename_map)
    if policy.pretrained_path is not None:
        folder = find_policy(policy.pretrained_path, revision=policy.pretrained_revision)
        found = inspect_checkpoint(folder)
        problems = tuple(found.problems)
        rename = {**found.rename_map, **rename}
        fps = trained_fps(folder)
    return policy_needs(
        policy,
        source.features,
        name=f"policy `{policy.pretrained_path or policy.type_name}`",
        rename_map=rename,
        tasks=[task for task in source.first_tasks if task],
        fps=fps,
        problems=problems,
    )


def show(report: CheckReport, *, fail_on: str, propose_split: bool) -> None:
    """Print findings by class, the checklist, and the verdict."""
    from mimetic.data.check.checklist import checklist
    from mimetic.data.check.checklist import propose_split as proposed
    from mimetic.data.check.finding import Claim

    facts = report.facts
    seconds = f"{report.seconds:.1f} s"
    output.say(
        f"{report.root}: {len(report.episodes)} episodes, {facts.get('frames', 0)} frames, {report.fps} Hz"
        f"{', ' + facts['robot_type'] if facts.get('robot_type') else ''} (level {report.level}, {seconds})"
    )
    if "length" in facts:
        length = facts["length"]
        output.say(
            f"Episodes have {length['min_frames']} to {length['max_frames']} frames, in the median "
            f"{length['median_frames']:g} ({length['median_s']:g} s)"
        )
    for claim in (Claim.DEFECT, Claim.RISK):
        found = [finding for finding in report.findings if finding.claim is claim and not finding.accepted]
        if found:
            _title(str(claim), len(found))
            for finding in found:
                _show_finding(finding)
    accepted = [finding for finding in report.findings if finding.accepted]
    if accepted:
        _title("ACCEPTED", len(accepted))
        for finding in accepted:
            _wrapped(f"{finding.id}", f"{finding.message} (accepted: {finding.accepted})")
    known = [finding for finding in report.findings if finding.claim is Claim.FACT and not finding.accepted]
    if known:
        _title("FACT", len(known))
        for finding in known:
            _wrapped(finding.id, finding.message)
    _show_unchecked([finding for finding in report.findings if finding.claim is Claim.NOT_CHECKED])
    output.say()
    output.say("Checklist")
    for answer in checklist(report):
        output.say(f"  {answer.question.ljust(26)}{answer.answer.ljust(13)}{_short(answer.detail)}")
    rho = facts.get("length_correlation", {})
    strong = {name: value for name, value in rho.items() if abs(value) > 0.7}
    if strong:
        listed = ", ".join(f"{name} {value:+.2f}" for name, value in sorted(strong.items())[:6])
        output.say(f"  Go with length (rank correlation): {listed}")
    if propose_split:
        _show_split(proposed(report))
    _show_verdict(report, fail_on)


def _title(name: str, count: int) -> None:
    output.say()
    output.say(output.paint(f"{name} ({count})", _STYLES.get(name, "bold"), sys.stdout))


def _wrapped(name: str, text: str) -> None:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    output.say(f"  {name}")
    for line in lines:
        output.say(f"      {line}")


def _show_finding(finding: Finding) -> None:
    _wrapped(finding.id, finding.message)
    if finding.impact:
        for line in textwrap.wrap(f"Why it matters: {finding.impact}", _WIDTH, break_on_hyphens=False):
            output.say(f"      {line}")
    if finding.repair:
        output.say(f"      Mend: {finding.repair}")


def _show_unchecked(findings: Sequence[Finding]) -> None:
    if not findings:
        return
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        by_reason.setdefault(finding.message, []).append(finding.id)
    _title("NOT CHECKED", len({finding.id for finding in findings}))
    for reason, rules in by_reason.items():
        _wrapped(reason, ", ".join(dict.fromkeys(rules)))


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _show_split(split: Any) -> None:
    output.say()
    if split is None:
        output.say("No split is proposed: the start situations cannot be told apart, or there is only one")
        return
    output.say(f"Split: {split.reason} held out")
    output.say(f"  train on:    --dataset.episodes={json.dumps(split.train, separators=(',', ':'))}")
    output.say(f"  evaluate on: --dataset.episodes={json.dumps(split.held_out, separators=(',', ':'))}")


def _show_verdict(report: CheckReport, fail_on: str) -> None:
    from mimetic.data.check.finding import Claim

    output.say()
    risks = sum(finding.claim is Claim.RISK and not finding.accepted for finding in report.findings)
    if len(report.episodes) >= 8 and report.level != "quick":
        output.say("Comparisons between episodes assume that most of them are fine.")
    kept = f"{len(report.keep)} of {len(report.episodes)} episodes are without defect; grade {report.grade} of 100"
    if report.defects:
        text, style = f"FAILED: {len(report.defects)} defects, {risks} risks; {kept}", "red"
    elif risks and fail_on == "risk":
        text, style = f"FAILED: {risks} risks; {kept}", "red"
    else:
        text, style = f"OK: no defect found, {risks} risks; {kept}", "cyan"
    output.say(output.paint(text, style, sys.stdout))
