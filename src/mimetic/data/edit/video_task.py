"""One video file of the output, by the way that keeps the frames as they are wherever that is possible.

- link: the whole file is wanted; it gets a second name (or is copied where the file system cannot link).
- copy: packets are taken as they are, since every span begins with a keyframe.
- cut: the frames from a span's beginning to the next keyframe (of streams with B-frames also those of the last group)
  are encoded again with the camera's own settings, all others are taken as they are. Only when the new encoder writes
  the very stream header of the old one: a player reads that header once for the whole file.
- encode: everything is decoded and encoded again.

What was made is opened again: its frames are counted, and some are compared with the source's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from mimetic.data.edit.data_task import link_or_copy, pictures
from mimetic.data.edit.plan import Piece
from mimetic.data.encoding.codecs import resolve_encoder
from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.features import DatasetFeature
from mimetic.data.images import decode_colour, decode_depth
from mimetic.data.parquet import read_table
from mimetic.data.video.decoder import PyavDecoder
from mimetic.data.video.index import FrameIndex, build_index, open_container, reason
from mimetic.errors import VideoError

_LARGEST_CHANGE = 30.0
"""Mean difference of a frame that was encoded again [of 255]: more is another frame, not compression."""


@dataclass(frozen=True, kw_only=True)
class VideoTask:
    """One video file to make.

    Args:
        out: its path.
        pieces: what it shows.
        fps: frame rate [Hz].
        method: see above.
        settings: of the encoder, where something is encoded.
        camera: the camera as the source declares it.
        pictures: column of pictures to encode; empty when the pieces are videos.
        threads: of the encoder; None leaves it to the encoder.
    """

    out: Path
    pieces: tuple[Piece, ...]
    fps: int
    method: str
    settings: EncoderConfig | None
    camera: DatasetFeature
    pictures: str = ""
    threads: int | None = None

    @property
    def frames(self) -> int:
        """Frames of the file."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True, kw_only=True)
class VideoResult:
    """What was made.

    Args:
        method: how; "encode" also where a cut turned out not to be possible.
        encoded_frames: frames that were encoded again.
    """

    method: str
    encoded_frames: int


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """What two streams must have in common to stand in one file.

    Args:
        codec: name.
        size: width and height.
        pix_fmt: pixel format.
        header: the codec's own stream header.
    """

    codec: str
    size: tuple[int, int]
    pix_fmt: str
    header: bytes


def stream_facts(path: Path) -> StreamFacts:
    """Read a video file's stream description.

    Raises:
        VideoError: missing, or not a video.
    """
    container, stream = open_container(path)
    try:
        context = stream.codec_context
        return StreamFacts(
            codec=context.codec.canonical_name,
            size=(context.width, context.height),
            pix_fmt=str(context.pix_fmt),
            header=bytes(context.extradata or b""),
        )
    finally:
        container.close()


def split_piece(index: FrameIndex, piece: Piece) -> tuple[int, int, int]:
    """How many frames of a piece must be encoded again at its beginning, can be copied, and must be at its end.

    At the beginning up to the next keyframe; at the end, where frames are stored in another order than they are shown
    (B-frames), from the last keyframe on.
    """
    stop = piece.first + piece.count
    keys = index.keyframes[(index.keyframes >= piece.first) & (index.keyframes < stop)]
    if not len(keys):
        return piece.count, 0, 0
    head = int(keys[0]) - piece.first
    is_clean = index.is_in_order or stop == len(index) or bool(np.isin(stop, index.keyframes))
    tail = 0 if is_clean else stop - int(keys[-1])
    return head, piece.count - head - tail, tail


def make_video(task: VideoTask) -> VideoResult:
    """Make the file and compare it with its source.

    Raises:
        VideoError: a source frame cannot be read, or the result is not what it should be.
    """
    task.out.parent.mkdir(parents=True, exist_ok=True)
    if task.method == "link":
        link_or_copy(task.pieces[0].path, task.out)
        return VideoResult(method="link", encoded_frames=0)
    if task.pictures:
        _encode_pictures(task)
        _require_count(task)
        return VideoResult(method="encode", encoded_frames=task.frames)
    if task.method in ("copy", "cut"):
        encoded = _cut(task)
        if encoded is not None and not _differences(task, encoded):
            return VideoResult(method=task.method, encoded_frames=len(encoded))
        task = replace(task, method="encode")
    _encode(task)
    wrong = _differences(task, set(range(task.frames)))
    if wrong:
        raise VideoError(f"`{task.out}` is not what was to be made: {wrong}", "nothing was replaced; report this")
    return VideoResult(method="encode", encoded_frames=task.frames)


