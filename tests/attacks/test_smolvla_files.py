"""SmolVLA checkpoints made by someone hostile or careless: one clear error, soon, and nothing large is allocated.

A file whose sizes contradict the weights beside it must be refused before a model of these sizes is built.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mimetic.errors import CheckpointError, ConfigError, MimeticError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapters import attach, fingerprint
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, save_pretrained
from mimetic.policies.inspection import inspect_checkpoint
from mimetic.testing.smolvla import tiny_smolvla_config, write_tiny_vlm

STATE, ACTION, CAMERA = "observation.state", "action", "observation.images.a"
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
LAYER = "model.action_out_proj.weight"
BACKBONE, TOKENIZER = "backbone/config.json", "tokenizer/tokenizer.json"
SECONDS = 20
"""Far above what a refusal takes (0.1 s), and far below what the attacks take (for ever)."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("made")
    vlm = write_tiny_vlm(place / "vlm")
    config = tiny_smolvla_config(
        vlm,
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (6,)),
            CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 16, 16)),
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (3,))},
    )
    policy = make_policy(config)
    stats = {key: {"mean": torch.zeros(n), "std": torch.ones(n)} for key, n in ((STATE, 6), (ACTION, 3))}
    pipelines = policy.config.make_pipelines(
        input_features=config.input_features,
        output_features=config.output_features,
        norm_map=config.norm_map,
        stats=stats,
    )
    save_pretrained(policy, place / "whole", *pipelines)
    shutil.rmtree(vlm)
    loaded = load_pretrained(place / "whole")
    adapter = AdapterConfig(
        target_modules=r".*expert\.layers.*\.(q|v)_proj",
        r=2,
        lora_alpha=4,
        base_model_name_or_path=str(place / "whole"),
        base_fingerprint=fingerprint(place / "whole" / WEIGHTS),
    )
    attach(loaded.policy, adapter)
    save_pretrained(loaded.policy, place / "adapter", loaded.preprocessor, loaded.postprocessor)
    return place


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made / "whole", tmp_path / "whole")
    return tmp_path / "whole"


@pytest.fixture
def adapter(made, tmp_path):
    shutil.copytree(made / "adapter", tmp_path / "adapter")
    return tmp_path / "adapter"


@contextmanager
def soon():
    """Fails the test instead of hanging, also inside code that catches `Exception`."""

    class TooLong(BaseException):
        pass

    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def edit(path, **changes):
    data = json.loads(path.read_text())
    for name, value in changes.items():
        part = data
        *parents, last = name.split("__")
        for parent in parents:
            part = part[parent]
        part[last] = value
    path.write_text(json.dumps(data))


def use(folder):
    """Load a policy and predict, as a robot would."""
    loaded = load_pretrained(folder)
    batch = {CAMERA: torch.zeros(1, 3, 16, 16), STATE: torch.zeros(1, 6), "task": ["pick up the cube " * 8]}
    return loaded.policy.predict_chunk(loaded.preprocessor(batch))


def refused(folder, match, monkeypatch=None):
    """Using the folder ends in one of mimetic's errors, soon; with `monkeypatch`, before any weight has memory."""
    if monkeypatch is not None:
        monkeypatch.setattr(nn.Module, "to_empty", lambda *a, **k: pytest.fail("memory was allocated"))
    with soon(), pytest.raises(MimeticError, match=match):
        use(folder)


