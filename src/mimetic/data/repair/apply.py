"""Writing a repair: new files beside the old ones, looked at as a dataset, then swapped; every old file is kept.

<root>/.mimetic-repair/           while a repair is being written; a killed one is finished or taken back next time
<root>/.bak/<time>/               every file that a repair changed, as it was, and manifest.json
<root>/.mimetic-removed/<time>/   files that no episode refers to
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.edit.clocks import Span, cut_clocks, write_all
from mimetic.data.edit.data_task import link_or_copy
from mimetic.data.reader import open_dataset
from mimetic.data.record.clocks import CLOCKS_DIR, clocks_file
from mimetic.data.repair.lock import JOURNAL, WORK
from mimetic.data.repair.numbering import is_foreign
from mimetic.data.repair.state import NUMBERS, State
from mimetic.data.store.atomic import flush_file, flush_folder, read_json, replacing, write_json
from mimetic.data.store.data_file import open_parquet
from mimetic.data.store.episode_rows import episodes_file, rows_table
from mimetic.data.store.tables import write_info, write_stats, write_tasks
from mimetic.errors import DatasetError, DatasetFormatError, MimeticError
from mimetic.names import EPISODE_INDEX, EPISODES_DIR, INFO_JSON, STATS_JSON, TASKS_PARQUET

BACKUP, REMOVED = ".bak", ".mimetic-removed"
_VIEW, _MANIFEST = "view", "manifest.json"


def write_repair(state: State, *, now: datetime.datetime | None = None) -> Path | None:
    """Write everything that changed.

    Args:
        state: the dataset, repaired in memory.
        now: time for the names of backups; that of the clock when absent.

    Returns:
        Folder of the backups; None when nothing was to be written.

    Raises:
        DatasetError: the repaired dataset cannot be opened; nothing was changed.
    """
    work = state.root / WORK
    finish_interrupted(state.root)
    empty = [path for number, path in enumerate(state.files) if not state.kept[state.file == number].any()]
    state.moved += [path for path in empty if path not in state.moved and not state.kept.all()]
    view = work / _VIEW
    view.mkdir(parents=True)
    try:
        written = _write_view(state, view)
        if not written and not state.moved:
            return None
        _complete_view(state, view, written)
        verify(view, left=[one.message for one in state.repairs if not one.is_mended])
        stamp = _free_stamp(state.root, now or datetime.datetime.now())
        journal = {
            "stamp": stamp,
            "changed": written,
            "gone": _gone(state, view),
            "moved": [path.relative_to(state.root).as_posix() for path in state.moved],
            "repairs": [
                {"id": one.id, "message": one.message, "episodes": list(one.episodes)}
                for one in state.repairs
                if one.is_mended
            ],
        }
        for name in written:
            flush_file(view / name)
        write_json(work / JOURNAL, journal)  # from here on the repair is finished, now or by the next run
        _swap(state.root, journal)
        return state.root / BACKUP / stamp
    finally:
        if not (work / JOURNAL).is_file():
            shutil.rmtree(work, ignore_errors=True)


def finish_interrupted(root: Path) -> bool:
    """Finish a repair whose swap was interrupted, and remove what an unfinished one left.

    Returns:
        Whether a repair was finished.

    Raises:
        DatasetFormatError: the journal is not one of mimetic's.
    """
    work = root / WORK
    if not work.is_dir():
        return False
    journal = work / JOURNAL
    if not journal.is_file():
        shutil.rmtree(work)
        return False
    content = read_json(journal)
    if not _is_journal(content):
        raise DatasetFormatError(f"`{journal}` is no journal of a repair", f"move `{work}` away")
    _swap(root, content)
    return True


def _is_journal(content: Any) -> bool:
    """Whether a journal names files of the dataset only: one that came with somebody's dataset could name any."""
    if not isinstance(content, dict) or not {"stamp", "changed", "gone", "moved"} <= set(content):
        return False
    lists = [content[name] for name in ("changed", "gone", "moved")]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        return False
    stamp, names = str(content["stamp"]), [PurePosixPath(name) for found in lists for name in found]
    is_inside = all(
        name.parts[:1] in (("meta",), ("data",), ("videos",)) and ".." not in name.parts and "\\" not in str(name)
        for name in names
    )
    return is_inside and re.fullmatch(r"[0-9]{8}_[0-9]{6}(_[0-9]+)?", stamp) is not None


