"""Where the pictures of one camera and one episode go while it is recorded.

Each camera has a thread, fed by a queue; all queues together hold a bounded number of bytes. Every picture that was
added is encoded, or the episode cannot be saved: nothing is dropped. When the encoder is slower than the camera, the
loop waits, or, by request, shows the picture before once more and says so.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.record.frame_check import Picture
from mimetic.data.statistics import PictureStats, thin
from mimetic.data.store.atomic import flush_file
from mimetic.errors import DatasetError, MimeticError

Overflow = Literal["block", "repeat"]
_FLUSH_EVERY = 8 << 20
"""Bytes of video between two flushes to the disk, so that the one at the end of an episode is short."""
_PNG_LEVEL = 1
_WRITERS = min(4, os.cpu_count() or 1)


class ByteBudget:
    """Bytes that all queues of a recording may hold together.

    Args:
        limit: bytes; a single picture may exceed it when nothing else waits.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._changed = threading.Condition()

    def take(self, n_bytes: int, *, wait: bool) -> tuple[bool, float]:
        """Reserve bytes.

        Args:
            n_bytes: how many.
            wait: until there is room; otherwise give up at once.

        Returns:
            Whether they are reserved, and the seconds that it took.
        """
        start = time.monotonic()
        with self._changed:
            while self._held and self._held + n_bytes > self._limit:
                if not wait:
                    return False, 0.0
                self._changed.wait()
            self._held += n_bytes
        return True, time.monotonic() - start

    def give_back(self, n_bytes: int) -> None:
        """Return reserved bytes."""
        with self._changed:
            self._held -= n_bytes
            self._changed.notify_all()


@dataclass
class SinkResult:
    """What became of the pictures of one camera in one episode.

    Args:
        path: the video, or the pictures one behind the other.
        n_frames: pictures in it.
        pictures: their statistics.
        ends: of image files: where each ends in `path`, (n_frames,) int64; empty for videos.
        repeated: frames that show the picture before because the queue was full.
        waited_s: time that the loop waited for this camera's encoder [s].
    """

    path: Path
    n_frames: int
    pictures: PictureStats
    ends: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    repeated: list[int] = field(default_factory=list)
    waited_s: float = 0.0


class Target(Protocol):
    """What a sink's thread writes into."""

    def write(self, picture: Any) -> None:
        """Store the next picture."""
        ...

    def close(self) -> int:
        """Complete the file; returns the number of pictures in it."""
        ...

    def abort(self) -> None:
        """Remove the file."""
        ...