def test_the_untouched_checkpoints_are_used(folder, adapter):
    assert torch.isfinite(use(folder)).all()
    assert torch.isfinite(use(adapter)).all()


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunk_size", 10**9),
        ("chunk_size", 10**30),
        ("num_steps", 10**9),
        ("empty_cameras", 10**9),
        ("tokenizer_max_length", 10**12),
        ("expert_width_multiplier", 1e9),
        ("expert_width_multiplier", 1e300),
        ("expert_width_multiplier", float("nan")),
        ("expert_width_multiplier", float("inf")),
        ("expert_width_multiplier", -1.0),
        ("max_state_dim", 10**9),
        ("max_state_dim", 10**30),
        ("max_action_dim", 10**9),
        ("resize_imgs_with_padding", [10**9, 10**9]),
        ("min_period", 0.0),
        ("min_period", 1e-320),
        ("min_period", 5.0),
        ("min_period", float("nan")),
        ("max_period", float("inf")),
        ("num_vlm_layers", 2.5),
        ("vlm_model_name", "\\\\evil\\share"),
        ("vlm_model_name", "//evil/share"),
        ("rtc_config", {"max_guidance_weight": float("nan")}),
    ],
)
def test_absurd_settings_are_refused_before_anything_is_built(folder, monkeypatch, name, value):
    edit(folder / "config.json", **{name: value})
    refused(folder, "must|expected|describe a model of|is more than|is a network path|reads 32 x 32", monkeypatch)


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_deep_nesting_is_refused(folder, depth):
    path = folder / "config.json"
    path.write_text(f'{path.read_text()[:-1]}, "deep": {"[" * depth}{"]" * depth}}}')
    refused(folder, r"config\.json` is no JSON")


@pytest.mark.parametrize("file", ["config.json", BACKBONE, "policy_preprocessor.json"])
def test_a_gigabyte_of_settings_is_not_read(folder, file, monkeypatch):
    os.truncate(folder / file, 1 << 30)  # sparse: it takes no space
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read") if path == folder / file else read(path))
    refused(folder, r"has 1074 MB")


@pytest.mark.parametrize("file", ["policy_preprocessor.json", BACKBONE, WEIGHTS, TOKENIZER])
def test_pipes_are_not_waited_for(folder, file):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    refused(folder, r"is no file|is not there")


@pytest.mark.parametrize(
    "content",
    [
        f'{{"format": 1, "settings": {{"precision": {"[" * 900}{"]" * 900}}}}}',
        '{"format": 1, "settings": {"noise_draws": 1000000000}}',
        '{"format": 1, "settings": {"chunk_size": 9}}',
        '{"format": 1, "settings": {"backbone_folder": "/etc"}}',
        '{"format": 1, "settings": []}',
    ],
    ids=range(5),
)
def test_absurd_settings_of_our_own_file_are_refused(folder, content):
    (folder / "mimetic_policy.json").write_text(content)
    refused(folder, "mimetic_policy|config.json")


# The vision-language model's sizes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_config__vocab_size", 10**12),
        ("text_config__vocab_size", 10**8),
        ("text_config__hidden_size", 10**5),
        ("text_config__head_dim", 10**9),
        ("text_config__num_attention_heads", 10**9),
        ("text_config__intermediate_size", 10**30),
        ("text_config__num_hidden_layers", 10**6),
        ("text_config__rms_norm_eps", float("inf")),
        ("vision_config__num_hidden_layers", 10**6),
        ("vision_config__hidden_size", 10**6),
        ("vision_config__intermediate_size", 10**12),
    ],
)
def test_absurd_sizes_of_the_backbone_are_refused_before_anything_is_built(folder, monkeypatch, name, value):
    edit(folder / BACKBONE, **{name: value})
    edit(folder / "config.json", num_vlm_layers=0)
    refused(folder, r"whole` describe a model of|does not describe a model", monkeypatch)
    assert any("describe" in message for message, _ in inspect_checkpoint(folder).problems)


def test_absurd_sizes_of_a_folder_for_a_new_policy_are_refused_before_anything_is_built(tmp_path, monkeypatch):
    vlm = write_tiny_vlm(tmp_path / "vlm")
    edit(vlm / "config.json", text_config__intermediate_size=10**8)
    monkeypatch.setattr(nn.Module, "to_empty", lambda *a, **k: pytest.fail("memory was allocated"))
    with pytest.raises(CheckpointError, match="vlm` describe a model of"):
        make_policy(tiny_smolvla_config(vlm))
    write_tiny_vlm(vlm)
    with pytest.raises(ConfigError, match="describe a model of"):
        known = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
        size = (512, 512)
        make_policy(tiny_smolvla_config(known, resize_imgs_with_padding=size, expert_width_multiplier=1e4))


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "config.json", "../elsewhere.json"])
def test_links_out_of_the_folder_are_not_followed(folder, target):
    shutil.copy(folder / BACKBONE, folder / "elsewhere.json")
    shutil.move(folder / "elsewhere.json", folder.parent / "elsewhere.json")
    (folder / BACKBONE).unlink()
    (folder / BACKBONE).symlink_to(target if target != "../elsewhere.json" else "../../elsewhere.json")
    refused(folder, "does not follow it|cannot be followed")


