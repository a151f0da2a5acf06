"""Tokenizers in checkpoints made by someone hostile or careless: one clear error, and nothing outside is read."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from mimetic.errors import CheckpointError, CheckpointNotFound
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.processing.store import load_pipeline, save_pipeline
from mimetic.processing.text import LARGEST_FILE

NAME = "p"


@pytest.fixture
def vlm(fixtures):
    return fixtures / "smolvla/vlm_tiny"


@pytest.fixture
def folder(vlm, tmp_path):
    """A checkpoint with its tokenizer."""
    target = tmp_path / "hub" / "checkpoint"
    target.mkdir(parents=True)
    save_pipeline(Pipeline(NAME, [Tokenize(tokenizer_name="me/vlm", max_length=24)]), target)
    shutil.copytree(vlm, target / "tokenizer", ignore=lambda *_: ["config.json", "processor_config.json"])
    return target


def edit(folder, *, artifacts=None, **config):
    path = folder / f"{NAME}.json"
    description = json.loads(path.read_text())
    description["steps"][0]["config"].update(config)
    if artifacts is not None:
        description["steps"][0]["artifacts"] = artifacts
    path.write_text(json.dumps(description))


def test_the_form_of_newer_lerobot_versions_is_read(folder):
    (folder / "tokenizer").rename(folder / "words")
    edit(folder, tokenizer_name="words", artifacts={"tokenizer_name": "words"})
    step = load_pipeline(folder, NAME).steps[0]
    assert step.tokenizer.where == str(folder / "words")


@pytest.mark.parametrize("name", ["../secret", "words/../../secret", "..\\secret", "C:\\..\\secret", ".."])
def test_a_name_with_a_way_upwards_is_not_followed(folder, vlm, name, monkeypatch):
    shutil.rmtree(folder / "tokenizer")
    shutil.copytree(vlm, folder.parent / "secret")
    monkeypatch.chdir(folder)
    edit(folder, tokenizer_name=name)
    with pytest.raises(CheckpointError, match="which mimetic does not follow") as error:
        load_pipeline(folder, NAME)
    assert f"{NAME}.json`, step 0" in error.value.message
    # The person at the keyboard may name any folder.
    overrides = {"tokenizer_processor": {"tokenizer_name": "../secret"}}
    assert load_pipeline(folder, NAME, overrides=overrides).steps[0].tokenizer.pad == 2


@pytest.mark.parametrize("how", ["parent", "absolute", "windows", "hidden_parent", "not_a_text", "empty"])
def test_an_artifact_outside_the_folder_is_refused(folder, vlm, how):
    secret = folder.parent / "secret"
    shutil.copytree(vlm, secret)
    artifact = {
        "parent": "../secret",
        "absolute": str(secret),
        "windows": "..\\secret",
        "hidden_parent": "tokenizer/../../secret",
        "not_a_text": ["tokenizer"],
        "empty": "",
    }[how]
    edit(folder, artifacts={"tokenizer_name": artifact})
    with pytest.raises(CheckpointError, match=r"outside the checkpoint|names the file"):
        load_pipeline(folder, NAME)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("what", ["folder", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_link_out_of_the_folder_is_not_followed(folder, vlm, what, named):
    secret = folder.parent / "secret"
    shutil.copytree(vlm, secret)
    (secret / "special_tokens_map.json").write_text("{}")
    if what == "folder":
        shutil.rmtree(folder / "tokenizer")
        (folder / "tokenizer").symlink_to(secret)
    else:
        (folder / "tokenizer" / what).unlink(missing_ok=True)
        (folder / "tokenizer" / what).symlink_to(secret / what)
    if named:
        edit(folder, artifacts={"tokenizer_name": "tokenizer"})
    with pytest.raises(CheckpointError, match="a link to a file outside the checkpoint"):
        load_pipeline(folder, NAME)


def test_links_of_the_hub_cache_are_followed(folder, tmp_path):
    cache = tmp_path / "models--me--pick"
    snapshot = cache / "snapshots" / "abc"
    (snapshot / "tokenizer").mkdir(parents=True)
    (cache / "blobs").mkdir()
    shutil.copy(folder / f"{NAME}.json", snapshot)
    for path in (folder / "tokenizer").iterdir():
        shutil.copy(path, cache / "blobs" / path.name)
        (snapshot / "tokenizer" / path.name).symlink_to(f"../../../blobs/{path.name}")
    assert load_pipeline(snapshot, NAME).steps[0].tokenizer.pad == 2


def test_half_a_tokenizer_is_named_while_loading(folder):
    (folder / "tokenizer/tokenizer.json").unlink()
    with pytest.raises(CheckpointNotFound, match=r"tokenizer/tokenizer\.json`, which is not there"):
        load_pipeline(folder, NAME)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"not json",
        b"[]",
        b"null",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"model": {"type": "BPE"}}',
    ],
    ids=range(8),
)
def test_damaged_files_give_one_clear_error(folder, file, content):
    (folder / "tokenizer" / file).write_bytes(content)
    step = load_pipeline(folder, NAME).steps[0]
    with pytest.raises(CheckpointError, match=rf"`{file}` in `.*tokenizer` is damaged|names no padding token"):
        step.tokenise(["pick\n"])


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_truncated_files_are_named(folder, share):
    path = folder / "tokenizer/tokenizer.json"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"`tokenizer\.json` in .* is damaged"):
        load_pipeline(folder, NAME).steps[0].tokenise(["pick\n"])


@pytest.mark.parametrize(
    "settings",
    [
        {"truncation_side": "middle"}, {"truncation_side": ["left"]}, {"pad_token": 3}, {"pad_token": ""},
        {"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"x": {"content": "y"}}},
        {"added_tokens_decoder": {"400": {"content": 5}}}, {"added_tokens_decoder": {"400": 5}},
        {"extra_special_tokens": 7},
    ],
    ids=str,
)  # fmt: skip
def test_senseless_settings_are_named(folder, settings):
    path = folder / "tokenizer/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json` in .* is damaged|names no padding token"):
        load_pipeline(folder, NAME).steps[0].tokenise(["pick\n"])


def test_a_huge_file_is_not_read(folder):
    path = folder / "tokenizer/tokenizer.json"
    os.truncate(path, LARGEST_FILE + 1)  # sparse: it takes no space
    step = load_pipeline(folder, NAME).steps[0]
    with pytest.raises(CheckpointError, match="more than any tokenizer"):
        step.tokenise(["pick\n"])
    with pytest.raises(CheckpointError, match="more than any tokenizer"):
        step.companion_files()
