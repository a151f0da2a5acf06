"""v2.0 and v2.1 to v3.0: episodes of one file each become shards (spec/dataset.md 16.2)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.inspection import EpisodeFacts, InspectTask, inspect
from mimetic.data.convert.legacy_source import LegacySource
from mimetic.data.convert.parts import CameraPart, DataPart, VideoPart, count_pixels, join, write_data
from mimetic.data.convert.progress import Bar, no_bar, show_stage
from mimetic.data.convert.rows import EpisodeRows
from mimetic.data.convert.shards import file_numbers, plan_data, plan_videos
from mimetic.data.convert.tables import v30_info, whole_stats, write_v30_tables
from mimetic.data.convert.verify import DataCheck, VideoCheck, check_data, check_video
from mimetic.data.convert.workplace import Record, Workplace, run_parts
from mimetic.data.engine.run import run_tasks
from mimetic.data.episodes import listed
from mimetic.data.info import DATA_PATH, VIDEO_PATH
from mimetic.data.layout import Layout
from mimetic.data.metadata import Metadata
from mimetic.data.stats import Stats, parse_stats
from mimetic.data.store.episode_rows import EpisodeRow, VideoPlace
from mimetic.errors import DatasetError

logger = logging.getLogger(__name__)

_INSPECTED_AT_ONCE = 32
_OPEN_S = 0.003
_BYTES_A_SECOND = 100e6
_COUNTED_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which episodes share a file.

    Args:
        data: episodes of each data file.
        videos: by camera, episodes of each video file.
        rows: where the rows of each episode come from and go to.
    """

    data: Sequence[range]
    videos: Mapping[str, Sequence[range]]
    rows: Sequence[EpisodeRows]


def upgrade(source: LegacySource, place: Workplace, config: ConvertConfig, bar: Bar = no_bar) -> None:
    """Build the v3.0 dataset in `place.dataset`.

    Raises:
        DatasetError: a file of the input is not what its tables say, or the result is not equal to the input.
    """
    info = v30_info(source, config)
    facts = _inspect_all(source, config, bar)
    place.require_space(_size(facts))
    plan = _plan(source, facts, info)
    layout = Layout(place.dataset, DATA_PATH, VIDEO_PATH)
    data_parts = _data_parts(source, plan, layout, place, info["chunks_size"])
    video_parts = _video_parts(source, plan, layout, place, info["chunks_size"])
    camera_parts = _camera_parts(source, place, config)
    seconds = _seconds(facts)
    with show_stage(bar, "Rows", "file", len(data_parts)) as advance:
        data_records = run_parts(write_data, data_parts, config, advance=advance, expected_s=seconds)
    with show_stage(bar, "Videos", "file", len(video_parts)) as advance:
        video_records = run_parts(join, video_parts, config, advance=advance, expected_s=seconds)
    with show_stage(bar, "Camera statistics", "part", len(camera_parts)) as advance:
        camera_records = run_parts(count_pixels, camera_parts, config, advance=advance)
    counted = _by_camera(camera_parts, camera_records)
    rows = _episode_rows(source, plan, data_records, video_records, counted, info["chunks_size"])
    stats = whole_stats(source.features, layout, rows, {**source.pixels, **counted})
    write_v30_tables(place.dataset, info, source, rows, stats)
    if config.verify:
        _verify(data_parts, video_parts, video_records, place, config, bar, seconds)
    made = Metadata.open(place.dataset)
    if (made.total_episodes, made.total_frames) != (info["total_episodes"], info["total_frames"]):
        raise DatasetError("the tables of the result do not count what the input has", "report this")


def _inspect_all(source: LegacySource, config: ConvertConfig, bar: Bar) -> list[EpisodeFacts]:
    groups = [
        tuple(source.episodes[start : start + _INSPECTED_AT_ONCE])
        for start in range(0, len(source.episodes), _INSPECTED_AT_ONCE)
    ]
    tasks = [
        InspectTask(
            episodes=group, features=source.features, fps=source.fps, task_numbers=frozenset(source.task_numbers)
        )
        for group in groups
    ]
    done = itertools.count(1)
    with show_stage(bar, "Inspection", "part", len(tasks)) as advance:
        expected_s = _OPEN_S * len(source.episodes) * (1 + len(source.cameras))
        found = run_tasks(
            inspect, tasks, config, on_done=lambda position, result: advance(next(done)), expected_s=expected_s
        )
    facts = [fact for group in found for fact in group]
    _report(source, facts)
    return facts


