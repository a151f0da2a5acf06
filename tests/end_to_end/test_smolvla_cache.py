"""Training on kept features gives the bits that training on frames gives, held-out losses and resuming included."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from mimetic.accelerators.precision import Precision
from mimetic.cli.app import main
from mimetic.policies.build import make_policy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_config, tiny_smolvla_flags, write_tiny_vlm
from mimetic.train.build_features import encode_frames


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    write_tiny_vlm(place / "vlm")
    cameras = {"top": (48, 64), "side": (40, 30)}
    build_dataset(place / "set", cameras=cameras, lengths=(20, 15, 9), camera_dtype="image", state_dim=5, action_dim=4)
    return place


def train(place, out, *flags):
    base = [
        "train",
        *tiny_smolvla_flags(place / "vlm"),
        "--dataset.repo_id=me/set",
        f"--dataset.root={place / 'set'}",
        "--dataset.eval_split=0.3",
        f"--cache.folder={place / 'kept'}",
        f"--output_dir={out}",
        "--steps=8",
        "--save_freq=3",
        "--eval_steps=4",
        "--log_freq=1",
        "--batch_size=3",
        "--num_workers=0",
    ]
    assert main([*base, *flags]) == 0


def losses(out):
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in record.items() if "loss" in name} for record in records]


def weights(out):
    return load_file(out / "checkpoints/last/pretrained_model/model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    "flags",
    [
        ["--policy.precision=float32"],
        ["--policy.precision=mixed", "--policy.noise_draws=2"],
        ["--policy.precision=released"],
        ["--policy.precision=float32", "--accelerator.mixed_precision=bf16"],
        ["--policy.precision=mixed", "--policy.add_image_special_tokens=true", "--policy.empty_cameras=1"],
    ],
    ids=["float32", "mixed", "released", "autocast", "marks"],
)
def test_kept_features_change_no_bit(place, tmp_path, flags):
    train(place, tmp_path / "frames", *flags, "--cache.features=off")
    train(place, tmp_path / "kept", *flags, "--cache.features=on")
    found = losses(tmp_path / "kept")
    assert any("eval_loss" in record for record in found)
    assert found == losses(tmp_path / "frames")
    assert same(weights(tmp_path / "kept"), weights(tmp_path / "frames"))


@pytest.mark.parametrize("variants", [[], ["--dataset.image_transforms.enable=true", "--cache.variants=2"]])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(place, tmp_path, variants):
    out = tmp_path / "run"
    train(place, out, "--cache.features=on", *variants)
    expected, whole = weights(out), losses(out)
    for step in ("000006", "000008"):
        shutil.rmtree(out / "checkpoints" / step)
    config = out / "checkpoints/000003/pretrained_model/train_config.json"
    assert main(["train", "--resume=true", f"--config_path={config}"]) == 0
    assert same(weights(out), expected)
    assert losses(out)[-5:] == whole[-5:]


def test_precisions_with_other_bits_keep_other_features(place):
    """Both have bfloat16 weights, and `released` promises the bits of LeRobot's kernels."""
    cpu = Precision(torch.device("cpu"), None, "")
    frames = torch.randint(0, 256, (8, 3, 40, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    keys, features = [], []
    for precision in ("mixed", "released"):
        encoder = make_policy(tiny_smolvla_config(place / "vlm", precision=precision)).frame_encoder()
        keys.append(encoder.key)
        features.append(encode_frames(encoder, frames, cpu, where="top"))
    assert not torch.equal(*features)
    assert keys[0] != keys[1]


def test_eight_bit_evaluation_and_kept_features_exclude_each_other(place):
    encoder = make_policy(tiny_smolvla_config(place / "vlm", int8=True, precision="mixed")).frame_encoder()
    assert "evaluation computes other features than training" in encoder
