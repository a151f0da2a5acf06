"""Decoded pixels equal LeRobot's.

Tolerance: a maximum of 2 and a mean of 0.5 of 255, because another FFmpeg may convert colours differently. Depth codes are
lossless and therefore exact to the millimetre of the recorded ramp; they are compared with a plain PyAV decode.
"""

import json

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from mimetic.data.video.frames import FrameReader

CAMERAS = ("observation.images.top", "observation.images.wrist")


@pytest.fixture(scope="module")
def root(fixtures):
    return fixtures / "dataset" / "video_v30"


@pytest.fixture(scope="module")
def places(root):
    """(episode rows) -> function from a global frame and a camera to (file, frame in it)."""
    rows = [row for path in sorted(root.glob("meta/episodes/*/*.parquet")) for row in pq.read_table(path).to_pylist()]

    def find(frame, camera):
        row = next(row for row in rows if row["dataset_from_index"] <= frame < row["dataset_to_index"])
        chunk, file = (row[f"videos/{camera}/{name}_index"] for name in ("chunk", "file"))
        first = round(row[f"videos/{camera}/from_timestamp"] * 30)
        path = root / "videos" / camera / f"chunk-{chunk:03d}" / f"file-{file:03d}.mp4"
        return path, first + frame - row["dataset_from_index"]

    return find


def test_pixels_equal_lerobots_items(fixtures, places):
    golden = load_file(fixtures / "dataset/getitem/video_plain_uint8.safetensors")
    reader = FrameReader()
    n_compared = 0
    for key, expected in golden.items():
        index, _, feature = key.partition("/")
        if feature not in CAMERAS:
            continue
        path, frame = places(int(index), feature)
        found = reader.read(path, [frame], fps=30)[0]
        difference = np.abs(found.astype(int) - expected)
        assert difference.max() <= 2
        assert difference.mean() <= 0.5
        n_compared += 1
    assert n_compared == 2 * len(json.loads((fixtures / "dataset/getitem/video_plain_uint8.json").read_text())["items"])


def test_windows_equal_lerobots_items(fixtures, places):
    golden = load_file(fixtures / "dataset/getitem/video_delta_uint8.safetensors")
    reader = FrameReader()
    starts = [0, 18, 43, 55, 85, 94]
    for key, expected in golden.items():
        index, _, feature = key.partition("/")
        if feature != CAMERAS[0]:
            continue
        start = max(first for first in starts if first <= int(index))
        wanted = [places(max(start, int(index) + delta), feature) for delta in (-2, 0)]
        found = reader.read(wanted[0][0], [frame for _, frame in wanted], fps=30)
        assert np.abs(found.astype(int) - expected).max() <= 2


def test_every_frame_of_every_file_shows_its_bar_code(root):
    reader = FrameReader()
    for camera in CAMERAS:
        shown = []
        for path in sorted((root / "videos" / camera).glob("*/*.mp4")):
            frames = reader.read(path, range(reader.count(path)), fps=30)
            height, width = frames.shape[-2:]
            block = width // 8
            rows = frames[:, :, height - 9 : height - 3]
            bits = [rows[..., k * block + 2 : (k + 1) * block - 2].mean(axis=(1, 2, 3)) > 127 for k in range(8)]
            shown += np.packbits(np.stack(bits, axis=1), axis=1)[:, 0].tolist()
        assert shown == list(range(115))


def test_depth_codes_equal_a_plain_decode(fixtures):
    path = next((fixtures / "dataset/dtypes_v30/videos").glob("*/*/*.mp4"))
    with av.open(str(path)) as container:
        expected = np.stack([picture.to_ndarray() for picture in container.decode(video=0)])
    reader = FrameReader()
    assert reader.count(path) == len(expected)
    order = [9, 3, 5, 4, 1, 0, 8, 3]
    found = reader.read(path, order, fps=10, is_depth=True)
    assert found.dtype == np.uint16
    assert np.array_equal(found, expected[order])
    for frame in reversed(range(len(expected))):
        assert np.array_equal(reader.read(path, [frame], fps=10, is_depth=True)[0], expected[frame])


def test_an_odd_height_gives_the_pixels_of_lerobots_default_backend(fixtures):
    """Exact: the filter for the colour planes is chosen to be torchcodec's (another one is up to 9 of 255 away)."""
    folder = fixtures / "dataset" / "odd_height"
    with np.load(folder / "pixels.npz") as golden:
        expected = golden["pixels"]
    assert np.array_equal(FrameReader().read(folder / "clip.mp4", range(3), fps=10), expected)
