"""A LoRA adapter on SmolVLA against LeRobot 0.6.1 with peft 0.21.2 (tests/fixtures/smolvla: tiny_lora, cases/lora).

Tolerances of fixtures/smolvla/README.md: loss 1e-6 relative, gradient norms 1e-5 relative (float32, CPU).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from smolvla_cases import SMOLVLA, assert_norms_near, case, gradient_norms

from mimetic.names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG_JSON
from mimetic.policies.adapters import merge
from mimetic.policies.bricks.lora import LoRALinear
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import config_to_json, load_weights, read_config
from mimetic.policies.smolvla.config import SmolVLAConfig

EXPECTED = json.loads((SMOLVLA / "cases" / "lora" / "expected.json").read_text())


@pytest.fixture(autouse=True)
def inside_the_fixtures(monkeypatch):
    """Paths in the files are relative."""
    monkeypatch.chdir(SMOLVLA)


def policy(precision="float32"):
    made = make_policy(read_config(Path("tiny_lora"), {"precision": precision}), init_backbone=False)
    load_weights(made, Path("tiny_lora"))
    return made


def loss_of(made):
    given = case("cross_b3")
    return made.loss(given.batch(), noise=given.expected["noise"], time=given.expected["time"])[0]


def trained(made):
    """Gradient norms under peft's names."""
    named = {f"base_model.model.{name}": p for name, p in made.named_parameters() if p.requires_grad}
    return {name.replace(".weight", ".default.weight"): p for name, p in named.items()}


def test_loss_and_gradients_of_the_adapter():
    made = policy().train()
    loss = loss_of(made)
    assert loss.item() == pytest.approx(EXPECTED["loss"], rel=1e-6)
    assert abs(EXPECTED["loss"] - case("cross_b3").numbers["loss"]) > 1e-3  # the adapter does something
    loss.backward()
    assert_norms_near(gradient_norms(trained(made).items()), EXPECTED["grad_norms"], rel=1e-5)
    assert sum(p.numel() for p in trained(made).values()) == EXPECTED["trainable"]


def test_what_was_loaded_is_saved_with_the_same_bytes(tmp_path):
    from mimetic.policies.adapters import save_adapter

    made = policy()
    save_adapter(made, tmp_path)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        assert (tmp_path / name).read_bytes() == Path("tiny_lora", name).read_bytes()
    device_free = re.sub(r'"device": \w+|"device": "\w+"', "", config_to_json(made.config))
    assert device_free == re.sub(r'"device": "\w+"', "", Path("tiny_lora", CONFIG_JSON).read_text())


def test_merged_weights_give_the_same_loss():
    made = policy()
    separate = loss_of(made).item()
    assert len(merge(made)) == 13
    assert loss_of(made).item() == pytest.approx(separate, rel=1e-6)
    assert not any(p.requires_grad for p in made.parameters())


def test_the_default_targets_are_37_layers_at_full_size():
    data = json.loads((SMOLVLA / "full_state_dict.json").read_text())
    names = (
        {entry["name"] for entry in data["tensors"]} if isinstance(data.get("tensors"), list) else set(data["tensors"])
    )
    modules = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    matching = [name for name in modules if re.fullmatch(SmolVLAConfig().lora_targets, name)]
    assert len(matching) == 16 * 2 + 5
    stored = json.loads(Path("tiny_lora", ADAPTER_CONFIG).read_text())
    assert stored["target_modules"] == SmolVLAConfig().lora_targets


def test_mixed_precision_keeps_frozen_layers_small_and_trains_the_adapter():
    made = policy("mixed").train()
    layers = [module for module in made.modules() if isinstance(module, LoRALinear)]
    for name in ("q_proj", "v_proj"):
        layer = made.get_submodule(f"model.vlm_with_expert.lm_expert.layers.0.self_attn.{name}")
        assert layer.base_layer.weight.dtype is torch.bfloat16
    down = made.get_submodule("model.vlm_with_expert.lm_expert.layers.0.mlp.down_proj")
    assert down.weight.dtype is torch.bfloat16
    assert all(layer.lora_A.weight.dtype is torch.float32 for layer in layers)
    loss = loss_of(made)
    # The bound of the golden data for other casts than the reference's in bfloat16.
    assert loss.item() == pytest.approx(EXPECTED["loss"], rel=5e-3)
    loss.backward()
    found = gradient_norms(trained(made).items())
    assert found.keys() == EXPECTED["grad_norms"].keys()
    for name, norm in EXPECTED["grad_norms"].items():
        assert found[name] == pytest.approx(norm, rel=0.1), name  # sums of products with 8 bits; mostly within 2 %


@pytest.mark.parametrize("precision", ["float32", "mixed", "released"])
def test_a_new_adapter_changes_no_bit(precision):
    """Also where attaching it turns frozen float32 weights into the bfloat16 that they are multiplied in."""
    from mimetic.policies.adapter_config import AdapterConfig
    from mimetic.policies.adapters import attach

    made = case("cross_b3").policy(precision=precision)
    before = loss_of(made)
    attach(made, AdapterConfig(target_modules=made.config.lora_targets, base_model_name_or_path="tiny_cross"))
    assert torch.equal(loss_of(made), before)


def test_adapters_anywhere_in_the_backbone_get_gradients():
    """The prefix goes without gradients only where nothing in it is trained."""
    from mimetic.policies.adapter_config import AdapterConfig
    from mimetic.policies.adapters import attach

    made = case("cross_b3").policy()
    targets = r".*vision_model\..*\.(q|out)_proj|.*connector\..*proj|.*text_model\.layers\.[01]\..*(v|down)_proj"
    attach(made, AdapterConfig(target_modules=targets, r=2, base_model_name_or_path="tiny_cross"))
    for module in made.modules():
        if isinstance(module, LoRALinear):
            torch.nn.init.normal_(module.lora_B.weight, std=0.1)
    loss_of(made.train()).backward()
    without = [name for name, p in made.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    assert all(p.grad.abs().max() > 0 for p in made.parameters() if p.requires_grad)
    assert isinstance(made.frame_encoder(), str)  # features change with every step: nothing to cache