def _swap(root: Path, journal: Mapping[str, Any]) -> None:
    """Move old files to the backups and new ones to their names; may be repeated after a kill at any point."""
    work, backup = root / WORK, root / BACKUP / str(journal["stamp"])
    backup.mkdir(parents=True, exist_ok=True)
    write_json(backup / _MANIFEST, dict(journal))
    for name in journal["changed"]:
        new, target, old = work / _VIEW / name, root / name, backup / name
        if not new.exists():
            continue  # swapped before the kill
        if target.exists() and not old.exists():
            with replacing(old) as temporary:  # half a copy under its name would be taken for the backup next time
                temporary.unlink(missing_ok=True)
                link_or_copy(target, temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new, target)  # noqa: PTH105 - one call for files on every system
        flush_folder(target.parent)
    for names, place in ((journal["gone"], backup), (journal["moved"], root / REMOVED / str(journal["stamp"]))):
        for name in names:
            if (root / name).exists():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).rename(place / name)
    (work / JOURNAL).unlink()
    shutil.rmtree(work, ignore_errors=True)
    flush_folder(root)


def verify(root: Path, *, left: Sequence[str] = ()) -> None:
    """Open a dataset and read its ends.

    Args:
        root: the dataset.
        left: what could not be mended, for the hint.

    Raises:
        DatasetError: it cannot be opened.
    """
    try:
        dataset = open_dataset(root=root, return_uint8=True)
        try:
            for position in {0, dataset.num_frames - 1}:
                dataset.item(position)
            short = dataset.check_video_lengths()
        finally:
            dataset.close()
    except MimeticError as error:
        raise DatasetError(
            f"the repaired dataset still cannot be opened: {error.message.replace(str(root), '.')}",
            "nothing was changed; "
            + ("; ".join(left) or "run `mimetic dataset check`, and repair without `--only` what belongs together"),
        ) from error
    if short:
        raise DatasetError(
            f"after the repair episode {short[0].episode} would still lack {short[0].missing} frames of "
            f"`{short[0].camera}`",
            "nothing was changed; add `meta.video_span` to `--only`",
        )


def _write_view(state: State, view: Path) -> list[str]:
    """Write the changed files below `view`; their names."""
    written = []
    for number, path in enumerate(state.files):
        if state.is_file_changed(number) and state.kept[state.file == number].any():
            name = state.layout.relative(path)
            _write_rows(state, number, path, view / name)
            written.append(name)
    if state.is_ledger_changed:
        target = episodes_file(view, 0, 0)
        target.parent.mkdir(parents=True, exist_ok=True)
        table = _ledger_table(state)
        with open_parquet(target, table.schema) as writer:
            writer.write_table(table)
        written.append(target.relative_to(view).as_posix())
    if state.are_tasks_changed:
        write_tasks(view, state.tasks)
        written.append(TASKS_PARQUET)
    if state.are_stats_changed:
        order = [name for name in (*state.features, *state.stats) if name in state.stats]
        write_stats(view, {name: state.stats[name] for name in dict.fromkeys(order)})
        written.append(STATS_JSON)
    if _are_clocks_changed(state):
        write_all(view, cut_clocks(state.root, _clock_spans(state)))
        if clocks_file(view, 0, 0).is_file():
            written.append(clocks_file(view, 0, 0).relative_to(view).as_posix())
    if state.is_info_changed:
        write_info(view, state.raw_info)
        written.append(INFO_JSON)
    return written


