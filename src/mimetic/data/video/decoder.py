"""One open video file: decodes the frames that are asked for, converts only those (PyAV, FFmpeg inside the wheel)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
from numpy.typing import NDArray

from mimetic.data.video.convert import Converter
from mimetic.data.video.index import (
    RESTORE_HINT,
    FrameError,
    FrameIndex,
    build_index,
    open_container,
    reason,
    restore_hint,
)
from mimetic.errors import VideoError

Picture = NDArray[np.uint8] | NDArray[np.uint16]
_NOWHERE = -1  # no frame can be had without seeking
_BEGINNING = -1  # place before the first keyframe
_SEEKS_BACK = 2


class Decoder(Protocol):
    """What a video backend offers for one file; used by one thread at a time."""

    path: Path
    index: FrameIndex
    height: int
    width: int

    @property
    def next_frame(self) -> int:
        """Frame that comes out next without seeking; negative when unknown."""
        ...

    def read(self, frames: Sequence[int], targets: Sequence[Picture], *, is_depth: bool) -> None:
        """Write the given frames (ascending, no repeats) into arrays: (3, H, W) uint8, or (H, W) uint16 depth codes."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class PyavDecoder:
    """Decodes single frames and runs of frames of one file, in one thread.

    Args:
        path: video file.
        index: its frame index, if another decoder of the same file has built it.

    Raises:
        VideoError: the file is missing or is not a video.
    """

    def __init__(self, path: Path, index: FrameIndex | None = None) -> None:
        self.path = path
        self._container, self._stream = open_container(path)
        self._next = 0
        self._expected = 0  # frame that should come out next if nothing is lost
        self._is_damaged = False
        if index is None:
            try:
                index = build_index(path, self._container, self._stream)
            except BaseException:
                self.close()
                raise
            if not index.is_from_header:
                self._next = _NOWHERE
        self.index = index
        self.height = int(self._stream.codec_context.height)
        self.width = int(self._stream.codec_context.width)
        self._converter = Converter()
        # A decoder that may meet reordered frames (H.264, HEVC) holds pictures back until it has seen the next packets.
        self._holds_back = bool(self._stream.codec_context.has_b_frames)
        self._pictures: Iterator[Any] = self._container.decode(self._stream)

    @property
    def next_frame(self) -> int:
        """Frame that comes out next without seeking; negative when unknown."""
        return self._next

    def read(self, frames: Sequence[int], targets: Sequence[Picture], *, is_depth: bool) -> None:
        """Decode frames into arrays.

        Args:
            frames: frame numbers, ascending, without repeats, all inside the file.
            targets: one array a frame: (3, H, W) uint8 for colour, (H, W) uint16 for depth.
            is_depth: write 12-bit depth codes.

        Raises:
            VideoError: a frame cannot be decoded or has another size; file and frame are named.
        """
        for place, (frame, target) in enumerate(zip(frames, targets, strict=True)):
            picture = self._surely_decode(frame, is_alone=self._is_alone(frame, frames[place + 1 : place + 2]))
            if (picture.height, picture.width) != target.shape[-2:]:
                raise FrameError(
                    f"frame {frame} of `{self.path}` is {picture.width}x{picture.height} pixels, "
                    f"{target.shape[-1]}x{target.shape[-2]} was expected",
                    RESTORE_HINT,
                    frame,
                )
            self._convert(picture, frame, target, is_depth=is_depth)

    def close(self) -> None:
        """Release the file."""
        self._container.close()

    def _convert(self, picture: Any, frame: int, target: Picture, *, is_depth: bool) -> None:
        try:
            if is_depth:
                self._converter.depth(picture, target)  # type: ignore[arg-type]
            else:
                self._converter.rgb(picture, target)  # type: ignore[arg-type]
        except av.FFmpegError as error:  # a damaged header may announce a pixel format that nothing converts
            raise FrameError(
                f"frame {frame} of `{self.path}` cannot be converted: {reason(error)}", RESTORE_HINT, frame
            ) from error

    def _surely_decode(self, frame: int, *, is_alone: bool) -> Any:
        """Decode a frame; whether that fails depends on the file alone, not on what was read before.

        A decoder that holds pictures back meets the damage of a later frame while an earlier one is wanted. So a
        failure counts only when the frame, sought and wanted for itself, fails again.
        """
        is_fresh = self._next == _NOWHERE and is_alone
        try:
            return self._decode(frame, is_alone=is_alone)
        except VideoError:
            if is_fresh:
                raise
        self._next = _NOWHERE
        return self._decode(frame, is_alone=True)

    def _is_alone(self, frame: int, later: Sequence[int]) -> bool:
        """Whether the next frame of the request, if any, is reached by seeking, not by decoding on from `frame`."""
        return not later or self.index.keyframes[self.index.keyframe_before(later[0])] > frame + 1

    def _decode(self, frame: int, *, is_alone: bool = False) -> Any:
        """The decoded picture of one frame: from where the decoder stands, else from the keyframe before it.

        After a seek, a frame that is wanted alone is drained from the decoder: it costs no packet behind it. One that
        the decoder reached by going on may be followed by the next one, so there it keeps going. With B-frames a
        drained decoder leaves frames out, which could not be told from damage.
        """
        place = self.index.keyframe_before(frame)
        if not 0 <= self._next <= frame or self.index.keyframes[place] > self._next:
            self._seek(frame, place)
            if is_alone and self._holds_back and self.index.is_in_order:
                self._pictures = self._drained(int(self.index.pts[frame]))
                picture = self._advance(frame)
                if picture is not None:
                    self._next = _NOWHERE  # a drained decoder takes no more packets before it has sought
                    return picture
                self._seek(frame, place)
        # A container may land behind the keyframe that was meant (it searches by decoding time): walk back a little.
        for earlier in range(place - 1, place - 1 - _SEEKS_BACK, -1):
            picture = self._advance(frame)
            if picture is not None:
                return picture
            self._seek(frame, max(earlier, _BEGINNING))
        picture = self._advance(frame)
        if picture is None:
            self._next = _NOWHERE
            raise FrameError(
                f"frame {frame} of `{self.path}` cannot be decoded: the decoder leaves it out", RESTORE_HINT, frame
            )
        return picture

    def _advance(self, frame: int) -> Any | None:
        """Decode up to `frame`; None when the decoder came out behind it."""
        while True:
            try:
                picture = next(self._pictures, None)
            except av.FFmpegError as error:
                self._next = _NOWHERE
                raise FrameError(
                    f"frame {frame} of `{self.path}` cannot be decoded: {reason(error)}", restore_hint(error), frame
                ) from error
            if picture is None:
                self._next = _NOWHERE
                raise FrameError(f"`{self.path}` ends before its frame {frame} could be decoded", RESTORE_HINT, frame)
            number = self.index.number(picture.pts)
            if number is None:
                self._mistrust(picture, frame)
                return self._decode(frame)
            self._note_damage(picture, number)
            self._next = number + 1
            if number == frame:
                if self._is_damaged:
                    raise FrameError(
                        f"frame {frame} of `{self.path}` is damaged, or a frame that it is built on",
                        RESTORE_HINT,
                        frame,
                    )
                return picture
            if number > frame:
                return None

    def _drained(self, pts: int) -> Iterator[Any]:
        """Pictures up to the one shown at `pts`; its packet is the last that the decoder is given."""
        for packet in self._container.demux(self._stream):
            yield from packet.decode()
            if packet.pts == pts:
                yield from self._stream.decode(None)
                return

    def _note_damage(self, picture: Any, number: int) -> None:
        """Remember damage until the next keyframe: decoders conceal it, and build the frames that follow on it."""
        if picture.key_frame:
            self._is_damaged = bool(picture.is_corrupt)
        else:
            self._is_damaged |= bool(picture.is_corrupt) or number > self._expected
        self._expected = number + 1

    def _mistrust(self, picture: Any, frame: int) -> None:
        """A picture came out at a time that the header does not list: list the packets instead, once."""
        if not self.index.is_from_header:
            raise FrameError(
                f"frame {frame} of `{self.path}`: the decoder gave a picture at tick {picture.pts}, "
                "which no packet of the file announces",
                RESTORE_HINT,
                frame,
            )
        self._go_to(0, frame)
        self.index = build_index(self.path, self._container, self._stream, walk=True)
        self._next = _NOWHERE
        if frame >= len(self.index):
            raise FrameError(
                f"`{self.path}` has {len(self.index)} frames, frame {frame} was asked", RESTORE_HINT, frame
            )

    def _seek(self, frame: int, place: int) -> None:
        """Go to a keyframe by its place in the index, or to the beginning of the file."""
        tick = int(self.index.pts[self.index.keyframes[place]]) if place >= 0 else self.index.start
        self._go_to(tick, frame)
        self._pictures = self._container.decode(self._stream)
        self._next = _NOWHERE
        self._expected = int(self.index.keyframes[max(place, 0)])
        self._is_damaged = False

    def _go_to(self, tick: int, frame: int) -> None:
        try:
            self._container.seek(tick, stream=self._stream, backward=True)
        except av.FFmpegError as error:
            self._next = _NOWHERE
            raise FrameError(
                f"frame {frame} of `{self.path}` cannot be reached: {reason(error)}", restore_hint(error), frame
            ) from error
