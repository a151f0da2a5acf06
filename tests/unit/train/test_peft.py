"""`--peft.*`: an adapter is trained, saved, resumed and trained further."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mimetic.config.check import find_problems
from mimetic.config.parse import parse
from mimetic.errors import ConfigError
from mimetic.policies.checkpoint import load_pretrained
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.peft_config import PeftConfig
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

ADAPTER = ["--peft.target_modules=[linear1, out_proj]", "--peft.r=2", "--peft.full_training_modules=[action_head]"]


@pytest.fixture(scope="module")
def dataset(fixtures):
    return [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        "--batch_size=4",
        "--num_workers=0",
        "--log_freq=1",
        "--policy.device=cpu",
    ]


def load_policy(place, revision=None):
    from mimetic.config import sources

    return sources.load_policy(place)


def run(folder, *flags):
    parsed = parse(TrainConfig, list(flags), prog="mimetic train", load_policy=load_policy)
    return train(replace(parsed.value, output_dir=folder), origins=parsed.origins)


@pytest.fixture(scope="module")
def base(tmp_path_factory, dataset):
    """A run whose policy is a base."""
    return run(tmp_path_factory.mktemp("base") / "run", *dataset, *TINY_ACT, "--steps=1")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, dataset, base):
    """A run of four steps that trains an adapter, with dropout and noise of the VAE."""
    folder = tmp_path_factory.mktemp("adapter") / "run"
    return run(folder, *dataset, f"--policy.path={base}", *ADAPTER, "--steps=4", "--save_freq=1")


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"{step:06d}" / "pretrained_model" / "adapter_model.safetensors")


def test_only_the_adapter_is_trained_and_stored(base, adapted):
    step = adapted / "checkpoints" / "000004"
    assert not (step / "pretrained_model" / "model.safetensors").exists()
    first, last = weights(adapted, 1), weights(adapted, 4)
    assert all(not torch.equal(first[name], last[name]) for name in first)
    policy = load_pretrained(adapted).policy
    trainable = [p for p in policy.parameters() if p.requires_grad]
    state = load_file(step / "training_state" / "optimizer_state.safetensors")
    moments = {key: tensor for key, tensor in state.items() if key.endswith("exp_avg")}
    assert len(moments) == len(trainable) == len(last)
    assert sum(tensor.numel() for tensor in moments.values()) == sum(p.numel() for p in trainable)
    whole = load_file(base / "checkpoints" / "000001" / "pretrained_model" / "model.safetensors")
    kept = policy.get_submodule("model.encoder.layers.0.linear1").base_layer.weight
    assert torch.equal(kept, whole["model.encoder.layers.0.linear1.weight"])


def test_configs_name_the_base_and_the_adapter(base, adapted):
    folder = adapted / "checkpoints" / "000004" / "pretrained_model"
    config = json.loads((folder / "config.json").read_text())
    described = json.loads((folder / "adapter_config.json").read_text())
    assert config["use_peft"] is True
    assert Path(described["base_model_name_or_path"]) == Path(config["pretrained_path"])
    assert Path(config["pretrained_path"]).is_relative_to(base)
    assert described["lora_alpha"] == 8
    peft = json.loads((folder / "train_config.json").read_text())["peft"]
    assert peft == {
        "target_modules": ["linear1", "out_proj"],
        "full_training_modules": ["action_head"],
        "method_type": "LORA",
        "init_type": None,
        "r": 2,
        "lora_alpha": None,
    }


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_resumed_adapter_is_the_same_bit_for_bit(adapted, tmp_path, step):
    copy = tmp_path / "run"
    shutil.copytree(adapted / "checkpoints" / f"{step:06d}", copy / "checkpoints" / f"{step:06d}")
    checkpoint = find_checkpoint(copy)
    parsed = parse(
        TrainConfig,
        ["--resume=true", f"--config_path={copy}"],
        prog="mimetic train",
        load_file=lambda place: (checkpoint.settings(), place),
    )
    train(replace(parsed.value, checkpoint_path=checkpoint.folder, output_dir=copy), origins=parsed.origins)
    compared = 0
    for path in (adapted / "checkpoints" / "000004").rglob("*.safetensors"):
        other = copy / path.relative_to(adapted)
        assert other.read_bytes() == path.read_bytes(), path.name
        compared += 1
    assert compared >= 5  # adapter, two pipelines, optimiser, generators


def test_an_adapter_is_trained_further_without_peft_flags(base, adapted, dataset, tmp_path):
    further = run(tmp_path / "further", *dataset, f"--policy.path={adapted}", "--steps=1")
    now, before = weights(further, 1), weights(adapted, 4)
    assert now.keys() == before.keys()
    assert any(not torch.equal(now[name], before[name]) for name in now)
    # One step of 1e-5: what was loaded is the trained adapter, not a new one.
    assert all((now[name] - before[name]).abs().max() <= 1.1e-5 for name in now)
    described = json.loads((further / "checkpoints/000001/pretrained_model/adapter_config.json").read_text())
    assert Path(described["base_model_name_or_path"]).is_relative_to(base)


def test_an_adapter_on_an_adapter_is_refused(adapted, dataset, tmp_path):
    with pytest.raises(ConfigError, match="is an adapter already") as error:
        run(tmp_path / "more", *dataset, f"--policy.path={adapted}", *ADAPTER, "--steps=1")
    assert "--merge_to" in error.value.hint


def test_settings_of_an_adapters_run_start_another_one(adapted, dataset, tmp_path):
    """A stored train_config.json says `use_peft`, but its base is a whole policy."""
    settings = find_checkpoint(adapted).settings()
    parsed = parse(
        TrainConfig,
        ["--config_path=x", "--steps=1"],
        prog="mimetic train",
        load_file=lambda place: (settings, place),
    )
    assert parsed.value.policy.use_peft
    again = train(replace(parsed.value, output_dir=tmp_path / "again"), origins=parsed.origins)
    for name, tensor in weights(again, 1).items():
        assert torch.equal(tensor, weights(adapted, 1)[name])


def test_the_adapter_cannot_change_on_resume(adapted):
    from mimetic.train.resume import check_overrides

    stored = find_checkpoint(adapted).settings()
    parsed = parse(
        TrainConfig,
        ["--resume=true", "--config_path=x", "--peft.r=4"],
        prog="mimetic train",
        load_file=lambda place: (stored, place),
    )
    with pytest.raises(ConfigError, match=re.escape("`--peft.r` cannot change on resume")):
        check_overrides(parsed.value, parsed.origins, stored)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"method_type": "MISS"}, "`--peft.method_type=MISS`: mimetic builds LORA only"),
        ({"init_type": "olora"}, "`--peft.init_type=olora`"),
        ({"r": 0}, "`--peft.r=0` must be at least 1"),
        ({"lora_alpha": 0}, "`--peft.lora_alpha=0` must be at least 1"),
        ({"target_modules": []}, "names no module"),
    ],
)
def test_wrong_settings_are_named(values, word):
    problems = [problem.message for problem in find_problems(PeftConfig(**values))]
    assert len(problems) == 1
    assert word in problems[0]


@pytest.mark.parametrize("values", [{}, {"method_type": "lora"}, {"init_type": "True"}, {"init_type": "gaussian"}])
def test_settings_that_are_built_have_no_problems(values):
    assert find_problems(PeftConfig(**values)) == []


def test_a_new_policy_cannot_have_an_adapter(dataset):
    with pytest.raises(ConfigError, match=r"name it with `--policy\.path`"):
        run(None, *dataset, *TINY_ACT, *ADAPTER, "--output_dir=x")


def test_a_policy_without_own_targets_asks_for_them(base, dataset):
    with pytest.raises(ConfigError, match=r"`--peft.target_modules="):
        run(None, *dataset, f"--policy.path={base}", "--peft.r=2", "--output_dir=x")


def test_gaussian_initialisation_reaches_the_adapter(base, dataset, tmp_path):
    folder = run(tmp_path / "g", *dataset, f"--policy.path={base}", *ADAPTER, "--peft.init_type=gaussian", "--steps=1")
    tensor = weights(folder, 1)["base_model.model.model.encoder.layers.0.linear1.lora_A.weight"]
    assert tensor.abs().max() > 0.5  # deviation 1 / 2; uniform values end at 1 / sqrt(16) = 0.25
