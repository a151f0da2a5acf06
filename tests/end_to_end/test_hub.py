"""A run is pushed to a stand-in for the hub and goes on from there, on "another machine": the same bits as without a stop.

The client is the real huggingface_hub; only the server is ours (`mimetic.testing.hub_server`).
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mimetic.accelerators.precision import choose_precision
from mimetic.cli.app import main
from mimetic.config.codec import decode
from mimetic.config.parse import parse
from mimetic.testing.hub_server import Fault, HubServer, as_the_hub
from mimetic.testing.hub_store import Blob
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.card_facts import card_facts
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data
from mimetic.train.hub_resume import SOURCE_JSON
from mimetic.train.push import open_pusher, require_hub
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train


@pytest.fixture
def hub(monkeypatch):
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    with HubServer() as server:
        # Through monkeypatch too, which is undone after this: what a test sets goes back to what was there before.
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            yield server


def settings(fixtures, folder, *flags):
    argv = [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        "--batch_size=20",
        "--steps=6",
        "--save_freq=2",
        "--log_freq=1",
        "--num_workers=0",
        "--dataset.eval_split=0.3",
        "--eval_steps=2",
        *TINY_ACT,
        f"--output_dir={folder}",
        *flags,
    ]
    return parse(TrainConfig, argv, prog="mimetic train").value


def files_of(folder: Path):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def run(fixtures, tmp_path, monkeypatch):
    """A finished run of six steps."""
    monkeypatch.chdir(tmp_path)
    config = settings(fixtures, Path("run"))
    train(config)
    return Path("run")


def pushed(hub, run, *names, finish=False):
    """What a run leaves on the hub that has pushed these checkpoints."""
    config = decode(TrainConfig, find_checkpoint(run).settings(), where="the checkpoint")
    policy = replace(config.policy, repo_id="me/tiny", push_to_hub=finish)
    config = replace(config, save_checkpoint_to_hub=True, policy=policy)
    require_hub(config)
    pusher = open_pusher(config)
    for name in names:
        pusher.checkpoint(run / "checkpoints" / name, int(name))
    data = open_training_data(config, config.policy)
    precision = choose_precision("no", torch.device("cpu"))
    pusher.finish(run / "checkpoints" / names[-1], card_facts(config, data, precision, folder=run, steps=6))
    return hub.repo("me/tiny")


def mimetic_train(fixtures, *flags):
    """`mimetic train` on the tiny dataset, four steps, to be pushed to me/tiny; returns its exit code."""
    data = fixtures / "training" / "dataset_tiny_vec"
    argv = ["--dataset.repo_id=local/tiny_vec", f"--dataset.root={data}", "--batch_size=20", "--num_workers=0"]
    argv += [flag for flag in TINY_ACT if "push_to_hub" not in flag]
    argv += ["--steps=4", "--save_freq=2", "--output_dir=run", "--policy.repo_id=me/tiny", *flags]
    return main(["train", *argv])


def test_a_training_pushes_its_checkpoints_and_its_policy(hub, fixtures, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    hub.fail(Fault(path="/commit/", status=503))
    flags = ["--save_checkpoint_to_hub=true", "--policy.private=true", "--policy.tags=[so101]"]
    assert mimetic_train(fixtures, *flags) == 0
    said = capfd.readouterr().err
    repo = hub.repo("me/tiny")
    titles = ["checkpoint 000002", "checkpoint 000004", "Upload policy weights, train config and readme"]
    assert [commit.title for commit in repo.commits[1:]] == titles
    assert repo.private
    assert list(repo.tags) == ["000002", "000004"]
    for name in ("000002", "000004"):
        folder = Path("run") / "checkpoints" / name
        there = {n.removeprefix(f"checkpoints/{name}/"): b.data for n, b in repo.files.items() if f"/{name}/" in n}
        assert there == files_of(folder)
    model = files_of(Path("run") / "checkpoints" / "000004" / "pretrained_model")
    assert {name: repo.read(name) for name in model} == model
    assert b"- so101" in repo.read("README.md")
    assert "attempt 1 of 5 failed (status 503)" in said
    assert f"Model pushed to {hub.url}/me/tiny" in said
    assert hub.token not in said
    assert all(hub.token.encode() not in blob.data for blob in repo.files.values())


@pytest.mark.parametrize(
    ("token", "flags", "text"),
    [
        ("hf_" + "x" * 34, [], "does not accept the token of this machine (401"),
        (None, ["--policy.repo_id=you/tiny"], "the token of `me` may not write there"),
        (None, ["--policy.repo_id=tiny"], "`--policy.repo_id=tiny` is not a name that the hub takes"),
    ],
)
def test_a_push_that_would_be_refused_is_refused_before_the_training(
    hub, fixtures, tmp_path, monkeypatch, capfd, token, flags, text
):
    monkeypatch.chdir(tmp_path)
    with as_the_hub(hub, token=token):
        assert mimetic_train(fixtures, *flags) == 2
    said = capfd.readouterr().err
    assert text in said
    assert "Creating dataset" not in said
    assert not Path("run").exists()
    assert hub.store.repos == {}


def test_a_push_that_fails_at_the_end_leaves_a_complete_run(hub, fixtures, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    hub.fail(Fault(path="/commit/", status=403, times=99))
    assert mimetic_train(fixtures) == 1
    said = capfd.readouterr().err
    assert "End of training" in said
    assert "the training is complete, but its policy could not be pushed to me/tiny: status 403" in said
    assert "hf upload me/tiny run/checkpoints/000004/pretrained_model ." in said
    assert (Path("run") / "checkpoints" / "last").readlink() == Path("000004")


def test_resume_from_the_hub_equals_not_having_stopped(hub, run, fixtures, tmp_path, capfd):
    expected = files_of(run / "checkpoints" / "000006")
    pushed(hub, run, "000002", "000004")
    run.rename("the_first_machine")
    assert main(["train", "--resume=true", "--config_path=me/tiny", "--output_dir=run"]) == 0
    found = files_of(run / "checkpoints" / "000006")
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["000004", "000006", "last"]
    source = json.loads((run / SOURCE_JSON).read_text())
    assert source == {"repo_id": "me/tiny", "commit": hub.repo("me/tiny").commits[-1].oid, "checkpoint": "000004"}
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".fetching")] == []
    assert "fetching checkpoint 000004 of me/tiny" in capfd.readouterr().err


def test_another_process_resumes_too_and_the_same_command_again_goes_on_locally(hub, run, fixtures, capfd):
    pushed(hub, run, "000004")
    shutil.rmtree(run)
    words = [sys.executable, "-m", "mimetic", "train", "--resume=true", "--config_path=me/tiny", "--output_dir=run"]
    environment = {**os.environ, **hub.environment()}
    done = subprocess.run([*words, "--steps=5"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (run / "checkpoints" / "000005").is_dir()
    capfd.readouterr()
    assert main(words[3:]) == 0
    assert "holds this run already; going on from its checkpoint 000005" in capfd.readouterr().err
    assert (run / "checkpoints" / "000006").is_dir()


def test_without_an_output_folder_a_new_one_is_chosen(hub, run, fixtures, tmp_path):
    pushed(hub, run, "000004")
    before = files_of(run)
    assert main(["train", "--resume=true", "--config_path=me/tiny"]) == 0
    (made,) = (tmp_path / "outputs" / "train").glob("*/*_resume")
    assert (made / "checkpoints" / "last").readlink() == Path("000006")
    assert files_of(run) == before  # the folder that the settings name is of another machine


def test_a_mistyped_flag_is_found_before_the_weights_are_fetched(hub, run, fixtures, capfd):
    pushed(hub, run, "000004")
    hub.requests.clear()
    assert main(["train", "--resume=true", "--config_path=me/tiny", "--stepz=7", "--output_dir=new"]) == 2
    assert "--steps" in capfd.readouterr().err
    assert not any("safetensors" in path for _, path, _ in hub.requests)
    assert not Path("new").exists()


def test_a_folder_with_something_else_is_not_touched(hub, run, fixtures, capfd):
    pushed(hub, run, "000004")
    before = files_of(run)
    assert main(["train", "--resume=true", "--config_path=me/tiny", "--output_dir=run"]) == 2
    assert "`--output_dir=run` exists already" in capfd.readouterr().err
    assert files_of(run) == before


def test_a_download_that_breaks_leaves_nothing(hub, run, fixtures, tmp_path, capfd, monkeypatch):
    pushed(hub, run, "000004")
    repo = hub.repo("me/tiny")
    name = "checkpoints/000004/training_state/optimizer_state.safetensors"
    data = bytearray(repo.read(name))
    data[-1] ^= 1
    repo.add("bit rot", {**repo.files, name: Blob(bytes(data), True)})
    assert main(["train", "--resume=true", "--config_path=me/tiny", "--output_dir=new"]) == 1
    assert "optimizer_state.safetensors of `me/tiny` has another content" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_run_that_lerobot_pushed_goes_on(hub, fixtures, tmp_path, monkeypatch):
    """LeRobot's layout: no manifest, the folder `checkpoints/<step>/`; the result is that of a local resume."""
    monkeypatch.chdir(tmp_path)
    source = fixtures / "training" / "run_sched"
    files = files_of(source / "checkpoints" / "000003")
    hub.store.put("you/theirs", {f"checkpoints/000003/{name}": data for name, data in files.items()})
    flags = [f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}", "--policy.push_to_hub=false"]
    assert main(["train", "--resume=true", "--config_path=you/theirs", "--output_dir=far", *flags]) == 0
    shutil.copytree(source / "checkpoints" / "000003", "near/checkpoints/000003")
    assert main(["train", "--resume=true", "--config_path=near", *flags]) == 0
    far, near = (files_of(Path(name) / "checkpoints" / "000006") for name in ("far", "near"))
    assert far.keys() == near.keys()
    assert [n for n in far if far[n] != near[n] and not n.endswith(("config.json", "mimetic.json"))] == []


