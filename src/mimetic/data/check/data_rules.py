"""Rules on the rows: columns, numbering, tasks, values that are not numbers, channels that never change."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim
from mimetic.data.check.results import Results
from mimetic.data.check.rows import CheckRows
from mimetic.data.check.source import CheckSource
from mimetic.data.episodes import listed
from mimetic.data.features import FLOATS
from mimetic.names import ACTION, DEFAULT_FEATURES, FRAME_INDEX, INDEX, STATE, TASK_INDEX, TIMESTAMP

_RULES = ("data.schema", "data.index", "data.task", "data.nonfinite", "data.dead_channel", "data.int_state")
DEAD_RANGE = 1e-9


def check_data(source: CheckSource, results: Results) -> None:
    """All rules `data.*` on numeric columns."""
    rows = source.rows
    if rows is None or not rows.files:
        results.skip(_RULES, "no data file can be read" if rows is not None else "the rows were not read")
        return
    _check_schema(source, rows, results)
    _check_index(source, rows, results)
    _check_tasks(source, rows, results)
    _check_values(source, rows, results)


def channel_name(source: CheckSource, feature: str, channel: int) -> str:
    """`action[gripper.pos]`, or `action[5]` where channels have no names."""
    names = source.features[feature].flat_names
    width = int(np.prod(source.features[feature].shape))
    if width == 1:
        return feature
    return f"{feature}[{names[channel] if names is not None and len(names) == width else channel}]"


def _check_schema(source: CheckSource, rows: CheckRows, results: Results) -> None:
    results.apply("data.schema")
    missing = [key for key in DEFAULT_FEATURES if key not in source.features]
    if missing:
        results.add("data.schema", f"info.json does not declare {', '.join(f'`{key}`' for key in missing)}")
    by_feature: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, str] = {}
    for fault in rows.faults:
        by_feature[fault.feature].append(source.relative(fault.path))
        reasons.setdefault(fault.feature, fault.reason)
    for feature, paths in by_feature.items():
        more = f" and {len(paths) - 1} more files" if paths[1:] else ""
        results.add("data.schema", f"`{feature}` in `{paths[0]}`{more}: {reasons[feature]}", feature=feature)
    for feature, reason in rows.left_out.items():
        results.skip("data.nonfinite", f"`{feature}`: {reason}")
    for key in (STATE, ACTION):
        feature_ = source.features.get(key)
        if feature_ is not None and feature_.is_numeric:
            results.apply("data.int_state")
            stored = rows.stored.get(key, "")
            if feature_.dtype not in FLOATS or "int" in stored.split("<")[-1]:
                results.add(
                    "data.int_state", f"`{key}` is stored as {stored or feature_.dtype}, not as float", feature=key
                )


def _check_index(source: CheckSource, rows: CheckRows, results: Results) -> None:
    frame, index = rows.columns.get(FRAME_INDEX), rows.columns.get(INDEX)
    if frame is None or not len(rows.episode):
        results.skip("data.index", "`frame_index` or `episode_index` cannot be read")
        return
    results.apply("data.index")
    split = [int(episode) for episode in np.unique(rows.episode) if source.bounds(int(episode)) is None]
    if split:
        results.add(
            "data.index", f"rows of episodes {listed(split)} lie in several places, with others between", episodes=split
        )
    bad_frames: dict[int, tuple[int, int, int]] = {}
    bad_index: dict[int, tuple[int, int, int]] = {}
    for episode, start, end in _runs(rows):
        if episode in split:
            continue
        expected = np.arange(end - start)
        off = np.flatnonzero(frame[start:end] != expected)
        if len(off):
            bad_frames[episode] = (int(off[0]), int(frame[start + off[0]]), int(off[-1]))
        if index is not None:
            off = np.flatnonzero(index[start:end] - index[start] != expected)
            if len(off) and episode not in bad_frames:
                bad_index[episode] = (int(off[0]), int(index[start + off[0]]), int(off[-1]))
    for name, found in (("frame_index", bad_frames), ("index", bad_index)):
        if found:
            episode, (row, value, _) = next(iter(found.items()))
            results.add(
                "data.index",
                f"`{name}` of episodes {listed(list(found))} is not numbered without holes (episode {episode}, row "
                f"{row}: {value})",
                episodes=found,
                spans=[(number, first, last) for number, (first, _, last) in found.items()],
                feature=name,
                value=float(value),
            )
    _check_joined(rows, index, set(split) | set(bad_index) | set(bad_frames), results)


def _check_joined(rows: CheckRows, index: npt.NDArray[Any] | None, skip: set[int], results: Results) -> None:
    """`index` goes on from episode to episode; told only where the table of episodes does not already show it."""
    if index is None or len(rows.episode) < 1:
        return
    last: int | None = None
    wrong: list[tuple[int, int, int]] = []
    for episode, start, end in _runs(rows):
        if last is not None and index[start] != last and episode not in skip:
            wrong.append((episode, int(index[start]), last))
        last = int(index[end - 1]) + 1
    already = any(finding.id in ("meta.ledger", "meta.files") for finding in results.findings)
    if wrong and not already and not any(finding.id == "data.index" for finding in results.findings):
        episode, found, due = wrong[0]
        results.add(
            "data.index",
            f"`index` does not go on at episodes {listed([item[0] for item in wrong])} (episode {episode} begins with "
            f"{found}, not {due})",
            episodes=[item[0] for item in wrong],
            feature=INDEX,
            value=float(found),
            threshold=float(due),
        )


def _runs(rows: CheckRows) -> list[tuple[int, int, int]]:
    return list(zip(rows.episode.tolist(), rows.run_start.tolist(), rows.run_end.tolist(), strict=True))


def _check_tasks(source: CheckSource, rows: CheckRows, results: Results) -> None:
    column = rows.columns.get(TASK_INDEX)
    if column is None or source.tasks is None:
        results.skip("data.task", "the table of tasks or `task_index` cannot be read")
        return
    results.apply("data.task")
    unknown: dict[int, list[tuple[int, int, int]]] = {}
    other: dict[int, tuple[str, str]] = {}
    used: set[int] = set()
    table = source.ledger
    tasks_of = {} if table is None else {int(e): names for e, names in zip(table.index, table.tasks, strict=True)}
    for episode, start, end in _runs(rows):
        part = column[start:end]
        numbers = np.unique(part)
        used.update(int(number) for number in numbers)
        for number in numbers.tolist():
            frames = np.flatnonzero(part == number)
            if number not in source.tasks:
                unknown.setdefault(number, []).append((episode, int(frames[0]), int(frames[-1])))
            elif tasks_of.get(episode) and source.tasks[number] not in tasks_of[episode]:
                other.setdefault(episode, (source.tasks[number], tasks_of[episode][0]))
    for number, spans in unknown.items():
        results.add(
            "data.task",
            f"task_index {number} of episodes {listed([s[0] for s in spans])} is not in the table of tasks",
            episodes=[span[0] for span in spans],
            spans=spans,
            value=float(number),
        )
    if other:
        episode, (row_task, table_task) = next(iter(other.items()))
        results.add(
            "data.task",
            f"rows of episodes {listed(list(other))} have another task than the table of episodes (episode {episode}: "
            f"`{row_task:.60}`, the table says `{table_task:.60}`)",
            episodes=other,
            value=row_task,
            threshold=table_task,
        )
    unused = [number for number in source.tasks if number not in used]
    if unused and not unknown and not other:
        results.add(
            "data.task",
            f"no row uses the tasks {listed(unused)}",
            claim=Claim.FACT,
            impact="",
            value=float(len(unused)),
        )


def _check_values(source: CheckSource, rows: CheckRows, results: Results) -> None:
    results.apply("data.nonfinite", "data.dead_channel")
    dead: list[str] = []
    for key, column in rows.columns.items():
        if (key in DEFAULT_FEATURES and key != TIMESTAMP) or not len(column):
            continue
        flat = column.reshape(len(column), -1)
        if column.dtype.kind == "f":
            _check_finite(source, rows, key, flat, results)
        if key in (STATE, ACTION) and column.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                spread = np.nanmax(flat, axis=0, initial=-np.inf) - np.nanmin(flat, axis=0, initial=np.inf)
            dead += [channel_name(source, key, int(number)) for number in np.flatnonzero(spread < DEAD_RANGE)]
    if dead:
        results.add(
            "data.dead_channel",
            f"{', '.join(dead[:8])}{' ...' if dead[8:] else ''} never change{'s' if len(dead) == 1 else ''}",
            feature=dead[0],
            value=float(len(dead)),
            unit="channels",
        )


def _check_finite(source: CheckSource, rows: CheckRows, key: str, flat: npt.NDArray[Any], results: Results) -> None:
    finite = np.isfinite(flat)
    if finite.all():
        return
    never = np.flatnonzero(~finite.any(axis=0))
    for channel in never.tolist():
        name = channel_name(source, key, channel)
        results.add("data.nonfinite", f"`{name}` is never a finite number", feature=name)
    bad = ~finite
    bad[:, never] = False
    spans: list[tuple[int, int, int]] = []
    count = 0
    channels: set[int] = set()
    for episode, start, end in _runs(rows):
        frames = np.flatnonzero(bad[start:end].any(axis=1))
        if len(frames):
            spans.append((episode, int(frames[0]), int(frames[-1])))
            count += len(frames)
            channels.update(np.flatnonzero(bad[start:end].any(axis=0)).tolist())
    if spans:
        names = ", ".join(channel_name(source, key, channel) for channel in sorted(channels)[:4])
        results.add(
            "data.nonfinite",
            f"{names}: NaN or infinite in {count} frames of episodes {listed([span[0] for span in spans])} (episode "
            f"{spans[0][0]}, from frame {spans[0][1]})",
            episodes=[span[0] for span in spans],
            spans=spans,
            feature=key,
            value=float(count),
            threshold=0.0,
            unit="frames",
            repair=results.delete(span[0] for span in spans),
        )
