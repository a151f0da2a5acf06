"""Runs that were copied to trackers, opened again by the trackers' own tools; needs those packages."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import stand_in_wandb

from mimetic.testing.tiny import TINY_ACT

pytestmark = pytest.mark.slow
TRAIN_KEYS = {
    "steps", "samples", "episodes", "epochs", "loss", "grad_norm", "lr", "update_s", "dataloading_s",
    "preprocessing_s", "step_s", "samples_per_s", "l1_loss", "kld_loss",
}  # fmt: skip
KEYS = {f"train/{name}" for name in TRAIN_KEYS} | {"eval/eval_loss"}


def needs(package):
    spec = importlib.util.find_spec(package)
    missing = spec is None or spec.origin is None  # wandb leaves folders of its name
    return pytest.mark.skipif(missing, reason=f"needs the package {package}")


def tool(name, *words, env):
    """What a tracker's own command prints."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    home = Path(env["HOME"])
    home.mkdir(exist_ok=True)
    done = subprocess.run([path, *words], capture_output=True, text=True, timeout=60, env=env, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def env(tmp_path):
    """A home of its own, and no network."""
    hidden = ("WANDB_MODE", "WANDB_ERROR_REPORTING", "WANDB_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**env, "HOME": str(tmp_path / "home"), "TRACKIO_DIR": str(tmp_path / "trackio")}


@pytest.fixture
def train(fixtures, tmp_path, env):
    """Runs the command into `tmp_path / "run"`: four steps, two checkpoints; then two more with `resume`."""

    def run(*more, resume=False):
        start = [
            *TINY_ACT,
            "--dataset.repo_id=local/tiny_vec",
            f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
            "--dataset.eval_split=0.3",
            "--batch_size=4",
            "--num_workers=0",
            "--steps=4",
            "--save_freq=2",
            "--log_freq=1",
            "--eval_steps=2",
            "--job_name=tiny",
            f"--output_dir={tmp_path / 'run'}",
        ]
        again = ["--resume=true", f"--config_path={tmp_path / 'run'}", "--steps=6"]
        words = [sys.executable, "-m", "mimetic", "train", *(again if resume else start), *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        return done.stderr

    return run


def stored(tmp_path, kind):
    """Records of one kind in the run's metrics file."""
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def wandb_records(folder, kind, env):
    lines = tool("wandb", "leet", "inspect", "--json", str(folder), env=env).splitlines()
    return [record[kind] for record in map(json.loads, lines) if record["type"] == kind]


@needs("wandb")
def test_wandb_reads_its_offline_run(train, tmp_path, env):
    told = train("--wandb.enable=true", "--wandb.mode=offline")
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert f"wandb sync {folder}" in told
    rows = {row["step"]["num"]: row["item"] for row in wandb_records(folder, "history", env)}
    assert sorted(rows) == [1, 2, 3, 4]
    assert set().union(*rows.values()) >= KEYS
    for record in stored(tmp_path, "train"):
        row = rows[record["steps"]]
        assert {name: row[f"train/{name}"] for name in TRAIN_KEYS} == {name: record[name] for name in TRAIN_KEYS}
    for record in stored(tmp_path, "heldout"):
        assert rows[record["steps"]]["eval/eval_loss"] == record["eval_loss"]
    (begun,) = wandb_records(folder, "run", env)
    assert (begun["display_name"], begun["project"]) == ("tiny", "lerobot")
    assert [end["exit_code"] for end in wandb_records(folder, "exit", env)] == [0]


@needs("wandb")
def test_wandb_goes_on_in_the_same_run(train, tmp_path, env):
    train("--wandb.enable=true", "--wandb.mode=offline")
    train(resume=True)
    first, second = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime)
    ids = {wandb_records(folder, "run", env)[0]["run_id"] for folder in (first, second)}
    assert ids == {json.loads((tmp_path / "run" / "wandb_run.json").read_text())["id"]}
    assert [row["step"]["num"] for row in wandb_records(second, "history", env)] == [5, 6]


@needs("wandb")
def test_wandb_stores_each_checkpoint_as_an_artifact_that_outlives_it(train, tmp_path, env):
    """Whoever deletes checkpoints before `wandb sync` loses nothing, and nothing lies in the home folder."""
    told = train("--wandb.enable=true", "--wandb.mode=offline", "--keep.last=1")
    assert "of each checkpoint stay for `wandb sync`, even when --keep.* removes the checkpoint" in told
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    artifacts = {artifact["name"]: artifact for artifact in wandb_records(folder, "artifact", env)}
    names = [f"policy_act-seed_1000-dataset_local_tiny_vec-00000{step}" for step in (2, 4)]
    assert list(artifacts) == names
    assert not (tmp_path / "run" / "checkpoints" / "000002").exists()
    for artifact in artifacts.values():
        assert artifact["type"] == "model"
        files = {file["path"]: Path(file["local_path"]) for file in artifact["manifest"]["contents"]}
        assert {"model.safetensors", "config.json", "policy_preprocessor.json"} <= set(files)
        assert all(path.is_relative_to(folder) and path.is_file() for path in files.values())
    kept = tmp_path / "run" / "checkpoints" / "000004" / "pretrained_model" / "model.safetensors"
    assert files["model.safetensors"].samefile(kept)
    staged = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and "artifacts" in path.parts]
    assert staged == []


ONLINE = """
import logging, shutil, sys
from pathlib import Path
from mimetic import log
from mimetic.config.parse import parse
from mimetic.train.config import TrainConfig
from mimetic.train.trackers import wandb, worker
from mimetic.train.trackers.open import open_trackers, require_trackers

log.set_up()
wandb.FINISH_S = worker.PATIENCE_S = float(sys.argv[2])
flags = ["--policy.type=act", "--dataset.repo_id=me/x", "--wandb.enable=true", "--job_name=pick"]
config, run = parse(TrainConfig, flags, prog="t").value, Path(sys.argv[1])
checkpoint = run / "checkpoints" / "000002" / "pretrained_model"
require_trackers(config)
trackers = open_trackers(config, run, resumes=False)
checkpoint.mkdir(parents=True)
(checkpoint / "model.safetensors").write_bytes(b"weights")
(checkpoint / "config.json").write_bytes(b"{}")
for step in (1, 2):
    trackers.write({"kind": "train", "steps": step, "loss": 1 / step, "ema": {"decay": 0.5}})
trackers.write({"kind": "heldout", "steps": 2, "eval_loss": 0.25})
trackers.saved(checkpoint.parent, 2)
shutil.rmtree(checkpoint.parent)
trackers.close(exit_code=0)
"""


def key_for(stand_in, env):
    """Environment of somebody who is logged in to the stand-in."""
    return {**env, "WANDB_BASE_URL": stand_in.url, "WANDB_API_KEY": "a" * 40}


def online(stand_in, run, env, patience=30):
    """A run that talks to the stand-in; returns what it logged."""
    words = [sys.executable, "-c", ONLINE, str(run), str(patience)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=key_for(stand_in, env))
    assert done.returncode == 0, done.stderr
    return done.stderr


@needs("wandb")
def test_wandb_online_gets_the_values_and_the_checkpoint(tmp_path, env):
    with stand_in_wandb.serve() as stand_in:
        told = online(stand_in, tmp_path / "run", env)
    values = {
        step: {name: value for name, value in row.items() if not name.startswith("_")}
        for step, row in stand_in.history.items()
    }
    assert values == {
        1: {"train/steps": 1, "train/loss": 1.0, "train/ema/decay": 0.5},
        2: {"train/steps": 2, "train/loss": 0.5, "train/ema/decay": 0.5, "eval/eval_loss": 0.25},
    }
    assert stand_in.exit_code == 0
    (artifact,) = stand_in.artifacts
    assert artifact["artifactCollectionName"] == "policy_act-seed_1000-dataset_me_x-000002"
    assert artifact["artifactTypeName"] == "model"
    assert stand_in.uploads["000002/model.safetensors"] == b"weights"
    assert stand_in.uploads["000002/config.json"] == b"{}"
    assert stand_in.committed == 1
    assert "WARNING" not in told
    assert not list((tmp_path / "run").glob("wandb/run-*/uploads/*"))


@needs("wandb")
def test_wandb_sync_sends_an_offline_run_and_a_checkpoint_that_is_gone(tmp_path, env):
    with stand_in_wandb.serve() as stand_in:
        online(stand_in, tmp_path / "run", {**env, "WANDB_MODE": "offline"})
        assert stand_in.requests == []  # nothing leaves the machine, not even what wandb reports about itself
        (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
        tool("wandb", "sync", str(folder), env=key_for(stand_in, env))
    assert sorted(stand_in.history) == [1, 2]
    assert stand_in.uploads["000002/model.safetensors"] == b"weights"
    assert stand_in.committed == 1


@needs("wandb")
def test_a_refused_artifact_costs_one_warning_and_no_values(tmp_path, env):
    with stand_in_wandb.serve() as stand_in:
        stand_in.broken = {"CreateArtifact"}
        told = online(stand_in, tmp_path / "run", env)
    assert told.count("WARNING") == 1
    assert "wandb: checkpoint 000002 is not uploaded" in told
    assert sorted(stand_in.history) == [1, 2]
    assert stand_in.exit_code == 0


@needs("wandb")
def test_an_upload_that_hangs_holds_up_neither_the_run_nor_the_end_of_python(tmp_path, env):
    with stand_in_wandb.serve() as stand_in:
        stand_in.silent = {"/upload/000002"}
        told = online(stand_in, tmp_path / "run", env, patience=2)
        assert not stand_in.wake.is_set()  # the program ended although nothing was ever answered
    (folder,) = (tmp_path / "run" / "wandb").glob("run-*-*")
    assert told.count("WARNING 2") == 2  # one about the checkpoint, one about the numbers
    assert "wandb has not taken everything after 2 s; `wandb artifact put --type model" in told
    assert f"FOLDER` uploads what is left in {folder / 'uploads'}" in told
    with stand_in_wandb.serve() as stand_in:
        logged_in, left = key_for(stand_in, env), str(folder / "uploads" / "000002")
        words = ["--type", "model", "--name", "lerobot/policy_act-000002", left]
        tool("wandb", "artifact", "put", *words, env={**logged_in, "WANDB_DIR": str(tmp_path)})
    assert stand_in.uploads["000002/model.safetensors"] == b"weights"


@needs("wandb")
def test_wandb_sync_sends_the_values_that_a_service_which_hung_has_not(tmp_path, env):
    with stand_in_wandb.serve() as stand_in:
        stand_in.silent = {"file_stream"}
        told = online(stand_in, tmp_path / "run", env, patience=2)
    (folder,) = (tmp_path / "run" / "wandb").glob("run-*-*")
    assert told.count("WARNING 2") == 1
    assert f"wandb has not taken everything after 2 s; `wandb sync --include-online {folder}` sends it" in told
    with stand_in_wandb.serve() as stand_in:
        tool("wandb", "sync", "--include-online", str(folder), env=key_for(stand_in, env))
    assert sorted(stand_in.history) == [1, 2]


@needs("trackio")
def test_trackio_reads_its_run(train, tmp_path, env):
    told = train("--trackio.enable=true", "--trackio.project=arms")
    run = json.loads((tmp_path / "run" / "trackio_run.json").read_text())
    assert run["project"] == "arms"
    assert 'trackio show --project "arms"' in told
    words = ["--project", "arms", "--run", run["name"], "--json"]
    assert set(json.loads(tool("trackio", "list", "metrics", *words, env=env))["metrics"]) >= KEYS
    train(resume=True)
    for name, kind in (("train/loss", "train"), ("eval/eval_loss", "heldout")):
        answer = json.loads(tool("trackio", "get", "metric", *words, "--metric", name, env=env))
        points = [(point["step"], point["value"]) for point in answer["values"]]
        assert points == [(record["steps"], record[name.split("/")[1]]) for record in stored(tmp_path, kind)]
    runs = json.loads(tool("trackio", "list", "runs", "--project", "arms", "--json", env=env))["runs"]
    assert len(runs) == 1
    about = json.loads(tool("trackio", "get", "run", *words, env=env))
    assert about["config"]["policy"]["dim_model"] == 16


@needs("tensorboard")
def test_tensorboard_reads_its_file(train, tmp_path):
    told = train("--tensorboard.enable=true")
    folder = tmp_path / "run" / "tensorboard"
    assert f"tensorboard --logdir {folder}" in told
    train(resume=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= KEYS
    for name, kind in (("train/loss", "train"), ("eval/eval_loss", "heldout")):
        points, records = events.Scalars(name), stored(tmp_path, kind)
        assert [point.step for point in points] == [record["steps"] for record in records]
        values = [record[name.split("/")[1]] for record in records]
        assert [point.value for point in points] == pytest.approx(values, rel=1e-6)  # TensorBoard keeps float32
    assert "config/text_summary" in events.Tags()["tensors"]
