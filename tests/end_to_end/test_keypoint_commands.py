"""The keypoint policy through the commands: trained, looked into, evaluated, trained further, loaded in Python."""

import json

import pytest
import torch
from safetensors.torch import load_file

import mimetic
from mimetic.cli.app import main
from mimetic.testing.datasets import build_dataset
from mimetic.testing.tiny import TINY_KEYPOINT

CAMERAS = {"front": (16, 24), "wrist": (24, 16)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seen") / "data"
    return build_dataset(folder, cameras=CAMERAS, camera_dtype="image", lengths=(11, 12, 10), state_dim=4, action_dim=4)


def flags(dataset):
    return ["--dataset.repo_id=me/seen", f"--dataset.root={dataset}"]


@pytest.fixture(scope="module")
def run(dataset, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    more = ["--steps=3", "--batch_size=4", "--num_workers=0", "--log_freq=1", "--dataset.eval_split=0.3"]
    assert main(["train", *TINY_KEYPOINT, *flags(dataset), *more, f"--output_dir={output}"]) == 0
    return output


@pytest.fixture(scope="module")
def stored(run):
    return run / "checkpoints" / "last" / "pretrained_model"


def test_training_uses_the_policy_s_preset(run, stored):
    groups = json.loads((run / "checkpoints/last/training_state/optimizer_param_groups.json").read_text())
    assert [group["weight_decay"] for group in groups] == [1.0, 0.01, 0.0]
    schedule = json.loads((stored / "train_config.json").read_text())["scheduler"]
    assert (schedule["type"], schedule["num_warmup_steps"]) == ("cosine_annealing_with_warmup", 50)


def test_inspect_finds_no_problem_in_it(run, capsys):
    assert main(["inspect", f"--path={run}", "--json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["policy"] == "keypoint"
    assert found["problems"] == []
    modes = {row["name"]: row["mode"] for row in found["features"]}
    assert modes == dict.fromkeys(
        ["observation.state", "observation.images.front", "observation.images.wrist", "action"], "MEAN_STD"
    )


def test_eval_predicts_the_held_out_episodes(dataset, stored, tmp_path):
    output = tmp_path / "evaluation"
    more = ["--report=false", f"--output_dir={output}"]
    assert main(["eval", f"--policy.path={stored}", *flags(dataset), *more]) == 0
    document = json.loads((output / "open_loop.json").read_text())
    assert document["config"]["policy"]["type"] == "keypoint"
    assert document["dataset"]["episodes"] == [2]


def test_it_says_that_it_reads_no_instruction(dataset, stored, tmp_path, capsys):
    more = ["--report=false", f"--output_dir={tmp_path / 'e'}", "--ablate=mute"]
    assert main(["eval", f"--policy.path={stored}", *flags(dataset), *more]) == 0
    said = capsys.readouterr()
    assert "does not read instructions" in said.out + said.err


def test_python_loads_it_with_its_own_settings(dataset, stored):
    loaded = mimetic.load_policy(str(stored))
    config = loaded.policy.config
    assert (config.n_keypoints, config.chunk_size, config.dim_hidden) == (4, 8, 16)
    frame = {k: v for k, v in mimetic.open_dataset(root=str(dataset))[0].items() if k.startswith("observation.")}
    loaded.policy.reset()
    action = loaded.postprocessor.run_action(loaded.policy.select_action(loaded.preprocessor(frame)))
    assert action.shape == (1, 4)
    assert torch.isfinite(action).all()


def test_a_new_run_begins_with_its_weights(dataset, stored, tmp_path, capsys):
    command = ["train", f"--policy.path={stored}", "--policy.device=cpu", *flags(dataset), "--dry_run=true"]
    assert main([*command, "--num_workers=0", "--batch_size=2", f"--output_dir={tmp_path / 'second'}"]) == 0
    tensors = len(load_file(stored / "model.safetensors"))
    assert f"{tensors} tensors matched, 0 missing, 0 unexpected" in capsys.readouterr().err


def test_a_dataset_without_a_camera_is_refused(fixtures, tmp_path, capsys):
    root = fixtures / "training" / "dataset_tiny_vec"
    command = ["train", *TINY_KEYPOINT, "--dataset.repo_id=local/tiny_vec", f"--dataset.root={root}", "--steps=1"]
    assert main([*command, "--num_workers=0", f"--output_dir={tmp_path / 'run'}"]) != 0
    assert "the keypoint policy needs at least one camera among its inputs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