def _cut(task: VideoTask) -> set[int] | None:
    """Write packets; the frames that had to be encoded, or None when packets cannot be cut here."""
    spans: list[tuple[Path, int, int]] = []
    encoded: set[int] = set()
    at = 0
    wanted = stream_facts(task.pieces[0].path)
    temporary: list[Path] = []
    try:
        for number, piece in enumerate(task.pieces):
            if stream_facts(piece.path) != wanted:
                return None
            head, whole, tail = split_piece(read_index(piece.path), piece)
            first = piece.first
            for place, (count, is_encoded) in enumerate(((head, True), (whole, False), (tail, True))):
                if not count:
                    continue
                span = (piece.path, first, count)
                if is_encoded:
                    part = task.out.with_name(f"{task.out.stem}.{number}-{place}.mp4.part")
                    temporary.append(part)
                    if task.settings is None or not _encode_part(task, part, replace(piece, first=first, count=count)):
                        return None
                    encoded.update(range(at + first - piece.first, at + first - piece.first + count))
                    span = (part, 0, count)
                spans.append(span)
                first += count
            at += piece.count
        return encoded if _copy_packets(task, spans) else None
    finally:
        for part in temporary:
            part.unlink(missing_ok=True)


def _encode_part(task: VideoTask, part: Path, piece: Piece) -> bool:
    """Encode frames into a file of their own; whether its stream can stand in one file with the source's."""
    _encode(replace(task, out=part, pieces=(piece,)))
    return stream_facts(part) == stream_facts(piece.path)


def _copy_packets(task: VideoTask, spans: Sequence[tuple[Path, int, int]]) -> bool:
    """Write the packets of spans one after the other, on the frame grid; False when a span cannot be cut out."""
    template_container, template = open_container(spans[0][0])
    try:
        with av.open(str(task.out), "w", format="mp4", options={"movflags": "faststart"}) as out:
            stream = out.add_stream_from_template(template, opaque=True)
            stream.time_base = template.time_base
            base = Fraction(template.time_base)
            at, last = 0, None
            for path, first, count in spans:
                packets = _packets(path, first, count)
                if packets is None:
                    return False
                for packet, frame, delay_s in packets:
                    pts = round(Fraction(at + frame, task.fps) / base)
                    dts = pts + round(delay_s / base)
                    if last is not None and dts <= last:
                        return False
                    packet.stream, packet.time_base = stream, base
                    packet.pts, packet.dts, last = pts, dts, dts
                    out.mux(packet)
                at += count
        return True
    except av.FFmpegError as error:
        raise VideoError(f"`{task.out}` cannot be written: {reason(error)}", "look at the disk") from error
    finally:
        template_container.close()


def _packets(path: Path, first: int, count: int) -> list[tuple[Any, int, Fraction]] | None:
    """Packets of frames, in the order of decoding: packet, frame in the span, decoding minus showing time [s].

    None when the frames are not a closed group: the first is no keyframe, or others lie between them (B-frames).
    """
    index = read_index(path)
    container, stream = open_container(path)
    try:
        pts = index.pts[first : first + count]
        if len(pts) < count or not np.isin(first, index.keyframes):
            return None
        container.seek(int(pts[0]), stream=stream, backward=True)
        base = Fraction(stream.time_base)
        found: list[tuple[Any, int, Fraction]] = []
        for packet in container.demux(stream):
            if packet.pts is None or not packet.size:
                continue
            place = int(np.searchsorted(pts, packet.pts))
            is_inside = place < count and int(pts[place]) == packet.pts
            if not found and not (is_inside and place == 0):
                if packet.pts > int(pts[0]):
                    return None
                continue
            if not is_inside:
                return None
            found.append((packet, place, (packet.dts - packet.pts) * base if packet.dts is not None else Fraction(0)))
            if len(found) == count:
                return found
        return None
    finally:
        container.close()


