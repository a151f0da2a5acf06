"""What an edit would do, decided and measured before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mimetic.data.edit.plan import Plan, VideoFile
from mimetic.data.edit.video_task import split_piece, stream_facts
from mimetic.data.encoding.codecs import resolve_encoder
from mimetic.data.encoding.info import encoder_from_info
from mimetic.errors import ConfigError, EpisodeError

_COPY_BYTES_S, _PIXELS_S, _ROWS_S = 200e6, 1.2e7, 3e4
"""Guesses for the forecast: a disk; encoding (0.025 s a frame of 640x480); rows that are written, on one core."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a plan would do.

    Args:
        operation: its name.
        target: where the result goes.
        episodes: of the result, and of the sources.
        frames: of the result, and of the sources.
        read_bytes: bytes of rows that are written again.
        linked_files: videos that are taken as they are.
        copied_files: videos whose packets are copied.
        cut_files: videos of which some frames are encoded again.
        encoded_files: videos that are encoded again as a whole.
        encoded_frames: frames that are encoded again.
        seconds: a guess, on one core.
        notes: decisions.
    """

    operation: str
    target: Path
    episodes: tuple[int, int]
    frames: tuple[int, int]
    read_bytes: int
    linked_files: int
    copied_files: int
    cut_files: int
    encoded_files: int
    encoded_frames: int
    seconds: float
    notes: tuple[str, ...] = ()


def choose_methods(plan: Plan) -> None:
    """Decide for every video file how its frames stay as they are (see `video_task`).

    Raises:
        EpisodeError: footage that the plan needs is missing; all such episodes are named.
        VideoError: a file is missing or damaged.
        ConfigError: something must be encoded again and cannot be.
    """
    short = _short_footage(plan)
    if short:
        root = plan.sources[0].root
        more = f"; {len(short) - 4} more" if len(short) > 4 else ""
        raise EpisodeError(
            f"dataset `{root}`: {'; '.join(short[:4])}{more}",
            f"shorten their rows first: `mimetic dataset repair --root={root} --only=meta.video_span --apply=true`",
        )
    plan.video_files = [_with_method(plan, video) for video in plan.video_files]


def _short_footage(plan: Plan) -> list[str]:
    found = []
    for video in plan.video_files:
        camera = plan.cameras[video.key]
        for number in video.episodes if not camera.from_pictures else ():
            cut = plan.cuts[number]
            source = plan.sources[cut.source]
            place = source.frames(camera.source_key, cut.episode)
            missing = place.first + cut.stop - len(source.frame_index(place.path))
            if missing > 0 or place.first < 0:
                missing = min(missing, cut.length)  # a start beyond all bounds is none of its frames either
                found.append(
                    f"episode {cut.episode} lacks {missing} frames of `{camera.source_key}` in `{place.path.name}`"
                )
    return found


def _with_method(plan: Plan, video: VideoFile) -> VideoFile:
    camera = plan.cameras[video.key]
    if camera.from_pictures:
        return video
    if camera.settings is not None:
        return replace(video, method="encode", reason="other encoder settings", encoded_frames=video.frames)
    source = plan.sources[0]
    pieces = video.pieces
    if len(pieces) == 1 and pieces[0].first == 0 and pieces[0].count == len(source.frame_index(pieces[0].path)):
        return replace(video, method="link")
    paths = list(dict.fromkeys(piece.path for piece in pieces))
    facts = [stream_facts(path) for path in paths]
    if any(fact != facts[0] for fact in facts):
        video = replace(video, method="encode", reason="its parts are encoded differently", encoded_frames=video.frames)
    else:
        parts = [split_piece(source.frame_index(piece.path), piece) for piece in pieces]
        encoded = sum(head + tail for head, _, tail in parts)
        if not encoded:
            return replace(video, method="copy")
        video = replace(video, method="cut", reason="a cut lies between keyframes", encoded_frames=encoded)
    _require_encoder(plan, video)
    return video


def _require_encoder(plan: Plan, video: VideoFile) -> None:
    feature = plan.declared(video.key)
    try:
        resolve_encoder(encoder_from_info(feature.info, is_depth=feature.is_depth), is_depth=feature.is_depth)
    except ConfigError as error:
        raise ConfigError(
            f"videos of `{video.key}` must be encoded again ({video.reason}), and their encoder is not there: "
            f"{error.message}",
            "`reencode_videos` with an encoder that this machine has first, or cut at keyframes "
            "(`--operation.at_keyframes=true`)",
        ) from error


def forecast(plan: Plan, target: Path) -> Forecast:
    """What a plan would do; `choose_methods` comes first."""
    lists = {name: [video for video in plan.video_files if video.method == name] for name in ("link", "copy", "cut")}
    encoded = [video for video in plan.video_files if video.method == "encode"]
    n_encoded = sum(video.encoded_frames for video in plan.video_files)
    pixels = sum(video.encoded_frames * float(np.prod(plan.declared(video.key).chw[1:])) for video in plan.video_files)
    data = sum(path.stat().st_size for source in plan.sources for path in source.data_files)
    share = plan.n_frames / max(sum(row.length for source in plan.sources for row in source.episodes.values()), 1)
    written = 0 if plan.keeps_rows else int(data * min(share, 1.0))
    copied = sum(piece.path.stat().st_size for video in (*lists["copy"], *lists["cut"]) for piece in video.pieces)
    return Forecast(
        operation=plan.operation,
        target=target,
        episodes=(len(plan.cuts), sum(len(source.episodes) for source in plan.sources)),
        frames=(plan.n_frames, sum(row.length for source in plan.sources for row in source.episodes.values())),
        read_bytes=written,
        linked_files=len(lists["link"]),
        copied_files=len(lists["copy"]),
        cut_files=len(lists["cut"]),
        encoded_files=len(encoded),
        encoded_frames=n_encoded,
        seconds=(data + copied) / _COPY_BYTES_S + pixels / _PIXELS_S + plan.n_frames / _ROWS_S,
        notes=tuple(plan.notes),
    )
