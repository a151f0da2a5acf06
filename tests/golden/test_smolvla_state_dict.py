"""All 500 tensors of the full-size SmolVLA: names, order, shapes, dtypes and what is trained, without any memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from smolvla_cases import SMOLVLA, case

from mimetic.policies.smolvla.backbone import find_backbone
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.freezing import freeze, set_dtypes
from mimetic.policies.smolvla.network import SmolVLANetwork

TABLE = json.loads((SMOLVLA / "full_state_dict.json").read_text())
TENSORS = TABLE["tensors"]
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
SETTINGS = {
    "default (freeze_vision_encoder, train_expert_only, train_state_proj)": {},
    "train_state_proj=false": {"train_state_proj": False},
    "train_expert_only=false": {"train_expert_only": False},
    "train_expert_only=false, freeze_vision_encoder=false": {
        "train_expert_only": False,
        "freeze_vision_encoder": False,
    },
}


def build(precision="float32", **settings):
    config = SmolVLAConfig(**settings)
    with torch.device("meta"):
        network = SmolVLANetwork(config, find_backbone(config))
    freeze(network, config)
    set_dtypes(network, config, precision)
    return network


def named(network):
    return {f"model.{name}": tensor for name, tensor in network.state_dict(keep_vars=True).items()}


def test_names_in_order_and_shapes():
    found = {name: list(tensor.shape) for name, tensor in named(build()).items()}
    assert list(found) == list(TENSORS)
    assert len(found) == TABLE["n_tensors"] == 500
    assert found == {name: entry["shape"] for name, entry in TENSORS.items()}


def test_parameter_counts_of_every_part():
    parts = dict.fromkeys(TABLE["parameter_groups"], 0)
    tensors = named(build())
    for name, tensor in tensors.items():
        owners = [part for part in parts if f".{part}." in name]
        assert len(owners) == 1, name
        parts[owners[0]] += tensor.numel()
    assert parts == TABLE["parameter_groups"]
    assert sum(tensor.numel() for tensor in tensors.values()) == TABLE["n_parameters"] == 450_046_176


@pytest.mark.parametrize(("load_vlm_weights", "column"), [(True, "released"), (False, "built_without_vlm_weights")])
def test_dtypes_as_lerobot_constructs_them(load_vlm_weights, column):
    found = {n: t.dtype for n, t in named(build("released", load_vlm_weights=load_vlm_weights)).items()}
    assert found == {name: DTYPES[entry[f"dtype_{column}"]] for name, entry in TENSORS.items()}


def test_what_is_trained_by_default():
    found = {name: tensor.requires_grad for name, tensor in named(build()).items()}
    assert found == {name: entry["trainable_default"] for name, entry in TENSORS.items()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_trainable_counts_of_every_setting(setting):
    expected = TABLE["trainable_counts"][setting]
    trained = [p for p in build(**SETTINGS[setting]).parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == expected["trainable_parameters"]
    assert len(trained) == expected["trainable_tensors"]


def test_mixed_precision_keeps_float32_exactly_where_something_is_trained():
    tensors = named(build("mixed"))
    small = "model.state_proj."
    for name, tensor in tensors.items():
        wanted = torch.float32 if tensor.requires_grad or name.startswith(small) else torch.bfloat16
        assert tensor.dtype is wanted, name
    untrained = named(build("mixed", train_state_proj=False))
    assert untrained["model.state_proj.weight"].dtype is torch.float32


@pytest.mark.parametrize("name", ["cross_b3", "self_b3", "allcross_unfrozen_b3", "bf16_b3"])
def test_tiny_policies_hold_exactly_the_tensors_of_the_files(name, monkeypatch):
    monkeypatch.chdir(SMOLVLA)
    c = case(name)
    policy = c.policy(precision="released")
    stored = c.plain().state
    found = policy.state_dict()
    assert found.keys() == stored.keys()
    for key, tensor in stored.items():
        assert found[key].dtype is tensor.dtype, key
        assert torch.equal(found[key], tensor), key


def test_a_changed_width_or_depth_changes_the_shapes():
    config = replace(SmolVLAConfig(), expert_width_multiplier=0.5, num_vlm_layers=4)
    with torch.device("meta"):
        network = SmolVLANetwork(config, find_backbone(config))
    assert len(network.expert.layers) == len(network.vlm.text_model.layers) == 4
    assert network.action_in_proj.weight.shape == (480, 32)
    assert network.expert.layers[0].mlp.up_proj.weight.shape == (1280, 480)  # 4 * int(2 * 480 / 3), already even
