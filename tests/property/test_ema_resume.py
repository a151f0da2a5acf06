"""Averaged weights of whole runs: stopping changes no bit of them, and they change no bit of the training."""

from __future__ import annotations

import shutil
from dataclasses import replace

import torch

from mimetic.config.codec import decode
from mimetic.config.parse import parse
from mimetic.policies.checkpoint import load_pretrained
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

AVERAGED = [
    "--ema.enable=true",
    "--ema.update_after_step=1",
    "--accelerator.gradient_accumulation.steps=2",  # checkpoints at odd steps lie between two updates
    "--dataset.eval_split=0.3",
    "--eval_steps=2",
]


def settings(fixtures, *flags):
    base = [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        "--batch_size=10",
        "--num_workers=0",
        "--steps=6",
        "--save_freq=1",
        "--policy.optimizer_lr=1e-2",
    ]
    return parse(TrainConfig, [*base, *TINY_ACT, *flags], prog="mimetic train").value


def run(config, folder):
    train(replace(config, output_dir=folder))
    return folder / "checkpoints" / "000006"


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_resuming_gives_the_same_files(fixtures, tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    expected = files_of(run(settings(fixtures, *AVERAGED), folder))
    assert "pretrained_model_ema/model.safetensors" in expected
    assert "training_state/ema_state.safetensors" in expected
    folder.rename(whole)
    for step in (1, 3, 4):
        # The run's path stands in its settings, so it must be the same one.
        shutil.copytree(whole / "checkpoints" / f"{step:06d}", folder / "checkpoints" / f"{step:06d}")
        checkpoint = find_checkpoint(folder)
        stored = decode(TrainConfig, checkpoint.settings(), where="checkpoint")
        found = files_of(run(replace(stored, resume=True, checkpoint_path=checkpoint.folder), folder))
        assert found.keys() == expected.keys()
        assert [name for name in expected if found[name] != expected[name]] == []
        shutil.rmtree(folder)


def test_averaging_changes_no_bit_of_the_training(fixtures, tmp_path):
    plain = run(settings(fixtures, *AVERAGED[2:]), tmp_path / "plain")
    averaged = run(settings(fixtures, *AVERAGED), tmp_path / "averaged")
    for name in (
        "pretrained_model/model.safetensors",
        "training_state/optimizer_state.safetensors",
        "training_state/rng_state.safetensors",
    ):
        assert (plain / name).read_bytes() == (averaged / name).read_bytes(), name


def test_the_average_is_that_of_the_weights_of_the_updates(fixtures, tmp_path):
    folder = run(settings(fixtures, *AVERAGED), tmp_path / "run").parent
    # Updates after steps 2, 4 and 6; the first two copy, and the third has t = 1.
    weights = [load_pretrained(folder / f"{step:06d}" / "pretrained_model").policy.state_dict() for step in (4, 6)]
    average = load_pretrained(folder / "000006" / "pretrained_model_ema").policy.state_dict()
    decay = 1 - 2**-0.75
    for name, before in weights[0].items():
        expected = decay * before.double() + (1 - decay) * weights[1][name].double()
        torch.testing.assert_close(average[name].double(), expected, rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in average)
