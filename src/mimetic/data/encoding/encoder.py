"""Pictures to an mp4 file, one after the other, in the calling thread (spec/dataset.md 8.2).

Queues and threads belong to whoever records (`data/record`); here nothing can be dropped: `add` encodes or raises.
"""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 writes a banner to stderr for every file; errors still show

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from mimetic.data.encoding.codecs import resolve_encoder
from mimetic.data.encoding.config import DepthEncoderConfig, EncoderConfig
from mimetic.data.encoding.depth import quantise
from mimetic.data.store.atomic import flush_file
from mimetic.errors import VideoError

_DEPTH_FORMAT = "gray12le"


class VideoEncoder:
    """Encodes one video file; used by one thread at a time.

    The file is complete, and flushed to the disk, when `close` returns. As a context it closes at the end of the
    block and removes the file when the block fails.

    Args:
        path: file to write; an existing one is replaced. Its folder must exist.
        fps: frame rate [Hz].
        height: of every picture [px].
        width: of every picture [px].
        settings: `RgbEncoderConfig` for colour, `DepthEncoderConfig` for depth.
        threads: threads of the encoder; None leaves it to the encoder.

    Raises:
        ConfigError: settings that this FFmpeg cannot follow.
        VideoError: the file cannot be opened.
    """

    def __init__(
        self, path: Path, *, fps: int, height: int, width: int, settings: EncoderConfig, threads: int | None = None
    ) -> None:
        self.path = path
        self.n_frames = 0
        self._size = (height, width)
        self._settings = settings
        self._is_depth = isinstance(settings, DepthEncoderConfig)
        self._resolved = resolve_encoder(settings, threads=threads, is_depth=self._is_depth)
        self._tick = Fraction(1, fps)
        self._reformatter = VideoReformatter()
        self._container: Any = None
        try:
            self._container = av.open(str(path), "w", format="mp4")
            self._stream = self._container.add_stream(
                self._resolved.codec, rate=Fraction(fps), options=dict(self._resolved.options)
            )
            self._stream.pix_fmt = self._resolved.pix_fmt
            self._stream.height, self._stream.width = height, width
        except (av.FFmpegError, OSError, ValueError) as error:
            self.abort()
            raise self._failed(error) from error

    def __enter__(self) -> VideoEncoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def add(self, frame: npt.NDArray[Any]) -> None:
        """Encode the next picture.

        Args:
            frame: colour: (H, W, 3) uint8. Depth: (H, W) or (H, W, 1), uint16 [mm] or float32 [m].

        Raises:
            VideoError: another size or type than announced, or the encoder or the disk fails; the file is then of no
                use (`abort`).
        """
        try:
            picture = self._picture(frame)
            self._container.mux(self._stream.encode(picture))
        except (av.FFmpegError, OSError) as error:
            raise self._failed(error) from error
        self.n_frames += 1

    def close(self) -> int:
        """Encode what is in flight, write the file's index and flush it to the disk.

        Returns:
            Frames in the file.

        Raises:
            VideoError: the encoder or the disk fails; the file is removed.
        """
        if self._container is None:
            return self.n_frames
        try:
            if self.n_frames:
                self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None
            flush_file(self.path)
        except (av.FFmpegError, OSError, ValueError) as error:
            self.abort()
            raise self._failed(error) from error
        return self.n_frames

    def abort(self) -> None:
        """Stop and remove the file."""
        container, self._container = self._container, None
        if container is not None:
            try:
                if self.n_frames:
                    self._stream.encode()  # an encoder that is not told the end complains on stderr
                container.close()
            except (av.FFmpegError, OSError, ValueError):
                pass  # it is removed all the same
        self.path.unlink(missing_ok=True)

    def _picture(self, frame: npt.NDArray[Any]) -> Any:
        wanted = (*self._size, 1 if self._is_depth else 3)
        shape = frame.shape if frame.ndim == 3 or not self._is_depth else (*frame.shape, 1)
        if shape != wanted or (not self._is_depth and frame.dtype != np.uint8):
            raise VideoError(
                f"`{self.path.name}` takes pictures of {wanted}, not {frame.dtype} of {frame.shape}",
                "give every picture of a camera the same size",
            )
        if isinstance(self._settings, DepthEncoderConfig):
            codes = quantise(frame.reshape(self._size), self._settings)
            picture, form = VideoFrame.from_ndarray(codes, format=_DEPTH_FORMAT), _DEPTH_FORMAT
        else:
            form = "rgb24"
            picture = VideoFrame.from_ndarray(np.ascontiguousarray(frame), format=form)
        if form != self._resolved.pix_fmt:
            # One thread: swscale would start several for each picture, beside those of the encoder.
            picture = self._reformatter.reformat(picture, format=self._resolved.pix_fmt, threads=1)
        picture.pts = self.n_frames
        picture.time_base = self._tick
        return picture

    def _failed(self, error: BaseException) -> VideoError:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return VideoError(
            f"`{self.path}` cannot be encoded with {self._resolved.codec} "
            f"({self._resolved.options}): {said}, at frame {self.n_frames}",
            "look at the disk's free space; or choose another encoder, such as `rgb_encoder.vcodec=h264`",
        )
