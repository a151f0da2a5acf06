"""The questions that a person asks of a dataset, answered from a report, and a split that holds a variation out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.variety_rules import GOOD_A_CLUSTER, GOOD_A_TASK, LEAST_A_CLUSTER, LEAST_A_TASK

YES, NO, UNKNOWN = "yes", "no", "not checked"
_MOST_HELD_OUT = 0.4
_MOVED = ("image.camera_moved", "image.cameras_swapped")


@dataclass(frozen=True)
class Answer:
    """One line of the checklist.

    Args:
        question: what is asked.
        answer: yes, no or not checked.
        detail: the numbers behind it.
    """

    question: str
    answer: str
    detail: str


@dataclass(frozen=True)
class Split:
    """Episodes to train on, and a held-out variation.

    Args:
        train: episodes for `--dataset.episodes`.
        held_out: episodes of whole start situations that training does not see.
        reason: how they were chosen.
    """

    train: list[int]
    held_out: list[int]
    reason: str


def checklist(report: CheckReport) -> list[Answer]:
    """Answers to: enough episodes, repeated variations, one task string, fixed cameras, a held-out variation."""
    return [
        _amount(report),
        _repetitions(report),
        _one_task(report),
        _cameras(report),
        _held_out(report),
    ]


def _amount(report: CheckReport) -> Answer:
    tasks: Sequence[Mapping[str, Any]] = report.facts.get("tasks", [])
    question = "Enough episodes?"
    if not tasks:
        return Answer(question, UNKNOWN, "episodes and tasks could not be counted")
    least = min(int(task["episodes"]) for task in tasks)
    detail = f"{len(report.episodes)} episodes of {len(tasks)} task{'' if len(tasks) == 1 else 's'}"
    if least < LEAST_A_TASK:
        return Answer(question, NO, f"{detail}, the fewest {least}; {GOOD_A_TASK} a task are usual")
    return Answer(question, YES, detail + ("" if len(tasks) == 1 else f", at least {least} of each"))


def _repetitions(report: CheckReport) -> Answer:
    question = "Each variation repeated?"
    contexts = report.facts.get("contexts")
    if not contexts:
        return Answer(question, UNKNOWN, _why(report.findings, "variety.contexts"))
    middle = float(contexts["median_episodes"])
    what = "start pose and first grasp" if contexts["with_grasp"] else "start pose"
    detail = (
        f"{contexts['clusters']} start situation{'' if contexts['clusters'] == 1 else 's'} (by {what}), "
        f"{contexts['min_episodes']} to median {middle:g} episodes each; {GOOD_A_CLUSTER} are recommended"
    )
    return Answer(question, YES if middle >= LEAST_A_CLUSTER else NO, detail)


def _one_task(report: CheckReport) -> Answer:
    question = "One string for one task?"
    if not report.facts.get("tasks"):
        return Answer(question, UNKNOWN, "tasks could not be counted")
    bad = [
        finding for finding in report.findings if finding.id in ("task.variants", "task.placeholder", "task.similar")
    ]
    wrong = [finding for finding in bad if finding.claim is not Claim.NOT_CHECKED]
    if wrong:
        return Answer(question, NO, wrong[0].message)
    if bad:
        return Answer(question, UNKNOWN, bad[0].message)
    tasks = report.facts.get("tasks", [])
    return Answer(question, YES, f"`{tasks[0]['task']}`" if len(tasks) == 1 else f"{len(tasks)} different tasks")


def _cameras(report: CheckReport) -> Answer:
    question = "Cameras fixed?"
    moved = [finding for finding in report.findings if finding.id in _MOVED and finding.claim is not Claim.NOT_CHECKED]
    bad = [finding for finding in moved if finding.claim is not Claim.FACT]
    if bad:
        return Answer(question, NO, bad[0].message)
    unknown = [item for item in report.findings if item.id in _MOVED and item.claim is Claim.NOT_CHECKED]
    if unknown and len(unknown) >= len(report.facts.get("camera_keys", [])):
        return Answer(question, UNKNOWN, unknown[0].message)
    if "image.camera_moved" in report.rules:
        return Answer(question, YES, moved[0].message if moved else "no camera moved between episodes")
    if report.level in ("video", "full"):
        return Answer(question, UNKNOWN, _why(report.findings, "image.camera_moved"))
    return Answer(question, UNKNOWN, "pictures were not looked at; add --video")


def _held_out(report: CheckReport) -> Answer:
    question = "A variation to hold out?"
    split = propose_split(report)
    if split is None:
        few = "there are too few start situations to spare one; show the task in one more"
        return (
            Answer(question, NO, few) if "contexts" in report.facts else Answer(question, UNKNOWN, "rows were not read")
        )
    return Answer(question, YES, f"{split.reason}; --propose_split prints the flags")


def _why(findings: Sequence[Finding], rule: str) -> str:
    reasons = [finding.message for finding in findings if finding.id == rule and finding.claim is Claim.NOT_CHECKED]
    return reasons[0] if reasons else "it was not looked at"


def propose_split(report: CheckReport, share: float = 0.2) -> Split | None:
    """Hold whole start situations out, so that what is measured is a variation that training has not seen.

    Args:
        report: of the level `rows` or above.
        share: most of the episodes to hold out.

    Returns:
        None when there are not two situations.
    """
    contexts = report.facts.get("contexts")
    if not contexts or contexts["clusters"] < 2:
        return None
    usable = set(report.keep)
    by_cluster: dict[int, list[int]] = defaultdict(list)
    for point in contexts["points"]:
        if point["episode"] in usable:
            by_cluster[point["cluster"]].append(point["episode"])
    total = sum(map(len, by_cluster.values()))
    if len(by_cluster) < 2:
        return None
    # The smallest situation with a few repetitions costs training least and still gives a number to look at.
    order = sorted(by_cluster.values(), key=lambda group: (len(group) < min(3, total // 10), len(group), group[0]))
    held: list[int] = []
    count = 0
    for group in order[:-1]:
        if held and len(held) + len(group) > share * total:
            break
        held += group
        count += 1
    held_out = sorted(held)
    train = sorted(usable - set(held_out))
    if not train or len(held_out) > _MOST_HELD_OUT * total:
        return None
    return Split(train, held_out, f"{len(held_out)} episodes of {count} start situation{'' if count == 1 else 's'}")
