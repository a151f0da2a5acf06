"""Tiny v2.1 datasets, and how two folders are compared."""

from __future__ import annotations

import hashlib

import pytest

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.testing.datasets import TinyDataset, build_dataset

CAMERA = "observation.images.top"


@pytest.fixture(scope="session")
def v21(tmp_path_factory):
    """Six episodes with a video camera, two tasks; not to be written to."""
    spec = TinyDataset(
        lengths=(5, 7, 4, 6, 3, 8), cameras={"top": (32, 48)}, tasks=("pick", "push"), version="v2.1", fps=10
    )
    return build_dataset(tmp_path_factory.mktemp("source") / "pick", spec)


@pytest.fixture
def small():
    """Settings under which `v21` becomes several files of each kind."""

    def make(root, target, **changes):
        given = {"data_file_size_in_mb": 0.004, "video_file_size_in_mb": 0.004, "engine": "serial", **changes}
        return ConvertConfig(root=root, output_dir=target, **given)

    return make


@pytest.fixture(scope="session")
def content():
    """Relative path -> SHA-256 of every file below a folder."""

    def of(root):
        return {
            path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    return of


@pytest.fixture(scope="session")
def v30(v21, tmp_path_factory):
    """`v21` converted in one go."""
    config = ConvertConfig(
        root=v21,
        output_dir=tmp_path_factory.mktemp("result") / "pick_v30",
        data_file_size_in_mb=0.004,
        video_file_size_in_mb=0.004,
        engine="serial",
    )
    return convert(config)
