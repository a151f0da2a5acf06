"""Carries out plans: what would happen (`forecast`), and doing it (`execute`): built beside, verified, swapped.

Nothing is moved before everything that can be known is known: a plan holds only episodes and files that were found.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.edit.data_task import DataTask, RowsPart, write_data_file
from mimetic.data.edit.meta import write_meta
from mimetic.data.edit.plan import Plan, VideoFile
from mimetic.data.edit.verify import verify
from mimetic.data.edit.video_task import VideoTask, make_video
from mimetic.data.encoding.info import encoder_from_info, video_info
from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
from mimetic.data.features import parse_features
from mimetic.data.info import DATA_PATH, VIDEO_PATH
from mimetic.data.store.beside import FolderBuild

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Done parts, all parts, what was done last."""


@dataclass(frozen=True, kw_only=True)
class EditResult:
    """What was made.

    Args:
        root: the new dataset.
        backup: where the dataset that it replaced is now.
        episodes: episodes of the result.
        frames: frames of the result.
        methods: how many video files were made by which method.
        encoded_frames: frames that were encoded again.
        notes: decisions.
    """

    root: Path
    backup: Path | None
    episodes: int
    frames: int
    methods: Mapping[str, int] = field(default_factory=dict)
    encoded_frames: int = 0
    notes: tuple[str, ...] = ()


def execute(
    plans: Sequence[tuple[Plan, Path]],
    *,
    replaces: Path | None = None,
    engine: EngineConfig | None = None,
    encoder_threads: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> list[EditResult]:
    """Build every plan beside its target, verify all, then give all their names.

    Args:
        plans: plan and final folder of each output; `choose_methods` has been called.
        replaces: dataset that the (only) target takes the place of; it stays as `<name>_old`.
        engine: who does the work.
        encoder_threads: threads of one encoder.
        progress: called after every part.

    Raises:
        DatasetError: a target exists, a result is not what was planned, or a source changed meanwhile. Everything is
            then as before.
    """
    with contextlib.ExitStack() as stack:
        sources = {id(source): source for plan, _ in plans for source in plan.sources}.values()
        builds = [stack.enter_context(FolderBuild(target, replaces=replaces)) for _, target in plans]
        results = []
        for (plan, target), build in zip(plans, builds, strict=True):
            methods, encoded = _build(plan, build.folder, engine, encoder_threads, progress)
            verify(build.folder, plan)
            results.append(
                EditResult(
                    root=target,
                    backup=None,
                    episodes=len(plan.cuts),
                    frames=plan.n_frames,
                    methods=methods,
                    encoded_frames=encoded,
                    notes=tuple(plan.notes),
                )
            )
        for source in sources:
            source.require_unchanged()
        return [replace(result, backup=build.commit()) for result, build in zip(results, builds, strict=True)]


def _build(
    plan: Plan, folder: Path, engine: EngineConfig | None, threads: int | None, progress: Progress
) -> tuple[dict[str, int], int]:
    features = parse_features(plan.features, where=f"the result of `{plan.operation}`")
    scratch = folder / ".values"
    data_tasks = _data_tasks(plan, folder, scratch)
    video_tasks = [_video_task(plan, video, folder, threads) for video in plan.video_files]
    total = len(data_tasks) + len(video_tasks)
    done = 0

    def tell(what: Callable[[int], str]) -> Callable[[int, Any], None]:
        def on_done(position: int, _: Any) -> None:
            nonlocal done
            done += 1
            progress(done, total, what(position))

        return on_done

    made = run_tasks(
        write_data_file,
        data_tasks,
        engine,
        on_done=tell(lambda position: data_tasks[position].out.relative_to(folder).as_posix()),
        name=lambda task: task.out.name,
    )
    videos = run_tasks(
        make_video,
        video_tasks,
        engine,
        on_done=tell(lambda position: video_tasks[position].out.relative_to(folder).as_posix()),
        name=lambda task: task.out.name,
    )
    if scratch.exists():
        shutil.rmtree(scratch)
    for key, camera in plan.cameras.items():
        if camera.settings is not None:
            first = next(
                task.out for task, video in zip(video_tasks, plan.video_files, strict=True) if video.key == key
            )
            plan.features[key] = {**plan.features[key], "info": _new_info(plan, key, first)}
    features = parse_features(plan.features, where=f"the result of `{plan.operation}`")
    stats_of = dict(
        zip((n for file in plan.data_files for n in file.episodes), (s for found in made for s in found), strict=True)
    )
    write_meta(plan, folder, features, stats_of, engine)
    methods: dict[str, int] = {}
    for result in videos:
        methods[result.method] = methods.get(result.method, 0) + 1
    return methods, sum(result.encoded_frames for result in videos)


def _new_info(plan: Plan, key: str, path: Path) -> dict[str, Any]:
    """The `info` block of a camera that was encoded again; what describes the camera, not the stream, stays."""
    feature = plan.declared(key)
    old = dict(plan.features[key].get("info") or {})
    unit = old.get("depth_unit")
    new = video_info(path, plan.cameras[key].settings, feature.is_depth, depth_unit=unit)
    kept = {name: value for name, value in old.items() if not name.startswith(("video.", "audio.", "has_audio"))}
    return {**kept, **new}


def _data_tasks(plan: Plan, folder: Path, scratch: Path) -> list[DataTask]:
    starts = plan.starts
    _, mappings = plan.tasks()
    added = {}
    for number, (name, values) in enumerate(plan.added.items()):
        scratch.mkdir(exist_ok=True)
        added[name] = scratch / f"{number}.npy"
        np.save(added[name], values.astype(str) if values.dtype.kind == "O" else values, allow_pickle=False)
    keeps_rows = plan.keeps_rows
    tasks = []
    for file in plan.data_files:
        parts = []
        for number in file.episodes:
            cut = plan.cuts[number]
            place = plan.sources[cut.source].rows[cut.episode]
            parts.append(
                RowsPart(
                    path=place.path,
                    start=place.start + cut.start,
                    count=cut.length,
                    episode=number,
                    first=int(starts[number]),
                    tasks=mappings[number],
                    is_moved=cut.start > 0,
                )
            )
        tasks.append(
            DataTask(
                out=folder / DATA_PATH.format(chunk_index=file.chunk, file_index=file.file),
                features=plan.features,
                columns=plan.columns,
                parts=tuple(parts),
                fps=plan.fps,
                added=added,
                copied=parts[0].path if keeps_rows else None,
            )
        )
    return tasks


def _video_task(plan: Plan, video: VideoFile, folder: Path, threads: int | None) -> VideoTask:
    camera = plan.cameras[video.key]
    declared = plan.sources[0].features[camera.source_key]
    settings = camera.settings
    if settings is None and video.method != "link":  # packets that cannot be copied after all are encoded
        settings = encoder_from_info(declared.info, is_depth=declared.is_depth)
    return VideoTask(
        out=folder / VIDEO_PATH.format(video_key=video.key, chunk_index=video.chunk, file_index=video.file),
        pieces=video.pieces,
        fps=plan.fps,
        method=video.method,
        settings=settings,
        camera=declared,
        pictures=camera.source_key if camera.from_pictures else "",
        threads=threads,
    )
