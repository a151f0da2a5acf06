"""Which frames a video file holds, without decoding it.

Frames are addressed by number, so a reader has to know the time stamp of every frame and which frames are keyframes.
An mp4 file tells both in its header. Files whose frames are stored in another order than they are shown (B-frames),
and containers without a complete header, are walked through once, packet by packet, still without decoding.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mimetic.errors import VideoError

COPY_HINT = "copy the file again from where the dataset came from"
LEAVE_OUT_HINT = "leave its episodes out with `--dataset.exclude_episodes`"
RESTORE_HINT = f"{COPY_HINT}, or {LEAVE_OUT_HINT}"
# The file may be whole: it is not delivered.
_NOT_DELIVERED = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EACCES, errno.EPERM}
_NOT_DELIVERED |= {getattr(errno, name) for name in ("ESTALE", "EREMOTEIO", "EHOSTDOWN") if hasattr(errno, name)}


class FrameError(VideoError):
    """One frame of a video file cannot be read.

    Args:
        message: what is wrong; names the file and the frame in it.
        hint: what to do.
        frame: number of the frame in its file.
    """

    def __init__(self, message: str, hint: str, frame: int) -> None:
        super().__init__(message, hint)
        self.frame = frame

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return (type(self), (self.message, self.hint, self.frame))


def restore_hint(error: BaseException) -> str:
    """What to do about a file that cannot be read: ask for another copy, or first for a look at the disk."""
    if getattr(error, "errno", None) in _NOT_DELIVERED:
        return f"the file may be whole: look at the disk, the network and the rights; else {RESTORE_HINT}"
    return RESTORE_HINT


@dataclass(frozen=True)
class FrameIndex:
    """Time stamps and keyframes of one video file, in the order in which frames are shown.

    Args:
        pts: (n,) int64, presentation time of each frame in ticks of `time_base`, ascending.
        keyframes: (k,) int64, numbers of the frames that decode on their own, ascending; the first is always frame 0.
        start: time in ticks at or before everything in the file, to seek to its beginning.
        time_base: seconds of one tick.
        announced: frames that the file's header promises; more than `len(pts)` when the file is cut off.
        is_from_header: whether the header alone was read.
        is_in_order: whether frames are stored in the order in which they are shown (no B-frames).
    """

    pts: NDArray[np.int64]
    keyframes: NDArray[np.int64]
    start: int
    time_base: Fraction
    announced: int
    is_from_header: bool
    is_in_order: bool

    def __len__(self) -> int:
        return len(self.pts)

    def number(self, pts: int | None) -> int | None:
        """Number of the frame shown at `pts` ticks, or None when no frame is shown then."""
        if pts is None:
            return None
        place = int(np.searchsorted(self.pts, pts))
        return place if place < len(self.pts) and self.pts[place] == pts else None

    def keyframe_before(self, frame: int) -> int:
        """Place in `keyframes` of the last keyframe at or before `frame`."""
        return max(int(np.searchsorted(self.keyframes, frame, side="right")) - 1, 0)

    def time_error_s(self, frame: int, fps: float) -> float:
        """Distance [s] between a frame's time since the first frame and `frame / fps`."""
        return abs(self.time_s(frame) - frame / fps)

    def time_s(self, frame: int) -> float:
        """Time [s] of a frame since the first frame."""
        elapsed = int(self.pts[frame]) - int(self.pts[0])
        return elapsed * self.time_base.numerator / self.time_base.denominator


def open_container(path: Path) -> tuple[Any, Any]:
    """Open a video file for decoding in one thread.

    Returns:
        The PyAV container and its first video stream.

    Raises:
        VideoError: the file does not exist, cannot be opened, or holds no video.
    """
    try:
        # Titles and comments are of no use here, and broken ones no reason to refuse the frames.
        container = av.open(str(path), metadata_errors="ignore")
    except FileNotFoundError as error:
        raise VideoError(f"video file `{path}` does not exist", RESTORE_HINT) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoError(f"`{path}` cannot be opened as a video: {reason(error)}", restore_hint(error)) from error
    if not container.streams.video:
        container.close()
        raise VideoError(f"`{path}` holds no video stream", RESTORE_HINT)
    stream = container.streams.video[0]
    if stream.codec_context is None:
        container.close()
        raise VideoError(f"`{path}` is compressed in a way that this FFmpeg does not know", RESTORE_HINT)
    # A second thread per decoder makes random access slower per CPU second: frames come out later.
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    return container, stream


