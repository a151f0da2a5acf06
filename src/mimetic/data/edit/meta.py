"""The `meta` folder of the output: tables, counters, statistics."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.edit.clocks import carry_clocks
from mimetic.data.edit.plan import Plan, video_places
from mimetic.data.edit.summary import (
    PictureTask,
    all_rows_stats,
    carried,
    look_at_pictures,
    merged_pictures,
    picture_stats,
    relative_action_stats,
    whole_column,
)
from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
from mimetic.data.features import DatasetFeature
from mimetic.data.info import DATA_PATH, VIDEO_PATH
from mimetic.data.stats import FeatureStats, Stats
from mimetic.data.store.episode_rows import EpisodeRow, episodes_file, write_episode_rows
from mimetic.data.store.tables import with_counts, write_info, write_stats, write_tasks
from mimetic.names import ACTION, STATE

_ROWS_A_FILE = 20_000


def write_meta(
    plan: Plan,
    folder: Path,
    features: dict[str, DatasetFeature],
    numeric: Mapping[int, Stats],
    engine: EngineConfig | None,
) -> None:
    """Write everything but the rows and videos, info.json last.

    Args:
        plan: the plan.
        folder: the dataset that is being built; its rows and videos are there.
        features: of the output.
        numeric: statistics of numeric features of each output episode.
        engine: who looks at pictures.
    """
    files = [folder / DATA_PATH.format(chunk_index=file.chunk, file_index=file.file) for file in plan.data_files]
    starts, places = plan.starts, video_places(plan)
    texts, mappings = plan.tasks()
    cameras, of_camera = _camera_stats(plan, folder, features, places, engine)
    whole = all_rows_stats(files, features)
    if plan.relative_action is not None:
        whole[ACTION] = _relative(plan, files, features)
    whole |= cameras
    data_of = {number: file for file in plan.data_files for number in file.episodes}
    rows = []
    for number, cut in enumerate(plan.cuts):
        stats: Stats = {**numeric[number], **of_camera[number]}
        tasks = [texts[mappings[number][int(old)]] for old in dict.fromkeys(plan.tasks_of(cut).tolist())]
        meta_file = number // _ROWS_A_FILE
        rows.append(
            EpisodeRow(
                episode_index=number,
                tasks=tuple(dict.fromkeys(tasks)),
                length=cut.length,
                data_chunk=data_of[number].chunk,
                data_file=data_of[number].file,
                from_index=int(starts[number]),
                to_index=int(starts[number + 1]),
                videos=places[number],
                stats={name: stats[name] for name in features if name in stats},
                meta_chunk=0,
                meta_file=meta_file,
            )
        )
    for first in range(0, len(rows), _ROWS_A_FILE):
        write_episode_rows(
            episodes_file(folder, 0, first // _ROWS_A_FILE), rows[first : first + _ROWS_A_FILE], features
        )
    write_tasks(folder, dict(enumerate(texts)))
    write_stats(folder, {name: whole[name] for name in features if name in whole})
    _copy_readme(plan, folder)
    carry_clocks(plan, folder)
    order = list(plan.sources[0].raw_info)
    raw = {key: plan.features if key == "features" else plan.raw_info[key] for key in order}
    raw |= {key: value for key, value in plan.raw_info.items() if key not in raw}
    raw |= {"data_path": DATA_PATH, "video_path": VIDEO_PATH if raw.get("video_path") is not None else None}
    write_info(folder, with_counts(raw, episodes=len(rows), frames=plan.n_frames, tasks=len(texts)))


def _copy_readme(plan: Plan, folder: Path) -> None:
    readme = plan.sources[0].root / "README.md"
    if len(plan.sources) == 1 and readme.is_file():
        shutil.copyfile(readme, folder / "README.md")


def _camera_stats(
    plan: Plan,
    folder: Path,
    features: Mapping[str, DatasetFeature],
    places: Sequence[Mapping[str, Any]],
    engine: EngineConfig | None,
) -> tuple[Stats, list[Stats]]:
    """Statistics of every camera over all episodes, and of each episode."""
    of_episode: list[Stats] = [{} for _ in plan.cuts]
    whole: Stats = {}
    data_of = {number: file for file in plan.data_files for number in file.episodes}
    for key, feature in features.items():
        if not feature.is_camera:
            continue
        origin = plan.cameras[key].source_key if key in plan.cameras else plan.columns[key]
        tasks: list[PictureTask] = []
        owners: list[int] = []
        for number, cut in enumerate(plan.cuts):
            stored = plan.row(cut).stats.get(origin) if plan.is_whole(cut) and not plan.recompute_cameras else None
            kept = carried(stored, cut.length)
            if kept is not None:
                of_episode[number][key] = kept
                continue
            owners.append(number)
            if feature.dtype == "video":
                place = places[number][key]
                path = folder / VIDEO_PATH.format(video_key=key, chunk_index=place.chunk, file_index=place.file)
                first, column = round(place.from_s * plan.fps), ""
            else:
                file = data_of[number]
                path = folder / DATA_PATH.format(chunk_index=file.chunk, file_index=file.file)
                first, column = int(plan.starts[number] - plan.starts[file.episodes[0]]), key
            tasks.append(PictureTask(path=path, first=first, length=cut.length, camera=feature, column=column))
        found = run_tasks(look_at_pictures, tasks, engine, name=lambda task: task.path.name)
        total = picture_stats(feature)
        for number, (counts, frames) in zip(owners, found, strict=True):
            part = picture_stats(feature)
            part.counts = counts
            of_episode[number][key] = part.result(count=frames)
            total.merge(part)
        if len(owners) == len(plan.cuts):
            whole[key] = total.result(count=sum(frames for _, frames in found))
        else:
            whole[key] = merged_pictures([stats[key] for stats in of_episode])
    return whole, of_episode


def _relative(plan: Plan, files: Sequence[Path], features: Mapping[str, DatasetFeature]) -> FeatureStats:
    config = plan.relative_action
    excluded = [
        word.lower()
        for word in (["gripper"] if config.relative_exclude_joints is None else config.relative_exclude_joints)
    ]
    names = features[ACTION].flat_names or [""] * features[ACTION].shape[0]
    is_relative = np.asarray([not any(word in name.lower() for word in excluded) for name in names], dtype=np.bool_)
    lengths = [cut.length for cut in plan.cuts]
    return relative_action_stats(
        whole_column(files, ACTION, features[ACTION]),
        whole_column(files, STATE, features[STATE]),
        lengths,
        chunk=config.chunk_size,
        is_relative=is_relative,
    )
