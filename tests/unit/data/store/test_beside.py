"""Folders that appear as a whole or not at all."""

import errno
import json
import os

import pytest

from mimetic.data.store import beside
from mimetic.data.store.beside import FolderBuild, finish_interrupted
from mimetic.errors import DatasetError


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_failed_build_leaves_no_trace(tmp_path):
    with pytest.raises(RuntimeError), FolderBuild(tmp_path / "new") as build:
        (build.folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_replacing_keeps_every_earlier_dataset(tmp_path):
    target = tmp_path / "data"
    for number in range(4):
        with FolderBuild(target, replaces=target) as build:
            (build.folder / "meta").mkdir()
            (build.folder / "meta" / "number").write_text(str(number))
            backup = build.commit()
        assert backup == [None, tmp_path / "data_old", tmp_path / "data_old_2", tmp_path / "data_old_3"][number]
    assert contents(target) == {"meta/number": "3"}
    assert [contents(tmp_path / name)["meta/number"] for name in ("data_old", "data_old_2", "data_old_3")] == [
        "0",
        "1",
        "2",
    ]


def test_what_is_not_replaced_is_never_touched(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("x")
    with pytest.raises(DatasetError, match="exists already"):
        FolderBuild(tmp_path / "data")
    (tmp_path / "new.building").mkdir()
    (tmp_path / "new.building" / "mine").write_text("x")
    with pytest.raises(DatasetError, match="mimetic did not make it"), FolderBuild(tmp_path / "new"):
        pass
    assert (tmp_path / "new.building" / "mine").read_text() == "x"


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path):
    with pytest.raises(DatasetError, match="exists already"), FolderBuild(tmp_path / "new") as build:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "theirs").write_text("x")
        build.commit()
    assert contents(tmp_path / "new") == {"theirs": "x"}


def leave(folder, *, complete, process):
    folder.mkdir()
    (folder / "content").write_text("new")
    (folder / ".mimetic-building.json").write_text(json.dumps({"process": process, "complete": complete}))


def test_a_kill_between_the_renames_loses_nothing(tmp_path):
    leave(tmp_path / "data.building", complete=True, process=2**22 + 1)
    assert finish_interrupted(tmp_path / "data")
    assert contents(tmp_path / "data") == {"content": "new"}
    leave(tmp_path / "other", complete=True, process=2**22 + 1)
    assert finish_interrupted(tmp_path / "other")
    assert contents(tmp_path / "other") == {"content": "new"}
    assert not finish_interrupted(tmp_path / "other")


def test_an_unfinished_build_is_cleared_away_and_a_living_one_is_not(tmp_path):
    leave(tmp_path / "data.building", complete=False, process=2**22 + 1)
    with FolderBuild(tmp_path / "data") as build:
        assert not (build.folder / "content").exists()
    leave(tmp_path / "more.building", complete=False, process=os.getppid())
    with pytest.raises(DatasetError, match=f"process {os.getppid()} is building"), FolderBuild(tmp_path / "more"):
        pass
    assert (tmp_path / "more.building" / "content").exists()


def test_a_disk_that_is_full_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(beside, "_content", full)
        with pytest.raises(OSError, match="no space"), FolderBuild(tmp_path / "new"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_that_a_kill_left_is_used(tmp_path):
    (tmp_path / "new.building").mkdir()
    with FolderBuild(tmp_path / "new") as build:
        (build.folder / "content").write_text("x")
        build.commit()
    assert contents(tmp_path / "new") == {"content": "x"}


def test_of_two_that_begin_at_the_same_time_one_gives_way(tmp_path, monkeypatch):
    with FolderBuild(tmp_path / "new") as first:
        monkeypatch.setattr(FolderBuild, "_clear_leftover", lambda self: None)  # looked before the first had begun
        with pytest.raises(DatasetError, match=f"process {os.getpid()} is building"), FolderBuild(tmp_path / "new"):
            pass
        first.commit()
    assert (tmp_path / "new").is_dir()


def test_a_link_to_nowhere_is_in_the_way(tmp_path):
    (tmp_path / "new").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="exists already"):
        FolderBuild(tmp_path / "new")
