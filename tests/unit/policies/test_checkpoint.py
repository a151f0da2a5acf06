"""Loading is complete or refused, and never disturbs what it should not."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from mimetic import log
from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, DeviceError, KeyMismatch, StatsError
from mimetic.names import WEIGHTS
from mimetic.policies.checkpoint import load_pretrained, load_weights, read_config
from mimetic.policies.tensors import SkipInitialisation, open_weights, save_weights

HEAD = ("model.action_head.weight", "model.action_head.bias")


@pytest.fixture
def folder(fixtures, tmp_path):
    """A copy that a test may break."""
    target = tmp_path / "pretrained_model"
    shutil.copytree(fixtures / "act/state_env/checkpoint", target)
    return target


def change_weights(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def rename_head(tensors):
    for name in HEAD:
        tensors[name.replace("action_head", "act_head")] = tensors.pop(name)


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=4))


# Weights


def test_renamed_tensors_are_refused_with_counts_nearest_names_and_the_flag(folder):
    change_weights(folder, rename_head)
    with pytest.raises(KeyMismatch, match="missing 2, unexpected 2") as error:
        load_pretrained(folder)
    assert "`model.action_head.weight` (nearest: `model.act_head.weight`)" in error.value.message
    assert "`model.act_head.bias`" in error.value.message
    assert """`--allow_missing='["model.action_head*", "model.act_head*"]'`""" in error.value.hint


def test_the_flag_of_the_hint_loads_and_says_what_was_initialised(folder, caplog, monkeypatch):
    monkeypatch.setattr(log.LOGGER, "propagate", True)
    complete = load_pretrained(folder).policy.state_dict()
    change_weights(folder, rename_head)
    with pytest.raises(KeyMismatch, match="missing 0, unexpected 2"):  # what is superfluous must be allowed too
        load_pretrained(folder, allow_missing=["model.action_head*"])
    torch.manual_seed(3)
    with caplog.at_level(logging.WARNING, "mimetic"):
        loaded = load_pretrained(folder, allow_missing=["model.action_head*", "model.act_head*"])
    assert set(loaded.report.reinitialised) == set(HEAD)
    assert "re-initialised: model.action_head.weight, model.action_head.bias" in caplog.text
    for name, value in loaded.policy.state_dict().items():
        assert bool(torch.isfinite(value).all())
        assert torch.equal(value, complete[name]) == (name not in HEAD)


def test_a_mismatch_of_shapes_is_named_and_can_be_allowed(folder):
    change_weights(folder, lambda tensors: tensors.update({HEAD[1]: torch.zeros(7)}))
    with pytest.raises(KeyMismatch, match=r"`model.action_head.bias` is \(7,\) and should be \(4,\)"):
        load_pretrained(folder)
    assert load_pretrained(folder, allow_missing=[HEAD[1]]).report.reinitialised == (HEAD[1],)


def test_nothing_is_copied_into_a_policy_that_does_not_fit(folder):
    policy = load_pretrained(folder).policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}

    def spoil(tensors):
        for name in tensors:
            tensors[name] = tensors[name] + 1
        rename_head(tensors)

    change_weights(folder, spoil)
    with pytest.raises(KeyMismatch):
        load_weights(policy, folder)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def test_loading_draws_no_random_numbers(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    load_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_skipping_initialisation_covers_torchs_own_layers():
    before = torch.get_rng_state()
    with SkipInitialisation():
        layers = [nn.Linear(3, 3), nn.Conv2d(3, 3, 3), nn.Embedding(3, 3), nn.MultiheadAttention(4, 2), nn.LSTM(3, 3)]
        norm = nn.LayerNorm(3)
        nn.init.xavier_uniform_(layers[0].weight)
        nn.init.trunc_normal_(layers[0].weight)
        nn.init.orthogonal_(layers[0].weight)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(norm.weight, torch.ones(3))  # constants are not random and are set
    nn.Linear(3, 3)
    assert not torch.equal(torch.get_rng_state(), before)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.z = nn.Linear(4, 4, bias=False)
        self.a = nn.Linear(4, 4, bias=False)
        self.a.weight = self.z.weight
        self.register_buffer("part", torch.arange(10.0)[2:5])


def test_shared_tensors_are_stored_once_with_lerobots_metadata(tmp_path):
    module = Tied()
    save_weights(module.state_dict(), tmp_path / WEIGHTS)
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert set(file.keys()) == {"a.weight", "part"}
        assert file.metadata() == {"z.weight": "a.weight"}
    assert open_weights(tmp_path / WEIGHTS).tensors.keys() == {"a.weight", "part", "z.weight"}
    other = Tied()
    other.part.zero_()
    report = load_weights(other, tmp_path)
    assert set(report.matched) == {"a.weight", "z.weight", "part"}
    assert torch.equal(other.z.weight, module.z.weight)
    assert torch.equal(other.part, torch.tensor([2.0, 3.0, 4.0]))


def test_tied_tensors_load_from_either_name(tmp_path):
    for name in ("a.weight", "z.weight"):
        save_file({name: torch.ones(4, 4), "part": torch.zeros(3)}, tmp_path / WEIGHTS)
        module = Tied()
        load_weights(module, tmp_path)
        assert torch.equal(module.a.weight, torch.ones(4, 4))


def test_header_metadata_of_later_versions_are_no_tensors(tmp_path):
    save_file({"a.weight": torch.ones(4, 4), "part": torch.zeros(3)}, tmp_path / WEIGHTS, metadata={"format": "pt"})
    assert open_weights(tmp_path / WEIGHTS).tensors.keys() == {"a.weight", "part"}
    load_weights(Tied(), tmp_path)


def test_weights_of_another_precision_are_cast_to_the_policys(folder):
    change_weights(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    policy = load_pretrained(folder).policy
    assert {value.dtype for value in policy.state_dict().values()} == {torch.float32}


def test_missing_weights_are_named(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointNotFound, match=WEIGHTS):
        load_pretrained(folder)


# Config


def test_an_unknown_policy_type_shows_the_closest(folder):
    change_config(folder, type="actt")
    with pytest.raises(CheckpointError, match="unknown policy `actt`") as error:
        read_config(folder)
    assert "`act`" in error.value.hint
    change_config(folder, type="pi05")
    with pytest.raises(CheckpointError, match="not part of mimetic yet"):
        read_config(folder)


def test_all_unknown_settings_are_listed(folder):
    change_config(folder, use_visual_memory=True, memory_frames=4)
    with pytest.raises(CheckpointError, match="`use_visual_memory` = true, `memory_frames` = 4"):
        read_config(folder)


def test_unknown_settings_at_their_neutral_value_are_accepted(folder, monkeypatch):
    from mimetic.policies.act.config import ACTConfig

    monkeypatch.setattr(ACTConfig, "neutral_unknown", {"use_visual_memory": False})
    change_config(folder, use_visual_memory=False)
    assert read_config(folder).chunk_size == 10
    change_config(folder, use_visual_memory=True)
    with pytest.raises(CheckpointError, match="use_visual_memory"):
        read_config(folder)


def test_missing_settings_take_their_defaults(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("use_peft", "pretrained_path", "kl_weight"):
        del config[name]
    path.write_text(json.dumps(config))
    assert read_config(folder).kl_weight == 10.0


def test_overrides_replace_settings_and_are_checked(folder):
    assert read_config(folder, {"n_action_steps": 3}).n_action_steps == 3
    assert load_pretrained(folder, config_overrides={"n_action_steps": 3}).policy.config.n_action_steps == 3
    with pytest.raises(ConfigError, match="no setting `n_action_step`") as error:
        read_config(folder, {"n_action_step": 3})
    assert "`n_action_steps`" in error.value.hint
    with pytest.raises(ConfigError, match="n_action_steps=11"):
        read_config(folder, {"n_action_steps": 11})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"n_obs_steps": 1}'])
def test_a_damaged_config_is_named(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config.json"):
        read_config(folder)


# The whole


def test_a_run_folder_stands_for_its_last_checkpoint(fixtures):
    run = fixtures / "training/run_preset"
    last, sixth = load_pretrained(run).policy, load_pretrained(run / "checkpoints/000006").policy
    third = load_pretrained(run / "checkpoints/000003").policy.state_dict()
    assert all(value.equal(last.state_dict()[name]) for name, value in sixth.state_dict().items())
    assert not all(value.equal(third[name]) for name, value in last.state_dict().items())


def test_a_checkpoint_saved_on_a_gpu_loads_on_the_processor(folder):
    change_config(folder, device="cuda")
    path = folder / "policy_preprocessor.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "cuda"'))
    loaded = load_pretrained(folder, device="cpu")
    assert loaded.config.device == "cpu"
    assert loaded.preprocessor.steps[2].device.type == "cpu"
    with pytest.raises(DeviceError):
        load_pretrained(folder, device="tpu")


def test_new_statistics_replace_the_stored_ones_in_both_pipelines(folder):
    config = read_config(folder)
    features = {**config.input_features, **config.output_features}
    stats = {key: {"mean": torch.full(f.shape, 5.0), "std": torch.full(f.shape, 2.0)} for key, f in features.items()}
    loaded = load_pretrained(folder, stats=stats, rename_map={"observation.joints": "observation.state"})
    batch = loaded.preprocessor({"observation.joints": torch.full((1, 6), 7.0)})
    assert torch.equal(batch["observation.state"], torch.ones(1, 6))
    assert torch.equal(loaded.postprocessor.run_action(torch.ones(1, 4)), torch.full((1, 4), 7.0))
    del stats["action"]
    with pytest.raises(StatsError, match="`action`"):
        load_pretrained(folder, stats=stats)


def test_one_pipeline_without_the_other_is_damage_and_not_age(folder):
    (folder / "policy_postprocessor.json").unlink()
    with pytest.raises(CheckpointNotFound, match=r"policy_postprocessor.json"):
        load_pretrained(folder)


def test_a_checkpoint_without_any_statistics_is_refused(folder):
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        (folder / name).unlink()
    with pytest.raises(StatsError, match="no statistics stand among its weights"):
        load_pretrained(folder)