def _seconds(facts: Sequence[EpisodeFacts]) -> float:
    """About how long one process would copy [s]."""
    files = sum(1 + len(fact.videos) for fact in facts)
    return _size(facts) / _BYTES_A_SECOND + files * _OPEN_S


def _size(facts: Sequence[EpisodeFacts]) -> float:
    """About how many bytes will be written."""
    return sum(fact.data_size + sum(video.size for video in fact.videos.values()) for fact in facts)


def _report(source: LegacySource, facts: Sequence[EpisodeFacts]) -> None:
    undeclared = sorted({name for fact in facts for name in fact.undeclared})
    if undeclared:
        logger.warning("columns that meta/info.json does not declare are left out: %s", ", ".join(undeclared))
    for camera in source.cameras:
        videos = [fact.videos[camera] for fact in facts]
        if any(video.has_audio for video in videos):
            logger.warning("`%s` has sound, for which v3.0 has no place; only pictures are copied", camera)
        longer = [source.episodes[number].index for number, video in enumerate(videos) if video.surplus]
        if longer:
            logger.warning(
                "the videos of `%s` have more frames than rows in episodes %s; no row shows the surplus frames",
                camera,
                listed(longer),
            )


def _plan(source: LegacySource, facts: Sequence[EpisodeFacts], info: Mapping[str, Any]) -> Plan:
    first = 0
    rows = []
    for number, episode in enumerate(source.episodes):
        rows.append(
            EpisodeRows(
                path=episode.data,
                episode=episode.index,
                length=episode.length,
                number=number,
                first=first,
                tasks=source.task_numbers,
            )
        )
        first += episode.length
    return Plan(
        data=plan_data([fact.data_size for fact in facts], info["data_files_size_in_mb"]),
        videos={
            camera: plan_videos([fact.videos[camera] for fact in facts], info["video_files_size_in_mb"])
            for camera in source.cameras
        },
        rows=rows,
    )


def _data_parts(source: LegacySource, plan: Plan, layout: Layout, place: Workplace, chunks_size: int) -> list[DataPart]:
    return [
        DataPart(
            record=place.file(f"data-{chunk:03d}-{file:03d}"),
            title=f"data file {chunk:03d}/{file:03d}",
            out=layout.data_file(chunk, file),
            features=source.features,
            episodes=tuple(plan.rows[number] for number in group),
        )
        for group, (chunk, file) in zip(plan.data, file_numbers(len(plan.data), chunks_size), strict=True)
    ]


def _video_parts(
    source: LegacySource, plan: Plan, layout: Layout, place: Workplace, chunks_size: int
) -> list[VideoPart]:
    return [
        VideoPart(
            record=place.file(f"video-{number}-{chunk:03d}-{file:03d}"),
            title=f"video {chunk:03d}/{file:03d} of {camera}",
            out=layout.video_file(camera, chunk, file),
            sources=tuple(source.episodes[episode].videos[camera] for episode in group),
        )
        for number, camera in enumerate(source.cameras)
        for group, (chunk, file) in zip(
            plan.videos[camera], file_numbers(len(plan.videos[camera]), chunks_size), strict=True
        )
    ]


def _camera_parts(source: LegacySource, place: Workplace, config: ConvertConfig) -> list[CameraPart]:
    """Cameras whose statistics are missing in some episode, or are to be made anew."""
    parts = []
    for name, feature in source.features.items():
        if not feature.is_camera:
            continue
        stored = [source.stats.get(episode.index, {}).get(name) for episode in source.episodes]
        if all(stored) and not config.recompute_camera_stats:
            if any("q01" not in (entry or {}) for entry in stored):
                logger.info(
                    "`%s`: the statistics of the input are kept; they have no quantiles "
                    "(`--recompute_camera_stats=true` decodes sampled frames for them)",
                    name,
                )
            continue
        if feature.is_depth:
            logger.warning("`%s` holds depth and has no statistics in the input; it gets none", name)
            continue
        for start in range(0, len(source.episodes), _COUNTED_AT_ONCE):
            group = source.episodes[start : start + _COUNTED_AT_ONCE]
            parts.append(
                CameraPart(
                    record=place.file(f"pixels-{list(source.features).index(name)}-{start:06d}"),
                    title=f"statistics of {name} from episode {group[0].index} on",
                    name=name,
                    feature=feature,
                    episodes=tuple((episode.videos.get(name, episode.data), episode.length) for episode in group),
                    fps=source.fps,
                )
            )
    return parts


