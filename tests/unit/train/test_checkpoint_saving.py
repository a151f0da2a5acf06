"""A checkpoint appears complete or not at all, is on the disk before it has its name, and replaces nothing."""

import os

import pytest

from mimetic.errors import CheckpointError
from mimetic.train import checkpoint
from mimetic.train.checkpoint import is_complete, last_checkpoint, save_checkpoint
from mimetic.train.state import Progress


def progress(step):
    return Progress(step=step, batch_size=1, samples=step, epoch=0, start_index=0)


@pytest.fixture
def write(monkeypatch):
    """Lets checkpoints hold one small file each, whose content is returned by the given function."""

    def use(content):
        def fake(folder, saved, position):
            (folder / "pretrained_model").mkdir(parents=True)
            (folder / "training_state").mkdir()
            (folder / "pretrained_model" / "config.json").write_text(content(position))

        monkeypatch.setattr(checkpoint, "_write", fake)

    return use


def save(run, step):
    return save_checkpoint(run, None, progress(step), total_steps=10)


def test_a_saved_step_is_complete_and_last(tmp_path, write):
    write(lambda position: f"step {position.step}")
    for step in (3, 6):
        folder = save(tmp_path, step)
        assert folder == tmp_path / "checkpoints" / f"{step:06d}"
        assert is_complete(folder)
        assert last_checkpoint(tmp_path / "checkpoints") == folder
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000003", "000006", "last"]


def test_the_same_step_again_keeps_the_former_one_aside(tmp_path, write):
    write(lambda position: "first")
    save(tmp_path, 3)
    write(lambda position: "second")
    save(tmp_path, 3)
    kept = tmp_path / "checkpoints" / "000003.superseded-1" / "pretrained_model" / "config.json"
    assert kept.read_text() == "first"
    assert (tmp_path / "checkpoints" / "000003" / "pretrained_model" / "config.json").read_text() == "second"


def test_everything_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, write, monkeypatch):
    events = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        events.append(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    def rename(source, target, *args, **kwargs):
        if str(target).endswith("000003"):
            events.append("named")
        real_rename(source, target, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    write(lambda position: "content")
    folder = save(tmp_path, 3)
    before, after = events[: events.index("named")], events[events.index("named") + 1 :]
    assert {path.stat().st_ino for path in (folder, *folder.rglob("*"))} <= set(before)
    assert (tmp_path / "checkpoints").stat().st_ino in after


def test_a_failed_save_leaves_nothing_and_names_the_step_to_resume_from(tmp_path, write):
    write(lambda position: "content")
    save(tmp_path, 3)

    def full(position):
        raise OSError(28, "No space left on device")

    write(full)
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, 6)
    assert "the checkpoint of step 6 could not be written" in caught.value.message
    assert "No space left on device" in caught.value.message
    assert "resume from step 3" in caught.value.hint
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000003", "last"]
    assert last_checkpoint(tmp_path / "checkpoints").name == "000003"
