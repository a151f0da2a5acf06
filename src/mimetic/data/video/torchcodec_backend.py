"""torchcodec as a decoder of colour frames, behind the same small interface as PyAV's (optional, imported lazily).

Bounds, times and keyframes come from the same frame index as PyAV's, so both backends answer a request with the same
frames and the same errors; only the decoding differs. torchcodec needs an FFmpeg installation of the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimetic.data.video.decoder import Picture
from mimetic.data.video.index import RESTORE_HINT, FrameError, FrameIndex, build_index, open_container
from mimetic.errors import MissingExtra, VideoError

_FRAMES_AT_ONCE = 32  # bounds the memory of one request


def load_torchcodec() -> Any:
    """Import torchcodec's decoder class.

    Raises:
        MissingExtra: torchcodec is not installed, or its libraries do not load (no FFmpeg, another torch).
    """
    try:
        from torchcodec.decoders import VideoDecoder
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"`{error.name}` is not installed", "`pip install 'mimetic[torchcodec]'`, or use the decoder `pyav`"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingExtra(
            f"torchcodec is installed but does not load: {first_line}",
            "it needs FFmpeg's shared libraries and a matching torch; the decoder `pyav` needs neither",
        ) from error
    return VideoDecoder


class TorchcodecDecoder:
    """Decodes frames of one file with torchcodec in one thread.

    Args:
        path: video file.
        index: its frame index, if it is known.

    Raises:
        MissingExtra: torchcodec cannot be imported.
        VideoError: the file is missing or is not a video.
    """

    def __init__(self, path: Path, index: FrameIndex | None = None) -> None:
        decoder_class = load_torchcodec()
        self.path = path
        self.index = index if index is not None else _index(path)
        try:
            self._decoder = decoder_class(
                str(path), dimension_order="NCHW", num_ffmpeg_threads=1, device="cpu", seek_mode="exact"
            )
        except (RuntimeError, ValueError) as error:
            raise VideoError(f"`{path}` cannot be opened by torchcodec: {error}", RESTORE_HINT) from error
        self.height = int(self._decoder.metadata.height)
        self.width = int(self._decoder.metadata.width)
        self._next = 0

    @property
    def next_frame(self) -> int:
        """Frame that comes out next without seeking."""
        return self._next

    def read(self, frames: Sequence[int], targets: Sequence[Picture], *, is_depth: bool) -> None:
        """Decode frames into arrays (3, H, W) uint8.

        Args:
            frames: frame numbers, ascending, without repeats, all inside the file.
            targets: one array a frame.
            is_depth: must be False; torchcodec has no 12-bit grey output.

        Raises:
            VideoError: a frame cannot be decoded, has another size, or is shown at another time than indexed.
        """
        if is_depth:
            raise VideoError(f"`{self.path}`: torchcodec does not decode depth; use PyAV")
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            self._read(frames[start : start + _FRAMES_AT_ONCE], targets[start : start + _FRAMES_AT_ONCE])

    def close(self) -> None:
        """Release the file (torchcodec closes it with the object)."""
        self._decoder = None

    def _read(self, frames: Sequence[int], targets: Sequence[Picture]) -> None:
        try:
            batch = self._decoder.get_frames_at(indices=list(frames))
        except (RuntimeError, IndexError, ValueError) as error:
            if len(frames) > 1:  # one by one, to name the one that fails
                for place in range(len(frames)):
                    self._read(frames[place : place + 1], targets[place : place + 1])
                return
            raise FrameError(
                f"frame {frames[0]} of `{self.path}` cannot be decoded by torchcodec: {error}", RESTORE_HINT, frames[0]
            ) from error
        tick_s = float(self.index.time_base)
        for frame, picture, time_s, target in zip(
            frames, batch.data.numpy(), batch.pts_seconds.tolist(), targets, strict=True
        ):
            if abs(time_s - int(self.index.pts[frame]) * tick_s) > tick_s + 1e-6:
                raise FrameError(
                    f"frame {frame} of `{self.path}` came out of torchcodec with the time {time_s:.4f} s, "
                    f"{int(self.index.pts[frame]) * tick_s:.4f} s was expected",
                    "use `--dataset.video_backend=pyav`",
                    frame,
                )
            if picture.shape != target.shape:
                raise FrameError(
                    f"frame {frame} of `{self.path}` is {picture.shape[-1]}x{picture.shape[-2]} pixels, "
                    f"{target.shape[-1]}x{target.shape[-2]} was expected",
                    RESTORE_HINT,
                    frame,
                )
            target[...] = picture
        self._next = frames[-1] + 1


def _index(path: Path) -> FrameIndex:
    container, stream = open_container(path)
    try:
        return build_index(path, container, stream)
    finally:
        container.close()
