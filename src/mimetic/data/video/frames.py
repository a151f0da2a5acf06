"""Frames of video files by number, for any number of threads.

`FrameReader` keeps decoders open and lends them: a thread takes an idle decoder of its file or opens another, so no
decoder is ever used by two threads. How many stay open is bounded over all files. Errors name the file and the frame.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.data.in_use import FilesInUse
from mimetic.data.video.decoder import Decoder, Picture, PyavDecoder
from mimetic.data.video.index import RESTORE_HINT, FrameError, FrameIndex, reason, restore_hint
from mimetic.errors import VideoError

logger = logging.getLogger(__name__)

Signature = tuple[int, int]


class FrameReader:
    """Reads frames of many video files; safe to share between threads.

    `read` returns one array of frames; `read_into` writes each frame straight into an array of the caller, such as
    a row of the batch, without a copy in between.

    Args:
        backend: "pyav" or "torchcodec" (see `choose_backend`); depth is always read by PyAV.
        max_open: how many decoders are kept open over all files; the least recently used is closed first.
    """

    def __init__(self, backend: str = "pyav", max_open: int = 16) -> None:
        self.backend = backend
        self.max_open = max_open
        self.in_use = FilesInUse()
        self._lock = threading.Lock()
        self._idle: list[_Lent] = []  # least recently used first
        self._n_lent = 0
        self._indices: dict[Path, tuple[Signature, FrameIndex]] = {}
        self._generation = 0

    def read(
        self,
        path: Path,
        frames: Sequence[int],
        *,
        fps: float,
        is_depth: bool = False,
        out: NDArray[Any] | None = None,
        tolerance_s: float = 1e-4,
    ) -> NDArray[Any]:
        """Decode frames of one file.

        Args:
            path: video file.
            frames: frame numbers in the file, counted from 0 in the order of showing; any order, repeats allowed.
            fps: the dataset's rate [Hz], against which the file's own times are checked.
            is_depth: give depth codes instead of colour.
            out: array of the result's shape and dtype to write into.
            tolerance_s: how far a frame's time may be from `frame / fps` [s].

        Returns:
            Colour: (n, 3, H, W) uint8; depth: (n, H, W) uint16 codes of 12 bits. In the order of `frames`.

        Raises:
            VideoError: the file is missing, cut off or not a video; a frame is beyond the end, cannot be decoded,
                or is shown at another time than the dataset's rate says.
        """
        lent = self._borrow(path, is_depth, frames)
        try:
            if out is None:
                size = (lent.decoder.height, lent.decoder.width)
                shape = (len(frames), *size) if is_depth else (len(frames), 3, *size)
                out = np.empty(shape, dtype=np.uint16 if is_depth else np.uint8)
            self._decode(lent.decoder, frames, list(out), fps, is_depth, tolerance_s)
        except BaseException:
            self._give_back(lent, is_fit=False)
            raise
        self._give_back(lent)
        return out

    def read_into(
        self,
        path: Path,
        frames: Sequence[int],
        targets: Sequence[NDArray[Any]],
        *,
        fps: float,
        is_depth: bool = False,
        tolerance_s: float = 1e-4,
    ) -> None:
        """Decode frames of one file, each into an array of its own.

        Args:
            path: video file.
            frames: frame numbers in the file, any order, repeats allowed.
            targets: one array a frame, of any strides: (3, H, W) uint8 for colour, (H, W) uint16 for depth.
            fps: the dataset's rate [Hz].
            is_depth: write depth codes instead of colour.
            tolerance_s: how far a frame's time may be from `frame / fps` [s].

        Raises:
            VideoError: as for `read`, and when a frame's size is not that of its target.
        """
        with self.in_use.reading(path):
            lent = self._borrow(path, is_depth, frames)
            try:
                self._decode(lent.decoder, frames, targets, fps, is_depth, tolerance_s)
            except BaseException:
                self._give_back(lent, is_fit=False)
                raise
            self._give_back(lent)

    def count(self, path: Path) -> int:
        """Number of frames in a file that can be read; nothing is decoded.

        Raises:
            VideoError: the file is missing, is not a video, or holds no frame.
        """
        return len(self.index(path))

    def index(self, path: Path) -> FrameIndex:
        """Times and keyframes of a file (same errors as `count`)."""
        known = self._known_index(path, _signature(path))
        if known is None:
            lent = self._borrow(path, True, ())
            self._give_back(lent)
            known = lent.decoder.index
        return known

    def close(self) -> None:
        """Close all idle decoders; lent ones are closed when they come back. Reading again opens files again."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._indices.clear()
            self._generation += 1
        for lent in idle:
            lent.decoder.close()

    @property
    def n_open(self) -> int:
        """Number of decoders that are open now, idle and lent."""
        with self._lock:
            return len(self._idle) + self._n_lent

    def _decode(
        self,
        decoder: Decoder,
        frames: Sequence[int],
        targets: Sequence[NDArray[Any]],
        fps: float,
        is_depth: bool,
        tolerance_s: float,
    ) -> None:
        """Sort the request, decode every frame once, copy repeats."""
        _check_request(decoder, frames, fps, tolerance_s)
        first: dict[int, Picture] = {}
        repeats: list[tuple[Picture, int]] = []
        for frame, target in zip(frames, targets, strict=True):
            if first.setdefault(frame, target) is not target:
                repeats.append((target, frame))
        wanted = sorted(first)
        decoder.read(wanted, [first[frame] for frame in wanted], is_depth=is_depth)
        for target, frame in repeats:
            target[...] = first[frame]

    def _borrow(self, path: Path, is_depth: bool, frames: Sequence[int]) -> _Lent:
        """Take an idle decoder of the file, the one that stands best for the first wanted frame, or open one."""
        signature = _signature(path)
        kind = "pyav" if is_depth else self.backend
        start = min(frames, default=0)
        self._tell_change(path, signature)
        with self._lock:
            fitting = [
                lent for lent in self._idle if lent.path == path and lent.signature == signature and lent.kind == kind
            ]
            self._n_lent += 1
            generation = self._generation
            if fitting:
                best = max(fitting, key=lambda lent: (lent.decoder.next_frame <= start, lent.decoder.next_frame))
                self._idle.remove(best)
                return best
        try:
            decoder = _open(kind, path, self._known_index(path, signature))
        except BaseException:
            with self._lock:
                self._n_lent -= 1
            raise
        with self._lock:
            self._indices[path] = (signature, decoder.index)
        return _Lent(path, signature, kind, decoder, generation)

    def _give_back(self, lent: _Lent, *, is_fit: bool = True) -> None:
        """Keep a decoder for later; close it instead when it failed, and the oldest when there are too many."""
        surplus: list[_Lent] = []
        with self._lock:
            self._n_lent -= 1
            known = self._indices.get(lent.path)
            is_current = known is None or known[0] == lent.signature  # else the file was replaced meanwhile
            if is_fit and is_current and lent.generation == self._generation:
                self._idle.append(lent)
                self._indices[lent.path] = (lent.signature, lent.decoder.index)
            else:
                surplus.append(lent)
            while self._idle and len(self._idle) + self._n_lent > self.max_open:
                surplus.append(self._idle.pop(0))
        for old in surplus:
            old.decoder.close()

    def _tell_change(self, path: Path, signature: Signature) -> None:
        """Forget a file that was replaced, and say so: its frames may be others than those read so far."""
        with self._lock:
            known = self._indices.get(path)
            if known is None or known[0] == signature:
                return
            del self._indices[path]
        logger.warning(
            "%s was changed while it is in use (%d bytes before, %d now); from here on the new file is read",
            path,
            known[0][0],
            signature[0],
        )

    def _known_index(self, path: Path, signature: Signature) -> FrameIndex | None:
        with self._lock:
            known = self._indices.get(path)
        return known[1] if known is not None and known[0] == signature else None


