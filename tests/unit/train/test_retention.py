"""Which checkpoints go and which stay, and that a kill in between leaves nothing half."""

import itertools
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimetic.config.check import find_problems
from mimetic.errors import CheckpointError
from mimetic.train import checkpoint, links, retention
from mimetic.train.checkpoint import clean_leftovers, is_complete, last_checkpoint, save_checkpoint
from mimetic.train.keep_config import KeepConfig
from mimetic.train.retention import dispensable, point_best, prune
from mimetic.train.state import Progress


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Writes small checkpoints of the given steps; `last` leads to the last one."""

    def fake(folder, saved, position):
        (folder / "pretrained_model").mkdir(parents=True)
        (folder / "training_state").mkdir()
        (folder / "pretrained_model" / "config.json").write_text(str(position.step))

    monkeypatch.setattr(checkpoint, "_write", fake)

    def use(*steps):
        for step in steps:
            position = Progress(step=step, batch_size=1, samples=step, epoch=0, start_index=0)
            save_checkpoint(tmp_path, None, position, total_steps=100)
        return tmp_path / "checkpoints"

    return use


def names(parent):
    return sorted(path.name for path in parent.iterdir() if path.name.isdigit())


def steps(parent):
    return [int(name) for name in names(parent)]


@pytest.mark.parametrize(
    ("keep", "best", "stay"),
    [
        ({}, [], [1, 2, 3, 4, 5, 6]),
        ({}, [1, 2], [1, 2, 3, 4, 5, 6]),
        ({"last": 1}, [], [6]),
        ({"last": 2}, [1], [5, 6]),  # `best` counts only with --keep.best
        ({"last": 9}, [], [1, 2, 3, 4, 5, 6]),
        ({"last": 1, "every": 2}, [], [2, 4, 6]),
        ({"last": 2, "every": 4}, [], [4, 5, 6]),
        ({"best": 1}, [3, 1], [3, 6]),  # the newest always stays
        ({"best": 2}, [3, 1, 2], [1, 3, 6]),
        ({"best": 2}, [3, 99, 98, 1], [1, 3, 6]),  # measured, but never saved
        ({"best": 2}, [], [6]),
        ({"best": 1, "last": 2, "every": 4}, [1], [1, 4, 5, 6]),
    ],
)
def test_a_checkpoint_that_any_rule_keeps_stays(save, keep, best, stay):
    parent = save(1, 2, 3, 4, 5, 6)
    gone = prune(parent, KeepConfig(**keep), best=best)
    assert steps(parent) == stay
    assert [int(name) for name in gone] == [step for step in range(1, 7) if step not in stay]
    assert all(is_complete(parent / name) for name in names(parent))
    assert last_checkpoint(parent).name == "000006"


@given(
    saved=st.sets(st.integers(1, 40), min_size=1),
    last=st.integers(0, 4),
    best=st.integers(0, 4),
    every=st.integers(0, 7),
    ranking=st.permutations(range(1, 41)),
)
def test_pruning_after_each_save_never_loses_what_a_rule_keeps(saved, last, best, every, ranking):
    keep, left = KeepConfig(last=last, best=best, every=every), []
    for step in sorted(saved):
        left = _kept([*left, step], keep, [s for s in ranking if s <= step])
    at_once = _kept(sorted(saved), keep, ranking)
    if not (last or best):
        assert left == sorted(saved)
        return
    assert max(saved) in left
    assert set(sorted(saved)[len(saved) - last :]) <= set(left)
    assert not every or {step for step in saved if step % every == 0} <= set(left)
    assert not best or set(sorted(saved, key=ranking.index)[:best]) <= set(left)
    assert set(left) == set(at_once)


def _kept(existing, keep, ranking):
    """`dispensable` on folders that exist only as names."""
    folders = [Path(f"{step:06d}") for step in existing]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "step_folders", lambda parent: folders)
        patch.setattr(retention, "named", lambda parent, link: None)
        patch.setattr(retention, "_is_ours", lambda path: True)
        gone = {int(path.name) for path in dispensable(Path("x"), keep, best=ranking)}
    return [step for step in existing if step not in gone]


def test_what_was_removed_is_said_once_with_the_rules(save, caplog):
    parent = save(1, 2, 3)
    with caplog.at_level("INFO"):
        assert prune(parent, KeepConfig(last=1, every=50)) == ["000001", "000002"]
        assert prune(parent, KeepConfig(last=1)) == []
    assert caplog.messages == ["Removed checkpoints 000001, 000002 (--keep.last=1, --keep.every=50)"]


def test_what_last_and_best_lead_to_stays_whatever_the_rules_say(save):
    parent = save(1, 2, 3, 4)
    links.point(parent, "last", "000001")
    links.point(parent, "best", "000002")
    prune(parent, KeepConfig(last=1))
    assert steps(parent) == [1, 2, 4]


def test_last_txt_and_best_txt_protect_too(save):
    parent = save(1, 2, 3, 4)
    (parent / "last").unlink()
    (parent / "last.txt").write_text("000001\n")
    (parent / "best.txt").write_text("000002\n")
    prune(parent, KeepConfig(last=1))
    assert steps(parent) == [1, 2, 4]


def test_what_is_in_use_stays_until_it_is_not(save):
    parent = save(1, 2, 3)
    assert prune(parent, KeepConfig(last=1), in_use=lambda path: path == parent / "000001") == ["000002"]
    assert steps(parent) == [1, 3]
    assert prune(parent, KeepConfig(last=1)) == ["000001"]


def test_only_what_mimetic_wrote_goes(save):
    parent = save(1, 2, 3, 4, 5, 6, 7)
    (parent / "000001" / "notes.txt").write_text("the good one")
    (parent / "000002" / "pretrained_model" / "config.json").unlink()  # incomplete: a person may still need the rest
    (parent / "000003" / "mimetic.json").unlink()  # as LeRobot writes it
    (parent / "000003" / "training_state" / "training_step.json").write_text("{}")
    (parent / "000004" / "mimetic.json").write_text("[]")
    (parent / "000005" / ".DS_Store").touch()  # a file browser was here
    (parent / "000006" / "linked").symlink_to("/")
    (parent / "000002.superseded-1").mkdir()
    (parent / "000099").symlink_to("000001")
    (parent / "mine").mkdir()
    (parent / "000098").touch()
    before = set(parent.iterdir())
    assert prune(parent, KeepConfig(last=1)) == ["000005"]
    assert before - set(parent.iterdir()) == {parent / "000005"}


def test_it_first_gets_a_hidden_name_which_is_durable_before_anything_in_it_goes(save, monkeypatch):
    parent, events = save(1, 2), []
    real_rename, real_flush, real_rmtree = Path.rename, retention.flush_folder, shutil.rmtree
    monkeypatch.setattr(Path, "rename", lambda s, t: (events.append(f"rename to {Path(t).name}"), real_rename(s, t))[1])
    monkeypatch.setattr(retention, "flush_folder", lambda f: (events.append(f"flush {f.name}"), real_flush(f))[1])
    monkeypatch.setattr(shutil, "rmtree", lambda f: (events.append(f"delete {f.name}"), real_rmtree(f))[1])
    prune(parent, KeepConfig(last=1))
    hidden = f".saving-removed-000001-{os.getpid()}"
    assert events == [f"rename to {hidden}", "flush checkpoints", f"delete {hidden}"]


@pytest.mark.parametrize("after", range(6))
def test_a_kill_in_the_middle_leaves_no_half_checkpoint_and_startup_removes_the_rest(save, monkeypatch, after):
    parent = save(1, 2, 3)

    class Killed(BaseException):
        pass

    left = itertools.count()

    def dying(real):
        def call(*args, **kwargs):
            if next(left) == after:
                raise Killed
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with pytest.raises(Killed):
            prune(parent, KeepConfig(last=1))
    assert all(is_complete(parent / name) for name in names(parent))
    assert last_checkpoint(parent).name == "000003"
    assert len(clean_leftovers(parent)) <= 1
    prune(parent, KeepConfig(last=1))
    assert sorted(path.name for path in parent.iterdir()) == ["000003", "last"]


def test_what_the_system_does_not_let_go_is_a_warning_and_no_end(save, monkeypatch, caplog):
    parent = save(1, 2, 3)

    def busy(self, target):
        raise OSError(16, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", busy)
        assert prune(parent, KeepConfig(last=2)) == []
    assert f"checkpoint {parent / '000001'} could not be removed: Device or resource busy" in caplog.text
    assert steps(parent) == [1, 2, 3]

    def stale(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(shutil, "rmtree", stale)
    assert prune(parent, KeepConfig(last=2)) == ["000001"]
    assert "still takes space (Stale file handle); the next start of the run removes it" in caplog.text
    assert steps(parent) == [2, 3]


def test_without_a_folder_there_is_nothing_to_do(tmp_path):
    assert prune(tmp_path / "checkpoints", KeepConfig(last=1)) == []


def test_best_leads_to_the_lowest_loss_that_was_saved(save):
    parent = save(1, 2, 3)
    point_best(parent, [99, 2, 1])
    assert os.readlink(parent / "best") == "000002"
    assert is_complete(parent / "best")
    point_best(parent, [1, 2])
    assert os.readlink(parent / "best") == "000001"
    assert last_checkpoint(parent).name == "000003"


def test_a_best_whose_checkpoint_was_set_aside_is_found_anew_or_taken_away(save):
    parent = save(1, 2, 3)
    point_best(parent, [3, 1])
    checkpoint.set_later_aside(parent, 2, back_to="000002")
    point_best(parent, [1])
    assert os.readlink(parent / "best") == "000001"
    point_best(parent, [])
    assert not os.path.lexists(parent / "best")


def test_a_real_folder_with_the_name_best_is_left_alone(save):
    parent = save(1)
    (parent / "best").mkdir()
    with pytest.raises(CheckpointError) as caught:
        point_best(parent, [1])
    assert caught.value.message == f"{parent / 'best'} is not a link to a checkpoint"
    assert caught.value.hint == f"move it away: `mv {parent / 'best'} {parent / 'best'}.old`"
    assert (parent / "best").is_dir()


def test_a_disk_that_refuses_the_link_is_an_error_and_the_former_one_stays(save, monkeypatch):
    parent = save(1, 2)
    point_best(parent, [1])

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "symlink_to", full)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CheckpointError, match=r"`.*best` could not be written: No space left on device"):
        point_best(parent, [2])
    assert os.readlink(parent / "best") == "000001"
    assert [path.name for path in parent.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def without_links(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)


def test_where_links_are_not_allowed_a_text_file_says_the_same(tmp_path, without_links):
    for name in ("000001", "000002"):
        links.point(tmp_path, "best", name)
        assert (tmp_path / "best.txt").read_text() == f"{name}\n"
        assert links.named(tmp_path, "best") == tmp_path / name
    assert [path.name for path in tmp_path.iterdir()] == ["best.txt"]
    links.unlink(tmp_path, "best")
    assert links.named(tmp_path, "best") is None


def test_a_link_and_a_text_file_never_say_different_things(tmp_path, monkeypatch):
    links.point(tmp_path, "best", "000001")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", lambda *a, **k: (_ for _ in ()).throw(NotImplementedError()))
        links.point(tmp_path, "best", "000002")
    assert [path.name for path in tmp_path.iterdir()] == ["best.txt"]
    links.point(tmp_path, "best", "000003")
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    assert links.named(tmp_path, "best").name == "000003"


@pytest.mark.parametrize("target", ["../elsewhere", "/tmp", "a/b", "."])
def test_a_link_that_leads_elsewhere_names_nothing(tmp_path, target):
    (tmp_path / "best").symlink_to(target)
    (tmp_path / "last.txt").write_text(target)
    assert links.named(tmp_path, "best") is None
    assert links.named(tmp_path, "last") is None


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ({"last": -1}, "`--keep.last=-1` must be at least 0"),
        ({"best": -1}, "`--keep.best=-1` must be at least 0"),
        (
            {"every": 5},
            "`--keep.every=5` has no effect alone, since every checkpoint stays then; "
            "add `--keep.last=1` to remove those in between",
        ),
    ],
)
def test_rules_that_cannot_work_are_named(keep, problem):
    assert KeepConfig(**keep).check() == [problem]
    assert len(find_problems(KeepConfig(**keep))) == 1
