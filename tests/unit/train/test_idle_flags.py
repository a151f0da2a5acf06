"""Flags that are given and change nothing are named, and those that do something are not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mimetic.config.parse import parse
from mimetic.data.config import DatasetConfig
from mimetic.errors import ConfigError
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.idle_flags import idle_flags
from mimetic.train.resolve import resolve

MEASURED = ("--dataset.eval_split=0.25", "--eval_steps=2")
FP16 = "--accelerator.mixed_precision=fp16"
COMPILED = "--accelerator.compile.enabled=true"


def told(*flags: str, device: str = "cpu") -> list[str]:
    parsed = parse(TrainConfig, ["--dataset.repo_id=a/b", *TINY_ACT, *flags], prog="mimetic train")
    return idle_flags(parsed.value, parsed.origins, device)


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (("--ema.decay=0.9",), "--ema.decay: no effect without --ema.enable=true"),
        (("--ema.enable=true", "--ema.decay=0.9", "--ema.power=0.5"), "--ema.power: no effect with a constant"),
        (("--ema.enable=true", "--ema.use_for_eval=true"), "--ema.use_for_eval: no effect without --eval_steps"),
        (("--accelerator.grad_scaler.init_scale=4",), "--accelerator.grad_scaler.init_scale: no effect without"),
        (
            (FP16, "--accelerator.grad_scaler.enabled=false", "--accelerator.grad_scaler.init_scale=4"),
            "--accelerator.grad_scaler.init_scale: no effect with --accelerator.grad_scaler.enabled=false",
        ),
        (("--accelerator.compile.mode=default",), "--accelerator.compile.mode: no effect without"),
        (("--max_bad_frames=3",), "--max_bad_frames: no effect without --on_bad_frame=skip"),
        (("--tf32=true",), "--tf32: no effect on cpu"),
        (("--cudnn_deterministic=true",), "--cudnn_deterministic: no effect on cpu"),
        (("--trackio.project=x",), "--trackio.project: no effect without --trackio.enable=true"),
        (("--wandb.project=x", "--wandb.entity=y"), "--wandb.entity, --wandb.project: no effect without"),
        (("--early_stop.min_delta=0.1",), "--early_stop.min_delta: no effect without --early_stop.patience"),
        (("--max_eval_samples=4",), "--max_eval_samples: no effect without --eval_steps"),
        (("--save_checkpoint=false", "--keep.last=2"), "--keep.last: no effect with --save_checkpoint=false"),
        (("--save_checkpoint=false", *MEASURED, "--keep.best=1"), "--keep.best: no effect with"),
        (("--save_checkpoint=false", "--requeue_exit_code=75"), "--requeue_exit_code: no effect with"),
        (("--policy.repo_id=a/b",), "--policy.repo_id: no effect with --policy.push_to_hub=false"),
        (("--reset_optimizer=true",), "--reset_optimizer: no effect without --resume=true"),
        (("--eval.batch_size=4",), "--eval.batch_size: no effect without --env.type"),
    ],
)
def test_a_flag_without_effect_is_named_with_what_is_missing(flags: tuple[str, ...], start: str) -> None:
    sentences = told(*flags)
    assert len(sentences) == 1
    assert sentences[0].startswith(start)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--ema.enable=true", "--ema.decay=0.9"),
        ("--ema.enable=true", "--ema.power=0.5", "--ema.use_for_eval=true", *MEASURED),
        ("--ema.enable=false", "--tf32=false", "--wandb.enable=false", "--keep.last=0", "--early_stop.min_delta=0.0"),
        (FP16, "--accelerator.grad_scaler.init_scale=4"),
        (COMPILED, "--accelerator.compile.mode=default"),
        ("--on_bad_frame=skip", "--max_bad_frames=3"),
        ("--trackio.enable=true", "--trackio.project=x"),
        ("--keep.last=2", "--requeue_exit_code=75"),
        (*MEASURED, "--max_eval_samples=4", "--early_stop.patience=1", "--early_stop.min_delta=0.1"),
        ("--policy.repo_id=a/b", "--save_checkpoint_to_hub=true"),
    ],
)
def test_flags_that_do_something_or_ask_for_nothing_are_not_named(flags: tuple[str, ...]) -> None:
    assert told(*flags) == []


def test_tf32_has_an_effect_on_cuda() -> None:
    assert told("--tf32=true", device="cuda") == []


def test_values_of_a_file_are_not_named(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("ema: {decay: 0.9}\ntf32: true\n")
    assert told(f"--config_path={file}") == []


def test_resolve_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = ["--dataset.repo_id=a/b", *TINY_ACT, "--ema.decay=0.9", f"--output_dir={tmp_path / 'run'}"]
    parsed = parse(TrainConfig, flags, prog="mimetic train")
    with caplog.at_level(logging.WARNING):
        resolve(parsed.value, parsed.origins)
    assert [record.getMessage() for record in caplog.records] == ["--ema.decay: no effect without --ema.enable=true"]


def test_an_output_folder_that_is_a_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    parsed = parse(
        TrainConfig, ["--dataset.repo_id=a/b", *TINY_ACT, f"--output_dir={tmp_path / 'run'}"], prog="mimetic train"
    )
    with pytest.raises(ConfigError, match="is a file"):
        resolve(parsed.value, parsed.origins)


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--ema.power=inf", "above 0 and finite"),
        ("--ema.inv_gamma=inf", "above 0 and finite"),
        ("--early_stop.min_delta=inf", "at least 0 and finite"),
        ("--accelerator.grad_scaler.init_scale=1e39", "at most 2\\^127"),
        ("--accelerator.grad_scaler.growth_interval=9999999999", "at most 2147483647"),
    ],
)
def test_numbers_that_torch_or_the_formula_cannot_take_are_refused(flag: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(TrainConfig, ["--dataset.repo_id=a/b", *TINY_ACT, flag], prog="mimetic train")


def test_a_resumed_run_that_drops_its_average_says_so(repository: Path, tmp_path: Path) -> None:
    from mimetic.cli.app import main

    root = repository / "tests/fixtures/training/dataset_tiny_vec"
    run = tmp_path / "run"
    start = ["train", "--dataset.repo_id=a/b", f"--dataset.root={root}", *TINY_ACT, f"--output_dir={run}"]
    assert main([*start, "--steps=1", "--batch_size=2", "--num_workers=0", "--ema.enable=true"]) == 0
    go_on = ["train", "--resume=true", f"--config_path={run}", "--dry_run=true", "--steps=2"]
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mimetic.train.resolve")
    logger.addHandler(handler)
    try:
        assert main(go_on) == 0
        assert not any("no longer keeps" in message for message in messages)
        assert main([*go_on, "--ema.enable=false"]) == 0
    finally:
        logger.removeHandler(handler)
    assert sum("which this run no longer keeps (--ema.enable=false)" in message for message in messages) == 1


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    config = TrainConfig(dataset=DatasetConfig(repo_id="x"), seed=seed)
    assert f"`--seed={seed}` must be between 0 and 4294967295" in config.check()


@pytest.mark.parametrize("tolerance", [0.0, float("nan"), float("inf")])
def test_a_tolerance_that_means_nothing_is_refused(tolerance):
    config = TrainConfig(dataset=DatasetConfig(repo_id="x"), tolerance_s=tolerance)
    assert f"`--tolerance_s={tolerance}` must be above 0 and finite" in config.check()