def build_index(path: Path, container: Any, stream: Any, *, walk: bool = False) -> FrameIndex:
    """List the frames of an open file.

    Args:
        path: the file, for messages and its size.
        container: PyAV container, positioned at its start; it stands somewhere else afterwards when it was walked.
        stream: its video stream.
        walk: read every packet even if the header seems to suffice.

    Raises:
        VideoError: the file holds no frame at all.
    """
    index = None if walk else _from_header(path, container, stream)
    if index is None:
        index = _from_packets(container, stream)
    if not len(index):
        promise = f"is cut off: its header announces {index.announced} frames, none can be read"
        raise VideoError(f"`{path}` {promise if index.announced else 'holds no frame'}", RESTORE_HINT)
    return index


def _from_header(path: Path, container: Any, stream: Any) -> FrameIndex | None:
    """Read the sample table of an mp4 file, if it says when frames are shown (it holds decoding times)."""
    entries = stream.index_entries
    is_complete = "mp4" in container.format.name and 0 < len(entries) == stream.frames
    if not is_complete or stream.codec_context.has_b_frames or entries[0].timestamp != stream.start_time:
        return None
    try:
        size = path.stat().st_size
    except OSError as error:  # it has gone since it was opened
        raise VideoError(f"`{path}` cannot be read: {reason(error)}", restore_hint(error)) from error
    pts: list[int] = []
    keys: list[int] = []
    for entry in entries:
        if entry.is_discard:
            return None
        if entry.pos + entry.size > size:
            break
        if entry.is_keyframe:
            keys.append(len(pts))
        pts.append(entry.timestamp)
    return _index(pts, pts, keys, stream, is_from_header=True, is_in_order=True)


def _from_packets(container: Any, stream: Any) -> FrameIndex:
    """Walk through all packets of the video stream."""
    rows: list[tuple[int, int, bool]] = []
    try:
        for packet in container.demux(stream):
            if packet.pts is not None and packet.size and not packet.is_discard and not packet.is_corrupt:
                dts = packet.dts if packet.dts is not None else packet.pts
                rows.append((packet.pts, dts, packet.is_keyframe))
    except av.FFmpegError:
        pass  # the packets before the damage are usable; `announced` tells that some are missing
    if len(rows) < stream.frames:
        # Cut off: of frames that are shown later than the last one was due for decoding, some are missing.
        last_dts = max((row[1] for row in rows), default=0)
        rows = [row for row in rows if row[0] <= last_dts]
    is_in_order = all(one[0] < two[0] for one, two in pairwise(rows))
    rows.sort()
    keys = [number for number, row in enumerate(rows) if row[2]]
    pts, dts = [row[0] for row in rows], [row[1] for row in rows]
    return _index(pts, dts, keys, stream, is_from_header=False, is_in_order=is_in_order)


def _index(
    pts: list[int], dts: list[int], keys: list[int], stream: Any, *, is_from_header: bool, is_in_order: bool
) -> FrameIndex:
    if not keys or keys[0] != 0:
        keys = [0, *keys]
    return FrameIndex(
        pts=np.asarray(pts, dtype=np.int64),
        keyframes=np.asarray(keys, dtype=np.int64),
        start=min(dts, default=0),
        time_base=stream.time_base,
        announced=max(stream.frames, len(pts)),
        is_from_header=is_from_header,
        is_in_order=is_in_order,
    )


def reason(error: Exception) -> str:
    """An error in the words of the system or of FFmpeg."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
