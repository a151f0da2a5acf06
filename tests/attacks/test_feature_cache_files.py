"""Kept features whose files other programs cut, fill, change or take away, and processes that build at once or die."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mimetic.cli.info import kept_features
from mimetic.data.cache_folder import list_caches
from mimetic.data.feature_cache import FeatureContent, FeatureFile
from mimetic.data.feature_reader import FeatureReader
from mimetic.data.feature_writer import FeatureWriter
from mimetic.errors import CacheError

SHAPE, FRAMES = (4, 256), 40


def file_in(folder):
    return FeatureFile(
        folder,
        FeatureContent(encoder="e", dataset="d", camera="top", frames=FRAMES, shape=SHAPE, dtype=torch.float32),
    )


def rows(frames):
    return torch.stack([torch.full(SHAPE, float(frame)) + torch.arange(256) / 512 for frame in frames])


def built(folder):
    file = file_in(folder)
    with FeatureWriter(file) as writer:
        writer.write(range(FRAMES), rows(range(FRAMES)))
    return file


def read(reader, *frames):
    return reader.read(np.asarray(frames), [])


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_no_crash(tmp_path):
    """Touching mapped pages behind the end of a file kills the process (SIGBUS)."""
    file = built(tmp_path)
    reader = FeatureReader([file])
    assert torch.equal(read(reader, 3), rows([3]))
    os.truncate(file.path / "features.bin", 4096)
    for frame in (3, FRAMES - 1):
        with pytest.raises(CacheError, match="was shortened"):
            read(reader, frame)


def test_a_reader_keeps_what_is_deleted(tmp_path):
    file = built(tmp_path / "kept")
    reader = FeatureReader([file])
    for path in file.path.iterdir():
        path.unlink()
    file.path.rmdir()
    assert torch.equal(read(reader, 1, 39), rows([1, 39]))
    with pytest.raises(CacheError, match="it is not there"):
        FeatureReader([file])


def test_all_damaged_rows_are_found_at_once(tmp_path):
    """One restart for each of ten thousand damaged rows would be no repair."""
    file = built(tmp_path)
    marks = np.fromfile(file.path / "marks.bin", dtype="<u4")
    marks[5:20] ^= 1
    marks.tofile(file.path / "marks.bin")
    with pytest.raises(CacheError, match=r"frame 7 .* and those of 14 others"):
        read(FeatureReader([file]), 7)
    assert np.flatnonzero(file.marks() == 0).tolist() == list(range(5, 20))
    assert torch.equal(read(FeatureReader([built(tmp_path)]), 7), rows([7]))


def test_a_row_that_another_run_repaired_is_read(tmp_path):
    """A builder on another device may come to other bits and therefore to another mark."""
    file = built(tmp_path)
    reader = FeatureReader([file])
    with (file.path / "marks.bin").open("r+b") as marks:
        marks.seek(4 * 4)
        marks.write(bytes(4))
    with FeatureWriter(file) as writer:
        writer.write([4], rows([5]))
    assert torch.equal(read(reader, 4), rows([5]))


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"null", b"{}", b""])
def test_a_broken_header_is_told_and_listed(tmp_path, monkeypatch, content):
    file = built(tmp_path / "features")
    (file.path / "header.json").write_bytes(content)
    assert file.problem()
    assert not file.marks().any()
    assert [entry.header for entry in list_caches(tmp_path / "features")] == [{}]
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path))
    assert kept_features().startswith("1 arrays")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_no_pipe_is_waited_for(tmp_path):
    file = built(tmp_path)
    for name in ("header.json", "features.bin", "marks.bin"):
        kept = (file.path / name).read_bytes()
        (file.path / name).unlink()
        os.mkfifo(file.path / name)
        assert file.problem()
        assert len(list_caches(tmp_path)) == 1
        (file.path / name).unlink()
        (file.path / name).write_bytes(kept)
    assert not file.problem()


@pytest.mark.parametrize("strange", ["file", "link to itself", "header that is a folder", "link to nothing"])
def test_a_strange_folder_is_listed_without_an_error(tmp_path, monkeypatch, strange):
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path))
    folder = tmp_path / "features"
    folder.mkdir()
    if strange == "file":
        (folder / "notes.txt").write_text("x")
    elif strange == "link to itself":
        (folder / "a").symlink_to("a")
    elif strange == "header that is a folder":
        (folder / "a" / "header.json").mkdir(parents=True)
    else:
        (folder / "a").mkdir()
        (folder / "a" / "header.json").symlink_to("nowhere")
    assert "features" in kept_features()


def test_a_folder_that_is_a_file_is_listed_without_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path))
    (tmp_path / "features").write_text("x")
    assert kept_features().startswith("none")


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_disk_that_fills_up_leaves_rows_that_are_right(tmp_path):
    """The system itself refuses to write beyond 80 kB; what was marked before stays, and the build goes on later."""
    code = (
        "import resource, signal, sys, pathlib\n"
        "from mimetic.data import feature_writer\n"
        "from test_feature_cache_files import *\n"
        "file = file_in(pathlib.Path(sys.argv[1]))\n"
        "file.folder.mkdir(parents=True); file.create()\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, 80_000))\n"
        "feature_writer.SYNC_S = 0.0\n"
        "with FeatureWriter(file) as writer:\n"
        "    for frame in range(FRAMES): writer.write([frame], rows([frame]))\n"
    )
    done = run(code, tmp_path / "kept")
    assert done.returncode == 1
    assert "CacheError" in done.stderr
    assert "File too large" in done.stderr
    file = file_in(tmp_path / "kept")
    marked = np.flatnonzero(file.marks()).tolist()
    assert marked == list(range(80_000 // 4096))
    assert torch.equal(read(FeatureReader([file]), *marked), rows(marked))
    assert torch.equal(read(FeatureReader([built(tmp_path / "kept")]), 39), rows([39]))


def run(code, *words):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


BUILD = """
import pathlib, sys, time
from mimetic.data import feature_writer
from test_feature_cache_files import *
feature_writer.SYNC_S = 0.0
with FeatureWriter(file_in(pathlib.Path(sys.argv[1]))) as writer:
    missing = np.flatnonzero(writer.missing(np.arange(FRAMES))).tolist()
    print(len(missing), flush=True)
    for frame in missing:
        writer.write([frame], rows([frame]))
        time.sleep(float(sys.argv[2]))
