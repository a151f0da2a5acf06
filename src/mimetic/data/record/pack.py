"""Files of single episodes, as recording leaves them, become shards of the size that the dataset asks for.

Rows keep their row groups, one an episode; videos are joined by copying their streams, once, not once an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from mimetic.data.encoding.join import join_videos, why_not_joinable
from mimetic.data.parquet import read_table
from mimetic.data.record.clocks import clocks_file, join_tables, read_clocks_table, write_clocks
from mimetic.data.record.journal import WorkFolder
from mimetic.data.record.state import DatasetState, Place
from mimetic.data.store.data_file import open_parquet
from mimetic.data.store.episode_rows import EpisodeRow, VideoPlace, episodes_file, rows_table
from mimetic.data.store.schema import data_schema
from mimetic.data.store.shards import is_full, next_file

_GRID_S = 1e-3
"""How far a container's duration may be from whole frames; beyond it its own word counts."""


def pack(
    folder: WorkFolder, state: DatasetState, *, progress: Callable[[str], None] = lambda text: None
) -> DatasetState:
    """Pack the last episodes, as far back as each has files of its own, and commit the result.

    Args:
        folder: working files.
        state: the dataset.
        progress: called with what is being done.

    Returns:
        The dataset afterwards.

    Raises:
        VideoError, DatasetFormatError: a file that was recorded cannot be read; nothing has changed.
        OSError: the disk is full or fails; nothing has changed.
    """
    tail = _tail(state)
    if len(tail) < 2:
        return state
    renames: list[tuple[Path, Path]] = []
    old: list[Path] = []
    rows = list(tail)
    places: dict[str, Place] = {}
    for camera in state.declared.video_keys:
        progress(f"joining {len(tail)} videos of {camera}")
        rows, places[camera] = _pack_videos(folder, state, camera, rows, renames, old)
    progress(f"joining the rows of {len(tail)} episodes")
    rows, data = _pack_data(folder, state, rows, renames, old)
    rows = _pack_tables(folder, state, rows, renames, old)
    folder.commit(f"{len(tail)} episodes were packed into shards", renames, old)
    after = replace(
        state,
        rows=(*state.rows[: len(state.rows) - len(tail)], *rows),
        data=data,
        meta=next_file(tail[0].meta_chunk, tail[0].meta_file, state.chunks_size),
        videos={**state.videos, **places},
    )
    return after


def _tail(state: DatasetState) -> list[EpisodeRow]:
    """The last episodes that share no file with another one and were written as this module writes them."""
    counts: dict[tuple[Any, ...], int] = {}
    for row in state.rows:
        for key in _files(row):
            counts[key] = counts.get(key, 0) + 1
    schema = data_schema(state.features)
    tail: list[EpisodeRow] = []
    for row in reversed(state.rows):
        if any(counts[key] > 1 for key in _files(row)):
            break
        path = state.layout.data_file(row.data_chunk, row.data_file)
        if not pq.read_schema(path).equals(schema, check_metadata=True):
            break
        tail.append(row)
    return tail[::-1]


def _files(row: EpisodeRow) -> list[tuple[Any, ...]]:
    videos = [("video", camera, place.chunk, place.file) for camera, place in row.videos.items()]
    return [("data", row.data_chunk, row.data_file), ("meta", row.meta_chunk, row.meta_file), *videos]


def _groups(
    paths: Sequence[Path], limit_mb: float, fits: Callable[[Path, Path], bool] | None = None
) -> list[list[int]]:
    """Positions of files that go into one shard each."""
    groups: list[list[int]] = []
    size = 0.0
    for number, path in enumerate(paths):
        added = path.stat().st_size
        if groups and not is_full(size, added, limit_mb) and (fits is None or fits(paths[groups[-1][0]], path)):
            groups[-1].append(number)
            size += added
        else:
            groups.append([number])
            size = added
    return groups