def _by_camera(parts: Sequence[CameraPart], records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for part, record in zip(parts, records, strict=True):
        found.setdefault(part.name, []).append(record)
    return found


def _episode_rows(
    source: LegacySource,
    plan: Plan,
    data_records: Sequence[Record],
    video_records: Sequence[Record],
    counted: Mapping[str, Sequence[Record]],
    chunks_size: int,
) -> list[EpisodeRow]:
    entries = [entry for record in data_records for entry in record["episodes"]]
    data_places = _places(plan.data, chunks_size)
    video_places = _video_places(source, plan, video_records, chunks_size)
    rows = []
    for number, episode in enumerate(source.episodes):
        stats: Stats = parse_stats(entries[number]["stats"], where="the record of a data file")
        stored = source.stats.get(episode.index, {})
        for name, feature in source.features.items():
            if name in counted:
                at, offset = divmod(number, _COUNTED_AT_ONCE)
                stats |= parse_stats({name: counted[name][at]["episodes"][offset]}, where="the record of a camera")
            elif feature.is_camera and name in stored:
                stats[name] = stored[name]
        tasks = episode.tasks or tuple(source.tasks[task] for task in entries[number]["tasks"])
        rows.append(
            EpisodeRow(
                episode_index=number,
                tasks=tasks,
                length=episode.length,
                data_chunk=data_places[number][0],
                data_file=data_places[number][1],
                from_index=plan.rows[number].first,
                to_index=plan.rows[number].first + episode.length,
                videos={camera: video_places[camera][number] for camera in source.cameras},
                stats=stats,
            )
        )
    return rows


def _places(groups: Sequence[range], chunks_size: int) -> dict[int, tuple[int, int]]:
    numbers = file_numbers(len(groups), chunks_size)
    return {episode: place for group, place in zip(groups, numbers, strict=True) for episode in group}


def _video_places(
    source: LegacySource, plan: Plan, records: Sequence[Record], chunks_size: int
) -> dict[str, dict[int, VideoPlace]]:
    found: dict[str, dict[int, VideoPlace]] = {}
    rest = iter(records)
    for camera in source.cameras:
        found[camera] = {}
        groups = plan.videos[camera]
        for group, (chunk, file) in zip(groups, file_numbers(len(groups), chunks_size), strict=True):
            start = 0.0
            for episode, duration in zip(group, next(rest)["durations"], strict=True):
                found[camera][episode] = VideoPlace(chunk=chunk, file=file, from_s=start, to_s=start + duration)
                start += duration
    return found


def _verify(
    data_parts: Sequence[DataPart],
    video_parts: Sequence[VideoPart],
    video_records: Sequence[Record],
    place: Workplace,
    config: ConvertConfig,
    bar: Bar,
    seconds: float,
) -> None:
    checks = [
        DataCheck(
            record=place.file(f"checked-{part.record.stem}"),
            title=part.title,
            out=part.out,
            features=part.features,
            episodes=part.episodes,
        )
        for part in data_parts
    ]
    videos = [
        VideoCheck(
            record=place.file(f"checked-{part.record.stem}"),
            title=part.title,
            out=part.out,
            sources=part.sources,
            starts=tuple(np.cumsum([0.0, *record["durations"][:-1]]).tolist()),
        )
        for part, record in zip(video_parts, video_records, strict=True)
    ]
    with show_stage(bar, "Verification of rows", "file", len(checks)) as advance:
        run_parts(check_data, checks, config, advance=advance, expected_s=seconds)
    with show_stage(bar, "Verification of videos", "file", len(videos)) as advance:
        run_parts(check_video, videos, config, advance=advance, expected_s=seconds)
    logger.info(
        "verified: the rows of %d episodes and the packets of %d video files are those of the input",
        sum(len(part.episodes) for part in data_parts),
        len(video_parts),
    )
