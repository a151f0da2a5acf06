"""Kept frames whose files other programs cut, fill, change or take away: never a crash, never a wrong frame."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from mimetic.cli.info import kept_frames
from mimetic.data.cache_folder import list_caches
from mimetic.data.frames.builder import Workers, build_on_disk
from mimetic.data.frames.content import FrameFile
from mimetic.data.frames.plan import frame_content
from mimetic.data.frames.reader import DiskRows, KeptFrames
from mimetic.data.reader import open_dataset
from mimetic.errors import CacheError
from mimetic.testing.datasets import build_dataset

CAMERA = "observation.images.top"
FRAMES = 12

BUILDER = """
import sys, time
from pathlib import Path
import numpy as np
from mimetic.data.frames import builder, decode
from mimetic.data.frames.content import FrameFile
from mimetic.data.frames.plan import frame_content
from mimetic.data.reader import open_dataset
decode.FRAMES_A_TASK = 2
write = decode._write_at
def slow(*arguments):
    time.sleep(0.25)
    write(*arguments)
decode._write_at = slow
dataset = open_dataset(root=sys.argv[1])
file = FrameFile(Path(sys.argv[2]), frame_content(dataset.source, sys.argv[3]))
builder.build_on_disk(file, dataset.source, np.arange(len(dataset)), builder.Workers(2))
"""


@pytest.fixture
def dataset(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (16, 24)}, lengths=(5, 7), camera_dtype="image")
    return open_dataset(root=root, return_uint8=True)


@pytest.fixture
def file(dataset, tmp_path):
    return built(dataset, tmp_path / "frames")


def built(dataset, folder):
    file = FrameFile(folder, frame_content(dataset.source, CAMERA))
    build_on_disk(file, dataset.source, np.arange(FRAMES), Workers(1))
    return file


def assert_right(dataset, file):
    view = dataset.with_kept({CAMERA: KeptFrames(DiskRows(file))})
    assert torch.equal(view.batch(range(FRAMES))[CAMERA], dataset.batch(range(FRAMES))[CAMERA])


def test_a_reader_keeps_what_is_deleted(dataset, file, monkeypatch):
    rows = DiskRows(file)
    for path in file.path.iterdir():
        path.unlink()
    file.path.rmdir()
    row = np.empty(file.content.row_bytes, dtype=np.uint8)
    assert rows.read_into(3, row)
    assert np.array_equal(row.reshape(3, 16, 24), dataset[3][CAMERA].numpy())
    with pytest.raises(CacheError, match="it is not there"):
        DiskRows(file)


@pytest.mark.parametrize("size", [0, 100, 16 * 24 * 3 * 4])
def test_a_file_that_is_cut_while_it_is_read_gives_right_frames_and_no_crash(dataset, file, size):
    view = dataset.with_kept({CAMERA: KeptFrames(DiskRows(file))})
    os.truncate(file.frames_path, size)
    assert torch.equal(view.batch(range(FRAMES))[CAMERA], dataset.batch(range(FRAMES))[CAMERA])


def test_marks_and_rows_of_garbage_give_right_frames(dataset, file):
    chance = np.random.default_rng(0)
    for name in ("marks.bin", "frames.bin"):
        path = file.path / name
        path.write_bytes(chance.integers(0, 256, path.stat().st_size, dtype=np.uint8).tobytes())
        assert_right(dataset, file)


def test_rows_that_have_changed_places_are_noticed(dataset, file):
    """A row of another frame has a good checksum, but not this frame's."""
    content = file.frames_path.read_bytes()
    size = file.content.row_bytes
    file.frames_path.write_bytes(content[size : 2 * size] + content[:size] + content[2 * size :])
    assert_right(dataset, file)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"null", b"{}", b""])
def test_a_broken_header_is_told_listed_and_replaced(dataset, file, tmp_path, monkeypatch, content):
    (file.path / "header.json").write_bytes(content)
    assert file.problem()
    assert not file.marks().any()
    assert [entry.header for entry in list_caches(tmp_path / "frames")] == [{}]
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path))
    assert kept_frames().startswith("1 arrays")
    assert_right(dataset, built(dataset, tmp_path / "frames"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", ["header.json", "frames.bin", "marks.bin"])
def test_no_pipe_is_waited_for(dataset, file, tmp_path, name):
    (file.path / name).unlink()
    os.mkfifo(file.path / name)
    assert file.problem()
    assert len(list_caches(tmp_path / "frames")) == 1
    assert_right(dataset, built(dataset, tmp_path / "frames"))


def test_a_file_in_the_place_of_the_folder_is_left_alone(dataset, tmp_path):
    place = FrameFile(tmp_path / "frames", frame_content(dataset.source, CAMERA))
    place.folder.mkdir()
    place.path.write_text("mine")
    with pytest.raises(CacheError):
        built(dataset, tmp_path / "frames")
    assert place.path.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_message(dataset, tmp_path):
    (tmp_path / "frames").write_text("a file")
    with pytest.raises(CacheError, match="frames cannot be written below") as caught:
        built(dataset, tmp_path / "frames")
    assert "--dataset.cache_folder" in caught.value.hint


def test_two_processes_of_which_one_is_killed_leave_a_whole_array(dataset, tmp_path):
    arguments = [sys.executable, "-c", BUILDER, str(dataset.root), str(tmp_path / "frames"), CAMERA]
    first = subprocess.Popen(arguments)
    deadline = time.monotonic() + 60
    file = FrameFile(tmp_path / "frames", frame_content(dataset.source, CAMERA))
    while not file.marks().any() and time.monotonic() < deadline:
        time.sleep(0.01)
    waited = []

    def kill():
        waited.append(1)
        first.send_signal(signal.SIGKILL)
        first.wait()

    # `give_up` is called while the lock is another's, and after each task: the other dies once this one waits for it.
    build_on_disk(file, dataset.source, np.arange(FRAMES), Workers(1), give_up=lambda: waited or kill())
    assert waited
    assert first.returncode == -signal.SIGKILL
    assert file.marks().all()
    assert_right(dataset, file)
