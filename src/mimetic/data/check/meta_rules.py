"""Rules on the metadata: files, counters, the table of episodes, and whether it points where the rows are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.ledger import Ledger
from mimetic.data.check.results import Results
from mimetic.data.check.rows import CheckRows
from mimetic.data.check.source import CheckSource
from mimetic.data.check.unreadable import Part
from mimetic.data.episodes import listed
from mimetic.errors import DatasetError
from mimetic.names import INDEX, STATS_JSON, TASKS_PARQUET

Ints = npt.NDArray[np.int64]

_NEEDS_LEDGER = ("meta.counts", "meta.ledger", "meta.data_file")


def check_files(source: CheckSource, results: Results) -> None:
    """Whether the files of a dataset are there and complete (`meta.files`, `meta.info`)."""
    results.apply("meta.files", "meta.info")
    for item in source.unreadable:
        rule = "meta.info" if item.part is Part.INFO else "meta.files"
        if item.part in (Part.CLOCKS, Part.EXPECTED):
            continue
        what = f"`{source.relative(item.path)}` ({item.part}) {'is missing' if item.is_missing else 'cannot be read'}"
        # A cut file in an otherwise whole dataset must come from a copy; a killed recording can be completed.
        is_lost = item.part is Part.DATA and source.ledger is not None
        name = source.relative(item.path)
        results.add(rule, f"{what}: {item.reason}", feature=name, repair="" if is_lost else None)
    if source.info is None:
        return
    legacy = source.info.is_legacy
    expected = [] if legacy else [TASKS_PARQUET, STATS_JSON]
    for name in expected:
        if not (source.root / name).exists():
            results.add("meta.files", f"`{name}` is missing", feature=name)
    if source.layout is not None and not _any_data_file(source.root):
        results.add("meta.files", "there is no data file below `data`", feature="data")


def _any_data_file(root: Path) -> bool:
    return next(iter(root.glob("data/*/*.parquet")), None) is not None


def check_ledger(source: CheckSource, results: Results) -> None:
    """The table of episodes against itself (`meta.ledger`) and against info.json (`meta.counts`)."""
    ledger = source.ledger
    if ledger is None:
        results.skip(_NEEDS_LEDGER, "the table of episodes cannot be read")
        return
    results.apply("meta.ledger", "meta.counts")
    for name in ledger.missing:
        results.add("meta.ledger", f"the table of episodes lacks the column `{name}`", feature=name)
    _check_numbers(ledger, results)
    _check_ranges(ledger, results)
    _check_counts(source, ledger, results)


def _check_numbers(ledger: Ledger, results: Results) -> None:
    index = ledger.index
    if not len(index):
        results.add("meta.ledger", "the table of episodes has no row")
        return
    repeated = [int(number) for number, count in Counter(index.tolist()).items() if count > 1]
    if repeated:
        results.add(
            "meta.ledger",
            f"{_episodes(repeated)} stand{_s(repeated)} more than once in the table of episodes",
            episodes=repeated,
            repair="",
        )
    known = np.unique(index)
    gaps = _gaps(known)
    if gaps:
        later = known[known > gaps[0]]
        results.add(
            "meta.ledger",
            f"the table of episodes has a gap at {listed(gaps)}: {len(later)} later episodes stand at another position "
            "than their number",
            episodes=later.tolist(),
            value=gaps[0],
        )
    if not repeated and (np.diff(index) < 0).any():
        results.add(
            "meta.ledger",
            "the table of episodes is not sorted by episode_index",
            episodes=index[np.flatnonzero(index != known)].tolist(),
        )


def _gaps(known: Ints, most: int = 1000) -> list[int]:
    missing: list[int] = []
    before = -1
    for number in known.tolist():
        missing += range(before + 1, min(number, before + 1 + most - len(missing)))
        before = number
        if len(missing) >= most:
            break
    return missing


def _check_ranges(ledger: Ledger, results: Results) -> None:
    if not len(ledger) or (ledger.to_index < 0).all() or not ledger.is_unique:
        return  # v2.x knows no ranges; a missing column and repeated episodes have been told
    order = np.argsort(ledger.index, kind="stable")
    start, end = ledger.from_index[order], ledger.to_index[order]
    number, length = ledger.index[order], ledger.length[order]
    wrong = np.flatnonzero(end - start != length)
    if len(wrong):
        first = wrong[0]
        results.add(
            "meta.ledger",
            f"{_episodes(number[wrong])}: `length` and the row range disagree (episode {number[first]}: length "
            f"{length[first]}, rows {start[first]} to {end[first]})",
            episodes=number[wrong].tolist(),
            value=float(length[first]),
            threshold=float(end[first] - start[first]),
            unit="frames",
        )
    complete = len(_gaps(number)) == 0
    broken = np.flatnonzero(start[1:] != end[:-1]) + 1 if complete else np.empty(0, dtype=np.int64)
    if len(start) and complete and start[0] != 0:
        broken = np.concatenate([[0], broken])
    if len(broken):
        first = broken[0]
        due = end[first - 1] if first else 0
        results.add(
            "meta.ledger",
            f"row ranges do not join at {_episodes(number[broken])} (episode {number[first]} begins at row "
            f"{start[first]}, not {due})",
            episodes=number[broken].tolist(),
            value=float(start[first]),
            threshold=float(due),
            unit="row",
        )


def _check_counts(source: CheckSource, ledger: Ledger, results: Results) -> None:
    info = source.info
    if info is None:
        return
    frames_of_table = int(np.maximum(ledger.length, 0).sum())
    frames = frames_of_table
    if source.rows is not None and source.rows.files and not any(True for _ in source.lost(Part.DATA)):
        frames = len(source.rows)
    found = {"total_episodes": len(np.unique(ledger.index)), "total_frames": frames}
    if source.tasks is not None:
        found["total_tasks"] = len(source.tasks)
    for name, actual in found.items():
        declared = getattr(info, name)
        if name not in source.raw_info:
            continue
        if declared != actual and not (name == "total_frames" and frames_of_table == declared):
            results.add(
                "meta.counts",
                f"info.json says {name} {declared}, there are {actual}",
                feature=name,
                value=float(declared),
                threshold=float(actual),
            )


def check_rows_against_ledger(source: CheckSource, results: Results) -> None:
    """Whether each episode has its rows, in the file and at the place that the table names (`meta.data_file`)."""
    ledger, rows = source.ledger, source.rows
    if ledger is None:
        results.skip("meta.orphans", "the table of episodes cannot be read")
        return
    if rows is None or not rows.files or not len(rows.episode):
        results.skip(("meta.data_file", "meta.orphans"), _why_no_rows(source))
        return
    results.apply("meta.data_file", "meta.orphans")
    counted = Counter[int]()
    for episode, start, end in zip(rows.episode.tolist(), rows.run_start.tolist(), rows.run_end.tolist(), strict=True):
        counted[episode] += end - start
    _check_lengths(source, ledger, counted, results)
    _check_places(source, ledger, rows, results)
    known = set(ledger.index.tolist())
    strays = {episode: count for episode, count in counted.items() if episode not in known}
    if strays:
        share = sum(strays.values()) / len(rows)
        results.add(
            "meta.orphans",
            f"{sum(strays.values())} rows ({share:.0%}) belong to {_episodes(strays)}, which the table of episodes "
            "does not list",
            value=float(sum(strays.values())),
            unit="rows",
        )


def _why_no_rows(source: CheckSource) -> str:
    if source.rows is None:
        return "the rows were not read" if source.info is not None else "info.json cannot be used"
    return "no data file can be read"


def _check_lengths(source: CheckSource, ledger: Ledger, counted: Counter[int], results: Results) -> None:
    wrong = [
        (int(episode), int(length), counted[int(episode)])
        for episode, length in zip(ledger.index, ledger.length, strict=True)
        if counted[int(episode)] != length
    ]
    lost = any(True for _ in source.lost(Part.DATA))
    absent = [episode for episode, _, found in wrong if not found]
    short = [item for item in wrong if item[2]]
    if absent and not lost:
        results.add(
            "meta.ledger",
            f"{_episodes(absent)} ha{'s' if len(absent) == 1 else 've'} no rows in the data files",
            episodes=absent,
            repair=results.repair("meta.ledger"),
        )
    elif absent:
        results.add(
            "meta.files",
            f"{_episodes(absent)} lost their rows with the data files that cannot be read",
            episodes=absent,
            repair="",
        )
    if short:
        episode, length, found = short[0]
        results.add(
            "meta.ledger",
            f"{_episodes(item[0] for item in short)}: the table of episodes has another length than the rows "
            f"(episode {episode}: {length} in the table, {found} rows)",
            episodes=[item[0] for item in short],
            value=float(length),
            threshold=float(found),
            unit="frames",
        )


def _check_places(source: CheckSource, ledger: Ledger, rows: CheckRows, results: Results) -> None:
    layout = source.layout
    assert layout is not None
    numbers = {source.relative(path): number for number, path in enumerate(rows.files)}
    unreadable = {source.relative(item.path) for item in source.lost(Part.DATA)}
    index = rows.columns.get(INDEX)
    wrong_file: list[tuple[int, str, str]] = []
    wrong_rows: list[tuple[int, int, int]] = []
    for row, episode in enumerate(ledger.index.tolist()):
        bounds = source.bounds(episode)
        if bounds is None:
            continue
        actual = rows.file_of(bounds[0])
        if ledger.data_file[row] >= 0 and ledger.data_chunk[row] >= 0:
            try:
                declared = source.relative(layout.data_file(int(ledger.data_chunk[row]), int(ledger.data_file[row])))
            except DatasetError:
                declared = "a file outside the dataset"
            if numbers.get(declared) != actual and declared not in unreadable:
                wrong_file.append((episode, declared, source.relative(rows.files[actual])))
        if index is not None and ledger.from_index[row] >= 0:
            first = int(index[bounds[0]])
            if first != ledger.from_index[row]:
                wrong_rows.append((episode, int(ledger.from_index[row]), first))
    if wrong_file:
        episode, declared, found = wrong_file[0]
        results.add(
            "meta.data_file",
            f"{_episodes(item[0] for item in wrong_file)}: the table of episodes names the wrong data file (episode "
            f"{episode}: `{declared}`, its rows are in `{found}`)",
            episodes=[item[0] for item in wrong_file],
            value=declared,
            threshold=found,
        )
    already = {episode for finding in results.findings if finding.id == "meta.ledger" for episode in finding.episodes}
    wrong_rows = [item for item in wrong_rows if item[0] not in already]
    if wrong_rows:
        episode, declared_row, found_row = wrong_rows[0]
        results.add(
            "meta.ledger",
            f"{_episodes(item[0] for item in wrong_rows)}: the table of episodes names other rows than those of the "
            f"episode (episode {episode}: from {declared_row}, `index` begins at {found_row})",
            episodes=[item[0] for item in wrong_rows],
            value=float(declared_row),
            threshold=float(found_row),
        )


def _episodes(numbers: Iterable[int] | npt.NDArray[Any]) -> str:
    found = [int(number) for number in numbers]
    return f"episode{'' if len(found) == 1 else 's'} {listed(found)}"


def _s(numbers: Iterable[int]) -> str:
    return "s" if len(list(numbers)) == 1 else ""
