"""A finished episode as working files, ready to be committed: data, videos, tables, statistics, clocks."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mimetic.data.encoding.info import video_info
from mimetic.data.features import DatasetFeature, parse_features
from mimetic.data.record.buffer import EpisodeBuffer
from mimetic.data.record.clocks import EpisodeClocks, clocks_file, clocks_table, write_clocks
from mimetic.data.record.declare import Declared
from mimetic.data.record.journal import WorkFolder
from mimetic.data.record.sinks import SinkResult
from mimetic.data.record.state import DatasetState
from mimetic.data.record.totals import PICTURES_FILE, write_pictures
from mimetic.data.statistics import columns_stats
from mimetic.data.store.data_file import open_parquet
from mimetic.data.store.episode_rows import EpisodeRow, VideoPlace, episodes_file, rows_table
from mimetic.data.store.schema import data_schema, episode_table
from mimetic.data.store.shards import next_file
from mimetic.data.store.tables import stats_json, with_counts, write_tasks_file
from mimetic.data.video.index import build_index, open_container
from mimetic.errors import DatasetError
from mimetic.names import INFO_JSON, STATS_JSON, TASKS_PARQUET

_MOST_OFF_S = 1e-4
"""LeRobot's tolerance of frame times."""


@dataclass(frozen=True)
class Staged:
    """An episode whose files wait for their names.

    Args:
        renames: (working file, final file), in the order in which they should appear.
        state: the dataset afterwards.
    """

    renames: list[tuple[Path, Path]]
    state: DatasetState


def stage_episode(
    folder: WorkFolder,
    state: DatasetState,
    buffer: EpisodeBuffer,
    sinks: Mapping[str, SinkResult],
    *,
    depth_units: Mapping[str, str],
    clocks: EpisodeClocks | None,
) -> Staged:
    """Write everything that an episode adds to the dataset under working names.

    Args:
        folder: where to.
        state: the dataset before.
        buffer: rows of the episode.
        sinks: its pictures by camera.
        depth_units: "mm" or "m" by depth camera.
        clocks: measured times, if they are to be kept.

    Raises:
        DatasetError: the numbers of rows and pictures differ.
        OSError: the disk is full or fails.
    """
    n_frames, number = len(buffer), len(state.rows)
    for camera, result in sinks.items():
        if result.n_frames != n_frames:
            raise DatasetError(f"episode {number} has {n_frames} rows and {result.n_frames} pictures of `{camera}`")
    tasks = _with_tasks(state.tasks, buffer.tasks)
    task_index = {task: index for index, task in tasks.items()}
    columns = buffer.columns(
        state.features, episode=number, first_index=state.n_frames, fps=state.fps, task_index=task_index
    )
    renames: list[tuple[Path, Path]] = []
    layout = state.layout

    places: dict[str, VideoPlace] = {}
    for camera in state.declared.video_keys:
        duration_s = _require_frames(sinks[camera].path, camera, n_frames, state.fps)
        chunk, file = state.videos[camera]
        places[camera] = VideoPlace(chunk=chunk, file=file, from_s=0.0, to_s=duration_s)
        renames.append((sinks[camera].path, layout.video_file(camera, chunk, file)))

    declared, raw_info = _described(state, sinks, depth_units) if not state.rows else (state.declared, state.raw_info)
    data = folder.file("data.parquet")
    _write_data(data, declared.features, columns, sinks)
    renames.append((data, layout.data_file(*state.data)))

    numeric = {name: columns[name] for name, feature in declared.features.items() if feature.is_numeric}
    pictures = {camera: (result.pictures, n_frames) for camera, result in sinks.items()}
    totals = state.totals.with_episode(numeric, pictures)
    stats = columns_stats(declared.features, numeric)
    stats |= {camera: result.pictures.result(count=n_frames) for camera, result in sinks.items()}
    row = EpisodeRow(
        episode_index=number,
        tasks=tuple(dict.fromkeys(buffer.tasks)),
        length=n_frames,
        data_chunk=state.data[0],
        data_file=state.data[1],
        from_index=state.n_frames,
        to_index=state.n_frames + n_frames,
        videos=places,
        stats=stats,
        meta_chunk=state.meta[0],
        meta_file=state.meta[1],
    )
    if len(tasks) != len(state.tasks):
        path = folder.file("tasks.parquet")
        write_tasks_file(path, tasks)
        renames.append((path, state.root / TASKS_PARQUET))
    path = folder.file("episodes.parquet")
    _write_parquet(path, rows_table([row], declared.features))
    renames.append((path, episodes_file(state.root, *state.meta)))
    if clocks is not None:
        path = folder.file("clocks.parquet")
        write_clocks(path, clocks_table(clocks))
        renames.append((path, clocks_file(state.root, *state.meta)))
    rows = (*state.rows, row)
    if totals.cameras:
        path = folder.file("pictures.parquet")
        write_pictures(path, totals.cameras, n_episodes=len(rows), n_frames=row.to_index)
        renames.append((path, state.root / PICTURES_FILE))
    raw_info = with_counts(raw_info, episodes=len(rows), frames=row.to_index, tasks=len(tasks))
    renames.append(
        (_write_json(folder.file("stats.json"), stats_json(totals.stats(declared.features))), state.root / STATS_JSON)
    )
    renames.append((_write_json(folder.file("info.json"), raw_info), state.root / INFO_JSON))
    after = replace(
        state,
        raw_info=raw_info,
        declared=declared,
        tasks=tasks,
        rows=rows,
        totals=totals,
        data=next_file(*state.data, state.chunks_size),
        meta=next_file(*state.meta, state.chunks_size),
        videos={camera: next_file(*place, state.chunks_size) for camera, place in state.videos.items()},
    )
    return Staged(renames, after)


