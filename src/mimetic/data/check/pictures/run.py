"""All checks that look at pictures, over all cameras of a dataset (spec/dataset_quality.md 7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures import (
    rules_files,
    rules_footage,
    rules_frame,
    rules_light,
    rules_repeats,
    rules_view,
)
from mimetic.data.check.pictures.camera import Camera
from mimetic.data.check.pictures.gather import FileTask, gather, speed_of
from mimetic.data.check.pictures.sample import EpisodePictures, EpisodeTask, Gathered
from mimetic.data.check.pictures.shift import Background
from mimetic.data.check.pictures.thumbnails import jpeg
from mimetic.data.check.source import CheckSource
from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
from mimetic.names import ACTION, STATE

logger = logging.getLogger(__name__)

RULES = (
    *rules_files.RULES,
    *rules_frame.RULES,
    *rules_repeats.RULES,
    *rules_light.RULES,
    *rules_view.RULES,
    *rules_footage.RULES,
)
_EPISODES_A_TASK = 8
_WORTH_A_POOL = 3000
"""Frames to decode from which on it pays to start other processes."""
_MOST_SHOWN = 300
_CURVE = 32
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Thumbnail:
    """A picture for people.

    Args:
        camera: feature key.
        episode: episode number.
        frame: frame of the episode.
        jpeg: JPEG file.
    """

    camera: str
    episode: int
    frame: int
    jpeg: bytes


@dataclass(frozen=True)
class Comparison:
    """Two backgrounds of a camera that was moved.

    Args:
        camera: feature key.
        episodes: those that see the second.
        before: JPEG file of the place of most episodes.
        after: JPEG file of the other.
        shift_px: shift to the right and downwards, in pixels of the full picture.
    """

    camera: str
    episodes: tuple[int, ...]
    before: bytes
    after: bytes
    shift_px: tuple[float, float]


@dataclass(frozen=True)
class PictureChecks:
    """What the pictures of a dataset show.

    Args:
        findings: in the order of the rules, camera by camera.
        measures: (E,) values by name, such as `image.luminance[observation.images.front]`; NaN where there is none.
            E are the episodes of the source.
        facts: JSON data: by camera its compression, size and number of looked-at frames.
        thumbnails: pictures of the episodes, at most a few hundred.
        comparisons: one a place of a moved camera.
        rules: ids of the rules that were applied.
    """

    findings: Sequence[Finding]
    measures: Mapping[str, Floats] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    thumbnails: Sequence[Thumbnail] = ()
    comparisons: Sequence[Comparison] = ()
    rules: Sequence[str] = ()


def check_pictures(
    source: CheckSource,
    *,
    full: bool = False,
    engine: EngineConfig | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PictureChecks:
    """Look at the pictures of a dataset.

    About two frames a second are decoded, six of each episode are measured at full size, and three stretches of
    frames in a row.

    Args:
        source: the opened dataset; with its rows, where repeats and frozen cameras are to be found.
        full: decode every frame.
        engine: who decodes; this process when absent or when there is little to do.
        on_progress: called with the number of episodes and cameras that are done, and of all.
    """
    keys = source.camera_keys
    if not keys or not len(source.episodes):
        return PictureChecks([])
    states = _states(source)
    tasks, homeless = _tasks(source, states, every=full)
    gathered = _run(tasks, engine, full, on_progress)
    cameras = [_camera(source, key, tasks, gathered) for key in keys]
    findings = [*homeless]
    findings += [finding for camera in cameras for finding in rules_files.check_files(camera)]
    speeds = {episode: speed_of(state) for episode, state in states.items()}
    colour = [camera for camera in cameras if not camera.is_depth and camera.episodes]
    left_out: dict[str, set[int]] = {camera.key: set() for camera in cameras}
    for camera in cameras:
        findings += _single(camera, speeds, left_out[camera.key])
    judged = [camera for camera in colour if not camera.is_drawn]
    swaps, swapped = rules_view.check_swapped(judged, left_out)
    findings += swaps
    measures: dict[str, Floats] = {}
    comparisons: list[Comparison] = []
    for camera in judged:
        left_out[camera.key] |= swapped
        blur, blurred = rules_frame.check_blur(camera, left_out[camera.key])
        left_out[camera.key] |= blurred
        moved = rules_view.check_moved(camera, left_out[camera.key])
        light, levels, _ = rules_light.check_light(camera, left_out[camera.key])
        findings += [*moved.findings, *light, *blur]
        comparisons += _comparisons(camera, moved)
        measures[f"image.shift_px[{camera.key}]"] = _by_episode(source, moved.shift_px)
        measures[f"image.luminance[{camera.key}]"] = _by_episode(source, levels)
        measures[f"image.sharpness[{camera.key}]"] = _by_episode(source, _sharpness(camera))
    findings += rules_footage.check_footage(judged, _curves(states), left_out) if judged else []
    return PictureChecks(
        findings=findings,
        measures=measures,
        facts={"cameras": {camera.key: _facts(camera) for camera in cameras}},
        thumbnails=[thumb for camera in cameras for thumb in _thumbnails(camera)],
        comparisons=comparisons,
        rules=RULES,
    )


def _single(camera: Camera, speeds: Mapping[int, Floats | None], left_out: set[int]) -> list[Finding]:
    """Rules that look at one episode of one camera at a time; `left_out` grows by what cannot be compared."""
    findings: list[Finding] = []
    left_out |= {item.episode for item in camera.episodes if item.damage and not len(item.frames)}
    if camera.is_drawn:
        findings.append(
            Finding(
                id="image.black",
                claim=Claim.NOT_CHECKED,
                message=f"the pictures of {camera.name} are drawings of two grey levels and no photographs: light, "
                "sharpness and the camera's place were not judged",
                feature=camera.key,
            )
        )
        return findings
    if camera.is_depth:
        findings += rules_frame.check_depth_frames(camera)
    else:
        found, useless = rules_frame.check_frames(camera)
        findings += found
        left_out |= useless
    found, frozen = rules_repeats.check_frozen(camera, left_out)
    findings += found
    left_out |= frozen
    return findings + rules_repeats.check_repeats(camera, speeds, left_out)


def _states(source: CheckSource) -> dict[int, npt.NDArray[np.float32] | None]:
    """State of each episode (else its action), every channel in units of its range over the dataset."""
    key = next((name for name in (STATE, ACTION) if name in source.features and source.features[name].is_numeric), None)
    columns = source.rows.columns if source.rows is not None else {}
    if key is None or key not in columns:
        return {int(episode): None for episode in source.episodes}
    values = np.asarray(columns[key])
    values = values.reshape(len(values), -1)
    sample = values[:: max(1, len(values) // 200_000)].astype(np.float64)
    finite = np.where(np.isfinite(sample), sample, np.nan)
    with np.errstate(all="ignore"):
        live = np.isfinite(finite).any(axis=0) if len(finite) else np.zeros(values.shape[1], dtype=bool)
        spread = np.zeros(values.shape[1])
        if live.any():
            low, high = np.nanquantile(finite[:, live], (0.01, 0.99), axis=0)
            spread[live] = high - low
    # A gripper that is only open or closed jumps by its whole range and is seen by few cameras.
    used = spread > 1e-9
    found: dict[int, npt.NDArray[np.float32] | None] = {}
    for episode in source.episodes.tolist():
        bounds = source.bounds(episode)
        if bounds is None or not used.any():
            found[episode] = None
            continue
        part = values[bounds[0] : bounds[1], used].astype(np.float64) / spread[used]
        found[episode] = np.nan_to_num(part, posinf=0.0, neginf=0.0).astype(np.float32)
    return found


def _curves(states: Mapping[int, npt.NDArray[np.float32] | None]) -> dict[int, npt.NDArray[np.float32]]:
    curves = {}
    for episode, state in states.items():
        if state is not None and len(state):
            places = np.rint(np.linspace(0, len(state) - 1, _CURVE)).astype(int)
            curves[episode] = state[places]
    return curves


def _tasks(
    source: CheckSource, states: Mapping[int, npt.NDArray[np.float32] | None], *, every: bool
) -> tuple[list[FileTask], list[Finding]]:
    """What to decode, file by file; and a note on episodes whose place is not known."""
    tasks: list[FileTask] = []
    notes: list[Finding] = []
    shown = _shown_episodes(source)
    for key in source.camera_keys:
        feature = source.features[key]
        size = feature.chw[1:]
        if len(size) != 2:
            continue
        by_file: dict[Any, list[EpisodeTask]] = {}
        unknown = []
        for episode in source.episodes.tolist():
            footage = source.footage(key, episode)
            if footage is None:
                unknown.append(episode)
                continue
            item = EpisodeTask(
                episode=episode, first=footage.first, length=max(footage.length, 0), state=states.get(episode)
            )
            by_file.setdefault(footage.path, []).append(item)
        if unknown:
            notes.append(
                Finding(
                    id="image.damaged",
                    claim=Claim.NOT_CHECKED,
                    message=f"where the pictures of {key} of {len(unknown)} episodes lie is not known",
                    episodes=tuple(unknown),
                    feature=key,
                )
            )
        for path, items in by_file.items():
            items.sort(key=lambda item: item.first)
            for start in range(0, len(items), _EPISODES_A_TASK):
                part = items[start : start + _EPISODES_A_TASK]
                tasks.append(
                    FileTask(
                        path=path,
                        name=source.relative(path),
                        key=key,
                        is_video=feature.dtype == "video",
                        is_depth=feature.is_depth,
                        size=(int(size[0]), int(size[1])),
                        fps=float(source.fps or 1),
                        episodes=part,
                        every=every,
                        show=any(item.episode in shown for item in part),
                    )
                )
    return tasks, notes


def _shown_episodes(source: CheckSource) -> set[int]:
    """Episodes of which pictures are kept, spread over the dataset."""
    most = max(1, _MOST_SHOWN // max(1, len(source.camera_keys)))
    places = np.unique(np.rint(np.linspace(0, len(source.episodes) - 1, min(most, len(source.episodes)))).astype(int))
    return {int(source.episodes[place]) for place in places}


def _run(
    tasks: Sequence[FileTask],
    engine: EngineConfig | None,
    full: bool,
    on_progress: Callable[[int, int], None] | None,
) -> list[Gathered]:
    total = sum(len(task.episodes) for task in tasks)
    frames = sum(item.length for task in tasks for item in task.episodes) // (1 if full else 5)
    if engine is not None and engine.engine == "auto" and frames < _WORTH_A_POOL:
        engine = EngineConfig(engine="serial")
    done = 0

    def tell(position: int, result: Gathered) -> None:
        nonlocal done
        done += len(tasks[position].episodes)
        if on_progress is not None:
            on_progress(done, total)

    return run_tasks(gather, list(tasks), engine, on_done=tell, name=lambda task: f"`{task.name}`")


def _camera(source: CheckSource, key: str, tasks: Sequence[FileTask], gathered: Sequence[Gathered]) -> Camera:
    feature = source.features[key]
    size = feature.chw[1:]
    own = [(task, result) for task, result in zip(tasks, gathered, strict=True) if task.key == key]
    files = {result.facts.path: result.facts for _, result in own if result.facts is not None}
    episodes: list[EpisodePictures] = [item for _, result in own for item in result.episodes]
    return Camera(
        key=key,
        root=source.root,
        fps=float(source.fps or 1),
        is_depth=feature.is_depth,
        is_video=feature.dtype == "video",
        declared=(int(size[0]), int(size[1])) if len(size) == 2 else (0, 0),
        files=list(files.values()),
        file_of={item.episode: task.name for task, _ in own for item in task.episodes},
        episodes=sorted(episodes, key=lambda item: item.episode),
    )


def _by_episode(source: CheckSource, values: Mapping[int, float]) -> Floats:
    return np.asarray([values.get(int(episode), np.nan) for episode in source.episodes], dtype=np.float64)


def _sharpness(camera: Camera) -> dict[int, float]:
    return {
        item.episode: float(np.median([sharp[0] for sharp in item.sharp])) for item in camera.episodes if item.sharp
    }


def _facts(camera: Camera) -> dict[str, Any]:
    files = [file for file in camera.files if not file.error]
    first = files[0] if files else None
    return {
        "stored": "video" if camera.is_video else "image",
        "height": camera.declared[0],
        "width": camera.declared[1],
        "codec": first.codec if first else None,
        "pix_fmt": first.pix_fmt if first else None,
        "keyframe_distance": max((file.gap for file in files), default=None),
        "bits_per_pixel": round(sum(file.bits for file in files) / len(files), 4) if files else None,
        "files": len(camera.files),
        "frames_looked_at": int(sum(len(item.frames) for item in camera.episodes)),
        "steady_share": _steady(camera),
    }


def _steady(camera: Camera) -> float | None:
    shares = [item.background.share for item in camera.episodes if item.background is not None]
    return round(float(np.median(shares)), 3) if shares else None


def _thumbnails(camera: Camera) -> list[Thumbnail]:
    return [Thumbnail(camera.key, item.episode, frame, data) for item in camera.episodes for frame, data in item.shown]


def _comparisons(camera: Camera, moved: rules_view.Moved) -> list[Comparison]:
    if moved.background is None:
        return []
    before = _grey_jpeg(moved.background)
    return [
        Comparison(camera.key, episodes, before, _grey_jpeg(background), shift)
        for episodes, background, shift in moved.others
    ]


def _grey_jpeg(background: Background) -> bytes:
    return jpeg(background.picture)
