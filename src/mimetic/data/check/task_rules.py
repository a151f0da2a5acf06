"""Rules on task strings (dataset_quality 9)."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource

_RULES = ("task.placeholder", "task.variants", "task.similar")
PLACEHOLDERS = {
    *("empty", "none", "null", "nan", "task", "test", "todo", "default", "my task", "your task", "placeholder", "n/a"),
    *("na", "asdf", "xxx", "single task", "task description", "your task description", "dummy task"),
}
_SHORT = 3
_SIMILAR = 0.9
_MOST_COMPARED = 400


def check_tasks(source: CheckSource, results: Results) -> None:
    """Rules `task.*` that need no policy."""
    if source.tasks is None:
        results.skip(_RULES, "the table of tasks cannot be read")
        return
    used = list(dict.fromkeys(task for task in source.first_tasks))
    texts = list(dict.fromkeys([*source.tasks.values(), *(task for task in used if task)]))
    if not texts and not used:
        results.skip(_RULES, "there is no task")
        return
    results.apply(*_RULES)
    _check_placeholders(source, texts, results)
    variants = _check_variants(source, texts, results)
    _check_similar(texts, variants, results)


def normalised(task: str) -> str:
    """NFKC, lower case, without punctuation and repeated spaces."""
    text = unicodedata.normalize("NFKC", task).lower()
    return " ".join(re.sub(r"[^\w\s]|_", " ", text).split())


def _check_placeholders(source: CheckSource, texts: Sequence[str], results: Results) -> None:
    empty = [episode for episode, task in zip(source.episodes.tolist(), source.first_tasks, strict=True) if not task]
    bad = [
        text
        for text in texts
        if len(text.strip()) < _SHORT or normalised(text) in PLACEHOLDERS or text.strip().lower() in PLACEHOLDERS
    ]
    if bad or empty:
        episodes = [
            e for e, task in zip(source.episodes.tolist(), source.first_tasks, strict=True) if task in bad or not task
        ]
        shown = f"`{bad[0]}` says nothing" if bad else f"{len(empty)} episodes have no task"
        results.add(
            "task.placeholder",
            f"{shown}; write what the robot shall do, as you will say it when it runs",
            episodes=episodes,
            value=bad[0] if bad else "",
            repair=_modify(source, dict.fromkeys(bad, "WHAT THE ROBOT SHALL DO"))
            if bad
            else f"mimetic dataset edit --root={source.root} --operation.type=modify_tasks "
            "'--operation.new_task=WHAT THE ROBOT SHALL DO'",
        )


def _check_variants(source: CheckSource, texts: Sequence[str], results: Results) -> set[str]:
    by_form: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        by_form[normalised(text)].append(text)
    found: set[str] = set()
    counts = {text: source.first_tasks.count(text) for text in texts}
    for group in by_form.values():
        if len(group) < 2:
            continue
        found.update(group)
        best = max(group, key=lambda text: (counts[text], text == text.strip()))
        others = [text for text in group if text != best]
        results.add(
            "task.variants",
            f"one task is written in {len(group)} ways: {', '.join(f'`{text}`' for text in group[:4])}",
            episodes=[
                e for e, task in zip(source.episodes.tolist(), source.first_tasks, strict=True) if task in others
            ],
            value=float(len(group)),
            threshold=1.0,
            repair=_modify(source, dict.fromkeys(others, best)),
        )
    return found


def _modify(source: CheckSource, replacements: Mapping[str, str]) -> str:
    pairs = json.dumps(replacements, ensure_ascii=False)
    return (
        f"mimetic dataset edit --root={source.root} --operation.type=modify_tasks "
        f"'--operation.task_replacements={pairs}'"
    )


def _check_similar(texts: Sequence[str], skip: set[str], results: Results) -> None:
    words = [(text, set(normalised(text).split())) for text in texts if text not in skip][:_MOST_COMPARED]
    for number, (first, a) in enumerate(words):
        for second, b in words[number + 1 :]:
            if a and b and len(a & b) / len(a | b) > _SIMILAR:
                results.add(
                    "task.similar",
                    f"`{first:.80}` and `{second:.80}` have nearly the same words: one task, or two?",
                    value=round(len(a & b) / len(a | b), 3),
                    threshold=_SIMILAR,
                )
