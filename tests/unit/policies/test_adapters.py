"""Adapters of a policy: which layers, which files, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, KeyMismatch
from mimetic.names import ADAPTER_BASE_JSON, ADAPTER_BINARY, ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG_JSON, WEIGHTS
from mimetic.policies.adapter_config import AdapterConfig, read_adapter_config
from mimetic.policies.adapter_targets import find_targets
from mimetic.policies.adapters import attach, fingerprint, merge
from mimetic.policies.bricks.lora import LoRALinear
from mimetic.policies.checkpoint import load_pretrained, save_pretrained
from mimetic.policies.inspection import inspect_checkpoint
from mimetic.policies.merging import merge_into

TARGETS = ("linear1", "encoder.layers.0.linear2")


@pytest.fixture
def base(fixtures, tmp_path):
    """A whole policy that a test may break."""
    target = tmp_path / "base"
    shutil.copytree(fixtures / "act/state_env/checkpoint", target)
    return target


def describe(base, **options):
    return AdapterConfig(
        **{
            "target_modules": TARGETS,
            "r": 3,
            "lora_alpha": 6,
            "base_model_name_or_path": str(base),
            "base_fingerprint": fingerprint(base / WEIGHTS),
            **options,
        }
    )


def with_adapter(base, **options):
    """The policy with a new adapter whose B is not zero, and its pipelines."""
    loaded = load_pretrained(base)
    torch.manual_seed(0)
    attach(loaded.policy, describe(base, **options))
    for module in loaded.policy.modules():
        if isinstance(module, LoRALinear):
            nn.init.normal_(module.lora_B.weight)
    return loaded


@pytest.fixture
def folder(base):
    """An adapter on disk, beside its base."""
    target = base.parent / "adapter"
    loaded = with_adapter(base, modules_to_save=("action_head",))
    with torch.no_grad():
        loaded.policy.get_submodule("model.action_head").bias += 1
    save_pretrained(loaded.policy, target, loaded.preprocessor, loaded.postprocessor)
    return target


def batch(policy):
    generator = torch.Generator().manual_seed(0)
    inputs = policy.config.input_features.items()
    return {key: torch.randn(2, *feature.shape, generator=generator) for key, feature in inputs}


def chunk(policy):
    return policy.predict_chunk(batch(policy))


def edit(folder, **values):
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_tensors(folder, change):
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    change(tensors)
    save_file(tensors, folder / ADAPTER_WEIGHTS)


# Which layers


class Toy(nn.Module):
    """Two layers with the same ends, as in policies."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"q": nn.Linear(2, 2), "xq": nn.Linear(2, 2)}) for _ in range(2))
        self.norm = nn.LayerNorm(2)


def toy_targets(targets, **options):
    return find_targets(Toy(), AdapterConfig(target_modules=targets, **options))


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (("q",), ["layers.0.q", "layers.1.q"]),  # an end at a dot: not `xq`
        (("1.q", "0.xq"), ["layers.0.xq", "layers.1.q"]),
        (("layers.0.q",), ["layers.0.q"]),
        (r".*\.x?q", ["layers.0.q", "layers.0.xq", "layers.1.q", "layers.1.xq"]),
        (r"layers\.1\.q", ["layers.1.q"]),
        ("all-linear", ["layers.0.q", "layers.0.xq", "layers.1.q", "layers.1.xq"]),
    ],
)
def test_a_text_is_an_expression_for_the_whole_name_and_a_list_holds_ends(targets, found):
    assert toy_targets(targets) == found


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("q", "`q` in `--peft.target_modules` matches no module"),
        (("q", "kk"), "`kk` in `--peft.target_modules` matches no module"),
        ("(q", "no regular expression"),
        (("norm",), "`norm` is a LayerNorm"),
        (r"layers\.0", "`layers.0` is a ModuleDict"),
    ],
)
def test_what_matches_nothing_or_no_linear_layer_is_refused(targets, message):
    with pytest.raises(ConfigError) as error:
        toy_targets(targets)
    assert message in error.value.message


def test_the_hint_names_what_resembles_or_what_there_is():
    with pytest.raises(ConfigError) as error:
        toy_targets(("norn",))
    assert "`norm`" in error.value.hint
    with pytest.raises(ConfigError) as error:
        toy_targets(("zzzzzz",))
    assert error.value.hint == "linear layers end in q, xq"


def test_what_is_trained_fully_gets_no_adapter():
    assert toy_targets(("q",), modules_to_save=("layers.0",)) == ["layers.1.q"]
    with pytest.raises(ConfigError, match="nothing is left"):
        toy_targets(("q",), modules_to_save=("layers",))
    with pytest.raises(ConfigError, match=r"`head` in `--peft.full_training_modules` matches no module"):
        toy_targets(("q",), modules_to_save=("head",))


