"""Which pictures a camera holds, and the number of a frame in the whole dataset."""

import hashlib
import os
import shutil

import numpy as np
import pytest

from mimetic.data.fingerprint import _add_file, camera_fingerprint
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import build_dataset

KEY = "observation.images.top"


def fingerprint(root, key=KEY, decoder="pyav"):
    return camera_fingerprint(Metadata.open(root), key, decoder=decoder)


@pytest.fixture(params=["video", "image"])
def root(request, tmp_path):
    return build_dataset(
        tmp_path / "set", cameras={"top": (48, 64), "side": (48, 64)}, camera_dtype=request.param, lengths=(5, 4, 3)
    )


def test_a_copy_with_other_times_is_the_same(root, tmp_path):
    before = fingerprint(root)
    copy = shutil.copytree(root, tmp_path / "copy")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert fingerprint(copy) == before


def test_other_frames_are_another_dataset(root):
    before = fingerprint(root)
    (path,) = (
        (root / "data/chunk-000/file-001.parquet",)
        if not (root / "videos").exists()
        else (next(root.glob(f"videos/{KEY}/*/file-001.mp4")),)
    )
    content = path.read_bytes()
    path.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    assert fingerprint(root) != before
    path.write_bytes(content + b"\0")
    assert fingerprint(root) != before
    path.write_bytes(content)
    assert fingerprint(root) == before


def test_more_episodes_are_another_dataset(tmp_path):
    first = build_dataset(tmp_path / "a", cameras={"top": (48, 64)}, lengths=(5, 4))
    second = build_dataset(tmp_path / "b", cameras={"top": (48, 64)}, lengths=(5, 4, 3))
    assert fingerprint(first) != fingerprint(second)


def test_the_decoder_counts_for_videos_only(root):
    assert (fingerprint(root) != fingerprint(root, decoder="torchcodec")) == (root / "videos").exists()


def test_a_file_that_is_not_downloaded_is_noticed_and_not_an_error(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)}, lengths=(5, 4))
    before = fingerprint(root)
    next(root.glob("videos/*/*/file-001.mp4")).unlink()
    assert fingerprint(root) != before


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_frames_have_the_same_numbers_whichever_episodes_are_open(tmp_path, version):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6), version=version)
    whole = open_dataset("me/set", root=root)
    assert whole.frame_numbers().tolist() == list(range(18))
    part = open_dataset("me/set", root=root, episodes=[2, 0])
    assert part.frame_numbers().tolist() == [*range(5), *range(12, 18)]
    last = part.with_windows({}, episodes=[2])
    assert last.frame_numbers([3, 0, -1][:2]).tolist() == [15, 12]
    np.testing.assert_array_equal(last.frame_numbers(), last.column("index"))


def test_an_edit_in_the_middle_that_keeps_the_length_is_noticed_when_it_is_large(tmp_path):
    """As re-recording into files of a fixed size leaves it; one changed byte alone may go unnoticed."""

    def digest(content):
        (tmp_path / "file").write_bytes(content)
        found = hashlib.sha256()
        _add_file(found, tmp_path / "file")
        return found.hexdigest()

    content = np.random.default_rng(0).bytes(300_000)
    for start in (20_000, 120_000, 240_000):
        changed = bytes(byte ^ 1 for byte in content[start : start + 40_000])
        assert digest(content[:start] + changed + content[start + 40_000 :]) != digest(content)
