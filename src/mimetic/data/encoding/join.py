"""Videos one behind the other in one file, without encoding anything again (spec/dataset.md 8.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from mimetic.data.store.atomic import flush_file
from mimetic.data.video.index import open_container, reason, restore_hint
from mimetic.errors import VideoError


def join_videos(parts: Sequence[Path], out: Path) -> list[float]:
    """Copy the streams of several files into one.

    Args:
        parts: files of one camera, in order; all must pass `why_not_joinable` with the first.
        out: file to write; it is flushed to the disk, its name is the caller's business.

    Returns:
        Duration of each part [s]: its frames begin at the sum of the durations before it.

    Raises:
        VideoError: a part cannot be read, or differs from the first in codec, size, pixel format or headers.
    """
    if not parts:
        raise VideoError("there is nothing to join")
    durations: list[Fraction] = []
    try:
        with av.open(str(out), "w", format="mp4", options={"movflags": "faststart"}) as container:
            target: Any = None
            first: dict[str, Any] = {}
            last_dts: Fraction | None = None
            for part in parts:
                source, stream = open_container(part)
                try:
                    if target is None:
                        target = container.add_stream_from_template(stream, opaque=True)
                        target.time_base = stream.time_base
                        first = _described(stream)
                    problem = _difference(first, _described(stream))
                    if problem:
                        raise VideoError(
                            f"`{part}` cannot follow `{parts[0]}` in one file: {problem}",
                            "keep them in files of their own, or re-encode them",
                        )
                    start = sum(durations, Fraction(0))
                    end, last_dts = _copy(source, stream, container, target, start, last_dts)
                finally:
                    source.close()
                durations.append(end)
    except (av.FFmpegError, OSError) as error:
        out.unlink(missing_ok=True)
        raise VideoError(f"`{out}` cannot be written: {reason(error)}", restore_hint(error)) from error
    except VideoError:
        out.unlink(missing_ok=True)
        raise
    flush_file(out)
    return [float(duration) for duration in durations]


def why_not_joinable(one: Path, other: Path) -> str:
    """Why the streams of two files cannot share one file; empty when they can.

    Raises:
        VideoError: one of them is not a video.
    """
    described = []
    for path in (one, other):
        container, stream = open_container(path)
        try:
            described.append(_described(stream))
        finally:
            container.close()
    return _difference(*described)


def _described(stream: Any) -> dict[str, Any]:
    context = stream.codec_context
    return {
        "codec": context.codec.canonical_name,
        "height": context.height,
        "width": context.width,
        "pixel format": context.pix_fmt,
        "frame rate": stream.base_rate,
        # A file has one header for all its frames: those of another encoder setting could not be decoded with it.
        "codec header": bytes(context.extradata or b""),
    }


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    found = [
        name if name == "codec header" else f"{name} {other[name]} instead of {one[name]}"
        for name in one
        if one[name] != other[name]
    ]
    return ("other " if found == ["codec header"] else "") + ", ".join(found)


def _copy(
    source: Any, stream: Any, container: Any, target: Any, start: Fraction, last_dts: Fraction | None
) -> tuple[Fraction, Fraction | None]:
    """Copy the packets of one part; returns its duration and the last decoding time [s]."""
    base = Fraction(stream.time_base)
    first_pts: int | None = stream.start_time
    begin = round(start / base)
    last = None if last_dts is None else math.floor(last_dts / base)
    end = 0
    for packet in source.demux(stream):
        if packet.pts is None or not packet.size:
            continue
        if first_pts is None:
            first_pts = packet.pts
        end = max(end, packet.pts - first_pts + (packet.duration or 0))
        shift = begin - first_pts
        dts = (packet.dts if packet.dts is not None else packet.pts) + shift
        # Decoding times must ascend over the border too; files with other delays may overlap there by a frame.
        if last is not None and dts <= last:
            dts = last + 1
        packet.pts, packet.dts = packet.pts + shift, dts
        last = dts
        packet.stream = target
        container.mux(packet)
    if stream.duration:
        end = max(end, int(stream.duration))
    return end * base, None if last is None else last * base
