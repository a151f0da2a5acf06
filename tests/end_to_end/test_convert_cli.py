"""`mimetic dataset convert` as users type it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mimetic.cli.app import main
from mimetic.data.convert import parts, workplace
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import TinyDataset, build_dataset


@pytest.fixture
def old(tmp_path):
    return build_dataset(
        tmp_path / "pick", TinyDataset(version="v2.1", lengths=(3, 4, 5), cameras={"top": (32, 48)}, fps=10)
    )


def test_lerobots_flags_are_understood_and_the_folder_is_all_of_stdout(old, capsys):
    flags = ["--repo-id=me/pick", "--root", str(old), "--data-file-size-in-mb", "1", "--video-file-size-in-mb=2"]
    assert main(["dataset", "convert", *flags, "--force-conversion", "true", "--push-to-hub=false"]) == 0
    made = old.parent / "pick_v30"
    assert capsys.readouterr().out == f"{made}\n"
    meta = open_dataset(root=made).meta
    assert (meta.info.data_files_size_in_mb, meta.info.video_files_size_in_mb) == (1, 2)


def test_a_bare_folder_and_the_way_back(old, capsys):
    assert main(["dataset", "convert", str(old)]) == 0
    assert main(["dataset", "convert", str(old.parent / "pick_v30"), "--to=v2.1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(old.parent / "pick_v30_v21")


def test_a_name_is_looked_up_where_datasets_lie(old, monkeypatch, capsys):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(old.parent.parent))
    assert main(["dataset", "convert", f"--repo-id={old.parent.name}/pick"]) == 0
    assert (old.parent / "pick_v30").is_dir()


def test_an_interrupted_conversion_says_how_it_goes_on(old, monkeypatch, capsys):
    seen = []

    def keep(*details):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return workplace.keep(*details)

    monkeypatch.setattr(parts, "keep", keep)
    flags = ["--root", str(old), "--engine=serial"]
    assert main(["dataset", "convert", *flags]) == 130
    said = capsys.readouterr().err
    assert "error: the conversion was interrupted; what is finished is kept" in said
    assert f"mimetic dataset convert --root {old} --engine=serial" in said
    assert main(["dataset", "convert", *flags]) == 0
    assert len(open_dataset(root=old.parent / "pick_v30")) == 12


def test_errors_are_one_line_and_a_hint(old, capsys):
    next(old.rglob("episode_000001.mp4")).unlink()
    assert main(["dataset", "convert", str(old)]) == 1
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith(("error:", "hint:"))]
    assert len(errors) == 2
    assert "episode_000001.mp4` is missing; episode 1 needs it. Nothing was converted" in errors[0]


def test_a_pool_works_from_the_installed_command(old):
    command = [
        sys.executable,
        "-m",
        "mimetic",
        "dataset",
        "convert",
        f"--root={old}",
        "--engine=pool",
        "--num_workers=2",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{old.parent / 'pick_v30'}\n"