def read_index(path: Path) -> FrameIndex:
    """Frames of a file; kept, since a file with reordered frames must be walked through for it."""
    stat = path.stat()
    return _kept_index(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _kept_index(path: Path, changed: int, size: int) -> FrameIndex:
    container, stream = open_container(path)
    try:
        return build_index(path, container, stream)
    finally:
        container.close()


def decoded(path: Path, first: int, count: int) -> Iterator[Any]:
    """Decoded pictures of consecutive frames (PyAV frames), in the order of showing.

    Raises:
        VideoError: a frame is missing or cannot be decoded.
    """
    index = read_index(path)
    container, stream = open_container(path)
    try:
        if first + count > len(index):
            raise VideoError(f"`{path}` has {len(index)} frames; {first + count} are needed")
        wanted = index.pts[first : first + count]
        stream.thread_type = "AUTO"
        container.seek(int(index.pts[index.keyframes[index.keyframe_before(first)]]), stream=stream, backward=True)
        at = 0
        for picture in container.decode(stream):
            if picture.pts is None or picture.pts < wanted[at]:
                continue
            if picture.pts > wanted[at]:
                raise VideoError(f"frame {first + at} of `{path}` cannot be decoded: the decoder leaves it out")
            yield picture
            at += 1
            if at == count:
                return
        raise VideoError(f"`{path}` ends before its frame {first + at} could be decoded")
    except av.FFmpegError as error:
        raise VideoError(
            f"frames {first} to {first + count - 1} of `{path}` cannot be decoded: {reason(error)}"
        ) from error
    finally:
        container.close()


def _encode(task: VideoTask) -> None:
    """Decode and encode; pictures keep their planes (no detour over RGB) where the pixel format stays."""
    assert task.settings is not None
    resolved = resolve_encoder(task.settings, threads=task.threads, is_depth=task.camera.is_depth)
    height, width = task.camera.chw[1:]
    options = {**resolved.options}
    with av.open(str(task.out), "w", format="mp4", options={"movflags": "faststart"}) as out:
        stream: Any = out.add_stream(resolved.codec, rate=task.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, resolved.pix_fmt
        number = 0
        for piece in task.pieces:
            for picture in decoded(piece.path, piece.first, piece.count):
                if picture.format.name != resolved.pix_fmt:
                    picture = picture.reformat(format=resolved.pix_fmt)
                picture.pict_type = 0  # the decoder's kinds would force the encoder's
                picture.pts, picture.time_base = number, Fraction(1, task.fps)
                out.mux(stream.encode(picture))
                number += 1
        out.mux(stream.encode())


def _encode_pictures(task: VideoTask) -> None:
    """Encode the pictures of data files."""
    assert task.settings is not None
    channels, height, width = task.camera.chw
    encoder = VideoEncoder(
        task.out, fps=task.fps, height=height, width=width, settings=task.settings, threads=task.threads
    )
    held: tuple[Path, Any] | None = None
    try:
        for piece in task.pieces:
            if held is None or held[0] != piece.path:
                held = (piece.path, read_table(piece.path, [task.pictures])[task.pictures])
            column = held[1].slice(piece.first, piece.count)
            for row, (data, _) in enumerate(pictures(column, name=task.pictures, where=str(piece.path))):
                where = f"`{task.pictures}` of {piece.where}, frame {row}"
                encoder.add(_picture(data, task.camera, (channels, height, width), where))
        encoder.close()
    except BaseException:
        encoder.abort()
        raise


def _picture(data: bytes, camera: DatasetFeature, chw: tuple[int, int, int], where: str) -> npt.NDArray[Any]:
    if not camera.is_depth:
        colour = np.empty(chw, dtype=np.uint8)
        decode_colour(data, colour, where=where)
        return np.ascontiguousarray(colour.transpose(1, 2, 0))
    depth = np.empty((1, *chw[1:]), dtype=np.float32)
    decode_depth(data, depth, where=where)
    is_metres = camera.info.get("depth_unit") == "m"
    flat = depth.reshape(chw[1:])
    return flat if is_metres else np.clip(np.rint(flat), 0, 65535).astype(np.uint16)


def _require_count(task: VideoTask) -> None:
    found = len(read_index(task.out))
    if found != task.frames:
        raise VideoError(
            f"`{task.out}` has {found} frames instead of {task.frames}", "nothing was replaced; report this"
        )


def _differences(task: VideoTask, encoded: set[int]) -> str:
    """What is wrong with the file that was made; empty when frames and their number are right."""
    try:
        made = PyavDecoder(task.out)
    except VideoError as error:
        return error.message
    try:
        if len(made.index) != task.frames:
            return f"it has {len(made.index)} frames instead of {task.frames}"
        at = 0
        for piece in task.pieces:
            frames = sorted({0, piece.count // 2, piece.count - 1})
            own = _read(made, [at + frame for frame in frames], task.camera)
            source = PyavDecoder(piece.path, read_index(piece.path))
            try:
                theirs = _read(source, [piece.first + frame for frame in frames], task.camera)
            finally:
                source.close()
            for place, frame in enumerate(frames):
                change = np.abs(own[place].astype(np.int32) - theirs[place])
                is_exact = (at + frame) not in encoded
                if change.any() if is_exact else change.mean() > _LARGEST_CHANGE * (16 if task.camera.is_depth else 1):
                    return f"its frame {at + frame} differs from frame {piece.first + frame} of `{piece.path}`"
            at += piece.count
        return ""
    except VideoError as error:
        return error.message
    finally:
        made.close()


def _read(decoder: PyavDecoder, frames: Sequence[int], camera: DatasetFeature) -> npt.NDArray[Any]:
    height, width = decoder.height, decoder.width
    if camera.is_depth:
        out: npt.NDArray[Any] = np.empty((len(frames), height, width), dtype=np.uint16)
    else:
        out = np.empty((len(frames), 3, height, width), dtype=np.uint8)
    decoder.read(list(frames), list(out), is_depth=camera.is_depth)
    return out