def test_a_backbone_folder_without_its_file_is_named(folder):
    (folder / BACKBONE).unlink()
    (folder / BACKBONE).mkdir()
    refused(folder, r"backbone/config\.json`, which is not there")


# The tokenizer


def edit_tokenizer(folder, **changes):
    edit(folder / TOKENIZER, **changes)


SPLIT = {"type": "Split", "pattern": {"Regex": "([a-z ]+)+!"}, "behavior": "Isolated", "invert": False}
DOUBLE = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pre_tokenizer": SPLIT}, "cannot read the task"),
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 26}}, r"1\.3e\+08 times as long"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 26}},
            r"6\.7e\+07 times as long",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 5_000_000}}, "its steps has 5 MB"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 100}}, "rewrites a text in 102 steps"),
    ],
)
def test_a_tokenizer_that_takes_time_and_memory_is_refused(folder, changes, match):
    edit_tokenizer(folder, **changes)
    refused(folder, match)


@pytest.mark.parametrize("n_ids", [1, 100_000])
def test_a_template_with_foreign_or_countless_ids_is_refused(folder, n_ids):
    special = {"id": "x", "ids": [4_000_000_000] * n_ids, "tokens": ["x"] * n_ids}
    single = [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    template = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {"x": special}}
    edit_tokenizer(folder, post_processor=template)
    refused(folder, "has the token id 4000000000" if n_ids == 1 else "adds 100000 tokens to every text")


def test_ids_beyond_the_embeddings_are_refused(folder):
    vocab = json.loads((folder / TOKENIZER).read_text())["model"]["vocab"]
    edit_tokenizer(folder, model__vocab={word: n + 1000 * (3 <= n < 259) for word, n in vocab.items()})
    refused(folder, r"has the token id 1\d\d\d, and the model has embeddings for")


def test_countless_padding_is_refused(folder):
    path = folder / "policy_preprocessor.json"
    path.write_text(path.read_text().replace('"max_length": 24', '"max_length": 1000000000000'))
    refused(folder, r"`max_length` is 1000000000000, and must be a whole number from 1 to 16384")


