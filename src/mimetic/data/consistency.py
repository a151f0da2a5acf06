"""What is checked when a dataset is opened: cheap comparisons of its tables, all vectorised.

What would give wrong samples is an error; what only contradicts itself, and is not relied on, is a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.episodes import listed
from mimetic.data.metadata import Metadata
from mimetic.data.runs import Runs
from mimetic.data.table import Rows
from mimetic.errors import DatasetFormatError, EpisodeError
from mimetic.names import FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]


def check_episodes(metadata: Metadata, rows: Rows, runs: Runs, selected: Ints) -> None:
    """Check that the rows of the selected episodes are complete and in order.

    Args:
        metadata: metadata of the dataset.
        rows: loaded rows.
        runs: runs of rows.
        selected: episode numbers that will be read; all of them stand in the table.

    Raises:
        DatasetFormatError: a damaged data file, when it may hold rows of a selected episode.
        EpisodeError: rows of an episode are missing, too many, or out of order; all of them are named.
    """
    table = metadata.episodes.positions(selected)
    length = np.zeros(len(metadata.episodes), dtype=np.int64)
    known = runs.table >= 0
    length[runs.table[known]] = runs.length[known]
    wrong = length[table] != metadata.episodes.length[table]
    if wrong.any():
        _refuse(metadata, rows, selected[wrong], length, n_complete=int((~wrong).sum()))
    _check_frame_order(rows.columns, runs, np.isin(runs.episode, selected))
    if rows.unreadable:
        names = ", ".join(f"`{metadata.layout.relative(path)}`" for path in rows.unreadable)
        logger.warning("%s: %s cannot be read; no requested episode needs it", metadata.root, names)
    if not known.all():
        strays = runs.episode[~known]
        logger.warning(
            "%s: rows of episodes %s are ignored: meta/episodes does not list them", metadata.root, listed(strays)
        )


def _refuse(metadata: Metadata, rows: Rows, wrong: Ints, found: Ints, *, n_complete: int) -> None:
    table = metadata.episodes.positions(wrong)
    exclude = f"`--dataset.exclude_episodes=[{','.join(str(number) for number in wrong[:50])}]`"
    total = n_complete + len(wrong)
    if rows.unreadable:
        path, error = next(iter(rows.unreadable.items()))
        others = f", or read only the complete episodes with {exclude}" if n_complete else ""
        raise DatasetFormatError(
            f"{error.message}; {n_complete} of {total} episodes are complete without it",
            f"restore `{metadata.layout.relative(path)}`{others}",
        )
    shown = [
        f"episode {episode} has {found[row]} rows in the data files, {metadata.episodes.length[row]} in its table"
        for episode, row in list(zip(wrong, table, strict=True))[:3]
    ]
    first = int(table[0])
    file = metadata.layout.data_file(
        max(int(metadata.episodes.data_chunk[first]), 0), max(int(metadata.episodes.data_file[first]), 0)
    )
    where = "" if file.is_file() else f"; `{metadata.layout.relative(file)}` is missing"
    more = f"; {len(wrong) - 3} more" if len(wrong) > 3 else ""
    raise EpisodeError(
        f"dataset `{metadata.root}`: {'; '.join(shown)}{where}{more}; {n_complete} of {total} episodes are complete",
        f"restore the data files, or leave these episodes out with {exclude}",
    )


def _check_frame_order(columns: Mapping[str, npt.NDArray[Any]], runs: Runs, chosen: npt.NDArray[np.bool_]) -> None:
    frame = columns[FRAME_INDEX]
    expected = np.arange(len(frame)) - runs.start[runs.of_row]
    wrong = np.flatnonzero(frame != expected)
    wrong = wrong[chosen[runs.of_row[wrong]]]
    if len(wrong):
        row = int(wrong[0])
        run = int(runs.of_row[row])
        raise EpisodeError(
            f"episode {runs.episode[run]}: row {row - runs.start[run]} says frame_index {frame[row]}; the rows of an "
            f"episode are numbered from 0 without holes ({len(np.unique(runs.of_row[wrong]))} episodes are not)",
            f"leave it out with `--dataset.exclude_episodes=[{runs.episode[run]}]`",
        )


def check_task_numbers(metadata: Metadata, rows: Rows) -> None:
    """Check that every `task_index` of the rows names a task; a dataset without tasks is let pass.

    Raises:
        DatasetFormatError: numbers without a task.
    """
    used = np.unique(rows.columns[TASK_INDEX])
    if not metadata.tasks:
        logger.warning("%s: there are no tasks; `task` is empty in every sample", metadata.root)
        return
    unknown = [int(number) for number in used if int(number) not in metadata.tasks]
    if unknown:
        raise DatasetFormatError(
            f"dataset `{metadata.root}`: rows use task_index {listed(unknown)}; "
            f"the table of tasks has {listed(list(metadata.tasks))}",
            "restore the table of tasks in `meta`",
        )


def check_times(metadata: Metadata, rows: Rows, runs: Runs, selected: Ints, tolerance_s: float) -> None:
    """Compare the rows' `timestamp` with `frame_index / fps`, by which frames are addressed.

    Raises:
        EpisodeError: they differ by more than the tolerance; names the episode, the frame and both times.
    """
    stored = rows.columns[TIMESTAMP].astype(np.float64)
    expected = rows.columns[FRAME_INDEX] / metadata.fps
    # float32 holds a time of 2000 s only to 0.1 ms: that is no fault of the recording.
    slack = tolerance_s + np.spacing(np.abs(rows.columns[TIMESTAMP])).astype(np.float64)
    off = np.flatnonzero(~(np.abs(stored - expected) <= slack))
    off = off[np.isin(runs.episode[runs.of_row[off]], selected)]
    if len(off):
        row = int(off[0])
        episode = int(runs.episode[runs.of_row[row]])
        n_episodes = len(np.unique(runs.of_row[off]))
        raise EpisodeError(
            f"episode {episode}, frame {rows.columns[FRAME_INDEX][row]}: timestamp {stored[row]:.6f} s differs from "
            f"frame_index / fps = {expected[row]:.6f} s by more than {tolerance_s:g} s "
            f"({len(off)} frames of {n_episodes} episodes)",
            "correct `fps` in meta/info.json, or raise `--tolerance_s` if the frames were recorded at that rate",
        )


def report_misplaced(metadata: Metadata, rows: Rows, runs: Runs) -> list[str]:
    """Say where the table of episodes points to other rows or files than the rows themselves show.

    Returns:
        One sentence an episode; they are also logged. Nothing is read from the wrong place.
    """
    episodes = metadata.episodes
    known = np.flatnonzero(runs.table >= 0)
    if not len(known) or metadata.info.is_legacy:
        return []
    table = runs.table[known]
    problems: list[str] = []
    problems += _wrong_files(metadata, rows, runs.start[known], table)
    index = rows.columns[INDEX]
    first, last = index[runs.start[known]], index[runs.end[known] - 1] + 1
    declared = episodes.from_index[table], episodes.to_index[table]
    wrong = (declared[0] >= 0) & ((declared[0] != first) | (declared[1] != last))
    problems += [
        f"episode {episodes.index[row]}: meta/episodes says rows {declared[0][i]} to {declared[1][i]}, "
        f"its rows say {first[i]} to {last[i]}"
        for i, row in zip(np.flatnonzero(wrong), table[wrong], strict=True)
    ]
    for problem in problems[:5]:
        logger.warning("%s: %s; rows are found by their own numbers", metadata.root, problem)
    if len(problems) > 5:
        logger.warning("%s: %d more of the same kind", metadata.root, len(problems) - 5)
    return problems


def _wrong_files(metadata: Metadata, rows: Rows, starts: Ints, table: Ints) -> Sequence[str]:
    episodes, layout = metadata.episodes, metadata.layout
    actual = rows.file_of(starts)
    declared = np.stack([episodes.data_chunk[table], episodes.data_file[table]])
    pairs, inverse = np.unique(declared, axis=1, return_inverse=True)
    numbers = {layout.relative(path): number for number, path in enumerate(rows.files)}
    # -1 stands for a declared file that was not loaded, -2 for "not declared".
    loaded = np.asarray(
        [
            numbers.get(layout.relative(layout.data_file(int(chunk), int(file))), -1)
            if file >= 0 and chunk >= 0
            else -2
            for chunk, file in pairs.T
        ]
    )[inverse.reshape(-1)]
    wrong = np.flatnonzero((loaded != actual) & (loaded != -2))
    return [
        f"episode {episodes.index[table[i]]}: meta/episodes says "
        f"{layout.relative(layout.data_file(int(declared[0, i]), int(declared[1, i])))}, "
        f"its rows are in {layout.relative(rows.files[actual[i]])}"
        for i in wrong
    ]
