"""A run that was stopped and resumed is the same run: every file of its last checkpoint is bit for bit the same.

Exact on one machine and one torch build: the same kernels run in the same order on one thread.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

from mimetic.accelerators.precision import Precision
from mimetic.config.codec import decode
from mimetic.config.parse import parse
from mimetic.errors import CheckpointError, ConfigError, DatasetNotFound
from mimetic.policies.act.policy import ACTPolicy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.tiny import TINY_ACT, TINY_KEYPOINT
from mimetic.train.checkpoint import point_last
from mimetic.train.config import TrainConfig
from mimetic.train.overflows import OverflowWatch
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

TINY = [
    *TINY_ACT,
]
SCHEDULE = [
    "--use_policy_training_preset=false",
    "--optimizer.type=adamw",
    "--optimizer.lr=1e-3",
    "--optimizer.grad_clip_norm=1.0",
    "--scheduler.type=cosine_decay_with_warmup",
    "--scheduler.num_warmup_steps=4",
    "--scheduler.num_decay_steps=20",
    "--scheduler.peak_lr=1e-3",
    "--scheduler.decay_lr=1e-4",
]


def settings(fixtures, *flags):
    base = [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        "--batch_size=20",  # 45 frames: two epochs end within the run, each with a partial batch
        "--steps=6",
        "--save_freq=1",
        "--log_freq=1",
    ]
    return parse(TrainConfig, [*base, *TINY, *flags], prog="mimetic train").value


def run_to_end(config, folder):
    train(replace(config, output_dir=folder))
    return folder / "checkpoints" / "000006"


def stopped_after(step, folder, target):
    """What a run looks like that was killed right after saving `step`."""
    (target / "checkpoints").mkdir(parents=True)
    for source in (folder / "checkpoints").iterdir():
        if source.name.isdigit() and int(source.name) <= step:
            shutil.copytree(source, target / "checkpoints" / source.name)
    (target / "checkpoints" / "last").symlink_to(f"{step:06d}")
    return target


def resume(folder, *, output_dir):
    checkpoint = find_checkpoint(folder)
    stored = decode(TrainConfig, checkpoint.settings(), where="checkpoint")
    train(replace(stored, resume=True, checkpoint_path=checkpoint.folder, output_dir=output_dir), origins={})


def files_of(folder: Path):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


CASES = {
    "dropout and VAE, no workers": ["--num_workers=0"],
    "dropout and VAE, two workers": ["--num_workers=2"],
    "schedule": ["--num_workers=0", *SCHEDULE],
    "two micro-batches an update": ["--num_workers=0", "--accelerator.gradient_accumulation.steps=2", *SCHEDULE],
    "four micro-batches an update": ["--num_workers=2", "--accelerator.gradient_accumulation.steps=4"],
    "bfloat16": ["--num_workers=0", "--accelerator.mixed_precision=bf16"],
    "held-out loss between the steps": ["--num_workers=0", "--dataset.eval_split=0.3", "--eval_steps=2"],
    "average, accumulation, held-out loss, the best kept": [
        "--num_workers=2",
        "--ema.enable=true",
        "--accelerator.gradient_accumulation.steps=4",
        "--dataset.eval_split=0.3",
        "--eval_steps=3",
        "--keep.best=1",
        "--keep.last=9",
        "--early_stop.patience=5",
        *SCHEDULE,
    ],
}


FP16 = [
    "--num_workers=0",
    "--accelerator.mixed_precision=fp16",
    "--accelerator.grad_scaler.init_scale=2048",
    "--accelerator.grad_scaler.growth_interval=2",
]


@pytest.fixture
def fp16_on_the_cpu(monkeypatch):
    """What `mimetic train` refuses: float16 autocast and torch's scaler work on a CPU too, and need no GPU here."""

    def choose(mixed_precision, device, **options):
        assert mixed_precision == "fp16"
        return Precision(device, torch.float16, "precision: fp16 autocast on a CPU, for this test", scaler=True)

    monkeypatch.setattr("mimetic.train.resolve.choose_precision", choose)