def _pack_videos(
    folder: WorkFolder,
    state: DatasetState,
    camera: str,
    rows: list[EpisodeRow],
    renames: list[tuple[Path, Path]],
    old: list[Path],
) -> tuple[list[EpisodeRow], Place]:
    layout = state.layout
    paths = [layout.video_file(camera, row.videos[camera].chunk, row.videos[camera].file) for row in rows]
    limit = float(state.raw_info.get("video_files_size_in_mb", 200))
    place: Place = (rows[0].videos[camera].chunk, rows[0].videos[camera].file)
    packed = list(rows)
    targets: list[Path] = []
    for group in _groups(paths, limit, lambda one, other: not why_not_joinable(one, other)):
        target = layout.video_file(camera, *place)
        durations = [rows[number].length / state.fps for number in group]
        if len(group) > 1:
            working = folder.file(f"{state.declared.video_keys.index(camera)}-{place[0]}-{place[1]}.mp4")
            measured = join_videos([paths[number] for number in group], working)
            durations = [
                frames if abs(frames - real) < _GRID_S else real
                for frames, real in zip(durations, measured, strict=True)
            ]
            renames.append((working, target))
        elif paths[group[0]] != target:
            renames.append((_second_name(folder, paths[group[0]], camera), target))
        targets.append(target)
        # Counted in frames, not summed up: sums of fractions would leave the grid.
        is_exact = all(d == rows[k].length / state.fps for k, d in zip(group, durations, strict=True))
        n_frames, start = 0, 0.0
        for number, duration in zip(group, durations, strict=True):
            n_frames += rows[number].length
            end = n_frames / state.fps if is_exact else start + duration
            videos = {
                **packed[number].videos,
                camera: VideoPlace(chunk=place[0], file=place[1], from_s=start, to_s=end),
            }
            packed[number] = replace(packed[number], videos=videos)
            start = end
        place = next_file(*place, state.chunks_size)
    old += [path for path in paths if path not in targets]
    return packed, place


def _pack_data(
    folder: WorkFolder,
    state: DatasetState,
    rows: list[EpisodeRow],
    renames: list[tuple[Path, Path]],
    old: list[Path],
) -> tuple[list[EpisodeRow], Place]:
    layout = state.layout
    paths = [layout.data_file(row.data_chunk, row.data_file) for row in rows]
    limit = float(state.raw_info.get("data_files_size_in_mb", 100))
    place: Place = (rows[0].data_chunk, rows[0].data_file)
    packed = list(rows)
    targets: list[Path] = []
    schema = data_schema(state.features)
    for group in _groups(paths, limit):
        target = layout.data_file(*place)
        if len(group) > 1:
            working = folder.file(f"data-{place[0]}-{place[1]}.parquet")
            with open_parquet(working, schema) as writer:
                for number in group:
                    table = read_table(paths[number]).replace_schema_metadata(schema.metadata)
                    writer.write_table(table, row_group_size=max(table.num_rows, 1))
            renames.append((working, target))
        elif paths[group[0]] != target:
            renames.append((_second_name(folder, paths[group[0]], "data"), target))
        targets.append(target)
        for number in group:
            packed[number] = replace(packed[number], data_chunk=place[0], data_file=place[1])
        place = next_file(*place, state.chunks_size)
    old += [path for path in paths if path not in targets]
    return packed, place


def _second_name(folder: WorkFolder, path: Path, kind: str) -> Path:
    """Among the working files, for a file that only changes its number.

    Renaming it from its old name would not be safe to do twice: another file may have that name by then.
    """
    return folder.link(path, f"{kind}-{path.parent.name}-{path.name}")


def _pack_tables(
    folder: WorkFolder,
    state: DatasetState,
    rows: list[EpisodeRow],
    renames: list[tuple[Path, Path]],
    old: list[Path],
) -> list[EpisodeRow]:
    """One file of the table of episodes and one of clocks for all of them."""
    places = [(row.meta_chunk, row.meta_file) for row in rows]
    packed = [replace(row, meta_chunk=places[0][0], meta_file=places[0][1]) for row in rows]
    table = rows_table(packed, state.features)
    working = folder.file("episodes.parquet")
    with open_parquet(working, table.schema) as writer:
        writer.write_table(table)
    renames.append((working, episodes_file(state.root, *places[0])))
    old += [episodes_file(state.root, *place) for place in places]
    timed = [path for place in places if (path := clocks_file(state.root, *place)).is_file()]
    if timed:
        working = folder.file("clocks.parquet")
        write_clocks(working, join_tables([read_clocks_table(path) for path in timed]))
        renames.append((working, clocks_file(state.root, *places[0])))
        old += timed
    return packed
