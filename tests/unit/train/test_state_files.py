"""Damaged files of `training_state/` are named; none of them ends in a traceback or in half a state."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mimetic.errors import CheckpointError
from mimetic.train.rng import load_rng, save_rng
from mimetic.train.state import (
    Progress,
    load_optimizer,
    load_progress,
    load_scheduler,
    save_optimizer,
    save_progress,
    save_scheduler,
)

PROGRESS = Progress(step=7, batch_size=4, samples=28, epoch=2, start_index=8, grad_accum_steps=3, micro_step=1)


def trained():
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    return module, optimizer, scheduler


@pytest.fixture
def folder(tmp_path):
    _, optimizer, scheduler = trained()
    save_progress(tmp_path, PROGRESS)
    save_optimizer(tmp_path, optimizer)
    save_scheduler(tmp_path, scheduler)
    save_rng(tmp_path / "rng_state.safetensors")
    return tmp_path


def load(folder):
    _, optimizer, scheduler = trained()
    load_progress(folder, num_frames=10, batch_size=4)
    load_optimizer(folder, optimizer)
    load_scheduler(folder, scheduler)
    load_rng(folder / "rng_state.safetensors")


FILES = [
    "training_step.json",
    "mimetic_state.json",
    "optimizer_param_groups.json",
    "optimizer_state.safetensors",
    "scheduler_state.json",
    "rng_state.safetensors",
]
DAMAGE = {
    "empty": b"",
    "half": None,
    "list": b"[]",
    "number": b"3",
    "list of numbers": b"[1, 2]",
    "object of another kind": b'{"step": "three", "base_lrs": 5}',
    "binary": bytes(range(256)),
}


def test_intact_files_load(folder):
    load(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_named(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize("name", [name for name in FILES if name != "mimetic_state.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load(folder)


@pytest.mark.parametrize(
    "change",
    [{"micro_step": 3}, {"start_index": -1}, {"epoch": "2"}, {"step": 7.0}, {"dataset": [1]}, {"colour": "red"}],
    ids=str,
)
def test_a_position_that_cannot_be_is_refused(folder, change):
    path = folder / "mimetic_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=r"mimetic_state.json does not hold the position of a run"):
        load_progress(folder, num_frames=10, batch_size=4)


def test_a_position_comes_back_as_it_was(folder):
    assert load_progress(folder, num_frames=10, batch_size=4) == PROGRESS


@pytest.mark.parametrize("change", [{"step": 9}, {"batch_size": 5}], ids=str)
def test_a_checkpoint_that_another_program_wrote_over_ours_counts_by_its_own_step(folder, change, caplog):
    # LeRobot leaves our extra file in place when it saves the same step.
    path = folder / "training_step.json"
    stored = json.loads(path.read_text()) | change
    path.write_text(json.dumps(stored))
    progress = load_progress(folder, num_frames=10, batch_size=4)
    assert (progress.step, progress.batch_size, progress.micro_step) == (stored["step"], stored["batch_size"], 0)
    assert "written anew by another program" in caplog.text


@pytest.mark.parametrize("key", ["exp_avg", "state/x/exp_avg", "state/0", "state/0/../exp_avg", "state/9/exp_avg"])
def test_state_of_no_parameter_is_refused(folder, key):
    save_file({key: torch.zeros(2, 3)}, folder / "optimizer_state.safetensors")
    with pytest.raises(CheckpointError, match=r"optimizer_state.safetensors"):
        load(folder)


@pytest.mark.parametrize("key", ["py_rng_state", "np_rng_state_values", "torch_rng_state"])
def test_generator_states_of_a_wrong_size_are_refused(folder, key):
    from safetensors.torch import load_file

    path = folder / "rng_state.safetensors"
    tensors = load_file(path)
    save_file(tensors | {key: tensors[key][:10].clone()}, path)
    with pytest.raises(CheckpointError, match=r"does not hold the state of the random generators"):
        load_rng(path)
    shutil.rmtree(folder)