def test_a_run_in_fp16_skips_what_overflows_and_resumes_at_any_step(fixtures, tmp_path, fp16_on_the_cpu, caplog):
    config = settings(fixtures, *FP16, "--ema.enable=true", *SCHEDULE)
    with caplog.at_level("INFO", logger="mimetic"):
        whole = run_to_end(config, tmp_path / "whole")
    records = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    skips = [record["skip"] for record in records if record["kind"] == "train"]
    scales = [record["scale"] for record in records if record["kind"] == "train"]
    assert 1 <= sum(skips) <= 5
    assert scales == scales_from(2.0**11, skips, interval=2)
    assert "skipped updates in the first steps are normal" in caplog.text
    assert f"{sum(skips)} of 6 updates were left out" in caplog.text
    assert "scale:" in caplog.text
    assert "in float16" in caplog.text  # what the witness saw
    # A skipped update moves the schedule, and neither the optimiser nor the average.
    state = load_file(whole / "training_state/optimizer_state.safetensors")
    assert state["state/0/step"].item() == 6 - sum(skips)
    assert json.loads((whole / "training_state/ema_state.json").read_text())["optimization_step"] == 6 - sum(skips)
    assert json.loads((whole / "training_state/scheduler_state.json").read_text())["last_epoch"] == 6
    stored = json.loads((whole / "training_state/scaler_state.json").read_text())
    assert stored["scale"] == scales[-1]
    check_resumes(tmp_path, whole)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_a_run_in_fp16_resumes_inside_an_accumulation(fixtures, tmp_path, fp16_on_the_cpu, monkeypatch, accumulation):
    """With all that hangs on it: the average, held-out losses, the best checkpoint, skips in the last update too."""
    more = [f"--accelerator.gradient_accumulation.steps={accumulation}", "--accelerator.grad_scaler.init_scale=65536"]
    more += ["--ema.enable=true", "--dataset.eval_split=0.3", "--eval_steps=3", "--keep.best=1", "--keep.last=9"]
    whole = run_to_end(settings(fixtures, *FP16, *more, *SCHEDULE), tmp_path / "whole")
    state = json.loads((whole / "training_state/mimetic_state.json").read_text())
    assert state["landed_updates"] + state["skipped_updates"] == -(-6 // accumulation)
    assert state["skipped_updates"] >= 1
    assert state["micro_step"] == 0
    begun = []
    monkeypatch.setattr("mimetic.train.run.OverflowWatch", lambda *a, **k: begun.append(k) or OverflowWatch(*a, **k))
    check_resumes(tmp_path, whole)
    stored = [
        json.loads((tmp_path / f"whole/checkpoints/{step:06d}/training_state/mimetic_state.json").read_text())
        for step in range(1, 6)
    ]
    names = {"landed": "landed_updates", "skipped": "skipped_updates", "in_a_row": "skipped_in_a_row"}
    assert begun == [{name: state[file] for name, file in names.items()} for state in stored]
    assert any(watch["in_a_row"] for watch in begun)


@pytest.mark.parametrize("enabled", [True, False], ids=["off", "on"])
def test_gradients_of_half_an_update_follow_when_the_loss_scaling_is_turned(fixtures, tmp_path, monkeypatch, enabled):
    """`--accelerator.grad_scaler.enabled` may change on resume, and those gradients hold the scale or not."""

    def choose(mixed_precision, device, *, grad_scaler, **options):
        return Precision(device, torch.float16, "fp16 on a CPU, for this test", scaler=grad_scaler.enabled)

    monkeypatch.setattr("mimetic.train.resolve.choose_precision", choose)
    flags = ["--num_workers=0", "--accelerator.mixed_precision=fp16", "--policy.dropout=0", "--policy.use_vae=false"]
    flags += ["--accelerator.grad_scaler.init_scale=64", "--accelerator.gradient_accumulation.steps=3"]
    config = settings(fixtures, *flags, f"--accelerator.grad_scaler.enabled={enabled}", "--optimizer.type=sgd")
    config = replace(config, steps=3)
    train(replace(config, output_dir=tmp_path / "run"))
    expected = norms_of(tmp_path / "run")[3]
    other = not enabled
    resume_with(tmp_path / "run/checkpoints/000002", f"--accelerator.grad_scaler.enabled={str(other).lower()}")
    # float16 rounds the scaled and the plain gradients otherwise, hence a hundredth and not more.
    assert norms_of(tmp_path / "run")[3] == pytest.approx(expected, rel=1e-2)


def norms_of(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {record["steps"]: record["grad_norm"] for record in records if "grad_norm" in record}


def test_gradients_whose_scale_is_lost_are_not_used(fixtures, tmp_path, fp16_on_the_cpu):
    config = settings(fixtures, *FP16, "--accelerator.gradient_accumulation.steps=4")
    run_to_end(config, tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoints/000003"
    (checkpoint / "training_state/scaler_state.json").unlink()
    (checkpoint / "mimetic.json").unlink()
    with pytest.raises(CheckpointError, match=r"not the loss scale that is in them \(scaler_state.json is missing\)"):
        resume_with(checkpoint)
    resume_with(checkpoint, "--reset_optimizer=true")


def test_a_run_in_parts_goes_on_in_parts(fixtures, tmp_path, monkeypatch, caplog):
    """And what a stop at any step leaves is the same run; `pieces` is in every checkpoint after the first step."""
    loss, sizes = ACTPolicy.loss, []

    def crowded(policy, batch):
        sizes.append(len(batch["action"]))
        if sizes[-1] > 7:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return loss(policy, batch)

    monkeypatch.setattr(ACTPolicy, "loss", crowded)
    flags = ["--out_of_memory=halve", "--num_workers=0", "--accelerator.gradient_accumulation.steps=2"]
    flags += ["--dataset.eval_split=0.3", "--eval_steps=3"]
    with caplog.at_level("INFO", logger="mimetic"):
        whole = run_to_end(settings(fixtures, *flags, *SCHEDULE), tmp_path / "whole")
    assert "each batch of 20 is computed in 4 parts" in caplog.text
    assert "A held-out batch does not fit the memory of cpu" in caplog.text
    assert json.loads((whole / "training_state/mimetic_state.json").read_text())["pieces"] == 4
    with caplog.at_level("INFO", logger="mimetic"):
        check_resumes(tmp_path, whole)
    assert "Each batch is computed in 4 parts, as before the run was stopped" in caplog.text


def test_frames_that_are_left_out_are_the_same_after_a_stop(fixtures, tmp_path):
    """The next samples of the order stand in for them, so the position in the data counts places, not samples."""
    shutil.copytree(fixtures / "training/dataset_tiny_vec", tmp_path / "data/training/dataset_tiny_vec")
    file = next((tmp_path / "data/training/dataset_tiny_vec/data").rglob("*.parquet"))
    table = parquet.read_table(file)
    name, states = "observation.state", table.column("observation.state").to_pylist()
    for row in (3, 20, 30):
        states[row] = [float("nan")] * len(states[row])
    field = table.schema.field(name)
    table = table.set_column(table.schema.get_field_index(name), field, pyarrow.array(states, type=field.type))
    parquet.write_table(table, file)
    flags = ["--on_bad_frame=skip", "--max_bad_frames=3", "--num_workers=2", "--ema.enable=true"]
    flags += ["--accelerator.gradient_accumulation.steps=4"]
    whole = run_to_end(settings(tmp_path / "data", *flags), tmp_path / "whole")
    records = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {(r["episode"], r["frame"]) for r in records if r["kind"] == "bad_frame"} == {(0, 3), (1, 9), (2, 6)}
    check_resumes(tmp_path, whole)


def scales_from(scale, skips, *, interval):
    """The rule of spec/training.md 17.3."""
    found, tracker = [], 0
    for skipped in skips:
        if skipped:
            scale, tracker = scale / 2, 0
        else:
            tracker += 1
            if tracker == interval:
                scale, tracker = scale * 2, 0
        found.append(scale)
    return found


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES.keys())
def test_resume_at_any_step_gives_the_same_files(fixtures, tmp_path, flags):
    config = settings(fixtures, *flags)
    check_resumes(tmp_path, run_to_end(config, tmp_path / "whole"))


def test_a_run_of_the_keypoint_policy_resumes_at_any_step(tmp_path):
    """Its pictures and joint positions are changed at random; the draws go on where they were."""
    root = build_dataset(tmp_path / "data", cameras={"front": (16, 24)}, camera_dtype="image", lengths=(11, 12, 10))
    flags = [
        "--dataset.repo_id=me/seen",
        f"--dataset.root={root}",
        *TINY_KEYPOINT,
        "--batch_size=8",
        "--steps=6",
        "--save_freq=1",
        "--log_freq=1",
        "--num_workers=0",
        "--ema.enable=true",
        "--accelerator.gradient_accumulation.steps=4",
        "--dataset.eval_split=0.3",
        "--eval_steps=3",
    ]
    config = parse(TrainConfig, flags, prog="mimetic train").value
    check_resumes(tmp_path, run_to_end(config, tmp_path / "whole"))


def check_resumes(tmp_path, whole):
    """Stop the run in `whole` after each step, resume it, and compare every file of the last checkpoint."""
    expected = files_of(whole)
    for step in range(1, 6):
        # The output folder's name stands in the saved settings, so the resumed run takes the same path.
        backup = tmp_path / f"backup-{step}"
        stopped = stopped_after(step, tmp_path / "whole", tmp_path / f"stopped-{step}")
        (tmp_path / "whole").rename(backup)
        stopped.rename(tmp_path / "whole")
        resume(tmp_path / "whole", output_dir=tmp_path / "whole")
        found = files_of(whole)
        assert found.keys() == expected.keys()
        assert [name for name in expected if found[name] != expected[name]] == []
        shutil.rmtree(tmp_path / "whole")
        backup.rename(tmp_path / "whole")


def test_workers_do_not_change_the_result(fixtures, tmp_path):
    weights = []
    for workers in (0, 1, 3):
        folder = run_to_end(settings(fixtures, f"--num_workers={workers}"), tmp_path / str(workers))
        weights.append((folder / "pretrained_model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]


def test_the_last_partial_accumulation_is_applied_with_its_own_divisor(fixtures, tmp_path, caplog):
    # Five micro-batches in groups of four: the remainder of one must be a full-size update of that one batch.
    flags = ["--num_workers=0", "--policy.dropout=0", "--policy.use_vae=false", *SCHEDULE]
    config = replace(settings(fixtures, "--accelerator.gradient_accumulation.steps=4", *flags), steps=5)
    with caplog.at_level("INFO", logger="mimetic"):
        train(replace(config, output_dir=tmp_path / "run"))
    assert "The last update has 1 of 4 micro-batches" in caplog.text
    groups = json.loads((tmp_path / "run/checkpoints/000005/training_state/optimizer_param_groups.json").read_text())
    state = load_file(tmp_path / "run/checkpoints/000005/training_state/optimizer_state.safetensors")
    assert state["state/0/step"].item() == 2
    assert not (tmp_path / "run/checkpoints/000005/training_state/accumulated_gradients.safetensors").exists()
    assert groups


def test_other_data_are_refused_on_resume(fixtures, tmp_path):
    config = settings(fixtures, "--num_workers=0")
    run_to_end(config, tmp_path / "run")
    checkpoint = find_checkpoint(tmp_path / "run" / "checkpoints" / "000003")
    stored = decode(TrainConfig, checkpoint.settings(), where="checkpoint")
    changed = replace(
        stored,
        dataset=replace(stored.dataset, episodes=[0, 1]),
        resume=True,
        checkpoint_path=checkpoint.folder,
        output_dir=tmp_path / "run",
    )
    with pytest.raises(ConfigError) as caught:
        train(changed)
    assert "train_episodes was [0, 1, 2, 3], is [0, 1]" in caught.value.message
    assert "--reset_data_order=true" in caught.value.hint
    train(replace(changed, reset_data_order=True))


REFUSED = [
    "--seed=7",
    "--policy.optimizer_lr=1e-3",
    "--policy.kl_weight=1",
    "--accelerator.mixed_precision=bf16",
    "--accelerator.gradient_accumulation.steps=2",
    "--dataset.use_imagenet_stats=false",
    "--stats_dataset=other",
    '--rename_map={"observation.state": "observation.other"}',
]


def resume_with(run, *flags):
    """What the command line makes of `--resume=true --config_path=RUN` with further flags."""
    checkpoint = find_checkpoint(run)
    parsed = parse(
        TrainConfig,
        ["--resume=true", f"--config_path={run}", *flags],
        prog="mimetic train",
        load_file=lambda place: (checkpoint.settings(), "the checkpoint"),
    )
    return train(replace(parsed.value, checkpoint_path=checkpoint.folder), origins=parsed.origins)


@pytest.fixture(scope="module")
def finished(fixtures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_to_end(settings(fixtures, "--num_workers=0"), folder)
    run_to_end(settings(fixtures, "--num_workers=0", *SCHEDULE), folder.with_name("scheduled"))
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))


@pytest.mark.parametrize("flag", REFUSED)
def test_flags_that_a_resumed_run_cannot_honour_are_refused(run, flag):
    with pytest.raises(ConfigError, match=f"`{flag.split('=')[0]}` cannot change on resume"):
        resume_with(run, "--steps=7", flag)
    assert not (run / "checkpoints" / "000007").exists()


@pytest.mark.parametrize("flag", ["--optimizer.lr=1", "--scheduler.decay_lr=1e-5", "--optimizer.weight_decay=0.5"])
def test_a_resumed_run_keeps_its_optimiser_and_schedule(finished, flag):
    with pytest.raises(ConfigError, match="cannot change on resume: the stored state belongs to it"):
        resume_with(finished.with_name("scheduled"), "--steps=7", flag)


def test_flags_that_repeat_the_runs_settings_are_no_change(run):
    # What people do: add `--resume=true --config_path=RUN` to the command that they used first.
    same = [flag for flag in TINY if "push_to_hub" not in flag]
    resume_with(run, *same, "--seed=1000", "--dataset.use_imagenet_stats=true", "--batch_size=20", "--steps=7")
    assert (run / "checkpoints" / "000007").is_dir()


def test_a_changed_length_of_a_scheduled_run_is_announced(finished, tmp_path, caplog):
    run = Path(shutil.copytree(finished.with_name("scheduled"), tmp_path / "run", symlinks=True))
    with caplog.at_level("INFO", logger="mimetic"):
        resume_with(run, "--steps=7")
    assert "--steps changes from 6 to 7: the schedule goes on along the curve of a run of 7" in caplog.text


def test_a_run_in_a_relative_folder_saves_the_same_settings_after_a_stop(fixtures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_to_end(settings(fixtures, "--num_workers=0"), Path("run"))
    expected = files_of(Path("run/checkpoints/000006"))
    shutil.rmtree("run/checkpoints/000006")
    point_last(Path("run/checkpoints"), "000005")
    resume_with("run")
    found = files_of(Path("run/checkpoints/000006"))
    assert [name for name in expected if found[name] != expected[name]] == []


def test_a_moved_run_goes_on_where_it_is_now(run):
    moved = run.rename(run.with_name("moved"))
    resume_with(moved, "--steps=7")
    assert (moved / "checkpoints" / "000007").is_dir()
    assert not run.exists()


def test_a_resumed_run_never_goes_into_the_folder_of_another_run(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other", symlinks=True))
    before = files_of(other)
    with pytest.raises(ConfigError, match="exists already and is not the run that is continued"):
        resume_with(run, "--steps=7", f"--output_dir={other}")
    assert files_of(other) == before
    (tmp_path / "empty").mkdir()
    resume_with(run, "--steps=7", f"--output_dir={tmp_path / 'empty'}")
    assert (tmp_path / "empty" / "checkpoints" / "000007").is_dir()


def test_records_of_earlier_attempts_stay(run):
    resume_with(run / "checkpoints" / "000005")
    first = (run / "effective_config-resumed-5.json").read_text()
    resume_with(run / "checkpoints" / "000005", "--save_freq=2")
    assert (run / "effective_config-resumed-5.json").read_text() == first
    assert (run / "effective_config-resumed-5-2.json").read_text() != first


def test_an_unfinished_line_of_the_metrics_is_cut_off(run):
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"kind":"train","steps":7,"lo')
    resume_with(run, "--steps=8")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [record["steps"] for record in records] == [1, 2, 3, 4, 5, 6, 6, 7, 8]
    metrics.write_text(whole.rstrip("\n"))
    resume_with(run / "checkpoints" / "000006", "--steps=7")
    assert [json.loads(line)["steps"] for line in metrics.read_text().splitlines()] == [1, 2, 3, 4, 5, 6, 6, 7]


def test_a_reset_of_the_data_order_starts_the_next_epoch(run, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        resume_with(run / "checkpoints" / "000002", "--reset_data_order=true", "--steps=3")
    assert "Resuming data order at epoch 1, sample 0" in caplog.text


def test_a_dataset_named_from_another_folder_is_explained(fixtures, tmp_path, monkeypatch):
    shutil.copytree(fixtures / "training" / "dataset_tiny_vec", tmp_path / "a" / "data")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    config = settings(fixtures, "--num_workers=0")
    run_to_end(replace(config, dataset=replace(config.dataset, root="data")), tmp_path / "run")
    monkeypatch.chdir(tmp_path / "b")
    with pytest.raises(DatasetNotFound) as caught:
        resume_with(tmp_path / "run", "--steps=7")
    assert "--dataset.root=FOLDER" in caught.value.hint
    resume_with(tmp_path / "run", "--steps=7", f"--dataset.root={tmp_path / 'a' / 'data'}")


def test_a_fresh_optimiser_does_not_inherit_half_an_accumulation(fixtures, tmp_path, caplog):
    config = settings(fixtures, "--num_workers=0", "--accelerator.gradient_accumulation.steps=4")
    run_to_end(config, tmp_path / "run")
    with caplog.at_level("INFO", logger="mimetic"):
        resume_with(tmp_path / "run" / "checkpoints" / "000002", "--reset_optimizer=true", "--steps=5")
    # Steps 3 to 5 are its own three; with the lost two counted in, an update of half its gradient would come at 4.
    assert "The last update has 3 of 4 micro-batches" in caplog.text


def test_resuming_from_an_earlier_step_keeps_the_later_checkpoints_aside(fixtures, tmp_path):
    config = settings(fixtures, "--num_workers=0")
    run_to_end(config, tmp_path / "run")
    resume(tmp_path / "run" / "checkpoints" / "000002", output_dir=tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert [name for name in names if name.isdigit()] == [f"{step:06d}" for step in range(1, 7)]
    assert "000003.superseded-1" in names


def test_a_finished_run_says_so_and_changes_nothing(fixtures, tmp_path, caplog):
    config = settings(fixtures, "--num_workers=0")
    whole = run_to_end(config, tmp_path / "run")
    before = files_of(tmp_path / "run")
    with caplog.at_level("INFO", logger="mimetic"):
        resume(whole, output_dir=tmp_path / "run")
    assert "at its last step already" in caplog.text
    assert files_of(tmp_path / "run") == before


def test_a_finished_run_loses_what_a_kill_left_half_removed(fixtures, tmp_path):
    whole = run_to_end(settings(fixtures, "--num_workers=0"), tmp_path / "run")
    leftover = tmp_path / "run" / "checkpoints" / ".saving-removed-000001-77"
    (leftover / "pretrained_model").mkdir(parents=True)
    resume(whole, output_dir=tmp_path / "run")
    assert not leftover.exists()
