"""Repairs of where footage is.

Spans that contradict the rows (`meta.video_span`), files that end early (`meta.video_file`), starts off the grid or
overlapping or beyond the end (`meta.video_order`), files that nobody refers to (`meta.orphans`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from mimetic.data.episodes import listed
from mimetic.data.repair.numbering import drop_episodes, renumber_rows
from mimetic.data.repair.state import State
from mimetic.data.store.episode_rows import VideoPlace

_SPAN_FRAMES = 1.5
_GRID_S = 1e-4


def mend_spans(state: State) -> None:
    """Let declared spans be as long as the rows, where the footage is there (`meta.video_span`)."""
    _fit_spans(state)


def mend_short_footage(state: State, rule: str, *, short_video: str) -> None:
    """Where footage is missing, shorten the rows or drop the episode.

    Args:
        state: the dataset.
        rule: id under which it is told: `meta.video_span` or `meta.video_file`.
        short_video: "shorten" or "drop"; only "drop" gives up episodes whose file is missing or damaged.
    """
    lost: dict[int, str] = {}
    missing: dict[int, int] = {}
    cameras: dict[int, str] = {}
    for row in state.episodes:
        rows = len(state.rows_of(row.episode_index))
        for key, place in row.videos.items():
            frames = state.video_frames(state.layout.video_file(key, place.chunk, place.file))
            if frames is None:
                lost[row.episode_index] = key
                if short_video != "drop":
                    continue
                frames = 0
            short = rows - max(frames - round(place.from_s * state.fps), 0)
            if short > missing.get(row.episode_index, 0):
                missing[row.episode_index], cameras[row.episode_index] = min(short, rows), key
    if lost and short_video != "drop" and rule == "meta.video_file":
        state.note(
            rule,
            f"the video of `{next(iter(lost.values()))}` of episodes {listed(list(lost))} is missing or damaged; "
            "restore the file, or leave them out with `--short_video=drop`",
            list(lost),
            is_mended=False,
        )
    if not missing:
        return
    lengths = {row.episode_index: len(state.rows_of(row.episode_index)) for row in state.episodes}
    gone = [number for number, short in missing.items() if short_video == "drop" or short >= lengths[number]]
    if len(gone) == len(state.episodes):
        state.note(rule, "no episode has footage; nothing is dropped", gone, is_mended=False)
        return
    for number, short in missing.items():
        what = f"`{cameras[number]}` of episode {number} lacks {short} of {lengths[number]} frames"
        if number in gone:
            state.note(rule, f"{what}; the episode is left out", [number])
        else:
            state.note(rule, f"{what}; the last {short} rows of the episode are left out", [number])
            _shorten(state, number, lengths[number] - short)
    if gone:
        drop_episodes(state, gone)
    renumber_rows(state)


def _shorten(state: State, episode: int, length: int) -> None:
    rows = state.rows_of(episode)
    state.kept[rows[length:]] = False
    state.redo_episodes.add(episode)
    for place, row in enumerate(state.episodes):
        if row.episode_index == episode:
            videos = {
                key: replace(span, to_s=(round(span.from_s * state.fps) + length) / state.fps)
                for key, span in row.videos.items()
            }
            state.episodes[place] = replace(row, length=length, videos=videos)
    state.is_ledger_changed = True


def _fit_spans(state: State) -> None:
    """Ends that the table gets wrong although the footage is there."""
    wrong: list[int] = []
    counts = state.counts()
    for at, row in enumerate(state.episodes):
        length = counts.get(row.episode_index, row.length)
        videos = dict(row.videos)
        for key, place in row.videos.items():
            off = (place.to_s - place.from_s) * state.fps - length
            frames = state.video_frames(state.layout.video_file(key, place.chunk, place.file))
            has_footage = frames is not None and round(place.from_s * state.fps) + length <= frames
            if has_footage and (not np.isfinite(off) or abs(off) > _SPAN_FRAMES):
                videos[key] = replace(place, to_s=(round(place.from_s * state.fps) + length) / state.fps)
        if videos != row.videos:
            wrong.append(row.episode_index)
            state.episodes[at] = replace(row, videos=videos)
            state.is_ledger_changed = True
    if wrong:
        state.note(
            "meta.video_span",
            f"the declared spans of episodes {listed(wrong)} are not as long as the rows; they are set",
            wrong,
        )


def mend_order(state: State) -> None:
    """Put starts on the frame grid; where spans overlap or leave the file, lay episodes one after the other.

    That is done only if the file has just their frames.
    """
    for key in state.video_keys:
        by_file: dict[Path, list[int]] = {}
        for at, row in enumerate(state.episodes):
            if key in row.videos:
                place = row.videos[key]
                by_file.setdefault(state.layout.video_file(key, place.chunk, place.file), []).append(at)
        for path, members in by_file.items():
            _lay_in_order(state, key, path, members)
    _snap(state)


def _lay_in_order(state: State, key: str, path: Path, members: list[int]) -> None:
    rows = [state.episodes[at] for at in members]
    spans = sorted((row.videos[key].from_s, row.videos[key].from_s + row.length / state.fps) for row in rows)
    total, frames = sum(row.length for row in rows), state.video_frames(path)
    is_beyond = frames is not None and spans[-1][1] * state.fps > frames + 0.5
    is_apart = all(one[1] <= two[0] + 0.5 / state.fps for one, two in pairwise(spans))
    if is_apart and not (is_beyond and frames == total):
        return
    numbers = [row.episode_index for row in rows]
    if frames != total:
        state.note(
            "meta.video_order",
            f"spans of episodes {listed(numbers)} overlap in `{state.layout.relative(path)}`, which has {frames} "
            f"frames for {total} rows; whose frames are whose cannot be told",
            numbers,
            is_mended=False,
        )
        return
    at = 0
    for place, row in zip(members, rows, strict=True):
        old = row.videos[key]
        new = VideoPlace(chunk=old.chunk, file=old.file, from_s=at / state.fps, to_s=(at + row.length) / state.fps)
        state.episodes[place] = replace(state.episodes[place], videos={**state.episodes[place].videos, key: new})
        at += row.length
    state.is_ledger_changed = True
    state.note(
        "meta.video_order",
        f"spans of episodes {listed(numbers)} {'end after' if is_apart else 'overlap in'} "
        f"`{state.layout.relative(path)}`, which has just their frames; they are laid one after the other",
        numbers,
    )


def _snap(state: State) -> None:
    wrong: list[int] = []
    for at, row in enumerate(state.episodes):
        videos = dict(row.videos)
        for key, place in row.videos.items():
            first = round(place.from_s * state.fps)
            off = abs(place.from_s - first / state.fps)
            if _GRID_S < off <= 0.25 / state.fps:
                videos[key] = replace(place, from_s=first / state.fps, to_s=(first + row.length) / state.fps)
        if videos != row.videos:
            wrong.append(row.episode_index)
            state.episodes[at] = replace(row, videos=videos)
            state.is_ledger_changed = True
    if wrong:
        state.note(
            "meta.video_order",
            f"the starts of episodes {listed(wrong)} are off the frame grid; they are put on it",
            wrong,
        )


def move_orphans(state: State) -> None:
    """Move files aside that no episode refers to (`drop_strays` has left out such rows)."""
    used = {
        state.layout.video_file(key, place.chunk, place.file)
        for row in state.episodes
        for key, place in row.videos.items()
    }
    for path in sorted(state.root.glob("videos/**/*.mp4")):
        if path not in used:
            state.moved.append(path)
    for number, path in enumerate(state.files):
        rows = state.file == number
        if not state.kept[rows].any():
            state.moved.append(path)
    if state.moved:
        names = [state.layout.relative(path) for path in state.moved]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        state.note(
            "meta.orphans", f"no episode refers to {', '.join(f'`{name}`' for name in names[:3])}{more}; moved aside"
        )
