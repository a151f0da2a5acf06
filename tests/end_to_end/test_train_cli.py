"""`mimetic train` as a user runs it: a process of its own on a tiny dataset."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mimetic.testing.tiny import TINY_ACT

TINY = [
    *(flag for flag in TINY_ACT if flag != "--policy.push_to_hub=false"),
    "--num_workers=0",
]


@pytest.fixture
def data(fixtures):
    return ["--dataset.repo_id=local/tiny_vec", f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}"]


@pytest.fixture
def train(mimetic):
    return lambda *flags: mimetic("train", *flags)


def test_train_stop_and_resume(train, data, tmp_path):
    run = tmp_path / "run"
    flags = [*data, *TINY, "--steps=4", "--save_freq=2", "--log_freq=1", f"--output_dir={run}"]
    words = [sys.executable, "-m", "mimetic", "train", *flags]
    first = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert first.returncode == 0, first.stderr
    for wanted in (
        "device: cpu (as asked)",
        "precision: float32",
        "nothing will be pushed to the hub",
        "Effective batch size: 8 x 1 = 8",
        "num_learnable_params=8523 (9K)",
        "step:4 smpl:32 ",
        "Checkpoint policy after step 4",
        "End of training",
    ):
        assert wanted in first.stderr, first.stderr
    assert first.stdout == ""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["steps"] for record in metrics] == [1, 2, 3, 4]
    assert metrics[0].keys() >= {"loss", "grad_norm", "lr", "l1_loss", "kld_loss", "samples_per_s", "update_s"}
    effective = json.loads((run / "effective_config.json").read_text())
    assert "flag" in json.dumps(effective)
    assert "preset" in json.dumps(effective)

    again = train(*flags)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert f"--resume=true --config_path={run}" in again.stderr
    assert "Traceback" not in again.stderr

    for form in (run, run / "checkpoints" / "last" / "pretrained_model" / "train_config.json"):
        resumed = train("--resume=true", f"--config_path={form}", "--steps=6")
        assert resumed.returncode == 0, resumed.stderr
        assert (run / "checkpoints" / "000006").is_dir()
    assert os.readlink(run / "checkpoints" / "last") == "000006"


def test_ctrl_c_saves_a_checkpoint_and_exits_130(data, tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "mimetic", "train", *data, *TINY, "--steps=1000000", "--log_freq=1"]
        + [f"--output_dir={run}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "its checkpoint is saved" in text
    assert "--resume=true" in text
    assert "Traceback" not in text
    (step,) = [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    assert (step / "training_state" / "optimizer_state.safetensors").exists()


def test_dry_run_writes_nothing(train, data, tmp_path):
    run = tmp_path / "run"
    done = train(*data, *TINY, f"--output_dir={run}", "--dry_run=true")
    assert done.returncode == 0, done.stderr
    assert "Dry run: one batch went forward and backward" in done.stderr
    assert not run.exists()


def test_overwritten_optimizer_flags_are_announced(train, data, tmp_path):
    done = train(
        *data, *TINY, f"--output_dir={tmp_path / 'run'}", "--optimizer.type=adamw", "--optimizer.lr=1", "--dry_run=true"
    )
    assert done.returncode == 0, done.stderr
    assert "--optimizer.lr" in done.stderr
    assert "no effect" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--policy.device=cuda:7"], 2, ["--policy.device=cuda:7", "available here"]),
        (["--policy.device=gpu"], 2, ["is not a device", "`cuda`"]),
        (["--accelerator.mixed_precision=fp16"], 2, ["no loss scaler exists", "use `bf16` or `no`"]),
        (["--policy.push_to_hub=true"], 2, ["--policy.repo_id"]),
        (["--resume=true", "--config_path=/nowhere/run"], 2, ["no checkpoint at /nowhere/run"]),
        (["--resume=true"], 2, ["needs `--config_path`", "--resume=true --config_path="]),
    ],
)
def test_mistakes_get_two_lines(train, data, tmp_path, flags, code, words):
    done = train(*data, *TINY, f"--output_dir={tmp_path / 'run'}", *flags)
    problem = [line for line in done.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert done.returncode == code, done.stderr
    assert len(problem) == 2, done.stderr
    assert all(word in " ".join(problem) for word in words), problem
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_nan_in_the_data_stops_the_run_and_is_named(train, fixtures, tmp_path):
    import shutil

    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path / "data"
    shutil.copytree(fixtures / "training" / "dataset_tiny_vec", root)
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    values = table["action"].to_pylist()
    values[5] = [float("nan")] * 3
    column = pa.array(values, type=table.schema.field("action").type)
    table = table.set_column(table.schema.get_field_index("action"), table.schema.field("action"), column)
    pq.write_table(table, path)
    run = tmp_path / "run"
    done = train(
        "--dataset.repo_id=local/nan",
        f"--dataset.root={root}",
        *TINY,
        "--steps=50",
        "--save_freq=1",
        f"--output_dir={run}",
    )
    assert done.returncode == 1, done.stderr
    assert "not finite" in done.stderr
    assert "the dataset holds values that are not finite: episode 0: `action` is not finite in frames 5" in done.stderr
    assert "Traceback" not in done.stderr
    from safetensors.torch import load_file

    for folder in (run / "checkpoints").glob("0*"):
        weights = load_file(folder / "pretrained_model" / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in weights.values())