def test_a_config_on_the_hub_begins_a_new_run(hub, run, fixtures):
    pushed(hub, run, "000006", finish=True)
    assert main(["train", "--config_path=me/tiny", "--policy.push_to_hub=false", "--output_dir=second"]) == 0
    name = "checkpoints/000006/pretrained_model/model.safetensors"
    assert (Path("second") / name).read_bytes() == (run / name).read_bytes()
    assert main(["train", "--config_path=me/tiny", "--print_config"]) == 0


def test_the_pushed_policy_and_its_card_are_those_of_the_run(hub, run, fixtures, capfd):
    repo = pushed(hub, run, "000006", finish=True)
    model = files_of(run / "checkpoints" / "000006" / "pretrained_model")
    assert {name: repo.read(name) for name in model} == model
    card = repo.read("README.md").decode()
    for text in (
        "datasets:\n- local/tiny_vec\n",
        "| in | `observation.state` | state | 3 | j0, j1, j2; in the dataset's units |",
        "| in | `observation.environment_state` | env | 2 | ex, ey; in the dataset's units |",
        "| out | `action` | action | 3 | j0, j1, j2; in the dataset's units |",
        "| episodes | 2 (and 2 held out) |",
        "- lift the block",
        "| steps | 6 |",
        "| batch size | 20 |",
        "| optimiser | adamw lr=1e-05",
        "| learning rate | constant at 1e-05 |",
        "| seed | 1000 |",
        "| hardware | CPU, 1 threads |",
        "| held out, best |",
        "| training, last window |",
        "mimetic eval --policy.path=me/tiny --dataset.repo_id=local/tiny_vec",
    ):
        assert text in card, text
    assert os.uname().nodename not in card
    capfd.readouterr()
    flags = [f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}", "--max_frames=4", "--output_dir=scores"]
    assert main(["eval", "--policy.path=me/tiny", "--dataset.repo_id=local/tiny_vec", *flags]) == 0


def test_offline_a_name_on_the_hub_says_so(run, monkeypatch, capfd):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["train", "--resume=true", "--config_path=me/tiny"]) == 2
    assert "HF_HUB_OFFLINE forbids looking on the hub" in capfd.readouterr().err


def test_a_command_runs_against_a_stand_in(tmp_path):
    script = "import huggingface_hub as h; h.create_repo('me/x'); print(h.HfApi().whoami()['name'])"
    words = [sys.executable, "-m", "mimetic.testing.hub_server", sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, ["me", "model me/x, tags: none"]), done.stderr
