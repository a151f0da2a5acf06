"""Sizes and weights of the vision-language model: where they come from, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, KeyMismatch, OfflineError
from mimetic.policies.smolvla.backbone import (
    KNOWN,
    companion_files,
    find_backbone,
    find_vlm,
    load_backbone_weights,
)
from mimetic.policies.smolvla.config import DEFAULT_VLM, SmolVLAConfig
from mimetic.policies.smolvla.network import VLM
from mimetic.policies.smolvla.vlm_config import image_token_ids, parse_vlm_config, vlm_config_json
from mimetic.testing.smolvla import TINY_BACKBONE, tiny_smolvla_config, write_tiny_vlm


@pytest.fixture
def vlm(tmp_path):
    return write_tiny_vlm(tmp_path / "vlm")


def change(folder, part="", **values):
    path = folder / "config.json"
    data = json.loads(path.read_text())
    target = data[part] if part else data
    for key, value in values.items():
        target[key] = value
        if value is None:
            del target[key]
    path.write_text(json.dumps(data))


def empty_vlm(layers=4):
    with torch.device("meta"):
        network = VLM(TINY_BACKBONE, layers)
    return network.to_empty(device="cpu")


def test_sizes_of_the_published_model_need_no_file_and_no_network(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sizes = find_backbone(SmolVLAConfig(add_image_special_tokens=True))
    assert (sizes.text_hidden, sizes.text_layers, sizes.text_heads, sizes.text_kv_heads) == (960, 32, 15, 5)
    assert (sizes.text_head_dim, sizes.text_mlp, sizes.text_rms_eps, sizes.vocab_size) == (64, 2560, 1e-5, 49280)
    assert (sizes.vision_hidden, sizes.vision_layers, sizes.vision_heads, sizes.vision_mlp) == (768, 12, 12, 3072)
    assert (sizes.image_size, sizes.patch_size, sizes.scale_factor, sizes.image_tokens) == (512, 16, 4, 64)
    assert (sizes.text_dtype, sizes.vision_dtype) == (torch.bfloat16, torch.float32)
    assert (sizes.fake_image_token, sizes.global_image_token) == (49189, 49152)


def test_the_known_sizes_give_the_shapes_of_the_published_checkpoint(fixtures):
    """500 names and shapes of the full-size model, without its memory."""
    from mimetic.policies.smolvla.network import SmolVLANetwork

    listed = json.loads((fixtures / "smolvla/full_state_dict.json").read_text())
    entries = listed.get("tensors", listed)
    wanted = (
        {e["name"]: tuple(e["shape"]) for e in entries}
        if isinstance(entries, list)
        else {name: tuple(e["shape"]) for name, e in entries.items()}
    )
    with torch.device("meta"):
        network = SmolVLANetwork(SmolVLAConfig(), KNOWN[DEFAULT_VLM])
    assert {f"model.{name}": tuple(t.shape) for name, t in network.state_dict().items()} == wanted


def test_sizes_from_a_folder(fixtures):
    sizes = find_backbone(tiny_smolvla_config(fixtures / "smolvla/vlm_tiny", resize_imgs_with_padding=(64, 64)))
    assert (sizes.text_hidden, sizes.text_layers, sizes.text_heads, sizes.text_kv_heads) == (48, 5, 6, 2)
    assert (sizes.text_head_dim, sizes.text_mlp, sizes.text_rms_eps, sizes.vocab_size) == (8, 96, 1e-5, 336)
    assert (sizes.vision_hidden, sizes.vision_layers, sizes.vision_heads, sizes.vision_mlp) == (32, 2, 4, 64)
    assert (sizes.vision_eps, sizes.image_size, sizes.patch_size, sizes.scale_factor) == (1e-6, 64, 8, 4)
    assert (sizes.text_dtype, sizes.vision_dtype, sizes.text_bias) == (torch.float32, torch.float32, False)


def test_special_tokens_come_from_the_tokenizer(fixtures):
    config = tiny_smolvla_config(
        fixtures / "smolvla/vlm_tiny", resize_imgs_with_padding=(64, 64), add_image_special_tokens=True
    )
    sizes = find_backbone(config)
    assert (sizes.fake_image_token, sizes.global_image_token) == (325, 288)  # fixtures/smolvla/README.md


def test_what_a_config_leaves_out_has_the_defaults_of_transformers():
    """The values that transformers 5.5.4 gives to `{"model_type": "smolvlm", "text_config": {...}}`."""
    data = {
        "model_type": "smolvlm",
        "text_config": {"model_type": "llama", "hidden_size": 48, "num_attention_heads": 6},
    }
    data["vision_config"] = {"hidden_size": 1152, "patch_size": 16}
    sizes = parse_vlm_config(data, where="config.json")
    assert (sizes.text_mlp, sizes.text_layers, sizes.text_kv_heads, sizes.text_head_dim) == (11008, 32, 6, 8)
    assert (sizes.text_rms_eps, sizes.vocab_size, sizes.text_bias) == (1e-6, 32000, False)
    assert (sizes.vision_mlp, sizes.vision_layers, sizes.vision_heads) == (3072, 12, 16)
    assert (sizes.vision_eps, sizes.image_size, sizes.scale_factor) == (1e-6, 224, 2)
    assert (sizes.text_dtype, sizes.vision_dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_both_spellings_of_the_dtype_are_read_and_the_top_level_is_not_inherited(vlm, key):
    """LeRobot 0.6.1 with transformers 5.5.4 builds the text model in the dtype of `text_config` only."""
    change(vlm, "text_config", torch_dtype=None)
    change(vlm, torch_dtype="bfloat16")
    assert find_backbone(tiny_smolvla_config(vlm)).text_dtype is torch.float32
    change(vlm, "text_config", **{key: "bfloat16"})
    assert find_backbone(tiny_smolvla_config(vlm)).text_dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("part", "values", "wanted"),
    [
        ("", {"model_type": "paligemma"}, "`model_type` is 'paligemma'"),
        ("", {"scale_factor": 3}, "`vision_config.image_size` 32 is no multiple of `patch_size` 8 x `scale_factor` 3"),
        ("text_config", {"model_type": "qwen2"}, "`text_config.model_type` is 'qwen2'"),
        ("text_config", {"num_key_value_heads": 3}, "4 is no multiple of `num_key_value_heads` 3"),
        ("text_config", {"hidden_act": "gelu"}, "`text_config.hidden_act` is 'gelu', and only 'silu'"),
        ("text_config", {"hidden_size": "32"}, "`text_config.hidden_size` is '32' and must be a whole number"),
        ("text_config", {"rms_norm_eps": 0}, "`text_config.rms_norm_eps` is 0"),
        ("text_config", {"torch_dtype": "float8"}, "must be one of float32, bfloat16, float16"),
        ("text_config", {"head_dim": 7}, "`text_config.head_dim` 7 is odd"),
        ("vision_config", {"num_attention_heads": 3}, "`vision_config.hidden_size` 16 is no multiple"),
        ("vision_config", {"image_size": [32, 24]}, "`vision_config.image_size` is [32, 24] and must be a whole"),
        ("vision_config", {"num_channels": 4}, "`vision_config.num_channels` is 4"),
    ],
)
def test_another_model_is_refused_by_the_name_of_the_setting(vlm, part, values, wanted):
    change(vlm, part, **values)
    with pytest.raises(ConfigError) as error:
        find_backbone(tiny_smolvla_config(vlm))
    assert wanted in error.value.message
    assert str(vlm / "config.json") in error.value.message


@pytest.mark.parametrize(
    ("content", "wanted"), [("{", "is no JSON"), ("[]", "holds a list"), ('{"text_config": 3}', "`text_config` is no")]
)
def test_a_damaged_config_is_refused(vlm, content, wanted):
    (vlm / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=wanted):
        find_backbone(tiny_smolvla_config(vlm))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"resize_imgs_with_padding": (64, 64)}, "reads 32 x 32 pixels"),
        ({"expert_width_multiplier": 0.6}, "makes the expert 19 wide"),
        ({"expert_width_multiplier": 0.01}, "makes the expert 0 wide"),
        ({"num_vlm_layers": 0, "num_expert_layers": 4}, "does not divide the 5 layers"),
        ({"num_vlm_layers": 99, "num_expert_layers": 1}, "fewer layers than the 5"),
    ],
)
def test_settings_that_do_not_fit_the_model_are_refused(vlm, changes, wanted):
    with pytest.raises(ConfigError, match=wanted):
        find_backbone(tiny_smolvla_config(vlm, **changes))


def test_a_checkpoint_brings_its_backbone_along(vlm, tmp_path):
    config = tiny_smolvla_config(vlm)
    checkpoint = tmp_path / "checkpoint"
    for name, content in companion_files(config).items():
        (checkpoint / name).parent.mkdir(parents=True)
        (checkpoint / name).write_bytes(content)
    assert (checkpoint / "backbone/config.json").read_bytes() == (vlm / "config.json").read_bytes()
    (checkpoint / "tokenizer").mkdir()
    shutil.copy(vlm / "tokenizer.json", checkpoint / "tokenizer")
    wanted = find_backbone(config)
    shutil.rmtree(vlm)
    with pytest.raises(ConfigError, match="is no folder here"):
        find_backbone(config)
    assert find_backbone(config.located(checkpoint)) == wanted
    with_tokens = tiny_smolvla_config(vlm, add_image_special_tokens=True).located(checkpoint)
    assert find_backbone(with_tokens) == TINY_BACKBONE
    # Saved again from the loaded policy, the file is the same.
    assert companion_files(config.located(checkpoint)) == companion_files(with_tokens)


def test_the_file_for_the_known_model_says_what_the_table_says():
    (content,) = companion_files(SmolVLAConfig()).values()
    known = KNOWN[DEFAULT_VLM]
    read = parse_vlm_config(json.loads(content), where="", fake_image_token=49189, global_image_token=49152)
    assert read == known
    assert vlm_config_json(read) == json.loads(content)


def test_special_tokens_without_a_tokenizer_are_asked_for(vlm):
    (vlm / "tokenizer.json").unlink()
    assert find_backbone(tiny_smolvla_config(vlm)).fake_image_token == -1
    with pytest.raises(ConfigError, match="add_image_special_tokens=true` needs the tokenizer"):
        find_backbone(tiny_smolvla_config(vlm, add_image_special_tokens=True))
    (vlm / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 5, "content": "<global-img>"}]}))
    with pytest.raises(ConfigError, match="has ids -1 and 5"):
        find_backbone(tiny_smolvla_config(vlm, add_image_special_tokens=True))


def test_token_ids_also_from_the_vocabulary():
    vocabulary = {"model": {"vocab": {"<fake_token_around_image>": 7, "<global-img>": 8}}}
    assert image_token_ids(vocabulary) == (7, 8)
    assert image_token_ids({"model": {"vocab": []}}) == (-1, -1)


@pytest.mark.parametrize("name", ["vlm_tiny", "./nowhere", "/no/such/folder", "a/b/c"])
def test_a_folder_that_is_not_there_is_told_and_not_looked_for_on_the_hub(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"vlm_model_name=.* is no folder here .* and no hub id"):
        find_backbone(tiny_smolvla_config(name))


def test_a_hub_id_offline_says_that_the_network_is_missing():
    with pytest.raises(OfflineError, match="me/vlm"):
        find_backbone(tiny_smolvla_config("me/vlm"))


def test_the_hub_cache_is_used_without_the_network(monkeypatch, tmp_path, vlm):
    snapshot = tmp_path / "cache/models--me--vlm/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(vlm, snapshot)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert find_vlm("me/vlm") == snapshot
    assert find_backbone(tiny_smolvla_config("me/vlm")).text_hidden == 32
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(OfflineError):  # sizes are there, weights are not
        load_backbone_weights(empty_vlm(), tiny_smolvla_config("me/vlm"))


def test_a_folder_without_config_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        find_backbone(tiny_smolvla_config(tmp_path))


def equals(network, stored):
    return all(torch.equal(tensor, stored[name]) for name, tensor in network.state_dict().items())


def test_weights_are_copied_and_layers_beyond_the_policy_skipped(vlm):
    network = empty_vlm(layers=2)
    load_backbone_weights(network, tiny_smolvla_config(vlm))
    stored = load_file(vlm / "model.safetensors")
    assert len(stored) > len(network.state_dict())
    assert equals(network, stored)


def test_weights_in_several_files_and_without_the_outer_name(vlm):
    stored = load_file(vlm / "model.safetensors")
    (vlm / "model.safetensors").unlink()
    short = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    parts = [dict(list(short.items())[:20]), dict(list(short.items())[20:])]
    names = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, vlm / name)
    index = {"weight_map": {key: name for name, part in zip(names, parts, strict=True) for key in part}}
    (vlm / "model.safetensors.index.json").write_text(json.dumps(index))
    network = empty_vlm()
    load_backbone_weights(network, tiny_smolvla_config(vlm))
    assert equals(network, stored)
    (vlm / names[1]).unlink()
    with pytest.raises(CheckpointNotFound, match=names[1]):
        load_backbone_weights(network, tiny_smolvla_config(vlm))
    index["weight_map"]["lm_head.weight"] = "../other.safetensors"
    (vlm / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside its folder"):
        load_backbone_weights(network, tiny_smolvla_config(vlm))


def test_weights_take_the_dtype_of_the_module(vlm):
    network = empty_vlm().to(torch.bfloat16)
    load_backbone_weights(network, tiny_smolvla_config(vlm))
    assert equals(network, {k: t.bfloat16() for k, t in load_file(vlm / "model.safetensors").items()})


def test_a_tied_head_is_the_embedding(vlm):
    stored = load_file(vlm / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, vlm / "model.safetensors")
    network = empty_vlm()
    with pytest.raises(KeyMismatch, match=r"missing: `lm_head\.weight`"):
        load_backbone_weights(network, tiny_smolvla_config(vlm))
    change(vlm, tie_word_embeddings=True)
    load_backbone_weights(network, tiny_smolvla_config(vlm))
    assert torch.equal(network.lm_head.weight, stored["model.text_model.embed_tokens.weight"])


def test_weights_of_another_model_change_nothing(vlm):
    stored = load_file(vlm / "model.safetensors")
    norm = "model.text_model.norm"
    stored[f"{norm}s.weight"] = stored.pop(f"{norm}.weight")
    stored["model.connector.modality_projection.proj.weight"] = torch.zeros(3, 2)
    stored["model.text_model.rotary.inv_freq"] = torch.zeros(4)  # a buffer that carries nothing
    save_file(stored, vlm / "model.safetensors")
    network = empty_vlm()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(KeyMismatch) as error:
        load_backbone_weights(network, tiny_smolvla_config(vlm))
    assert "missing 1, unexpected 1, other shape 1" in error.value.message
    assert f"missing: `{norm}.weight` (nearest: `{norm}s.weight`)" in error.value.message
    assert "`model.connector.modality_projection.proj.weight` is (3, 2) and should be" in error.value.message
    assert all(tensor.equal(before[name]) for name, tensor in network.state_dict().items() if not tensor.isnan().any())


def test_a_model_without_weights_says_what_to_do(fixtures):
    with pytest.raises(ConfigError) as error:
        load_backbone_weights(empty_vlm(), tiny_smolvla_config(fixtures / "smolvla/vlm_tiny"))
    assert "holds no weights (model.safetensors), which a new policy starts from" in error.value.message
    assert "--policy.path=lerobot/smolvla_base" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("changes", "frozen"),
    [({}, "train_expert_only"), ({"train_expert_only": False}, "freeze_vision_encoder")],
)
def test_a_random_model_is_never_frozen(vlm, changes, frozen):
    config = tiny_smolvla_config(vlm, load_vlm_weights=False, **changes)
    with pytest.raises(ConfigError) as error:
        load_backbone_weights(empty_vlm(), config)
    assert f"`--policy.{frozen}=true` keeps it random" in error.value.message
    assert "`--policy.load_vlm_weights`" in (error.value.hint or "")


def test_a_random_model_that_is_trained_is_told(vlm, caplog):
    config = tiny_smolvla_config(vlm, load_vlm_weights=False, train_expert_only=False, freeze_vision_encoder=False)
    network = empty_vlm()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with caplog.at_level("WARNING", logger="mimetic"):
        load_backbone_weights(network, config)
    assert "starts from random weights" in caplog.text
    assert all(tensor.equal(before[name]) for name, tensor in network.state_dict().items() if not tensor.isnan().any())