def _with_tasks(tasks: Mapping[int, str], new: list[str]) -> dict[int, str]:
    """All tasks; new ones get the next numbers in the order of their first frame."""
    known = set(tasks.values())
    added = [task for task in dict.fromkeys(new) if task not in known]
    return {**tasks, **dict(enumerate(added, start=len(tasks)))}


def _require_frames(path: Path, camera: str, n_frames: int, fps: int) -> float:
    """Check that a video really has the frames of its episode, each at its time; returns its duration [s]."""
    container, stream = open_container(path)
    try:
        index = build_index(path, container, stream)
    finally:
        container.close()
    if len(index) != n_frames:
        raise DatasetError(f"the video of `{camera}` has {len(index)} frames and the episode {n_frames} rows")
    if index.time_error_s(n_frames - 1, fps) > _MOST_OFF_S / 2:
        raise DatasetError(f"the video of `{camera}` shows its last frame at {index.time_s(n_frames - 1)} s")
    return n_frames / fps


def _described(
    state: DatasetState, sinks: Mapping[str, SinkResult], depth_units: Mapping[str, str]
) -> tuple[Declared, dict[str, Any]]:
    """Features and info.json with the `info` blocks that the first episode fills in."""
    raw = {name: dict(entry) for name, entry in state.declared.raw.items()}
    for camera, feature in state.declared.cameras.items():
        block = dict(raw[camera].get("info") or {})
        if feature.is_depth:
            block["depth_unit"] = depth_units[camera]
        if feature.dtype == "video":
            block |= video_info(sinks[camera].path, state.encoders[camera], feature.is_depth)
        raw[camera]["info"] = block
    declared = Declared(raw, parse_features(raw, where=INFO_JSON))
    return declared, {**state.raw_info, "features": raw}


def _write_data(
    path: Path, features: Mapping[str, DatasetFeature], columns: Mapping[str, Any], sinks: Mapping[str, SinkResult]
) -> None:
    images = [name for name, feature in features.items() if feature.dtype == "image"]
    plain = {name: feature for name, feature in features.items() if name not in images}
    table = episode_table(plain, columns)
    schema = data_schema(features)
    arrays = {name: table[name] for name in table.column_names}
    arrays |= {name: _picture_cells(sinks[name], schema.field(name).type, features[name].is_depth) for name in images}
    _write_parquet(path, pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema))


def _picture_cells(result: SinkResult, kind: pa.DataType, is_depth: bool) -> pa.Array:
    """Cells over the file in which the pictures were collected, without reading it into memory."""
    with result.path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    ending = "tiff" if is_depth else "png"
    names = pa.array([f"frame-{frame:06d}.{ending}" for frame in range(result.n_frames)])
    offsets = np.concatenate([[0], result.ends])
    parts = []
    start = 0
    while start < result.n_frames:  # offsets of 32 bits: two gigabytes a piece
        stop = int(np.searchsorted(offsets, offsets[start] + (1 << 31) - 1, side="right")) - 1
        stop = min(max(stop, start + 1), result.n_frames)
        relative = (offsets[start : stop + 1] - offsets[start]).astype(np.int32)
        piece = pa.py_buffer(memoryview(data)[int(offsets[start]) : int(offsets[stop])])
        cells = pa.Array.from_buffers(pa.binary(), stop - start, [None, pa.py_buffer(relative.tobytes()), piece])
        parts.append(pa.StructArray.from_arrays([cells, names[start:stop]], fields=list(kind)))
        start = stop
    return pa.chunked_array(parts)


def _write_parquet(path: Path, table: pa.Table) -> None:
    with open_parquet(path, table.schema) as writer:
        writer.write_table(table, row_group_size=max(table.num_rows, 1))


def _write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")
    return path
