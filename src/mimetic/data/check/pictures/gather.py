"""One video or data file: its frames decoded in rising order, each looked at once, and only numbers kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.pictures.frame import Look, look_of, sharpness
from mimetic.data.check.pictures.phash import perceptual_hash
from mimetic.data.check.pictures.plan import IN_FULL, Plan, plan_frames
from mimetic.data.check.pictures.reading import CellFrames, Frames, OtherSize, VideoFrames, facts_of
from mimetic.data.check.pictures.repeats import Pairs, is_same, merged, runs_of
from mimetic.data.check.pictures.sample import Damage, EpisodePictures, EpisodeTask, FileFacts, Gathered, Stills
from mimetic.data.check.pictures.shift import background_of
from mimetic.data.check.pictures.thumbnails import (
    depth_as_grey,
    depth_thumbnail,
    difference,
    green_thumbnail,
    is_drawn,
    jpeg,
    luminance,
    shrink,
    thumbnail,
)
from mimetic.errors import DatasetError

STILL_MOTION = 0.02
"""Movement of the state that a picture should show, as a share of its range."""
STILL_S = 0.5
_MOST_LOOKED_INTO = 4
_SHOWN = (0.0, 0.5, 0.98)
_CURVE = 32


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """Episodes of one camera that lie in one file.

    Args:
        path: the file.
        name: the file, seen from the dataset's folder.
        key: camera.
        is_video: a video file, not pictures in a data file.
        is_depth: a depth camera.
        size: declared (height, width).
        fps: declared rate [Hz].
        episodes: what to look at, in rising order of their frames.
        every: decode every frame.
        show: keep pictures for people.
    """

    path: Path
    name: str
    key: str
    is_video: bool
    is_depth: bool
    size: tuple[int, int]
    fps: float
    episodes: Sequence[EpisodeTask]
    every: bool
    show: bool


def gather(task: FileTask) -> Gathered:
    """Look at the episodes of one file; what cannot be read is part of the result."""
    frames: VideoFrames | CellFrames
    try:
        if task.is_video:
            frames = VideoFrames(task.path, is_depth=task.is_depth)
        else:
            frames = CellFrames(task.path, task.key, size=task.size, is_depth=task.is_depth)
    except (DatasetError, OSError) as error:
        reason = error.message if isinstance(error, DatasetError) else str(error)
        lost = [
            EpisodePictures(
                episode=item.episode,
                length=item.length,
                damage=(Damage(frame=0, last=max(item.length - 1, 0), reason=reason),),
            )
            for item in task.episodes
        ]
        return Gathered(facts=FileFacts(path=task.name, error=reason) if task.is_video else None, episodes=lost)
    try:
        facts = facts_of(task.path, task.name, task.fps, frames) if isinstance(frames, VideoFrames) else None
        return Gathered(facts=facts, episodes=[_episode(task, item, frames) for item in task.episodes])
    finally:
        frames.close()


def _episode(task: FileTask, item: EpisodeTask, frames: Frames) -> EpisodePictures:
    n_there = int(np.clip(len(frames) - item.first, 0, item.length)) if item.first >= 0 else 0
    if not n_there:
        return EpisodePictures(episode=item.episode, length=item.length, size=frames.size)
    state = item.state[:n_there] if item.state is not None and len(item.state) >= n_there else None
    plan = plan_frames(n_there, task.fps, speed_of(state), every=task.every)
    look = _Looker(task, item, frames, plan)
    look.through()
    return look.result(n_there, look.stills(state, n_there))


def speed_of(state: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float64] | None:
    """(T,) how far the state moved since the frame before, in ranges; None without a state.

    The second largest change of a channel counts, of three or more: a gripper that closes moves alone, and many cameras
    do not see it.
    """
    if state is None or not state.size:
        return None
    step = np.abs(np.diff(state.astype(np.float64), axis=0, prepend=state[:1].astype(np.float64)))
    step = np.sort(np.nan_to_num(step), axis=1)
    return np.asarray(step[:, -2] if step.shape[1] >= 3 else step[:, -1])


def motion_between(state: npt.NDArray[np.float32], first: int, last: int) -> float:
    """How far the state moves within some frames, in ranges: the second largest spread of three or more channels."""
    part = state[first : last + 1]
    if not part.size:
        return 0.0
    spread = np.sort(np.nan_to_num(part.max(axis=0) - part.min(axis=0)))
    return float(spread[-2] if len(spread) >= 3 else spread[-1])


class _Looker:
    """Goes through the planned frames of one episode and keeps what the rules need."""

    def __init__(self, task: FileTask, item: EpisodeTask, frames: Frames, plan: Plan) -> None:
        self._task, self._item, self._frames, self._plan = task, item, frames, plan
        self._spread, self._full = set(plan.spread.tolist()), set(plan.full.tolist())
        self._thumbs: dict[int, npt.NDArray[Any]] = {}
        self._sharp: list[tuple[float, float]] = []
        self._pairs: list[tuple[int, float, float]] = []
        self._damage: list[Damage] = []
        self._other: list[tuple[int, tuple[int, int]]] = []

    def through(self) -> None:
        """Decode the planned frames in rising order."""
        in_rows = {frame for first, end in self._plan.rows for frame in range(first, end)}
        before: tuple[int, npt.NDArray[Any]] | None = None
        for frame, picture in self._read(sorted(self._spread | in_rows)):
            if frame in self._full and picture.ndim == 3:
                self._sharp.append(sharpness(luminance(picture)))
            if frame in self._spread:
                self._thumbs[frame] = depth_thumbnail(picture) if self._task.is_depth else thumbnail(picture)
            if frame not in in_rows:
                continue
            plane = self._plane(picture)
            if before is not None and before[0] == frame - 1:
                self._pairs.append((frame, *difference(before[1], plane)))
            before = (frame, plane)

    def stills(self, state: npt.NDArray[np.float32] | None, length: int) -> Stills:
        """Where the picture rests although the robot moves, and how well movement shows in it at all."""
        if state is None or len(self._thumbs) < 2:
            return Stills()
        frames = sorted(self._thumbs)
        resting, blocks = [], []
        for first, last in pairwise(frames):
            moves = motion_between(state, first, last) > STILL_MOTION
            mean, block = difference(self._thumbs[first][0], self._thumbs[last][0])
            resting.append(moves and is_same(mean, block))
            blocks += [block] if moves else []
        if not blocks:
            return Stills()
        longest = merged([(frames[i], frames[i + 1]) for i, rests in enumerate(resting) if rests])
        longest.sort(key=lambda span: span[0] - span[1])
        found: list[tuple[int, int]] = []
        for first, last in longest[:_MOST_LOOKED_INTO]:
            margin = round(self._task.fps * STILL_S)
            found += self._rests(max(0, first - margin), min(length - 1, last + margin))
        least = self._task.fps * STILL_S
        kept = [
            (first, last)
            for first, last in merged(found)
            if last - first > least and motion_between(state, first, last) > STILL_MOTION
        ]
        return Stills(tuple(kept), sum(resting) / len(blocks), float(np.median(blocks)))

    def _rests(self, first: int, last: int) -> list[tuple[int, int]]:
        """Runs of equal pictures among all frames of a stretch."""
        same, numbers = [], []
        before: npt.NDArray[Any] | None = None
        for frame, picture in self._read(range(first, last + 1)):
            plane = self._plane(picture)
            if before is not None:
                same.append(is_same(*difference(before, plane)))
                numbers.append(frame)
            before = plane
        return runs_of(np.asarray(same, dtype=bool), np.asarray(numbers, dtype=np.int64))

    def result(self, n_there: int, stills: Stills) -> EpisodePictures:
        """Everything that was found, in numbers."""
        frames = sorted(self._thumbs)
        common: dict[str, Any] = {
            "episode": self._item.episode,
            "length": self._item.length,
            "n_there": n_there,
            "size": self._frames.size,
            "other_sizes": tuple(self._other),
            "frames": np.asarray(frames, dtype=np.int64),
            "pairs": _as_pairs(self._pairs),
            "stills": stills,
            "damage": tuple(_joined(self._damage)),
        }
        if not frames:
            return EpisodePictures(**common)
        thumbs = np.stack([self._thumbs[frame] for frame in frames])
        if self._task.is_depth:
            looks = [_depth_look(thumb[0]) for thumb in thumbs]
            shown = self._shown(frames, [depth_as_grey(thumb[0]) for thumb in thumbs])
            return EpisodePictures(**common, looks=looks, shown=shown)
        grey = thumbs[:, 0]
        background = background_of(grey)
        chosen = np.rint(np.linspace(0, len(frames) - 1, IN_FULL)).astype(int)
        change = [difference(one, two)[0] for one, two in pairwise(grey)] or [0.0]
        return EpisodePictures(
            **common,
            looks=[look_of(picture) for picture in grey],
            sharp=tuple(self._sharp),
            background=background,
            chroma=np.stack([shrink(np.median(thumbs[:, plane], axis=0).astype(np.uint8)) for plane in (1, 2)]),
            light=grey[:, background.steady].mean(axis=1).astype(np.float32)
            if background.steady.any()
            else np.full(len(frames), np.nan, dtype=np.float32),
            drawn=float(np.mean([is_drawn(picture) for picture in grey])),
            hashes=np.asarray([perceptual_hash(grey[place]) for place in chosen], dtype=np.uint64),
            small=np.stack([shrink(grey[place]) for place in chosen]),
            change=np.interp(
                np.linspace(0, len(change) - 1, _CURVE), np.arange(len(change)), np.asarray(change)
            ).astype(np.float32),
            shown=self._shown(frames, list(thumbs)),
        )

    def _shown(self, frames: list[int], pictures: list[npt.NDArray[Any]]) -> list[tuple[int, bytes]]:
        if not self._task.show:
            return []
        places = sorted({round(part * (len(frames) - 1)) for part in _SHOWN})
        return [(frames[place], jpeg(pictures[place])) for place in places]

    def _plane(self, picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return depth_thumbnail(picture)[0] if self._task.is_depth else green_thumbnail(picture)

    def _read(self, frames: Iterable[int]) -> Iterable[tuple[int, npt.NDArray[Any]]]:
        """Pictures by frame of the episode; what cannot be read is noted."""
        first = self._item.first
        for number, outcome in self._frames.read([first + frame for frame in frames]):
            frame = number - first
            if isinstance(outcome, OtherSize):
                self._other.append((frame, outcome.size))
            elif isinstance(outcome, DatasetError):
                self._damage.append(Damage(frame=frame, last=frame, reason=outcome.message))
            else:
                yield frame, outcome


def _as_pairs(rows: list[tuple[int, float, float]]) -> Pairs:
    return Pairs(
        np.asarray([row[0] for row in rows], dtype=np.int64),
        np.asarray([row[1] for row in rows], dtype=np.float64),
        np.asarray([row[2] for row in rows], dtype=np.float64),
    )


def _joined(damage: list[Damage]) -> list[Damage]:
    """Damage by frame, neighbouring frames as one; the first reason of each stretch is kept."""
    joined: list[Damage] = []
    for item in sorted(damage, key=lambda item: item.frame):
        if joined and item.frame <= joined[-1].last + 1:
            joined[-1] = Damage(frame=joined[-1].frame, last=max(joined[-1].last, item.last), reason=joined[-1].reason)
        else:
            joined.append(item)
    return joined


def _depth_look(depth: npt.NDArray[np.float32]) -> Look:
    """Depth has no brightness: `dark` is the share without a measurement, and the spread tells an empty picture."""
    known = depth > 0
    return Look(float(depth.mean()), float(depth.std()), float((~known).mean()), 0.0)
