"""Which encoders really work here: each is tried on a few frames, once a process.

That FFmpeg knows an encoder says nothing: the wheel contains NVENC and QuickSync on machines without either.
"""

from __future__ import annotations

import functools
import io
from fractions import Fraction

import av
import numpy as np
from av.codec import Codec

from mimetic.data.encoding.config import HARDWARE

_SIZE = (240, 320)
_FRAMES = 4


@functools.cache
def why_unusable(codec: str) -> str:
    """Why an encoder cannot be used on this machine; empty when it encoded four frames.

    Args:
        codec: name of the encoder in FFmpeg.
    """
    try:
        encoder = Codec(codec, "w")
    except (av.FFmpegError, ValueError):
        return "not part of this FFmpeg"
    known = [form.name for form in encoder.video_formats or ()]
    pix_fmt = next((name for name in ("yuv420p", "nv12") if name in known), None)
    if known and pix_fmt is None:
        return f"takes none of yuv420p and nv12, only {', '.join(known)}"
    level = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)  # a missing driver is an answer here, no error
    try:
        return _try(codec, pix_fmt or "yuv420p")
    finally:
        av.logging.set_level(level)


def _try(codec: str, pix_fmt: str) -> str:
    buffer = io.BytesIO()
    try:
        with av.open(buffer, "w", format="mp4") as container:
            stream = container.add_stream(codec, rate=Fraction(30))
            stream.pix_fmt = pix_fmt
            stream.height, stream.width = _SIZE
            for number in range(_FRAMES):
                picture = np.full((*_SIZE, 3), 60 * number, dtype=np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        buffer.seek(0)
        with av.open(buffer) as container:
            n_frames = sum(1 for _ in container.decode(video=0))
    except (av.FFmpegError, OSError, ValueError, RuntimeError) as error:
        return str(getattr(error, "strerror", None) or error) or type(error).__name__
    return "" if n_frames == _FRAMES else f"{n_frames} of {_FRAMES} frames came out"


def hardware_encoders() -> dict[str, str]:
    """Every hardware encoder that LeRobot names: empty when it works here, else why not."""
    return {codec: why_unusable(codec) for codec in HARDWARE}
