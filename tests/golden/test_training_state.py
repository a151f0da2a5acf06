"""Training-state files of LeRobot 0.6.1, read and written again (tests/fixtures/training/README.md)."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mimetic.config.codec import decode
from mimetic.errors import CheckpointError
from mimetic.optim.build import make_optimizer
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.checkpoint import load_pretrained
from mimetic.train.config import TrainConfig
from mimetic.train.rng import load_rng, rng_tensors, seed_everything
from mimetic.train.state import load_optimizer, load_progress, load_scheduler, save_optimizer, save_scheduler

STEPS = ["run_preset/checkpoints/000003", "run_preset/checkpoints/000006", "run_sched/checkpoints/000003"]


@pytest.fixture(params=STEPS)
def checkpoint(request, fixtures):
    return fixtures / "training" / request.param


def draws():
    return {
        "python": [random.random() for _ in range(3)],
        "numpy_uniform": np.random.random(3).tolist(),
        "torch_rand": torch.rand(3).tolist(),
    }


@pytest.mark.parametrize("name", ["000003", "000006"])
def test_first_draws_after_loading_the_generators_are_the_references(fixtures, name):
    probe = json.loads((fixtures / "training" / "rng_probe.json").read_text())[name]
    load_rng(fixtures / "training" / "run_preset" / "checkpoints" / name / "training_state" / "rng_state.safetensors")
    ours = draws()
    assert {key: ours[key] for key in ours} == {key: probe[key] for key in ours}


def test_seeding_gives_the_references_draws(fixtures):
    probe = json.loads((fixtures / "training" / "rng_probe.json").read_text())["set_seed_1000"]
    seed_everything(1000)
    ours = draws()
    assert ours == {key: probe[key] for key in ours}


def test_generator_file_is_written_as_it_was_read(checkpoint):
    path = checkpoint / "training_state" / "rng_state.safetensors"
    load_rng(path)
    expected, ours = load_file(path), rng_tensors()
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        assert ours[key].dtype == value.dtype
        assert torch.equal(ours[key], value), key


def restore(checkpoint):
    config = decode(
        TrainConfig, json.loads((checkpoint / "pretrained_model" / "train_config.json").read_text()), where="fixture"
    )
    policy = load_pretrained(checkpoint / "pretrained_model").policy
    groups = policy.optim_groups() if config.use_policy_training_preset else [{"params": list(policy.parameters())}]
    optimizer = make_optimizer(config.optimizer, groups)
    scheduler = make_scheduler(config.scheduler, optimizer, config.steps) if config.scheduler else None
    load_optimizer(checkpoint / "training_state", optimizer)
    if scheduler:
        load_scheduler(checkpoint / "training_state", scheduler)
    return optimizer, scheduler


def test_optimiser_and_schedule_files_are_written_as_they_were_read(checkpoint, tmp_path):
    optimizer, scheduler = restore(checkpoint)
    save_optimizer(tmp_path, optimizer)
    names = ["optimizer_param_groups.json"]
    if scheduler:
        save_scheduler(tmp_path, scheduler)
        names.append("scheduler_state.json")
    for name in names:
        assert (tmp_path / name).read_text() == (checkpoint / "training_state" / name).read_text(), name
    expected = load_file(checkpoint / "training_state" / "optimizer_state.safetensors")
    ours = load_file(tmp_path / "optimizer_state.safetensors")
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[key], value) for key, value in expected.items())


def test_position_of_a_foreign_checkpoint_follows_from_its_step(checkpoint):
    progress = load_progress(checkpoint / "training_state", num_frames=45, batch_size=4)
    step = int(checkpoint.name)
    assert (progress.step, progress.batch_size, progress.samples) == (step, 4, 4 * step)
    assert (progress.epoch, progress.start_index) == (0, 4 * step)


def test_newer_layout_is_understood(fixtures):
    folder = fixtures / "training" / "run_grad_accum_after_061" / "checkpoints" / "000003" / "training_state"
    progress = load_progress(folder, num_frames=45, batch_size=4)
    assert (progress.step, progress.num_processes, progress.grad_accum_steps) == (3, 1, 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("optimizer_state.safetensors", lambda path: path.write_bytes(path.read_bytes()[:1000])),
        ("optimizer_state.safetensors", lambda path: path.unlink()),
        ("optimizer_param_groups.json", lambda path: path.write_text("[{")),
        ("optimizer_param_groups.json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_state_file_is_named(fixtures, tmp_path, name, damage):
    source = fixtures / "training" / STEPS[0]
    copy = tmp_path / "000003"
    shutil.copytree(source, copy)
    damage(copy / "training_state" / name)
    with pytest.raises(CheckpointError) as caught:
        restore(copy)
    assert name in caught.value.message
    assert caught.value.hint


def test_another_optimiser_layout_is_refused(fixtures, tmp_path):
    source = fixtures / "training" / STEPS[0] / "training_state"
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=1e-3)
    with pytest.raises(CheckpointError, match="groups of"):
        load_optimizer(source, optimizer)


def test_settings_unknown_to_this_torch_are_left_out_with_a_note(fixtures, tmp_path, caplog):
    copy = tmp_path / "000003"
    shutil.copytree(fixtures / "training" / STEPS[0], copy)
    path = copy / "training_state" / "optimizer_param_groups.json"
    groups = json.loads(path.read_text())
    for group in groups:
        group["future_option"] = True
    path.write_text(json.dumps(groups))
    with caplog.at_level("INFO", logger="mimetic"):
        optimizer, _ = restore(copy)
    assert "future_option" in caplog.text
    assert "future_option" not in optimizer.param_groups[0]
