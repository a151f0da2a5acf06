"""Repairs of the table of episodes and of the rows' numbers (`meta.ledger`, `meta.data_file`, `data.index`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mimetic.data.edit.source import numbers_of
from mimetic.data.episodes import listed
from mimetic.data.repair.state import State
from mimetic.data.store.episode_rows import EpisodeRow, VideoPlace, episodes_file
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX


def mend_ledger(state: State, *, without_strays: bool) -> None:
    """Give every episode with rows its place in the table, and every place its rows; close gaps in the numbers.

    Args:
        state: the dataset.
        without_strays: whether rows whose episode cannot get an entry are left out (`meta.orphans`).
    """
    _drop_empty(state)
    _restore_missing(state, is_reported=not without_strays)
    if without_strays:
        drop_strays(state)
    _fit_lengths(state)
    _close_gaps(state)
    _fit_ranges(state)
    _fit_files_of_table(state)


def drop_strays(state: State) -> None:
    """Leave out rows of episodes that the table does not list (`meta.orphans`)."""
    known = [row.episode_index for row in state.episodes]
    strays = state.kept & ~np.isin(state.columns[EPISODE_INDEX], known)
    if not strays.any():
        return
    numbers = np.unique(state.columns[EPISODE_INDEX][strays])
    state.note(
        "meta.orphans",
        f"{int(strays.sum())} rows belong to episodes {listed(numbers)}, which the table does not list; they go",
        numbers,
    )
    state.kept &= ~strays
    if (np.diff(state.columns[EPISODE_INDEX][state.kept]) >= 0).all():
        renumber_episodes(state)
        renumber_rows(state)


def mend_data_file(state: State) -> None:
    """Name the data file that really holds each episode."""
    wrong: list[tuple[int, str, str]] = []
    for place, row in enumerate(state.episodes):
        rows = state.rows_of(row.episode_index)
        if not len(rows):
            continue
        path = state.files[int(state.file[rows[0]])]
        chunk, file = numbers_of(path)
        if (chunk, file) != (row.data_chunk, row.data_file) and state.layout.data_file(chunk, file) == path:
            wrong.append((row.episode_index, f"{row.data_chunk}/{row.data_file}", f"{chunk}/{file}"))
            state.episodes[place] = replace(row, data_chunk=chunk, data_file=file)
            state.is_ledger_changed = True
    if wrong:
        episode, declared, found = wrong[0]
        state.note(
            "meta.data_file",
            f"the table names the wrong data file for episodes {listed([item[0] for item in wrong])} (episode "
            f"{episode}: chunk/file {declared}, its rows are in {found}); it gets the right one",
            [item[0] for item in wrong],
        )


def mend_index(state: State) -> None:
    """Number rows: `frame_index` from 0 in each episode, `index` through the whole dataset."""
    if not _is_in_order(state, "data.index"):
        return
    episode = state.columns[EPISODE_INDEX]
    kept = np.flatnonzero(state.kept)
    frame = state.columns[FRAME_INDEX]
    expected = np.arange(len(kept)) - np.repeat(*_starts(episode[kept]))
    wrong_frames = kept[frame[kept] != expected]
    wrong_index = kept[state.columns[INDEX][kept] != np.arange(len(kept))]
    if len(wrong_frames):
        numbers = np.unique(episode[wrong_frames])
        state.note(
            "data.index",
            f"`frame_index` of {len(wrong_frames)} rows is wrong (episodes {listed(numbers)}); counted anew",
            numbers,
        )
        frame[kept] = expected
    if len(wrong_index):
        numbers = np.unique(episode[wrong_index])
        state.note(
            "data.index",
            f"`index` of {len(wrong_index)} rows is wrong (episodes {listed(numbers)}); counted anew",
            numbers,
        )
        renumber_rows(state)


def renumber_rows(state: State) -> None:
    """Count `index` and `frame_index` anew, and let the table of episodes follow; a consequence, not a finding."""
    kept = np.flatnonzero(state.kept)
    episode = state.columns[EPISODE_INDEX]
    state.columns[INDEX][kept] = np.arange(len(kept))
    if len(kept):
        state.columns[FRAME_INDEX][kept] = np.arange(len(kept)) - np.repeat(*_starts(episode[kept]))
    counts = state.counts()
    at = 0
    for place, row in enumerate(state.episodes):
        length = counts.get(row.episode_index, 0)
        if (row.length, row.from_index, row.to_index) != (length, at, at + length):
            state.episodes[place] = replace(row, length=length, from_index=at, to_index=at + length)
            state.is_ledger_changed = True
        at += length


def renumber_episodes(state: State) -> None:
    """Number episodes 0 to N-1, in the table and in the rows; their footage stays theirs."""
    new = {row.episode_index: number for number, row in enumerate(state.episodes)}
    if all(old == number for old, number in new.items()):
        return
    episode = state.columns[EPISODE_INDEX]
    known = np.isin(episode, list(new)) & state.kept
    episode[known] = [new[int(number)] for number in episode[known]]
    state.redo_episodes = {new.get(number, number) for number in state.redo_episodes}
    state.episodes = [replace(row, episode_index=new[row.episode_index]) for row in state.episodes]
    state.is_ledger_changed = True


def drop_episodes(state: State, episodes: Sequence[int]) -> None:
    """Take episodes out, rows and all, and number the others anew."""
    gone = set(episodes)
    state.kept &= ~np.isin(state.columns[EPISODE_INDEX], list(gone))
    keep = [place for place, row in enumerate(state.episodes) if row.episode_index not in gone]
    state.origin = [state.origin[place] for place in keep]
    state.episodes = [state.episodes[place] for place in keep]
    state.is_ledger_changed = True
    renumber_episodes(state)
    renumber_rows(state)


def _drop_empty(state: State) -> None:
    counts = state.counts()
    empty = [row.episode_index for row in state.episodes if not counts.get(row.episode_index)]
    if not empty or len(empty) == len(state.episodes):
        return
    state.note("meta.ledger", f"episodes {listed(empty)} have no rows in the data files; their entry goes", empty)
    keep = [place for place, row in enumerate(state.episodes) if row.episode_index not in set(empty)]
    state.origin = [state.origin[place] for place in keep]
    state.episodes = [state.episodes[place] for place in keep]
    state.is_ledger_changed = True


def _restore_missing(state: State, *, is_reported: bool) -> None:
    """Make the entry of episodes whose rows are there; with videos only where their place can be told for sure."""
    known = {row.episode_index for row in state.episodes}
    for episode, count in state.counts().items():
        if episode in known:
            continue
        rows = state.rows_of(episode)
        videos = _fitting_places(state, episode, count)
        is_one_run = len(rows) == rows[-1] - rows[0] + 1
        if (videos is None or not is_one_run) and not is_reported:
            continue
        if videos is None or not is_one_run:
            why = "where its footage is cannot be told" if is_one_run else "its rows lie in several places"
            state.note(
                "meta.ledger",
                f"episode {episode} has {count} rows and no entry in the table, and {why}; "
                "`--only=meta.orphans` moves its rows aside",
                [episode],
                is_mended=False,
            )
            continue
        chunk, file = numbers_of(state.files[int(state.file[rows[0]])])
        numbers = dict.fromkeys(state.columns["task_index"][rows].tolist())
        row = EpisodeRow(
            episode_index=episode,
            tasks=tuple(state.tasks[number] for number in numbers if number in state.tasks),
            length=count,
            data_chunk=chunk,
            data_file=file,
            from_index=-1,
            to_index=-1,
            videos=videos,
        )
        at = sum(other.episode_index < episode for other in state.episodes)
        state.episodes.insert(at, row)
        state.origin.insert(at, -1)
        state.redo_episodes.add(episode)
        state.is_ledger_changed = True
        state.note(
            "meta.ledger", f"episode {episode} has {count} rows and no entry in the table; it gets one", [episode]
        )


def _fitting_places(state: State, episode: int, count: int) -> dict[str, VideoPlace] | None:
    """Where an episode's footage must be: between its neighbours' in one file, with room for just its frames."""
    before = next((row for row in state.episodes if row.episode_index == episode - 1), None)
    after = next((row for row in state.episodes if row.episode_index == episode + 1), None)
    places: dict[str, VideoPlace] = {}
    for key in state.video_keys:
        if before is None or after is None or key not in before.videos or key not in after.videos:
            return None
        one, two = before.videos[key], after.videos[key]
        room = (two.from_s - one.to_s) * state.fps
        if (one.chunk, one.file) != (two.chunk, two.file) or abs(room - count) > 0.5:
            return None
        places[key] = VideoPlace(chunk=one.chunk, file=one.file, from_s=one.to_s, to_s=two.from_s)
    return places


def _fit_lengths(state: State) -> None:
    counts = state.counts()
    wrong = []
    for place, row in enumerate(state.episodes):
        count = counts.get(row.episode_index, row.length)
        if row.length != count:
            wrong.append(row.episode_index)
            state.episodes[place] = replace(row, length=count, to_index=row.from_index + count)
            state.redo_episodes.add(row.episode_index)
            state.is_ledger_changed = True
    if wrong:
        state.note(
            "meta.ledger",
            f"the table has another length than the rows for episodes {listed(wrong)}; the rows count",
            wrong,
        )


def _close_gaps(state: State) -> None:
    numbers = [row.episode_index for row in state.episodes]
    if numbers == list(range(len(numbers))):
        return
    if set(state.counts()) - set(numbers):
        state.note(
            "meta.ledger",
            "the episode numbers cannot be closed up while rows of unknown episodes are there; mend `meta.orphans` too",
            is_mended=False,
        )
        return
    first = next(at for at, number in enumerate(numbers) if at != number)
    moved = [number for at, number in enumerate(numbers) if at != number]
    state.note(
        "meta.ledger",
        f"the episode numbers have a gap at {first}; the later ones are numbered {first} to {len(numbers) - 1}, "
        "each with its own rows and footage",
        moved,
    )
    renumber_episodes(state)


def _fit_ranges(state: State) -> None:
    if set(state.counts()) - {row.episode_index for row in state.episodes} or not _is_in_order(state, "meta.ledger"):
        return
    at = 0
    wrong = []
    for row in state.episodes:
        if (row.from_index, row.to_index) != (at, at + row.length):
            wrong.append(row.episode_index)
        at += row.length
    if not wrong:
        first = {row.episode_index: state.rows_of(row.episode_index)[:1] for row in state.episodes}
        moved = [row for row in state.episodes if state.columns[INDEX][first[row.episode_index]] != row.from_index]
        if moved and not state.is_ledger_changed:
            wrong = [row.episode_index for row in moved]
            state.note(
                "meta.ledger",
                f"the table names other rows than `index` does for episodes {listed(wrong)}; `index` is counted anew",
                wrong,
            )
    if wrong and not any(repair.id == "meta.ledger" and repair.is_mended for repair in state.repairs):
        state.note("meta.ledger", f"the row ranges of episodes {listed(wrong)} do not join; counted anew", wrong)
    if wrong or state.is_ledger_changed:
        renumber_rows(state)


def _fit_files_of_table(state: State) -> None:
    """Entries of `meta/episodes/*` that name files which do not exist, and columns of features that are gone."""
    if state.table is None:
        return
    stale = [
        row.episode_index
        for row in state.episodes
        if not episodes_file(state.root, row.meta_chunk, row.meta_file).is_file()
    ]
    if stale:
        state.note(
            "meta.ledger",
            f"the table says of episodes {listed(stale)} that they stand in a file that is not there",
            stale,
        )
        state.is_ledger_changed = True
    gone = sorted({name.split("/")[1] for name in state.table.column_names if is_foreign(state, name)})
    if gone:
        state.note(
            "meta.ledger",
            f"the table has columns of {', '.join(f'`{name}`' for name in gone)}, which is not a feature; they go",
        )
        state.is_ledger_changed = True


def is_foreign(state: State, column: str) -> bool:
    """Whether a column of the table belongs to a feature that the dataset does not have."""
    parts = column.split("/")
    if len(parts) != 3 or parts[0] not in ("stats", "videos"):
        return False
    feature = state.features.get(parts[1])
    return feature is None or (parts[0] == "videos" and feature.dtype != "video")


def _is_in_order(state: State, rule: str) -> bool:
    """Whether the rows stand in the order of their episodes, without which no numbering can be right."""
    episode = state.columns[EPISODE_INDEX][state.kept]
    if (np.diff(episode) >= 0).all():
        return True
    message = "the rows do not stand in the order of the episodes"
    if not any(repair.message.startswith(message) for repair in state.repairs):
        state.note(
            rule,
            f"{message}; `mimetic dataset edit --root={state.root} --operation.type=keep` of all episodes sorts them",
            is_mended=False,
        )
    return False


def _starts(episode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First row of each run of equal numbers, and its length."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1]).astype(np.int64)
    return starts, np.diff(np.append(starts, len(episode)))
