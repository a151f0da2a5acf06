"""v3.0 to v2.1, for tools that read only that: shards become one file an episode (spec/dataset.md 16.1)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.parts import CameraPart, count_pixels
from mimetic.data.convert.progress import Bar, no_bar, show_stage
from mimetic.data.convert.rows import EpisodeRows
from mimetic.data.convert.split import (
    CutCheck,
    CutPart,
    FramesCut,
    RowsCut,
    SplitPart,
    check_cuts,
    check_split_data,
    cut_video,
    split_data,
)
from mimetic.data.convert.workplace import Record, Workplace, run_parts
from mimetic.data.edit.source import EditSource
from mimetic.data.encoding.info import encoder_from_info
from mimetic.data.episodes import listed
from mimetic.data.info import LEGACY_DATA_PATH, LEGACY_VIDEO_PATH
from mimetic.data.layout import Layout
from mimetic.data.metadata import Metadata
from mimetic.data.store.atomic import write_bytes
from mimetic.data.store.tables import CHUNKS_SIZE, stats_json, write_info
from mimetic.errors import DatasetError, VideoError

logger = logging.getLogger(__name__)

_COUNTED_AT_ONCE = 8
_REPLACED = frozenset(
    (
        *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "total_videos"),
        *("total_chunks", "chunks_size", "data_path", "video_path", "robot_type", "splits"),
    )
)


def downgrade(source: EditSource, place: Workplace, config: ConvertConfig, bar: Bar = no_bar) -> None:
    """Build the v2.1 dataset in `place.dataset`.

    Raises:
        DatasetError: a file of the input is not what its tables say, or the result is not equal to the input.
    """
    _require_videos(source)
    place.require_space(_size(source))
    info = v21_info(source)
    layout = Layout(place.dataset, LEGACY_DATA_PATH, LEGACY_VIDEO_PATH, legacy=True)
    numbers = {episode: number for number, episode in enumerate(sorted(source.episodes))}
    moved = [episode for episode, number in numbers.items() if episode != number]
    if moved:
        logger.warning("the episode numbers have gaps; episodes %s get other ones", listed(moved))
    splits = _split_parts(source, numbers, layout, place, info["chunks_size"])
    cuts = _cut_parts(source, numbers, layout, place, info["chunks_size"])
    counts = _camera_parts(source, numbers, layout, place, config, info["chunks_size"])
    with show_stage(bar, "Rows", "file", len(splits)) as advance:
        split_records = run_parts(split_data, splits, config, advance=advance)
    with show_stage(bar, "Videos", "file", len(cuts)) as advance:
        cut_records = run_parts(cut_video, cuts, config, advance=advance)
    _report_encoded(cuts, cut_records)
    with show_stage(bar, "Camera statistics", "part", len(counts)) as advance:
        count_records = run_parts(count_pixels, counts, config, advance=advance)
    stats = _episode_stats(source, numbers, splits, split_records, counts, count_records)
    _write_tables(place.dataset, info, source, numbers, stats)
    if config.verify:
        _verify(splits, cuts, cut_records, place, config, bar)
    made = Metadata.open(place.dataset)
    if (made.total_episodes, made.total_frames) != (info["total_episodes"], info["total_frames"]):
        raise DatasetError("the tables of the result do not count what the input has", "report this")


def v21_info(source: EditSource) -> dict[str, Any]:
    """info.json of the result; keys that v2.1 does not know (limits of files, tools) are kept at the end."""
    raw = source.raw_info
    count = len(source.episodes)
    chunks_size = int(raw.get("chunks_size", CHUNKS_SIZE))
    cameras = source.metadata.video_keys
    return {
        "codebase_version": "v2.1",
        "robot_type": raw.get("robot_type"),
        "total_episodes": count,
        "total_frames": sum(row.length for row in source.episodes.values()),
        "total_tasks": len(source.metadata.tasks),
        "total_videos": count * len(cameras),
        "total_chunks": math.ceil(count / chunks_size),
        "chunks_size": chunks_size,
        "fps": source.fps,
        "splits": raw.get("splits") or {"train": f"0:{count}"},
        "data_path": LEGACY_DATA_PATH,
        "video_path": LEGACY_VIDEO_PATH if cameras else None,
        "features": raw["features"],
        **{key: value for key, value in raw.items() if key not in _REPLACED},
    }


def _require_videos(source: EditSource) -> None:
    """Look into the header of every video before anything is written."""
    for camera in source.metadata.video_keys:
        for episode in sorted(source.episodes):
            place = source.frames(camera, episode)
            frames = len(source.frame_index(place.path))
            if place.first + place.count > frames:
                raise VideoError(
                    f"`{place.path}` has {frames} frames; episode {episode} needs frames {place.first} to "
                    f"{place.first + place.count - 1}. Nothing was converted",
                    f"`mimetic dataset check {source.root}` lists what is wrong with the dataset",
                )


def _size(source: EditSource) -> int:
    """Bytes of the data and video files of the input."""
    videos = {
        source.frames(camera, episode).path for camera in source.metadata.video_keys for episode in source.episodes
    }
    return sum(path.stat().st_size for path in (*source.data_files, *videos))


def _split_parts(
    source: EditSource, numbers: Mapping[int, int], layout: Layout, place: Workplace, chunks_size: int
) -> list[SplitPart]:
    tasks = {number: new for new, number in enumerate(sorted(source.metadata.tasks))}
    first, firsts = 0, {}
    for episode in numbers:
        firsts[episode] = first
        first += source.episodes[episode].length
    by_file: dict[Path, list[RowsCut]] = {}
    for episode, number in numbers.items():
        rows = source.rows[episode]
        by_file.setdefault(rows.path, []).append(
            RowsCut(
                rows=EpisodeRows(
                    path=rows.path,
                    episode=episode,
                    length=source.episodes[episode].length,
                    number=number,
                    first=firsts[episode],
                    tasks=tasks,
                ),
                start=rows.start,
                out=layout.data_file(number // chunks_size, number),
            )
        )
    return [
        SplitPart(
            record=place.file(f"rows-{position:06d}"),
            title=layout.relative(path),
            path=path,
            features=source.features,
            cuts=tuple(cuts),
        )
        for position, (path, cuts) in enumerate(by_file.items())
    ]


def _cut_parts(
    source: EditSource, numbers: Mapping[int, int], layout: Layout, place: Workplace, chunks_size: int
) -> list[CutPart]:
    parts = []
    for position, camera in enumerate(source.metadata.video_keys):
        by_file: dict[Path, list[FramesCut]] = {}
        for episode, number in numbers.items():
            frames = source.frames(camera, episode)
            out = layout.video_file(camera, number // chunks_size, number)
            by_file.setdefault(frames.path, []).append(FramesCut(first=frames.first, count=frames.count, out=out))
        feature = source.features[camera]
        parts += [
            CutPart(
                record=place.file(f"video-{position}-{file:06d}"),
                title=f"{layout.relative(path)}",
                path=path,
                camera=feature,
                fps=source.fps,
                settings=encoder_from_info(feature.info, is_depth=feature.is_depth),
                cuts=tuple(cuts),
            )
            for file, (path, cuts) in enumerate(by_file.items())
        ]
    return parts


def _camera_parts(
    source: EditSource,
    numbers: Mapping[int, int],
    layout: Layout,
    place: Workplace,
    config: ConvertConfig,
    chunks_size: int,
) -> list[CameraPart]:
    """Cameras whose statistics are missing in some episode, or are to be made anew."""
    parts = []
    for name, feature in source.features.items():
        is_known = all(row.stats.get(name) for row in source.episodes.values())
        if not feature.is_camera or (is_known and not config.recompute_camera_stats):
            continue
        if feature.is_depth:
            logger.warning("`%s` holds depth and has no statistics in some episodes; those get none", name)
            continue
        order = list(numbers.items())
        for start in range(0, len(order), _COUNTED_AT_ONCE):
            group = order[start : start + _COUNTED_AT_ONCE]
            paths = [
                layout.video_file(name, number // chunks_size, number)
                if feature.dtype == "video"
                else layout.data_file(number // chunks_size, number)
                for _, number in group
            ]
            parts.append(
                CameraPart(
                    record=place.file(f"pixels-{list(source.features).index(name)}-{start:06d}"),
                    title=f"statistics of {name} from episode {group[0][0]} on",
                    name=name,
                    feature=feature,
                    episodes=tuple(
                        (path, source.episodes[episode].length) for path, (episode, _) in zip(paths, group, strict=True)
                    ),
                    fps=source.fps,
                )
            )
    return parts


def _report_encoded(parts: Sequence[CutPart], records: Sequence[Record]) -> None:
    encoded = [
        cut.out.name
        for part, record in zip(parts, records, strict=True)
        for cut, method in zip(part.cuts, record["methods"], strict=True)
        if method != "copy"
    ]
    if encoded:
        logger.warning(
            "%d videos do not begin with a keyframe in their shard; up to the next one they were encoded again: %s",
            len(encoded),
            ", ".join(encoded[:5]),
        )


def _episode_stats(
    source: EditSource,
    numbers: Mapping[int, int],
    splits: Sequence[SplitPart],
    split_records: Sequence[Record],
    counts: Sequence[CameraPart],
    count_records: Sequence[Record],
) -> dict[int, dict[str, Any]]:
    """Statistics of each episode of the result as JSON data: the stored ones, computed ones where they are missing."""
    found: dict[int, dict[str, Any]] = {}
    for part, record in zip(splits, split_records, strict=True):
        for cut, entry in zip(part.cuts, record["episodes"], strict=True):
            found[cut.rows.number] = dict(entry["stats"])
    for episode, number in numbers.items():
        found[number] |= stats_json(source.episodes[episode].stats)
    order = sorted(found)
    position: dict[str, int] = {}
    for camera, record in zip(counts, count_records, strict=True):
        for entry in record["episodes"]:
            number = order[position.get(camera.name, 0)]
            found[number][camera.name] = entry
            position[camera.name] = position.get(camera.name, 0) + 1
    return {number: {name: entry[name] for name in source.features if name in entry} for number, entry in found.items()}


def _write_tables(
    root: Path,
    info: Mapping[str, Any],
    source: EditSource,
    numbers: Mapping[int, int],
    stats: Mapping[int, Mapping[str, Any]],
) -> None:
    """Write everything in `meta/`; info.json comes last."""
    tasks = [source.metadata.tasks[number] for number in sorted(source.metadata.tasks)]
    _write_lines(
        root / "meta" / "tasks.jsonl", [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    )
    rows = [(number, source.episodes[episode]) for episode, number in numbers.items()]
    _write_lines(
        root / "meta" / "episodes.jsonl",
        [{"episode_index": number, "tasks": list(row.tasks), "length": row.length} for number, row in rows],
    )
    _write_lines(
        root / "meta" / "episodes_stats.jsonl",
        [{"episode_index": number, "stats": stats[number]} for number, _ in rows],
    )
    write_info(root, info)


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8"))


def _verify(
    splits: Sequence[SplitPart],
    cuts: Sequence[CutPart],
    cut_records: Sequence[Record],
    place: Workplace,
    config: ConvertConfig,
    bar: Bar,
) -> None:
    rows = [replace(part, record=place.file(f"checked-{part.record.stem}")) for part in splits]
    videos = [
        CutCheck(
            record=place.file(f"checked-{part.record.stem}"),
            title=part.title,
            part=part,
            methods=tuple(record["methods"]),
        )
        for part, record in zip(cuts, cut_records, strict=True)
    ]
    with show_stage(bar, "Verification of rows", "file", len(rows)) as advance:
        run_parts(check_split_data, rows, config, advance=advance)
    with show_stage(bar, "Verification of videos", "file", len(videos)) as advance:
        run_parts(check_cuts, videos, config, advance=advance)
    logger.info("verified: rows and packets of %d data and %d video files", len(rows), len(videos))