def test_attaching_freezes_all_else_and_says_what_is_trainable(base, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        policy = with_adapter(base, modules_to_save=("action_head",)).policy
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    adapted = [name for name, module in policy.named_modules() if isinstance(module, LoRALinear)]
    assert trained == {f"{name}.lora_{side}.weight" for name in adapted for side in "AB"} | {
        "model.action_head.weight",
        "model.action_head.bias",
    }
    assert "model.encoder.layers.0.linear2" in adapted
    assert not any("vae_encoder.layers.1.linear2" in name for name in adapted)
    assert policy.config.use_peft
    assert f"modules with an adapter: {len(adapted)} (linear1, linear2)" in caplog.text
    assert "trained fully: model.action_head" in caplog.text


def test_a_second_adapter_is_refused(base):
    policy = with_adapter(base).policy
    with pytest.raises(ConfigError, match="has an adapter already"):
        attach(policy, describe(base))


# Files


def test_the_folder_holds_only_what_was_trained(folder, base):
    names = {path.name for path in folder.iterdir()}
    assert names >= {ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG_JSON, ADAPTER_BASE_JSON, "policy_preprocessor.json"}
    assert WEIGHTS not in names
    assert json.loads((folder / CONFIG_JSON).read_text())["use_peft"] is True
    with safe_open(folder / ADAPTER_WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    stored = load_file(folder / ADAPTER_WEIGHTS)
    prefix = "base_model.model.model."
    assert {f"{prefix}action_head.weight", f"{prefix}decoder.layers.0.linear1.lora_A.weight"} <= stored.keys()
    assert not any("base_layer" in name for name in stored)
    described = json.loads((folder / ADAPTER_CONFIG).read_text())
    assert described["target_modules"] == list(TARGETS)
    assert described["modules_to_save"] == ["action_head"]
    assert described["base_model_name_or_path"] == str(base)
    assert (described["peft_type"], described["r"], described["lora_alpha"]) == ("LORA", 3, 6)


def test_loading_gives_the_saved_policy_and_saving_it_the_same_files(folder, base, tmp_path):
    loaded = load_pretrained(folder)
    reference = with_adapter(base, modules_to_save=("action_head",)).policy.eval()
    with torch.no_grad():
        reference.get_submodule("model.action_head").bias += 1
    assert torch.equal(chunk(loaded.policy), chunk(reference))
    assert not torch.equal(chunk(loaded.policy), chunk(load_pretrained(base).policy))
    assert loaded.report.is_complete
    save_pretrained(loaded.policy, tmp_path / "again", loaded.preprocessor, loaded.postprocessor)
    for path in folder.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_an_adapter_on_all_linear_layers_is_stored_by_their_names(base):
    policy = with_adapter(base, target_modules="all-linear").policy
    names = json.loads(policy.adapter.to_json())["target_modules"]
    assert "model.action_head" in names
    assert len(names) == sum(isinstance(module, LoRALinear) for module in policy.modules())


def test_a_folder_with_nothing_but_an_adapter_is_one_whatever_its_config_says(folder):
    path = folder / CONFIG_JSON
    path.write_text(path.read_text().replace('"use_peft": true', '"use_peft": false'))
    assert load_pretrained(folder).policy.adapter is not None


@pytest.mark.parametrize("allowed", [False, True])
def test_missing_and_unexpected_tensors_are_named(folder, allowed):
    name = "base_model.model.model.encoder.layers.0.linear2.lora_A.weight"

    def rename(tensors):
        tensors[name.replace("linear2", "linear3")] = tensors.pop(name)

    edit_tensors(folder, rename)
    if allowed:
        loaded = load_pretrained(folder, allow_missing=["*linear2*", "*linear3*"])
        assert loaded.report.reinitialised == (name,)
        assert loaded.policy.get_parameter("model.encoder.layers.0.linear2.lora_A.weight").abs().max() <= 1
        return
    with pytest.raises(KeyMismatch, match="missing 1, unexpected 1") as error:
        load_pretrained(folder)
    assert ADAPTER_WEIGHTS in error.value.message
    assert name in error.value.message


def test_a_rank_that_differs_from_the_file_is_refused(folder):
    edit(folder, r=2)
    with pytest.raises(KeyMismatch, match="other shape"):
        load_pretrained(folder)


def test_targets_that_the_policy_does_not_have_are_refused(folder):
    edit(folder, target_modules=["q_proj"])
    with pytest.raises(CheckpointError, match=r"adapter_config.json` does not fit the policy: `q_proj`"):
        load_pretrained(folder)


def test_a_pickle_is_never_opened(folder):
    (folder / ADAPTER_WEIGHTS).rename(folder / ADAPTER_BINARY)
    with pytest.raises(CheckpointError, match="pickle") as error:
        load_pretrained(folder)
    assert "peft" in error.value.hint


def test_what_mimetic_does_not_build_is_refused_at_once(folder):
    edit(folder, use_dora=True, rank_pattern={"q": 2}, from_the_future=3, init_lora_weights="pissa", lora_dropout=2)
    with pytest.raises(CheckpointError) as error:
        load_pretrained(folder)
    for name in ("use_dora", "rank_pattern", "from_the_future", "init_lora_weights", "lora_dropout"):
        assert f"`{name}`" in error.value.message
    edit(folder, peft_type="MISS")
    with pytest.raises(CheckpointError, match="LORA only"):
        load_pretrained(folder)


def test_options_that_do_nothing_and_old_files_are_read(folder):
    path = folder / ADAPTER_CONFIG
    few = ("peft_type", "base_model_name_or_path", "r", "lora_alpha", "target_modules", "modules_to_save")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({key: stored[key] for key in few} | {"from_the_future": None, "other": False}))
    assert read_adapter_config(folder).lora_dropout == 0.0
    load_pretrained(folder)


def test_marked_as_an_adapter_without_being_one(base):
    path = base / CONFIG_JSON
    path.write_text(path.read_text().replace('"use_peft": false', '"use_peft": true'))
    with pytest.raises(CheckpointNotFound, match="no adapter_config"):
        load_pretrained(base)


# The base policy


def test_a_base_that_has_moved_is_an_error_that_names_the_file_to_edit(folder, base):
    base.rename(base.with_name("elsewhere"))
    with pytest.raises(CheckpointNotFound, match="needs its base policy") as error:
        load_pretrained(folder)
    assert str(folder / ADAPTER_CONFIG) in error.value.hint
    assert "base_model_name_or_path" in error.value.hint
    edit(folder, base_model_name_or_path=str(base.with_name("elsewhere")))
    load_pretrained(folder)


def test_a_relative_base_is_found_beside_the_adapter_too(folder, base, tmp_path, monkeypatch):
    edit(folder, base_model_name_or_path="base")
    monkeypatch.chdir(base.parent)
    here = chunk(load_pretrained("adapter").policy)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert torch.equal(chunk(load_pretrained(folder).policy), here)


def test_other_base_weights_are_refused(folder, base):
    tensors = load_file(base / WEIGHTS)
    tensors["model.action_head.bias"][0] += 1e-3
    save_file(tensors, base / WEIGHTS)
    with pytest.raises(CheckpointError, match="was trained on other weights") as error:
        load_pretrained(folder)
    assert ADAPTER_BASE_JSON in error.value.hint
    (folder / ADAPTER_BASE_JSON).unlink()  # as an adapter from LeRobot
    load_pretrained(folder)


def test_a_large_file_is_told_apart_by_pieces(tmp_path):
    one, other = (tmp_path / f"{name}.safetensors" for name in "ab")
    tensors = {"x": torch.zeros(3_000_000), "y": torch.zeros(3)}
    save_file(tensors, one)
    tensors["x"] += 1e-3  # as a training step does: everywhere
    save_file(tensors, other)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(Path(shutil.copy(one, tmp_path / "c")))


def test_an_adapter_on_an_adapter_is_refused(folder, base):
    outer = base.parent / "outer"
    shutil.copytree(folder, outer)
    edit(outer, base_model_name_or_path=str(folder))
    with pytest.raises(CheckpointNotFound, match="is an adapter itself") as error:
        load_pretrained(outer)
    assert "--merge_to" in error.value.hint


# Merging


def test_merging_keeps_what_the_policy_does(folder):
    loaded = load_pretrained(folder)
    before = chunk(loaded.policy)
    names = merge(loaded.policy)
    assert "model.encoder.layers.0.linear2" in names
    assert not any(isinstance(module, LoRALinear) for module in loaded.policy.modules())
    torch.testing.assert_close(chunk(loaded.policy), before, rtol=1e-5, atol=1e-5)  # actions of size 1, float32
    with pytest.raises(ConfigError, match="no adapter"):
        merge(loaded.policy)


def test_a_merged_policy_stands_on_its_own(folder, base, tmp_path):
    before = chunk(load_pretrained(folder).policy)
    merge_into(folder, tmp_path / "whole")
    with pytest.raises(CheckpointError, match="is not empty"):
        merge_into(folder, tmp_path / "whole")
    shutil.rmtree(base)
    loaded = load_pretrained(tmp_path / "whole")
    assert loaded.policy.adapter is None
    assert not loaded.config.use_peft
    torch.testing.assert_close(chunk(loaded.policy), before, rtol=1e-5, atol=1e-5)


def test_only_adapters_are_merged(base, tmp_path):
    with pytest.raises(CheckpointError, match="is a whole policy"):
        merge_into(base, tmp_path / "whole")


# Inspection


def test_inspecting_tells_of_the_adapter_and_of_a_base_that_is_gone(folder, base):
    found = inspect_checkpoint(folder)
    assert found.problems == []
    assert found.adapter == f"LoRA, rank 3, alpha 6, on the policy {base}"
    assert found.to_json()["adapter"] == found.adapter
    assert found.weights_bytes == (folder / ADAPTER_WEIGHTS).stat().st_size
    assert len(found.report.matched) == len(load_file(folder / ADAPTER_WEIGHTS))
    shutil.rmtree(base)
    assert "needs its base policy" in inspect_checkpoint(folder).problems[0][0]


def test_the_description_is_what_peft_would_write(base):
    adapter = replace(describe(base), auto_mapping={"a": "b"})
    data = json.loads(adapter.to_json())
    assert list(data) == sorted(data)
    assert "base_fingerprint" not in data
    assert data["lora_alpha"] == 6
    assert data["inference_mode"] is True
