"""Small videos whose frames say which they are."""

from fractions import Fraction

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from mimetic.testing.datasets import coded_image

KINDS = {
    # name: (encoder, options, pixel format)
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "12"}, "yuv420p"),
    "h264": ("libx264", {"g": "2", "crf": "18", "bf": "0"}, "yuv420p"),
    "h264_g2": ("libx264", {"g": "2", "crf": "18"}, "yuv420p"),
    "h264_b": ("libx264", {"g": "12", "crf": "18", "bf": "3", "b-adapt": "0"}, "yuv420p"),
    "h264_444": ("libx264", {"g": "4", "crf": "18"}, "yuv444p"),
    "depth": ("libx265", {"g": "2", "x265-params": "lossless=1:log-level=none"}, "gray12le"),
}


def encode(path, pictures, kind, fps=30):
    """Write pictures (H, W, 3) uint8, or (H, W) uint16 for depth."""
    codec, options, pixel_format = KINDS[kind]
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(codec, rate=Fraction(fps), options=options)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = pixel_format
        for picture in pictures:
            source = "rgb24" if picture.ndim == 3 else pixel_format
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format=source)))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="session")
def make_video(tmp_path_factory):
    """(kind, frames, size) -> file, made once."""
    made = {}

    def make(kind="h264", n_frames=24, size=(48, 64), fps=30):
        key = (kind, n_frames, size, fps)
        if key not in made:
            pictures = [coded_image(3, frame, size) for frame in range(n_frames)]
            if kind == "depth":
                ramp = np.arange(size[0] * size[1], dtype=np.uint16).reshape(size)
                pictures = [(ramp + 37 * frame) % 4096 for frame in range(n_frames)]
            path = tmp_path_factory.mktemp("videos") / f"{kind}.mp4"
            made[key] = encode(path, pictures, kind, fps)
        return made[key]

    return make


@pytest.fixture
def plain():
    """Every frame of a file, decoded front to back by PyAV alone: (n, 3, H, W) uint8."""

    def decode(path):
        with av.open(str(path)) as container:
            return np.stack(
                [
                    picture.reformat(format="rgb24", interpolation=Interpolation.BICUBIC)
                    .to_ndarray()
                    .transpose(2, 0, 1)
                    for picture in container.decode(video=0)
                ]
            )

    return decode
