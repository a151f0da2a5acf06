"""A change counts when its journal is written, and not before its files are on the disk."""

import os
from pathlib import Path

import pytest

from mimetic.data.record import journal
from mimetic.data.record.journal import WORK_DIR, WorkFolder, recover

from .conftest import record


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kept.txt").write_text("old")
    (tmp_path / "goes.txt").write_text("old")
    folder = WorkFolder(tmp_path)
    folder.file("one").write_text("new")
    folder.file("two").write_text("new")
    yield folder
    folder.close(remove=False)


def change(folder):
    root = folder.root
    return [(folder.file("one"), root / "kept.txt"), (folder.file("two"), root / "made" / "new.txt")], [
        root / "goes.txt"
    ]


def test_a_change_replaces_makes_and_removes(folder):
    folder.commit("x", *change(folder))
    root = folder.root
    assert (root / "kept.txt").read_text() == (root / "made" / "new.txt").read_text() == "new"
    assert not (root / "goes.txt").exists()
    assert sorted(path.name for path in folder.path.iterdir()) == ["lock"]


def test_a_deleted_file_that_a_new_one_replaces_stays(folder):
    renames, _ = change(folder)
    folder.commit("x", renames, [folder.root / "kept.txt", folder.root / "goes.txt"])
    assert (folder.root / "kept.txt").read_text() == "new"


def test_contents_are_flushed_before_the_journal_and_names_before_it_goes(folder, monkeypatch):
    """Without this order a power cut could leave a journal that points to empty files."""
    events = []
    real_sync, real_replace, real_unlink = os.fsync, Path.replace, Path.unlink

    def sync(handle):
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name.partition(".json")[0]))
        return real_sync(handle)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (events.append(("rename", to.name)), real_replace(self, to))[1]
    )
    monkeypatch.setattr(
        Path, "unlink", lambda self, **k: (events.append(("remove", self.name)), real_unlink(self, **k))[1]
    )
    folder.commit("x", *change(folder))
    order = [
        events.index(one) for one in (("sync", "one"), ("sync", "two"), ("sync", "journal"), ("rename", "kept.txt"))
    ]
    assert order == sorted(order)
    last_name = max(events.index(("rename", "new.txt")), events.index(("remove", "goes.txt")))
    gone = events.index(("remove", "journal.json"))
    assert ("sync", "made") in events[last_name:gone]
    assert ("sync", folder.root.name) in events[last_name:gone]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_every_file_of_an_episode_is_flushed(tmp_path, monkeypatch):
    synced = set()
    real = os.fsync

    def sync(handle):
        status = os.fstat(handle)
        synced.add((status.st_dev, status.st_ino))
        return real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    writer = record(tmp_path / "recorded", (3, 2), finalize=False)
    found = [path for path in (tmp_path / "recorded").rglob("*") if path.is_file() and WORK_DIR not in path.parts]
    assert [path for path in found if (path.stat().st_dev, path.stat().st_ino) not in synced] == []
    writer.finalize()
    found = [path for path in (tmp_path / "recorded").rglob("*") if path.is_file()]
    assert [path for path in found if (path.stat().st_dev, path.stat().st_ino) not in synced] == []


def test_a_failed_journal_changes_nothing(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        folder.commit("x", *change(folder))
    assert (folder.root / "kept.txt").read_text() == "old"
    assert (folder.root / "goes.txt").exists()
    assert folder.file("one").exists()


def test_recovery_without_anything_to_do_is_silent(tmp_path):
    assert recover(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_recovery_says_what_it_did(folder, monkeypatch):
    def killed(*arguments):
        raise SystemExit

    monkeypatch.setattr(journal, "_apply", killed)
    with pytest.raises(SystemExit):
        folder.commit("episode 3 was saved", *change(folder))
    folder.file("camera-0.mp4").write_text("half a video")
    folder._lock.close()  # the process is dead
    monkeypatch.undo()
    done = recover(folder.root)
    assert done[0] == "a change that was interrupted is complete now: episode 3 was saved"
    assert "camera-0.mp4" in done[1]
    assert (folder.root / "kept.txt").read_text() == "new"
    assert not folder.path.exists()
    assert recover(folder.root) == []


def test_only_working_files_get_names(folder):
    with pytest.raises(AssertionError):
        folder.commit("x", [(folder.root / "kept.txt", folder.root / "else.txt")])
