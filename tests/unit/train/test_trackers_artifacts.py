"""Checkpoints as artifacts of Weights & Biases, with a stand-in for its package."""

import os
import shutil
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from mimetic.cli.app import main
from mimetic.config.parse import parse
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.trackers import artifacts, worker
from mimetic.train.trackers.artifacts import Artifacts, artifact_name
from mimetic.train.trackers.wandb import WandbTracker, open_wandb


class FakeRun:
    """Remembers what it is given."""

    url = "https://wandb.example/r1"

    def __init__(self, mode, folder):
        self.id, self.mode, self.dir = "r1", mode, f"{folder}/wandb/{mode}-run-1/files"
        self.logged, self.artifacts, self.exit_code = [], [], None

    def log(self, values, step):
        self.logged.append((step, values))

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)
        artifact.run = self
        return artifact

    def finish(self, exit_code):
        self.exit_code = exit_code


class FakeArtifact:
    """Reads its files when it gets them."""

    def __init__(self, package, name, type):
        self.package, self.name, self.type = package, name, type
        self.contents, self.given = {}, set()

    def add_file(self, path, *, name, policy, skip_cache):
        self.package.on_artifact()
        self.contents[name] = Path(path).read_bytes()
        self.given.add((policy, skip_cache))

    def wait(self):
        assert self.run.mode == "online"  # the real one fails otherwise
        self.package.on_wait()


class FakeWandb(types.ModuleType):
    """The calls that mimetic makes."""

    def __init__(self):
        super().__init__("wandb")
        self.runs = []
        self.on_artifact = self.on_wait = lambda: None

    def Artifact(self, name, *, type):
        return FakeArtifact(self, name, type)

    def login(self, *, prompt):
        return True

    def init(self, *, mode, dir, **_):
        self.runs.append(FakeRun(mode, dir))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch):
    package = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # what an offline run sets would stay
    return package


@pytest.fixture
def checkpoint(tmp_path):
    """A folder like a checkpoint's."""
    folder = tmp_path / "run" / "checkpoints" / "000002"
    for name in ("model.safetensors", "config.json", "tokenizer/tokenizer.json"):
        file = folder / "pretrained_model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"of " + name.encode())
    (folder / "training_state").mkdir()
    (folder / "training_state" / "optimizer_state.safetensors").touch()
    return folder


@pytest.fixture
def tracker(wandb, tmp_path):
    """Makes a tracker that uploads; its run is `wandb.runs[0]`."""

    def make(mode="online"):
        run = wandb.init(dir=str(tmp_path / "run"), mode=mode)
        return WandbTracker(run, Artifacts(wandb, run, ["policy:act", "dataset:me/x"], is_offline=mode == "offline"))

    return make


def test_a_checkpoint_becomes_an_artifact_that_is_a_whole_policy(wandb, tracker, checkpoint):
    one = tracker()
    one.saved(checkpoint, 2)
    one.close(exit_code=0)
    (artifact,) = wandb.runs[0].artifacts
    assert (artifact.name, artifact.type) == ("policy_act-dataset_me_x-000002", "model")
    assert artifact.contents == {
        name: b"of " + name.encode() for name in ("model.safetensors", "config.json", "tokenizer/tokenizer.json")
    }
    assert artifact.given == {("immutable", True)}  # nothing is copied to the home folder
    assert wandb.runs[0].exit_code == 0


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_checkpoint_may_be_removed_as_soon_as_it_is_handed_over(wandb, tracker, checkpoint, mode):
    may_read, one = threading.Event(), tracker(mode)
    wandb.on_artifact = lambda: may_read.wait(60)
    one.saved(checkpoint, 2)
    shutil.rmtree(checkpoint)
    may_read.set()
    one.close(exit_code=0)
    (artifact,) = wandb.runs[0].artifacts
    assert artifact.contents["model.safetensors"] == b"of model.safetensors"


def test_what_is_uploaded_takes_no_room_and_what_waits_for_sync_stays(wandb, tracker, checkpoint):
    for mode, stays in (("online", False), ("offline", True)):
        one = tracker(mode)
        one.saved(checkpoint, 2)
        one.close(exit_code=0)
        run = wandb.runs[-1]
        links = [path for path in Path(run.dir).parent.rglob("*") if path.is_file()]
        assert bool(links) == stays
        for path in links:
            assert path.stat().st_ino in {file.stat().st_ino for file in checkpoint.rglob("*")}
        shutil.rmtree(Path(run.dir).parent, ignore_errors=True)


def test_without_hard_links_the_files_are_copied(wandb, tracker, checkpoint, monkeypatch):
    def refuse(source, target):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    one = tracker()
    one.saved(checkpoint, 2)
    one.close(exit_code=0)
    assert len(wandb.runs[0].artifacts[0].contents) == 3


def test_an_upload_holds_up_neither_the_training_nor_the_numbers(wandb, tracker, checkpoint):
    may_go, one = threading.Event(), tracker()
    wandb.on_wait = lambda: may_go.wait(60)
    started = time.monotonic()
    one.saved(checkpoint, 2)
    one.write({"kind": "train", "steps": 3, "loss": 1.0})
    while not wandb.runs[0].logged and time.monotonic() - started < 30:
        time.sleep(0.001)
    assert wandb.runs[0].logged == [(3, {"train/steps": 3, "train/loss": 1.0})]
    assert time.monotonic() - started < 30  # the upload goes on for 60 s
    may_go.set()
    one.close(exit_code=0)


