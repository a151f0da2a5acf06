"""The commands of LeRobot's SmolVLA guide, as they stand in docs/policies/smolvla.md, with small stand-ins.

`lerobot/smolvla_base` is a folder of that name with a tiny policy made like the released one, the dataset lies in
LeRobot's cache. Only what these machines lack is changed by flags behind the command: the GPU, and the 450 M sizes; a
stand-in answers for the package `wandb`.
"""

import re
import shlex
import sys
import types

import pytest
import torch

from mimetic.cli.app import main
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import save_pretrained
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_config, write_tiny_vlm

CAMERAS = [f"observation.images.camera{i}" for i in (1, 2, 3)]
HERE = ["--policy.device=cpu", "--dry_run=true", "--policy.precision=float32"]
TINY = [
    "--policy.vlm_model_name=tiny_vlm",
    "--policy.num_vlm_layers=4",
    "--policy.resize_imgs_with_padding=[32,32]",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
]


class Run:
    """A run of wandb that remembers what it gets."""

    id, dir, url = "r1", "wandb/run-r1/files", "https://wandb.example/r1"

    def __init__(self, arguments):
        self.arguments, self.logged = arguments, []

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self, exit_code):
        assert exit_code == 0


@pytest.fixture(autouse=True)
def wandb(monkeypatch):
    """Stands for the package, with somebody logged in; its own tests are in tests/unit/train/test_wandb.py."""
    package = types.ModuleType("wandb")
    package.runs = []
    package.login = lambda prompt: True
    package.init = lambda **arguments: package.runs.append(Run(arguments)) or package.runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return package


@pytest.fixture
def commands(repository):
    """Commands of the page that train from the hub, as lists of words without `mimetic`."""
    page = (repository / "docs" / "policies" / "smolvla.md").read_text(encoding="utf-8")
    blocks = [part.split("```")[0] for part in page.split("```sh\n")[1:]]
    words = [shlex.split(block.replace("\\\n", " ")) for block in blocks if block.startswith("mimetic train \\\n")]
    assert all(command[:2] == ["mimetic", "train"] for command in words)
    return [command[1:] for command in words]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A working folder in which the names of the guide mean small things."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "datasets"))
    for name in ("me/mydataset", "lerobot/svla_so100_stacking"):
        (tmp_path / "datasets" / name).parent.mkdir(parents=True)
        sizes = {"top": (24, 32), "wrist": (24, 32)}
        build_dataset(tmp_path / "datasets" / name, cameras=sizes, camera_dtype="image", state_dim=6, action_dim=6)
    write_tiny_vlm(tmp_path / "tiny_vlm")
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (6,))}
    inputs |= {key: PolicyFeature(FeatureType.VISUAL, (3, 16, 16)) for key in CAMERAS}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (6,))}
    config = tiny_smolvla_config("tiny_vlm", input_features=inputs, output_features=outputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = make_policy(config)
    stats = {key: {"mean": torch.zeros(6), "std": torch.ones(6)} for key in ("observation.state", "action")}
    pipelines = policy.config.make_pipelines(
        input_features=inputs, output_features=outputs, norm_map=config.norm_map, stats=stats
    )
    save_pretrained(policy, tmp_path / "lerobot" / "smolvla_base", *pipelines)
    return tmp_path


def test_fine_tuning_the_base_policy_runs_as_it_is_written(commands, workplace, capsys):
    command = commands[0]
    assert "--policy.path=lerobot/smolvla_base" in command
    assert main([*command, *HERE]) == 0
    told = capsys.readouterr().err
    for words in (
        "camera `observation.images.top` -> slot `observation.images.camera1`",
        "camera `observation.images.wrist` -> slot `observation.images.camera2`",
        "num_training_steps (20000) < num_decay_steps (30000)",
        "learning rate: cosine decay from 0.0001",
        "tensors matched, 0 missing, 0 unexpected",
        "Dry run",
    ):
        assert words in told
    assert not (workplace / "outputs").exists()


def test_the_log_says_how_many_parameters_are_trained_and_how_much_memory_is_used(commands, workplace, capsys):
    assert main([*commands[0], *HERE, "--dry_run=false", "--steps=1", "--log_freq=1"]) == 0
    told = capsys.readouterr().err
    learned, total = (int(re.search(rf"num_{kind}_params=(\d+)", told)[1]) for kind in ("learnable", "total"))
    assert 0 < learned < total  # the vision-language model is frozen
    assert re.search(r"step:1 .*loss:\S+ .*ram_gb:\d", told)


def test_a_new_policy_runs_as_it_is_written(commands, workplace, capsys):
    command = commands[1]
    assert "--policy.type=smolvla" in command
    assert main([*command, *HERE, *TINY]) == 0
    told = capsys.readouterr().err
    assert "Dry run" in told
    assert "random weights" not in told  # those of the vision-language model are loaded


def test_the_values_go_to_wandb(commands, workplace, wandb, capsys):
    assert "--wandb.enable=true" in commands[0]
    assert main([*commands[0], *HERE, "--dry_run=false", "--steps=2", "--log_freq=1"]) == 0
    (run,) = wandb.runs
    assert [step for step, values in run.logged if values["train/loss"] > 0] == [1, 2]
    assert run.arguments["tags"] == ["policy:smolvla", "seed:1000", "dataset:me/mydataset"]
    assert run.arguments["name"] == "my_smolvla_training"


def test_without_wandb_the_command_says_what_to_do(commands, workplace, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([*commands[0], *HERE]) == 1
    told = capsys.readouterr().err
    assert 'pip install "mimetic[wandb]"' in told
    assert "metrics.jsonl" in told
