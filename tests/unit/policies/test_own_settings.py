"""Settings that only mimetic knows, in checkpoints: kept where they differ from the defaults, and flags win."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import torch

from mimetic import log
from mimetic.cli.app import main
from mimetic.errors import CheckpointError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, read_config, save_pretrained
from mimetic.policies.config import PolicyConfig
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.merging import merge_into
from mimetic.policies.own_settings import keeps_all, stored_settings
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_config, write_tiny_vlm

NAME = "mimetic_policy.json"


@pytest.fixture
def vlm(tmp_path):
    return write_tiny_vlm(tmp_path / "vlm")


def save(folder, config):
    policy = make_policy(config, init_backbone=False)
    stats = {
        name: {"mean": torch.zeros(feature.shape), "std": torch.ones(feature.shape)}
        for name, feature in {**config.input_features, **config.output_features}.items()
        if "images" not in name
    }
    pipelines = policy.config.make_pipelines(
        input_features=policy.config.input_features,
        output_features=policy.config.output_features,
        norm_map=config.norm_map,
        stats=stats,
    )
    save_pretrained(policy, folder, *pipelines)
    return folder


def test_what_differs_from_its_default_comes_back(vlm, tmp_path):
    folder = save(tmp_path / "p", tiny_smolvla_config(vlm, precision="float32", noise_draws=3))
    stored = json.loads((folder / NAME).read_text())
    assert stored == {"format": 1, "settings": {"precision": "float32", "noise_draws": 3}}
    assert not {"precision", "noise_draws", "int8"} & json.loads((folder / "config.json").read_text()).keys()
    found = read_config(folder)
    assert (found.precision, found.noise_draws, found.int8) == ("float32", 3, False)
    assert load_pretrained(folder).policy.precision == "float32"


def test_defaults_need_no_file_and_replace_an_older_one(vlm, tmp_path):
    folder = save(tmp_path / "p", tiny_smolvla_config(vlm, precision="float32"))
    save(folder, tiny_smolvla_config(vlm, precision="auto"))
    assert not (folder / NAME).exists()
    assert read_config(folder).precision == "auto"


def test_a_policy_without_such_settings_has_no_file(fixtures):
    folder = fixtures / "training/run_preset/checkpoints/000006/pretrained_model"
    assert not (folder / NAME).exists()
    read_config(folder)


def test_a_policy_that_lerobot_does_not_have_keeps_every_setting(tmp_path):
    """So that another version's defaults do not change what was trained."""
    config = KeypointConfig(
        input_features={"observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 16, 16))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        n_keypoints=4,
        normalization_mapping=dict.fromkeys(("STATE", "ACTION"), NormalizationMode.MEAN_STD),
    )
    folder = save(tmp_path / "p", config)
    kept = json.loads((folder / NAME).read_text())["settings"]
    own = {item.name for item in fields(KeypointConfig)} - {item.name for item in fields(PolicyConfig)}
    assert kept.keys() == own
    assert kept["n_keypoints"] == 4
    assert kept["chunk_size"] == KeypointConfig().chunk_size
    # Defaults of another version: what is stored wins over each of them.
    later = {
        name: value / 2 if isinstance(value, float) else 2
        for name, value in kept.items()
        if not isinstance(value, dict)
    }
    (folder / NAME).write_text(json.dumps({"format": 1, "settings": kept | later}))
    assert {name: getattr(read_config(folder), name) for name in later} == later


def test_without_the_file_a_policy_that_keeps_every_setting_is_refused(tmp_path, capsys):
    """Its defaults would play, and not what was trained."""
    config = KeypointConfig(
        input_features={"observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 16, 16))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        n_action_steps=3,
        normalization_mapping=dict.fromkeys(("STATE", "ACTION"), NormalizationMode.MEAN_STD),
    )
    folder = save(tmp_path / "p", config)
    assert stored_settings(str(folder))["n_action_steps"] == read_config(folder).n_action_steps == 3
    (folder / NAME).unlink()
    for read in (lambda: read_config(folder), lambda: stored_settings(str(folder)), lambda: load_pretrained(folder)):
        with pytest.raises(CheckpointError, match=f"has no {NAME}, which holds the settings") as caught:
            read()
        assert "copy the checkpoint again" in caught.value.hint
    assert main(["inspect", f"--path={folder}"]) != 0
    assert NAME in capsys.readouterr().err


def test_who_keeps_every_setting():
    assert keeps_all(KeypointConfig)
    assert not any(keeps_all(kind) for kind in (ACTConfig, SmolVLAConfig, PolicyConfig))


def test_overrides_win(vlm, tmp_path):
    folder = save(tmp_path / "p", tiny_smolvla_config(vlm, precision="float32", noise_draws=3))
    found = read_config(folder, {"precision": "released"})
    assert (found.precision, found.noise_draws) == ("released", 3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "holds a list"),
        ('{"format": 2, "settings": {}}', "has the form 2"),
        ('{"format": 1}', "has the form 1"),
        ('{"format": 1, "settings": {"precision": "float99"}}', "expected `auto`, `mixed`"),
        ('{"format": 1, "settings": {"nosuch": 1}}', "does not know: `nosuch`"),
        ('{"format": 1, "settings": {"noise_draws": 0}}', "must be at least 1"),
        ('{"format": 1, "settings": {"chunk_size": 9}}', "and in `config.json`"),
        ('{"format": 1, "settings": {"type": "act"}}', "and in `config.json`"),
    ],
)
def test_a_damaged_file_is_one_clear_error(vlm, tmp_path, content, words):
    folder = save(tmp_path / "p", tiny_smolvla_config(vlm))
    (folder / NAME).write_text(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_config(folder)
    assert NAME in caught.value.message


@pytest.fixture
def trained(vlm, tmp_path):
    """A run of two steps in float32 with two noise draws; gives its folder and the words that it needs."""
    sizes = {"front": (24, 32)}
    build_dataset(tmp_path / "data", cameras=sizes, camera_dtype="image", state_dim=5, action_dim=4)
    words = ["--dataset.repo_id=me/d", f"--dataset.root={tmp_path / 'data'}"]
    flags = [
        "--policy.type=smolvla",
        f"--policy.vlm_model_name={vlm}",
        "--policy.device=cpu",
        "--policy.num_vlm_layers=4",
        "--policy.resize_imgs_with_padding=[32,32]",
        "--policy.chunk_size=8",
        "--policy.n_action_steps=4",
        "--policy.precision=float32",
        "--policy.noise_draws=2",
        "--batch_size=2",
        "--num_workers=0",
        "--steps=2",
    ]
    folder = tmp_path / "run"
    assert main(["train", *flags, *words, f"--output_dir={folder}"]) == 0
    return folder, words


def test_evaluation_inspection_and_resume_use_what_was_trained(trained, tmp_path, capsys):
    folder, words = trained
    capsys.readouterr()
    log._said.clear()  # each command is a process of its own in life
    evaluate = ["eval", f"--policy.path={folder}", *words, "--report=false"]
    assert main([*evaluate, f"--output_dir={tmp_path / 'e1'}"]) == 0
    assert "SmolVLA precision: float32" in capsys.readouterr().err
    assert main(["eval", f"--policy.path={folder}", "--print_config", *words]) == 0
    listed = capsys.readouterr().out
    assert "--policy.precision=float32" in listed
    assert main(["train", "--resume=true", f"--config_path={folder}", "--steps=3"]) == 0
    found = read_config(folder / "checkpoints" / "000003" / "pretrained_model")
    assert (found.precision, found.noise_draws) == ("float32", 2)
    # Training further from it takes over what it was trained with, as with every other setting of a policy.
    again = ["train", f"--policy.path={folder}", *words, "--batch_size=2", "--num_workers=0", "--steps=1"]
    assert main([*again, f"--output_dir={tmp_path / 'again'}", "--policy.noise_draws=1"]) == 0
    found = read_config(tmp_path / "again" / "checkpoints" / "000001" / "pretrained_model")
    assert (found.precision, found.noise_draws) == ("float32", 1)


def test_flags_win_in_evaluation(trained, tmp_path, capsys):
    folder, words = trained
    capsys.readouterr()
    log._said.clear()  # each command is a process of its own in life
    evaluate = ["eval", f"--policy.path={folder}", *words, "--report=false", "--policy.precision=released"]
    assert main([*evaluate, f"--output_dir={tmp_path / 'e'}"]) == 0
    assert "SmolVLA precision: the dtypes in which LeRobot" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["auto", "released"])
def test_merging_an_adapter_does_not_change_what_the_policy_runs_in(fixtures, tmp_path, monkeypatch, precision):
    import shutil

    shutil.copytree(fixtures / "smolvla", tmp_path / "s")
    monkeypatch.chdir(tmp_path / "s")
    if precision != "auto":
        (tmp_path / "s/tiny_lora" / NAME).write_text(json.dumps({"format": 1, "settings": {"precision": precision}}))
    merge_into(tmp_path / "s/tiny_lora", tmp_path / "merged")
    assert read_config(tmp_path / "merged").precision == precision