@pytest.mark.parametrize("name", ["~nosuch/x", "a" * 5000, "x\0y", "\\\\evil\\share", "//evil/share"])
def test_names_of_tokenizers_that_are_none(folder, name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.rmtree(folder / "tokenizer")
    path = folder / "policy_preprocessor.json"
    data = json.loads(path.read_text())
    for step in data["steps"]:
        if step["registry_name"] == "tokenizer_processor":
            step["config"]["tokenizer_name"] = name
    path.write_text(json.dumps(data))
    refused(folder, "tokenizer|repository id")


# Adapters


@pytest.mark.parametrize(
    "pattern",
    [
        r"([a-z_.0-9]+)+!",
        r"(.*)*X",
        r".*.*.*.*.*.*.*.*X",
        r"((((a{1,100}){1,100}){1,100}){1,100})",
        r"(?P<x>.*)(?P=x)*!",
        "(?:" * 3000 + ")" * 3000,
        "a" * 10**6,
        "[",
        r"((?=.*(?=.*(?=.*(?=.*x)))).)*",
    ],
    ids=range(9),
)
def test_expressions_that_take_for_ever_are_refused(adapter, pattern):
    edit(adapter / "adapter_config.json", target_modules=pattern)
    refused(adapter, r"adapter_config\.json`")
    assert inspect_checkpoint(adapter).problems


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_modules", ["a"] * 10**6),
        ("target_modules", ["a" * 10**6]),
        ("modules_to_save", ["a"] * 10**6),
        ("r", 10**9),
        ("r", 10**30),
        ("r", 0),
        ("lora_alpha", float("nan")),
        ("lora_alpha", float("inf")),
        ("lora_alpha", 1e308),
        ("base_model_name_or_path", "~nosuch/x"),
        ("base_model_name_or_path", "a" * 5000),
        ("base_model_name_or_path", "a" * 999),
        ("base_model_name_or_path", "x\0y"),
        ("base_model_name_or_path", "../../../etc"),
        ("base_model_name_or_path", "\\\\evil\\share"),
    ],
)
def test_absurd_adapters_are_refused(adapter, name, value, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    edit(adapter / "adapter_config.json", **{name: value})
    refused(adapter, r"adapter")


# Weights


def change_weights(path, change):
    save_file({name: change(name, tensor).contiguous() for name, tensor in load_file(path).items()}, path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", [LAYER, "model.vlm_with_expert.vlm.model.text_model.embed_tokens.weight"])
def test_weights_that_are_not_finite_are_refused(folder, name, value):
    def one_bad(key, tensor):
        if key == name:
            tensor[-1, -1] = value
        return tensor

    change_weights(folder / WEIGHTS, one_bad)
    refused(folder, rf"model\.safetensors`: `{name}` holds NaN or infinity")


def test_an_adapter_that_is_not_finite_is_refused(adapter):
    change_weights(adapter / ADAPTER, lambda _, tensor: torch.full_like(tensor, torch.nan))
    refused(adapter, r"adapter_model\.safetensors`: `.*` holds NaN or infinity")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_that_are_no_plain_numbers_are_refused(folder, adapter, dtype):
    change_weights(folder / WEIGHTS, lambda name, tensor: tensor.to(dtype) if name == LAYER else tensor)
    refused(folder, rf"no floating-point numbers .*`{LAYER}` is")
    change_weights(adapter / ADAPTER, lambda _, tensor: tensor.to(dtype))
    refused(adapter, r"no floating-point numbers")


def change_header(path, change):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    text = change(header)
    text = (text if isinstance(text, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header[LAYER].update(shape=[float("inf")]),
        lambda header: header[LAYER].update(shape=[-6, -24]),
        lambda header: header[LAYER].update(shape=[10**30]),
        lambda header: header[LAYER].update(shape="12"),
        lambda header: header[LAYER].update(data_offsets=[0, float("inf")]),
        lambda header: header[LAYER].update(data_offsets=[0, 10**15]),
        lambda header: header.update(__metadata__={"a": ["x"]}),
        lambda header: header.update(__metadata__=5),
        lambda header: f'{json.dumps(header)[:-1]}, "{LAYER}": {json.dumps(header[LAYER])}}}',
    ],
    ids=range(9),
)
def test_hostile_headers_are_refused(folder, change):
    change_header(folder / WEIGHTS, change)
    refused(folder, r"model\.safetensors`")


def test_a_header_of_a_million_tensors_is_not_read(folder):
    entry = '{"dtype":"F32","shape":[],"data_offsets":[0,0]}'
    header = "{" + ",".join(f'"{n}":{entry}' for n in range(200_000)) + "}"
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header.encode())
    started = time.process_time()
    refused(folder, r"model\.safetensors` is damaged")
    assert time.process_time() - started < 5  # 0.1 s; reading it takes longer than that


def test_a_pickle_alone_is_not_opened(folder, adapter):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    refused(folder, r"model\.safetensors` is not there")
    (adapter / ADAPTER).rename(adapter / "adapter_model.bin")
    refused(adapter, "a pickle")


def test_an_index_leads_to_no_other_folder(tmp_path):
    vlm = write_tiny_vlm(tmp_path / "vlm")
    (vlm / WEIGHTS).rename(tmp_path / "outside.safetensors")
    for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "gone.safetensors"):
        (vlm / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(CheckpointError, match="names files"):
            make_policy(tiny_smolvla_config(vlm))
