"""Repairs of tasks: numbers without a task (`data.task`), one task written in several ways (`task.variants`)."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import replace

import numpy as np

from mimetic.data.episodes import listed
from mimetic.data.repair.state import State
from mimetic.names import EPISODE_INDEX, TASK_INDEX


def mend_tasks(state: State) -> None:
    """Give every `task_index` its task, number tasks without holes, and let the table of episodes agree."""
    _restore_unknown(state)
    if any(repair.id == "data.task" and not repair.is_mended for repair in state.repairs):
        return
    if list(state.tasks) != list(range(len(state.tasks))):
        state.note("data.task", "the task numbers have a gap; numbered anew")
        _renumber(state, dict(state.tasks))
    _fit_episodes(state, is_reported=True)


def _restore_unknown(state: State) -> None:
    """A task that is missing from the table: the one that the episode's entry names and the table has not."""
    column = state.columns[TASK_INDEX]
    unknown = [int(number) for number in np.unique(column[state.kept]) if int(number) not in state.tasks]
    for number in unknown:
        episodes = np.unique(state.columns[EPISODE_INDEX][(column == number) & state.kept]).tolist()
        named = [set(row.tasks) for row in state.episodes if row.episode_index in set(episodes)]
        candidates = set.intersection(*named) if named else set()
        new = candidates - set(state.tasks.values())
        if len(new) == 1 and number >= 0:
            text = new.pop()
            state.tasks[number] = text
            state.are_tasks_changed = True
            state.note(
                "data.task", f"task {number} is missing from the table of tasks; episodes name it `{text}`", episodes
            )
        elif len(candidates) == 1:
            text = candidates.pop()
            known = next(key for key, value in state.tasks.items() if value == text)
            column[(column == number) & state.kept] = known
            state.note(
                "data.task",
                f"rows use task {number}, which does not exist; their episodes name `{text}` ({known})",
                episodes,
            )
        else:
            state.note(
                "data.task",
                f"rows of episodes {listed(episodes)} use task {number}, which is missing, and their entries do not "
                "say which it is",
                episodes,
                is_mended=False,
            )
    state.tasks = dict(sorted(state.tasks.items()))


def mend_variants(state: State) -> None:
    """Write tasks that differ in case, punctuation and spaces only in one way: the most frequent one."""
    column = state.columns[TASK_INDEX][state.kept]
    frames = Counter(column.tolist())
    groups: dict[str, list[int]] = {}
    for number, text in state.tasks.items():
        groups.setdefault(normalised(text), []).append(number)
    merged: dict[int, int] = {}
    for numbers in groups.values():
        if len(numbers) > 1:
            best = max(numbers, key=lambda number: (frames[number], -number))
            merged |= {number: best for number in numbers if number != best}
            others = ", ".join(f"`{state.tasks[number]}`" for number in numbers if number != best)
            state.note("task.variants", f"{others} becomes `{state.tasks[best]}`", _episodes_with(state, numbers))
    if not merged:
        return
    texts = dict(state.tasks)
    whole = state.columns[TASK_INDEX]
    for old, new in merged.items():
        whole[whole == old] = new
        del texts[old]
    _renumber(state, texts)
    _fit_episodes(state, is_reported=False)


def normalised(text: str) -> str:
    """A task without case, punctuation and repeated spaces (spec/dataset_quality.md 9)."""
    plain = unicodedata.normalize("NFKC", text).lower()
    return " ".join(re.sub(r"[^\w\s]|_", " ", plain).split())


def _renumber(state: State, texts: dict[int, str]) -> None:
    """Number tasks 0 to n-1, in the table and in the rows."""
    new = {old: number for number, old in enumerate(texts)}
    column = state.columns[TASK_INDEX]
    known = np.isin(column, list(new))
    column[known] = [new[int(number)] for number in column[known]]
    state.tasks = {new[old]: text for old, text in texts.items()}
    state.are_tasks_changed = True


def _fit_episodes(state: State, *, is_reported: bool) -> None:
    wrong = []
    for place, row in enumerate(state.episodes):
        rows = state.rows_of(row.episode_index)
        texts = tuple(state.tasks[number] for number in dict.fromkeys(state.columns[TASK_INDEX][rows].tolist()))
        if set(texts) != set(row.tasks):
            wrong.append(row.episode_index)
            state.episodes[place] = replace(row, tasks=texts)
            state.is_ledger_changed = True
    if wrong and is_reported:
        state.note(
            "data.task",
            f"the table names other tasks than the rows for episodes {listed(wrong)}; the rows count",
            wrong,
        )


def _episodes_with(state: State, numbers: list[int]) -> list[int]:
    rows = np.isin(state.columns[TASK_INDEX], numbers) & state.kept
    return [int(number) for number in np.unique(state.columns[EPISODE_INDEX][rows])]
