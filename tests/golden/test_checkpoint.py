"""Checkpoints against LeRobot 0.6.1: config and weights byte for byte."""

from __future__ import annotations

import hashlib
import json
import zlib

import numpy as np
import pytest
import torch

from mimetic.names import WEIGHTS
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import config_to_json, load_pretrained, read_config, save_pretrained
from mimetic.policies.pipelines import load_pipelines

FOLDERS = [
    "act/vision/checkpoint",
    "act/state_env/checkpoint",
    "act/single_image_novae/checkpoint",
    "act/default_config",
    "training/run_preset/checkpoints/000006/pretrained_model",
    "training/run_sched/checkpoints/000003/pretrained_model",
    "training/run_grad_accum_after_061/checkpoints/000003/pretrained_model",
]
WITH_WEIGHTS = [folder for folder in FOLDERS if folder.startswith(("training", "act/state_env"))]


def noise(key, n):
    """n numbers in [-1, 1), float64, of the fixture's README."""
    h = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(zlib.crc32(key.encode()))
    h = (h & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h.astype(np.float64) / 2**31 - 1


def formula(key, shape):
    """The deterministic weights of the fixture's README."""
    n = int(np.prod(shape, dtype=np.int64))
    fan = n // shape[0] if len(shape) > 1 else 1
    if key.endswith("running_var"):
        a, b = 0.3, 1.0
    elif key.endswith("running_mean"):
        a, b = 0.1, 0.0
    elif len(shape) <= 1:
        a, b = (0.1, 1.0) if key.endswith("weight") else (0.05, 0.0)
    else:
        a, b = ((6 / fan) ** 0.5 if len(shape) == 4 else (3 / fan) ** 0.5), 0.0
    return torch.from_numpy((b + a * noise(key, n)).astype(np.float32).reshape(shape))


def fill(policy):
    with torch.no_grad():
        for key, value in policy.state_dict().items():
            if not key.endswith("vae_encoder_pos_enc"):
                value.copy_(formula(key, tuple(value.shape)))


def test_the_formula_gives_its_check_values():
    np.testing.assert_allclose(noise("x", 4), [-0.49931354, -0.1352782, 0.15441457, -0.54898815], atol=1e-8)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_config_read_and_written_gives_the_same_bytes(fixtures, folder):
    path = fixtures / folder / "config.json"
    assert config_to_json(read_config(fixtures / folder)).encode() == path.read_bytes()


@pytest.mark.parametrize("folder", WITH_WEIGHTS)
def test_a_checkpoint_loaded_and_saved_gives_the_same_bytes(fixtures, tmp_path, folder):
    folder = fixtures / folder
    loaded = load_pretrained(folder)
    assert not loaded.policy.training
    assert loaded.report.summary().startswith(f"{len(loaded.policy.state_dict())} tensors matched, 0 missing")
    save_pretrained(loaded.policy, tmp_path / "saved", loaded.preprocessor, loaded.postprocessor)
    names = {path.name for path in folder.iterdir()} - {"train_config.json"}
    assert {path.name for path in (tmp_path / "saved").iterdir()} == names
    if "after_061" in str(folder):  # later versions add {"format": "pt"} to the header; the data are the same
        names.remove(WEIGHTS)
        saved, stored = ((path / WEIGHTS).read_bytes() for path in (tmp_path / "saved", folder))
        assert b'{"format":"pt"}' in stored
        assert saved[8 + int.from_bytes(saved[:8], "little") :] == stored[8 + int.from_bytes(stored[:8], "little") :]
    for name in names:
        assert (tmp_path / "saved" / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.parametrize("case", ["vision", "state_env", "single_image_novae"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_formula_weights_give_lerobots_file_in_any_memory_layout(fixtures, tmp_path, case, memory_format):
    folder = fixtures / "act" / case / "checkpoint"
    golden = json.loads((fixtures / "act" / case / "golden.json").read_text())
    config = read_config(folder)
    policy = make_policy(config, init_backbone=False)
    fill(policy)
    policy.to(memory_format=memory_format)
    save_pretrained(policy, tmp_path, *load_pipelines(folder, config))
    content = (tmp_path / WEIGHTS).read_bytes()
    assert len(content) == golden["model_safetensors_bytes"]
    assert hashlib.sha256(content).hexdigest() == golden["model_safetensors_sha256"]
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
