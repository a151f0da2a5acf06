"""Whether checkpoints fit: the estimate against what is written, the plan, and each answer when they do not."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mimetic.config.parse import parse
from mimetic.errors import CheckpointError, TrainingError
from mimetic.testing.tiny import TINY_ACT
from mimetic.train import disk_space
from mimetic.train.config import TrainConfig
from mimetic.train.disk_space import (
    check_space,
    estimate_bytes,
    folder_bytes,
    free_bytes,
    newest_bytes,
    require_space,
    require_writable,
    size_text,
)
from mimetic.train.run import train

GB = 1_000_000_000


def settings(**changes):
    config = parse(TrainConfig, ["--dataset.repo_id=me/x", *TINY_ACT], prog="mimetic train").value
    keep = {name.removeprefix("keep_"): changes.pop(name) for name in list(changes) if name.startswith("keep_")}
    return replace(config, keep=replace(config.keep, **keep), **changes)


@pytest.fixture
def disk(monkeypatch):
    """Sets the free space [bytes]."""

    def set_free(count):
        monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda place: SimpleNamespace(free=int(count)))

    return set_free


def complete(run, *steps):
    for step in steps:
        for name in ("pretrained_model/config.json", "training_state/training_step.json"):
            path = run / "checkpoints" / f"{step:06d}" / name
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x" * 500)


def test_the_plan_is_said_once(tmp_path, disk, caplog):
    disk(38 * GB)
    with caplog.at_level("INFO"):
        plan = check_space(tmp_path / "run", int(1.2 * GB), settings(steps=100_000, save_freq=20_000), step=0)
    assert caplog.messages == ["checkpoints: 1.2 GB each, 5 to write, 38 GB free"]
    assert (plan.each, plan.to_write, plan.to_stay, plan.free) == (int(1.2 * GB), 5, 5, 38 * GB)


@pytest.mark.parametrize(
    ("changes", "step", "to_write", "to_stay"),
    [
        ({"save_freq": 20}, 0, 5, 5),
        ({"save_freq": 30}, 0, 4, 4),  # 30, 60, 90, and the last step
        ({"save_freq": 0}, 0, 1, 1),
        ({"save_freq": 1000}, 0, 1, 1),
        ({"save_freq": 20}, 40, 3, 3),
        ({"save_freq": 20}, 50, 3, 3),
        ({"save_freq": 10, "keep_last": 2}, 0, 10, 2),
        ({"save_freq": 10, "keep_last": 2, "keep_every": 50}, 0, 10, 3),  # 50, 90, 100
        ({"save_freq": 10, "keep_last": 30}, 0, 10, 10),
        ({"save_freq": 10, "keep_best": 2, "eval_steps": 10}, 0, 10, 3),  # two best and the newest
        ({"save_freq": 10, "keep_best": 9, "eval_steps": 50}, 0, 10, 3),  # measured only twice
    ],
)
def test_checkpoints_are_counted_as_the_run_will_write_and_keep_them(tmp_path, changes, step, to_write, to_stay):
    plan = check_space(tmp_path, 1, settings(steps=100, **changes), step=step)
    assert (plan.to_write, plan.to_stay) == (to_write, to_stay)
    assert (f"{to_stay} of them stay" in str(plan)) == (to_stay < to_write)


def test_a_run_is_refused_when_not_even_two_checkpoints_fit(tmp_path, disk):
    disk(1.9 * GB)
    with pytest.raises(TrainingError) as caught:
        check_space(tmp_path, GB, settings(steps=100, save_freq=20), step=0)
    assert caught.value.message == (
        f"the disk of {tmp_path} has 1.9 GB free, and a checkpoint of this run takes about 1.0 GB: not even two would fit"
    )
    assert caught.value.hint == (
        "make room there, choose another disk with `--output_dir`, or save none with `--save_checkpoint=false`"
    )


def test_a_run_that_writes_one_checkpoint_needs_room_for_one(tmp_path, disk):
    config = settings(steps=100, save_freq=0)
    disk(GB)
    check_space(tmp_path, GB, config, step=0)
    disk(GB - 1)
    with pytest.raises(TrainingError, match="not even one would fit"):
        check_space(tmp_path, GB, config, step=0)


def test_a_resumed_run_that_replaces_its_checkpoints_needs_room_for_one(tmp_path, disk):
    config = settings(steps=100, save_freq=10, keep_last=1)
    disk(GB)
    with pytest.raises(TrainingError, match="not even two"):
        check_space(tmp_path, GB, config, step=0)
    complete(tmp_path, 50)
    check_space(tmp_path, GB, config, step=50)


@pytest.mark.parametrize(
    ("changes", "there", "most"),
    [
        ({}, [], 10),
        ({}, [1, 2, 3], 10),
        ({"keep_last": 4}, [], 5),  # the new one is written before an old one goes
        ({"keep_last": 4}, [1, 2], 3),
        ({"keep_last": 30}, [], 10),
    ],
)
def test_too_little_for_all_is_a_warning_that_says_how_many(tmp_path, disk, caplog, changes, there, most):
    complete(tmp_path, *there)
    config = settings(steps=100, save_freq=10, **changes)
    disk(most * GB)
    check_space(tmp_path, GB, config, step=0)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []
    disk(most * GB - 1)
    check_space(tmp_path, GB, config, step=0)
    assert f"{most} checkpoints of 1.0 GB each will not fit" in caplog.text
    assert "--keep.last=2" in caplog.text
    assert "--save_freq" in caplog.text


def test_a_save_that_will_not_fit_is_not_begun(tmp_path, disk):
    parent = tmp_path / "checkpoints"
    disk(GB)
    require_space(parent, 7, GB)
    disk(GB - 1)
    with pytest.raises(CheckpointError):
        require_space(parent, 7, GB)
    disk(0.4 * GB)
    with pytest.raises(CheckpointError) as caught:
        require_space(parent, 7, GB)
    assert caught.value.message == (
        f"the checkpoint of step 7 takes about 1.0 GB, and the disk of {parent} has 400 MB free"
    )
    assert caught.value.hint == "make room there, then start again"
    complete(tmp_path, 3, 6)
    with pytest.raises(CheckpointError) as caught:
        require_space(parent, 7, GB)
    assert caught.value.hint == "make room there, then resume from step 6"


def test_sizes_are_read_from_the_newest_complete_checkpoint(tmp_path):
    assert newest_bytes(tmp_path / "checkpoints") is None
    complete(tmp_path, 3, 6)
    (tmp_path / "checkpoints" / "000006" / "more").write_bytes(b"x" * 10)
    (tmp_path / "checkpoints" / "000009").mkdir()
    assert newest_bytes(tmp_path / "checkpoints") == 1010


def test_free_space_of_a_folder_that_does_not_exist_is_that_of_the_nearest_one(tmp_path):
    usage = shutil.disk_usage(tmp_path)
    assert abs(free_bytes(tmp_path / "a" / "b") - usage.free) < usage.total / 10
    (tmp_path / "file").touch()
    assert free_bytes(tmp_path / "file" / "run") > 0


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "sgd momentum", "adam amsgrad"])
def test_the_estimate_is_that_of_the_state_after_a_step(optimizer):
    model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.Linear(400, 300))
    model[2].requires_grad_(False)
    make = {
        "adamw": lambda p: torch.optim.AdamW(p),
        "adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    }
    made = make[optimizer](model.parameters())
    before = estimate_bytes(model, made)
    model(torch.randn(4, 300)).sum().backward()
    made.step()
    after = estimate_bytes(model, made)
    assert abs(after - before) < 100  # step counters
    weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    assert before >= weights


def test_averaged_weights_count_twice_and_an_adapter_counts_only_what_it_trains():
    model = nn.Linear(100, 100)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    one = estimate_bytes(model, optimizer)
    assert estimate_bytes(model, optimizer, copies=2) - one == 4 * (100 * 100 + 100)
    assert one - estimate_bytes(model, optimizer, only_trainable=True) == 4 * 100


def test_tied_weights_count_once():
    model = nn.ModuleDict({"a": nn.Linear(100, 100, bias=False), "b": nn.Linear(100, 100, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apart = estimate_bytes(model, optimizer)
    model["b"].weight = model["a"].weight
    assert apart - estimate_bytes(model, optimizer) == 4 * 100 * 100


def test_the_estimate_of_a_real_run_is_right_to_a_few_percent(fixtures, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk_space, "_OVERHEAD", 0)
    flags = [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        *[flag for flag in TINY_ACT if "dim_" not in flag],
        "--policy.dim_model=64",
        "--policy.dim_feedforward=128",
        "--num_workers=0",
        "--steps=1",
        f"--output_dir={tmp_path / 'run'}",
    ]
    found = []
    real = disk_space.check_space
    monkeypatch.setattr(
        "mimetic.train.run.check_space", lambda folder, each, *a, **k: (found.append(each), real(folder, each, *a, **k))
    )
    train(parse(TrainConfig, flags, prog="mimetic train").value)
    written = folder_bytes(tmp_path / "run" / "checkpoints" / "000001")
    (estimate,) = found
    assert 0.9 < estimate / written < 1.1


@pytest.mark.parametrize("place", ["run", "run/checkpoints"])
def test_a_folder_that_takes_no_files_is_refused_before_the_first_step(tmp_path, monkeypatch, place):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    real = Path.open

    def refuse(self, mode="r", *args, **kwargs):
        if "w" in mode and self.parent == tmp_path / place:
            raise OSError(30, "Read-only file system")
        return real(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TrainingError) as caught:
        require_writable(run)
    assert caught.value.message == f"no checkpoint could be written to {tmp_path / place}: Read-only file system"
    assert caught.value.hint == ("change its permissions, make room there, or choose another place with `--output_dir`")


def test_the_probe_leaves_nothing(tmp_path, monkeypatch):
    require_writable(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    require_writable(tmp_path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_space.os, "fsync", full)
    with pytest.raises(TrainingError, match="No space left on device"):
        require_writable(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoints"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 kB"), (12_345, "12 kB"), (9.96e6, "10.0 MB"), (3.4e8, "340 MB"), (1.24e9, "1.2 GB"), (2e12, "2.0 TB")],
)
def test_sizes_are_text_for_people(count, text):
    assert size_text(count) == text