def test_a_failed_upload_costs_one_warning_and_nothing_else(wandb, tracker, checkpoint, caplog):
    def fail():
        raise OSError("quota exceeded")

    wandb.on_wait, one = fail, tracker()
    one.saved(checkpoint, 2)
    while one._artifacts._pending:
        time.sleep(0.001)
    wandb.on_wait = lambda: None
    one.saved(checkpoint.rename(checkpoint.with_name("000004")), 4)
    one.write({"kind": "train", "steps": 4, "loss": 1.0})
    one.close(exit_code=0)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == "wandb: checkpoint 000002 is not uploaded: quota exceeded"
    assert [artifact.name[-6:] for artifact in wandb.runs[0].artifacts] == ["000002", "000004"]
    assert wandb.runs[0].logged
    assert wandb.runs[0].exit_code == 0
    assert not [path for path in Path(wandb.runs[0].dir).parent.rglob("*") if path.is_file()]


def test_a_full_disk_while_linking_costs_one_warning(wandb, tracker, checkpoint, monkeypatch, caplog):
    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfile", refuse)
    one = tracker()
    one.saved(checkpoint, 2)
    one.close(exit_code=0)
    assert "wandb: checkpoint 000002 is not uploaded: No space left on device" in caplog.messages
    assert wandb.runs[0].artifacts == []
    assert wandb.runs[0].exit_code == 0


@pytest.mark.parametrize(("mode", "words"), [("offline", "stay for `wandb sync`"), ("online", "are uploaded")])
def test_the_log_says_once_what_checkpoints_cost(tracker, checkpoint, caplog, mode, words):
    caplog.set_level("INFO")
    one = tracker(mode)
    one.saved(checkpoint, 2)
    one.saved(checkpoint.rename(checkpoint.with_name("000004")), 4)
    one.close(exit_code=0)
    (told,) = [message for message in caplog.messages if words in message]
    assert "0.00 MB of each checkpoint" in told
    assert "--wandb.disable_artifact=true" in told


def test_the_end_waits_longer_for_more_bytes_but_not_after_a_stop(wandb, tracker, checkpoint, monkeypatch, caplog):
    monkeypatch.setattr(artifacts, "SLOWEST_UPLOAD", 1e5)
    monkeypatch.setattr(worker, "PATIENCE_S", 0.5)
    monkeypatch.setattr(worker, "PATIENCE_AFTER_STOP_S", 0.0)
    with (checkpoint / "pretrained_model" / "model.safetensors").open("wb") as file:
        file.truncate(5_000_000)
    may_go, one = threading.Event(), tracker()
    wandb.on_wait = lambda: may_go.wait(60)
    one.saved(checkpoint, 2)
    assert one._artifacts.waiting_s() == pytest.approx(50, rel=0.01)
    threading.Timer(0.1, may_go.set).start()
    one.close(exit_code=0)  # the upload takes 0.1 of the 50 s that it may take
    assert wandb.runs[0].exit_code == 0

    def hang():
        begun.set()
        never.wait(60)
        raise OSError("too late to tell")

    begun, never = threading.Event(), threading.Event()
    wandb.on_wait, other = hang, tracker()
    other.saved(checkpoint, 2)
    assert begun.wait(60)
    other.close(exit_code=1)
    never.set()
    other._artifacts._worker._thread.join(60)
    assert "too late" not in caplog.text
    assert [path for path in Path(wandb.runs[1].dir).parent.rglob("*") if path.is_file()]
    assert wandb.runs[1].exit_code == 1  # an unfinished run would hold up the end of Python
    assert f"FOLDER` uploads what is left in {Path(wandb.runs[1].dir).parent / 'uploads'}" in caplog.text


def test_each_checkpoint_of_a_training_goes_to_wandb_whatever_is_kept_here(wandb, fixtures, tmp_path):
    flags = ["--dataset.repo_id=local/tiny_vec", f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}"]
    flags += ["--batch_size=4", "--num_workers=0", "--steps=3", "--save_freq=1", "--keep.last=1"]
    assert main(["train", *TINY_ACT, *flags, f"--output_dir={tmp_path / 'run'}", "--wandb.enable=true"]) == 0
    folders = [path for path in (tmp_path / "run" / "checkpoints").iterdir() if not path.is_symlink()]
    assert [path.name for path in folders] == ["000003"]
    names = [artifact.name for artifact in wandb.runs[0].artifacts]
    assert names == [f"policy_act-seed_1000-dataset_local_tiny_vec-00000{step}" for step in (1, 2, 3)]
    weights = [artifact.contents["model.safetensors"] for artifact in wandb.runs[0].artifacts]
    assert weights[2] == (folders[0] / "pretrained_model" / "model.safetensors").read_bytes()
    assert len(set(weights)) == 3


def test_artifacts_are_left_out_where_nobody_wants_them(wandb, checkpoint):
    for words, count in ((["--wandb.disable_artifact=true"], 0), ([], 1)):
        flags = ["--policy.type=act", "--dataset.repo_id=me/x", "--wandb.mode=offline", *words]
        tracker = open_wandb(parse(TrainConfig, flags, prog="t").value, checkpoint.parents[1], resumes=False)
        tracker.saved(checkpoint, 2)
        tracker.close(exit_code=0)
        assert len(wandb.runs[-1].artifacts) == count


def test_names_of_artifacts_are_lerobots_where_wandb_takes_them():
    tags = ["policy:act", "seed:1000", "dataset:me/pick up"]
    assert artifact_name(tags, "020000") == "policy_act-seed_1000-dataset_me_pick_up-020000"
    longest = artifact_name(["policy:" + "x" * 57, "dataset:" + "y" * 56], "020000")
    assert len(longest) == 128
    assert longest.endswith("y-020000")