def _clock_spans(state: State) -> list[Span]:
    """Old and new number of each episode whose rows stay; rows are left out at the end only."""
    old, new = state.before[EPISODE_INDEX][state.kept], state.columns[EPISODE_INDEX][state.kept]
    pairs, counts = np.unique(np.stack([old, new]), axis=1, return_counts=True)
    return [
        Span(episode=int(one), start=0, stop=int(count), number=int(two))
        for one, two, count in zip(*pairs, counts, strict=True)
    ]


def _are_clocks_changed(state: State) -> bool:
    """Whether the recorder's clocks must follow other numbers or fewer rows."""
    is_moved = not np.array_equal(state.before[EPISODE_INDEX], state.columns[EPISODE_INDEX]) or not state.kept.all()
    return is_moved and any((state.root / CLOCKS_DIR).glob("*/*.parquet"))


def _write_rows(state: State, number: int, source: Path, target: Path) -> None:
    """Write a data file with other numbers or fewer rows; all other columns and the schema stay."""
    rows = np.flatnonzero(state.file == number)
    kept = state.kept[rows]
    table = pq.read_table(source, partitioning=None)
    for name in NUMBERS:
        place = table.schema.get_field_index(name)
        values = pa.array(state.columns[name][rows]).cast(table.schema.field(place).type)
        table = table.set_column(place, table.schema.field(place), values)
    if not kept.all():
        table = table.filter(pa.array(kept))
    episode = state.columns[EPISODE_INDEX][rows][kept]
    edges = [0, *(np.flatnonzero(np.diff(episode)) + 1).tolist(), len(episode)]
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_parquet(target, table.schema) as writer:
        for start, stop in pairwise(edges):
            writer.write_table(table.slice(start, stop - start), row_group_size=max(stop - start, 1))


def _ledger_table(state: State) -> Any:
    """The table of episodes, with columns that mimetic does not know as they were."""
    rows = [replace(row, meta_chunk=0, meta_file=0) for row in state.episodes]
    table = rows_table(rows, state.features)
    stored = state.table
    if stored is None:
        return table
    known = set(table.column_names)
    places = pa.array([place if place >= 0 else None for place in state.origin], type=pa.int64())
    for name in stored.column_names:
        is_own = name.split("/")[0] in ("stats", "videos") and name.split("/")[1] in state.features
        if name not in known and not is_own and not is_foreign(state, name):
            table = table.append_column(name, stored[name].combine_chunks().take(places))
    return table


def _complete_view(state: State, view: Path, written: Sequence[str]) -> None:
    """Link everything that stays, so that the repaired dataset can be opened before the old one is touched."""
    skipped = {*written, *_gone(state, view), *(path.relative_to(state.root).as_posix() for path in state.moved)}
    for folder in ("meta", "data", "videos"):
        for path in sorted((state.root / folder).rglob("*")):
            name = path.relative_to(state.root).as_posix()
            if path.is_file() and name not in skipped and not (view / name).exists():
                link_or_copy(path, view / name)


def _gone(state: State, view: Path) -> list[str]:
    """Files of the table of episodes, and of clocks, that the one new file replaces."""
    old: list[Path] = []
    if state.is_ledger_changed:
        old += sorted((state.root / EPISODES_DIR).glob("**/*.parquet"))
    if _are_clocks_changed(state):
        old += sorted((state.root / CLOCKS_DIR).glob("*/*.parquet"))
    names = [path.relative_to(state.root).as_posix() for path in old]
    return [name for name in names if not (view / name).is_file()]


def _free_stamp(root: Path, now: datetime.datetime) -> str:
    stamp = f"{now:%Y%m%d_%H%M%S}"
    number, name = 1, stamp
    while (root / BACKUP / name).exists() or (root / REMOVED / name).exists():
        number += 1
        name = f"{stamp}_{number}"
    return name