"""


def start(folder, pause):
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder), str(pause)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_processes_that_build_at_once_encode_each_row_once(tmp_path):
    builders = [start(tmp_path / "ein Ort für Merkmale", 0.01) for _ in range(3)]
    found = sorted(int(builder.communicate(timeout=120)[0]) for builder in builders)
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert found == [0, 0, FRAMES]
    reader = FeatureReader([file_in(tmp_path / "ein Ort für Merkmale")])
    assert torch.equal(read(reader, *range(FRAMES)), rows(range(FRAMES)))


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_builders_leave_a_lock_that_is_free_and_rows_that_are_right(tmp_path):
    file, chance = file_in(tmp_path), np.random.default_rng(0)
    for _ in range(4):
        before = int((file.marks() != 0).sum())
        builder = start(tmp_path, 0.03)
        ends = time.monotonic() + 60
        while (file.marks() != 0).sum() == before and builder.poll() is None and time.monotonic() < ends:
            time.sleep(0.002)
        time.sleep(float(chance.uniform(0, 0.1)))
        builder.send_signal(signal.SIGKILL)
        builder.communicate()
        marked = np.flatnonzero(file.marks()).tolist()
        assert len(marked) > before or builder.returncode == 0
        assert torch.equal(read(FeatureReader([file]), *marked), rows(marked))
    assert torch.equal(read(FeatureReader([built(tmp_path)]), *range(FRAMES)), rows(range(FRAMES)))


def test_a_folder_that_cannot_be_changed_is_read_all_the_same(tmp_path, monkeypatch, caplog):
    """Damage in it is told, although it cannot be noted down."""
    file = built(tmp_path)
    with (file.path / "features.bin").open("r+b") as features:
        features.write(b"?")
    opened = Path.open

    def read_only(path, mode="r", *rest, **options):
        if "w" in mode or "+" in mode:
            raise PermissionError(13, "Permission denied")
        return opened(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", read_only)
    reader = FeatureReader([file])
    assert torch.equal(read(reader, 1), rows([1]))
    with caplog.at_level(logging.WARNING), pytest.raises(CacheError, match=r"frame 0 .* are damaged"):
        read(reader, 0)
    assert "could not be changed" in caplog.text
