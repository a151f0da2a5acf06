"""`empty_cameras` adds inputs that nobody feeds, as LeRobot does when it builds the model (spec/smolvla.md 2)."""

from __future__ import annotations

import json

import pytest
import torch

from mimetic.cli.app import main
from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import STATE
from mimetic.policies.build import check_inputs, make_policy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import FRONT, WRIST, tiny_smolvla_config, write_tiny_vlm

EMPTY = [f"observation.images.empty_camera_{i}" for i in range(3)]


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm"))


def test_the_inputs_are_added_behind_the_others(vlm):
    policy = make_policy(tiny_smolvla_config(vlm, empty_cameras=2), init_backbone=False)
    inputs = policy.config.input_features
    assert list(inputs) == [STATE, FRONT, WRIST, EMPTY[0], EMPTY[1]]
    assert inputs[EMPTY[1]] == PolicyFeature(FeatureType.VISUAL, (3, 480, 640))


def test_without_the_setting_nothing_is_added(vlm):
    assert list(make_policy(tiny_smolvla_config(vlm), init_backbone=False).config.input_features) == [
        STATE,
        FRONT,
        WRIST,
    ]


def test_those_that_are_there_keep_place_and_shape(vlm):
    given = tiny_smolvla_config(vlm).input_features
    small = PolicyFeature(FeatureType.VISUAL, (3, 8, 8))
    config = tiny_smolvla_config(vlm, input_features={EMPTY[0]: small, **given}, empty_cameras=2)
    inputs = make_policy(config, init_backbone=False).config.input_features
    assert list(inputs) == [EMPTY[0], STATE, FRONT, WRIST, EMPTY[1]]
    assert inputs[EMPTY[0]] == small


def test_a_dataset_need_not_have_them(vlm):
    policy = make_policy(tiny_smolvla_config(vlm, empty_cameras=2), init_backbone=False)
    offered = tiny_smolvla_config(vlm).input_features
    check_inputs(policy.config, offered)
    assert policy.config.input_problems(offered) == []


def test_they_are_no_cameras_to_live_on(vlm):
    state = PolicyFeature(FeatureType.STATE, (5,))
    with pytest.raises(ConfigError, match="at least one camera"):
        make_policy(tiny_smolvla_config(vlm, input_features={STATE: state}, empty_cameras=2), init_backbone=False)


@pytest.mark.parametrize("cache", ["off", "on"])
def test_training_evaluation_and_training_again_work_without_them(vlm, tmp_path, cache):
    build_dataset(tmp_path / "data", cameras={"front": (24, 32)}, camera_dtype="image", state_dim=5, action_dim=4)
    words = ["--dataset.repo_id=me/d", f"--dataset.root={tmp_path / 'data'}"]
    short = [*words, "--batch_size=2", "--num_workers=0", "--steps=1", f"--cache.features={cache}"]
    flags = [
        "--policy.type=smolvla",
        f"--policy.vlm_model_name={vlm}",
        "--policy.device=cpu",
        "--policy.num_vlm_layers=4",
        "--policy.resize_imgs_with_padding=[32,32]",
        "--policy.chunk_size=8",
        "--policy.n_action_steps=4",
        "--policy.precision=float32",
        "--policy.empty_cameras=1",
        f"--cache.folder={tmp_path / 'features'}",
    ]
    assert main(["train", *flags, *short, f"--output_dir={tmp_path / 'run'}"]) == 0
    folder = tmp_path / "run/checkpoints/000001/pretrained_model"
    stored = json.loads((folder / "config.json").read_text())["input_features"]
    assert list(stored)[-1] == EMPTY[0]
    assert stored[EMPTY[0]] == {"type": "VISUAL", "shape": [3, 480, 640]}
    normalizer = json.loads((folder / "policy_preprocessor.json").read_text())["steps"][-1]
    assert EMPTY[0] in normalizer["config"]["features"]
    out = ["--report=false", f"--output_dir={tmp_path / 'eval'}"]
    assert main(["eval", f"--policy.path={tmp_path / 'run'}", *words, *out]) == 0
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert main(["train", f"--policy.path={tmp_path / 'run'}", *short, f"--output_dir={tmp_path / 'again'}"]) == 0
    again = json.loads((tmp_path / "again/checkpoints/000001/pretrained_model/config.json").read_text())
    assert list(again["input_features"]) == list(stored)


def test_the_result_is_that_of_a_policy_that_was_told_so_by_hand(vlm):
    torch.manual_seed(0)
    by_flag = make_policy(tiny_smolvla_config(vlm, empty_cameras=1), init_backbone=False).eval()
    inputs = by_flag.config.input_features
    torch.manual_seed(0)
    by_hand = make_policy(tiny_smolvla_config(vlm, empty_cameras=1, input_features=inputs), init_backbone=False).eval()
    batch = {
        STATE: torch.zeros(1, 5),
        FRONT: torch.rand(1, 3, 24, 32),
        WRIST: torch.rand(1, 3, 40, 20),
        "observation.language.tokens": torch.tensor([[5, 6]]),
        "observation.language.attention_mask": torch.ones(1, 2, dtype=torch.bool),
    }
    noise = torch.randn(1, 8, 6)
    assert torch.equal(by_flag.predict_chunk(batch, noise=noise), by_hand.predict_chunk(batch, noise=noise))