class _Lent:
    """An open decoder with what is needed to find it again."""

    __slots__ = ("decoder", "generation", "kind", "path", "signature")

    def __init__(self, path: Path, signature: Signature, kind: str, decoder: Decoder, generation: int) -> None:
        self.path = path
        self.signature = signature
        self.kind = kind
        self.decoder = decoder
        self.generation = generation


def _open(kind: str, path: Path, index: FrameIndex | None) -> Decoder:
    if kind == "torchcodec":
        from mimetic.data.video.torchcodec_backend import TorchcodecDecoder

        return TorchcodecDecoder(path, index)
    return PyavDecoder(path, index)


def _signature(path: Path) -> Signature:
    """Size and time of a file: a file that was replaced is opened anew."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise VideoError(f"video file `{path}` does not exist", RESTORE_HINT) from error
    except OSError as error:
        raise VideoError(f"`{path}` cannot be read: {reason(error)}", restore_hint(error)) from error
    return status.st_size, status.st_mtime_ns


def _check_request(decoder: Decoder, frames: Sequence[int], fps: float, tolerance_s: float) -> None:
    index = decoder.index
    beyond = [frame for frame in frames if not 0 <= frame < len(index)]
    if beyond:
        frame = min(beyond)
        if 0 <= frame < index.announced:
            raise FrameError(
                f"`{decoder.path}` is cut off: its header announces {index.announced} frames, "
                f"{len(index)} are there, frame {frame} was asked",
                RESTORE_HINT,
                frame,
            )
        raise FrameError(f"`{decoder.path}` has {len(index)} frames, frame {frame} was asked", RESTORE_HINT, frame)
    # A container rounds times to its ticks, which is no fault of the recording.
    tolerance_s = max(tolerance_s, float(index.time_base))
    for frame in frames:
        if index.time_error_s(frame, fps) > tolerance_s:
            raise FrameError(
                f"frame {frame} of `{decoder.path}` is shown at "
                f"{index.time_s(frame):.4f} s, but at {fps:g} Hz it belongs to "
                f"{frame / fps:.4f} s: the file's rate is not the dataset's",
                "correct `fps` in meta/info.json, encode the video again at the dataset's rate, or allow more with "
                "`--tolerance_s`",
                frame,
            )