class Sink:
    """Takes the pictures of one camera in one episode.

    Args:
        camera: key of the camera, for messages.
        target: what the thread writes into.
        statistics: empty statistics of the camera.
        budget: shared by all cameras.
        overflow: what to do when the queue is full.
        prepare: called with each picture in the calling thread; what it returns goes to the target.
    """

    def __init__(
        self,
        camera: str,
        target: Target,
        statistics: PictureStats,
        budget: ByteBudget,
        *,
        overflow: Overflow = "block",
        prepare: Any = None,
    ) -> None:
        self.camera = camera
        self._target = target
        self._statistics = statistics
        self._budget = budget
        self._overflow = overflow
        self._prepare = prepare or (lambda picture: picture)
        self._queue: queue.SimpleQueue[tuple[Picture, Any, int] | None] = queue.SimpleQueue()
        self._n_added = 0
        self._repeated: list[int] = []
        self._waited_s = 0.0
        self._last: tuple[Picture, Any] | None = None
        self._error: BaseException | None = None
        self._result: SinkResult | None = None
        self._is_aborted = False
        self._thread = threading.Thread(target=self._run, name=f"mimetic-{camera}", daemon=True)
        self._thread.start()

    def require_sound(self) -> None:
        """Raise what the encoder failed with, if it did.

        Raises:
            DatasetError: the episode cannot be saved; the message says why.
        """
        if self._error is None:
            return
        why = self._error.message if isinstance(self._error, MimeticError) else str(self._error)
        raise DatasetError(
            f"the pictures of `{self.camera}` could not be stored, so this episode cannot be saved: "
            f"{why or type(self._error).__name__}",
            "everything that was saved before is intact: discard this episode and record it again",
        ) from self._error

    def reserve(self, picture: Picture) -> int:
        """Make room for the next picture; waits for it, unless the one before is to be repeated.

        Returns:
            The bytes that are reserved; 0 when the picture before has to be repeated.
        """
        wait = self._overflow == "block" or self._last is None
        has_room, waited_s = self._budget.take(picture.nbytes, wait=wait)
        self._waited_s += waited_s
        return picture.nbytes if has_room else 0

    def add(self, picture: Picture, reserved: int) -> None:
        """Hand over the next picture; does not wait.

        Args:
            picture: (H, W, 3) uint8 or (H, W) depth; belongs to the sink from now on.
            reserved: what `reserve` gave for it.
        """
        if reserved:
            self._last = (picture, self._prepare(picture))
        else:
            self._repeated.append(self._n_added)
        assert self._last is not None
        self._n_added += 1
        self._queue.put((*self._last, reserved))

    def cancel(self, reserved: int) -> None:
        """Give back what was reserved for a picture that does not come."""
        self._budget.give_back(reserved)

    def finish(self) -> SinkResult:
        """Wait until every picture is stored and the file is complete; may be called again.

        Raises:
            DatasetError: see `require_sound`.
        """
        if self._result is None:
            self._queue.put(None)
            self._thread.join()
            self.require_sound()
            assert self._result is not None
        return self._result

    def abort(self) -> None:
        """Forget the pictures and remove the file."""
        self._is_aborted = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._target.abort()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                break
            picture, prepared, n_bytes = item
            try:
                if self._error is None and not self._is_aborted:
                    self._target.write(prepared)
                    self._statistics.add(thin(picture))
            except BaseException as error:  # the edge of a thread: `require_sound` raises it where it is seen
                self._error = error
            finally:
                self._budget.give_back(n_bytes)
        if self._is_aborted or self._error is not None:
            return
        try:
            n_frames = self._target.close()
            self._result = SinkResult(
                path=getattr(self._target, "path"),  # noqa: B009 - every target has one
                n_frames=n_frames,
                pictures=self._statistics,
                ends=getattr(self._target, "ends", np.empty(0, dtype=np.int64)),
                repeated=self._repeated,
                waited_s=self._waited_s,
            )
        except BaseException as error:  # as above
            self._error = error


class VideoTarget:
    """One mp4 file.

    Args:
        path: file to write.
        fps: frame rate [Hz].
        height: of the pictures [px].
        width: of the pictures [px].
        settings: encoder settings.
        threads: threads of the encoder.
    """

    def __init__(
        self, path: Path, *, fps: int, height: int, width: int, settings: EncoderConfig, threads: int | None
    ) -> None:
        self.path = path
        self._encoder = VideoEncoder(path, fps=fps, height=height, width=width, settings=settings, threads=threads)
        self._flushed = 0

    def write(self, picture: Picture) -> None:
        """Encode the next picture."""
        self._encoder.add(picture)
        if self._encoder.n_frames % 64 == 0:
            size = self.path.stat().st_size
            if size - self._flushed >= _FLUSH_EVERY:
                flush_file(self.path)
                self._flushed = size

    def close(self) -> int:
        """Complete the video."""
        return self._encoder.close()

    def abort(self) -> None:
        """Remove the video."""
        self._encoder.abort()


class PictureFiles:
    """PNG (depth: TIFF) files one behind the other in one working file.

    Args:
        path: file to write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._ends: list[int] = []

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each picture ends in the file."""
        return np.asarray(self._ends, dtype=np.int64)

    def write(self, picture: Future[bytes]) -> None:
        """Append the next picture, once it is encoded."""
        data = picture.result()
        self._file.write(data)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(data))

    def close(self) -> int:
        """Complete the file."""
        self._file.close()
        return len(self._ends)

    def abort(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


class PictureEncoders:
    """Threads that compress single pictures; started when the first one comes."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, picture: Picture) -> Future[bytes]:
        """Begin to compress a picture."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="mimetic-picture")
        return self._pool.submit(encode_picture, picture)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def encode_picture(picture: Picture) -> bytes:
    """A picture as a file: PNG for colour, uncompressed TIFF for depth, without loss.

    Args:
        picture: (H, W, 3) uint8, or (H, W) uint16 or float32.
    """
    buffer = io.BytesIO()
    if picture.ndim == 3:
        Image.fromarray(picture).save(buffer, format="PNG", compress_level=_PNG_LEVEL)
    else:
        Image.fromarray(picture).save(buffer, format="TIFF")
    return buffer.getvalue()
