"""A whole conversion on a Ray cluster of two machines gives the bytes that one process gives."""

from __future__ import annotations

import hashlib
import importlib.util

import pytest

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.errors import EpisodeError
from mimetic.testing.datasets import TinyDataset, build_dataset

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the package ray"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    spec = TinyDataset(version="v2.0", lengths=(5, 7, 4, 6, 3, 8), cameras={"top": (32, 48)}, fps=10)
    return build_dataset(tmp_path_factory.mktemp("source") / "pick", spec)


def settings(root, target, **changes):
    return ConvertConfig(
        root=root, output_dir=target, data_file_size_in_mb=0.004, video_file_size_in_mb=0.004, **changes
    )


def content(root):
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_bytes_are_those_of_one_process(ray_cluster, old, tmp_path):
    here = convert(settings(old, tmp_path / "here", engine="serial"))
    there = convert(settings(old, tmp_path / "there", engine="ray"))
    assert len(list(there.rglob("*.mp4"))) > 2
    assert content(there) == content(here)


def test_errors_of_another_machine_are_as_clear(ray_cluster, tmp_path):
    broken = build_dataset(tmp_path / "pick", TinyDataset(version="v2.1", lengths=(3, 4)))
    lines = (broken / "meta/episodes.jsonl").read_text().replace('"length": 4', '"length": 9')
    (broken / "meta/episodes.jsonl").write_text(lines)
    with pytest.raises(EpisodeError, match=r"episode_000001.parquet` has 4 rows; meta/episodes.jsonl says 9"):
        convert(settings(broken, tmp_path / "out", engine="ray"))
