"""Whatever is kept, in whatever order it is built and wherever a build dies: samples are those without a cache."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.frames import builder
from mimetic.data.frames.builder import Workers, build_in_memory, build_on_disk
from mimetic.data.frames.content import FrameFile
from mimetic.data.frames.plan import frame_content
from mimetic.data.frames.reader import DiskRows, KeptFrames, MemoryRows
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import build_dataset

LENGTHS = (5, 1, 9, 4)
CAMERAS = {"top": (16, 24), "side": (24, 16)}


class Killed(Exception):
    pass


@pytest.fixture(scope="module", params=["video", "image"])
def root(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return build_dataset(
        folder / "set", lengths=LENGTHS, cameras=CAMERAS, camera_dtype=request.param, episodes_per_file=2, gop=4
    )


def assert_same(one, two):
    assert list(one) == list(two)
    for key, value in one.items():
        assert torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else value == two[key], key


@settings(max_examples=25)
@given(
    episodes=st.sets(st.integers(0, 3), min_size=1),
    built=st.lists(st.integers(0, 18), max_size=19, unique=True),
    window=st.lists(st.integers(-6, 6), min_size=1, max_size=4),
    wanted=st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    in_memory=st.booleans(),
    uint8=st.booleans(),
)
def test_samples_with_any_part_kept_are_those_without(root, episodes, built, window, wanted, in_memory, uint8):
    dataset = open_dataset(root=root, episodes=sorted(episodes), return_uint8=uint8, video_backend="pyav")
    view = dataset.with_windows({"observation.images.top": window})
    rows = dataset.rows(np.asarray(sorted({number % len(dataset) for number in built}), dtype=np.int64))
    with tempfile.TemporaryDirectory() as folder:
        kept = {}
        for camera in dataset.meta.camera_keys:
            content = frame_content(dataset.source, camera)
            if in_memory:
                memory = MemoryRows(content, dataset.source.frame_numbers(rows))
                build_in_memory(memory, dataset.source, rows, Workers(1))
                kept[camera] = KeptFrames(memory)
            else:
                file = FrameFile(Path(folder), content)
                build_on_disk(file, dataset.source, rows, Workers(1))
                kept[camera] = KeptFrames(DiskRows(file))
        positions = [number % len(dataset) for number in wanted]
        assert_same(view.with_kept(kept).batch(positions), view.batch(positions))
    dataset.close()


@settings(max_examples=25)
@given(
    builds=st.lists(
        st.tuples(st.lists(st.integers(0, 18), min_size=1, unique=True), st.integers(0, 4), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_killed_builds_never_leave_a_wrong_row(root, builds):
    """A kill between the writing of rows and their marks, after some tasks, and in the middle of a row."""
    dataset = open_dataset(root=root, return_uint8=True, video_backend="pyav")
    camera = "observation.images.side"
    expected = dataset.batch(range(19))[camera]
    real = builder._mark
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mimetic.data.frames.decode.FRAMES_A_TASK", 2)
        file = FrameFile(Path(folder), frame_content(dataset.source, camera))
        for rows, tasks, is_torn in builds:
            left = [tasks]

            def mark(handle, done, left=left):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                real(handle, done)

            patch.setattr(builder, "_mark", mark)
            with contextlib.suppress(Killed):
                build_on_disk(file, dataset.source, np.sort(np.asarray(rows)), Workers(1))
            missing = np.flatnonzero(file.marks() == 0)
            if is_torn and len(missing):
                with file.frames_path.open("r+b") as opened:
                    opened.seek(int(missing[0]) * file.content.row_bytes)
                    opened.write(b"\x7f" * 5)
        found = DiskRows(file)
        row = np.empty(file.content.row_bytes, dtype=np.uint8)
        for number in range(19):
            if found.read_into(number, row):
                assert np.array_equal(row.reshape(3, 24, 16), expected[number].numpy())
        assert torch.equal(dataset.with_kept({camera: KeptFrames(found)}).batch(range(19))[camera], expected)
    dataset.close()
