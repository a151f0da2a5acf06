"""Checkpoints made by someone hostile: no code runs, and nothing outside the folder is read."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file

from mimetic.errors import CheckpointError
from mimetic.names import POSTPROCESSOR, PREPROCESSOR, WEIGHTS
from mimetic.policies.checkpoint import load_pretrained
from mimetic.processing.store import load_pipeline

STATE_FILE = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"


@pytest.fixture
def folder(fixtures, tmp_path):
    target = tmp_path / "hub" / "checkpoint"
    shutil.copytree(fixtures / "act/state_env/checkpoint", target)
    return target


def edit(folder, name, change):
    path = folder / f"{name}.json"
    description = json.loads(path.read_text())
    change(description["steps"])
    path.write_text(json.dumps(description))


@pytest.mark.parametrize("name", ["subprocess.getoutput", "os.system", "builtins.exec"])
@pytest.mark.parametrize("key", ["class", "registry_name"])
def test_a_step_that_names_python_code_is_refused_and_not_run(folder, tmp_path, key, name):
    witness = tmp_path / "ran"
    step = {key: name, "config": {"cmd": f"touch {witness}"}}
    edit(folder, PREPROCESSOR, lambda steps: steps.insert(0, step))
    with pytest.raises(CheckpointError, match=name):
        load_pretrained(folder)
    assert not witness.exists()


@pytest.mark.parametrize("how", ["parent", "absolute", "windows", "hidden_parent", "link", "linked_folder"])
def test_a_state_file_outside_the_folder_is_not_read(folder, how):
    secret = folder.parent / "secret.safetensors"
    shutil.move(folder / STATE_FILE, secret)
    (folder / "in").mkdir()
    (folder / "link.safetensors").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    name = {
        "parent": "../secret.safetensors",
        "absolute": str(secret),
        "windows": "..\\secret.safetensors",
        "hidden_parent": "in/../../secret.safetensors",
        "link": "link.safetensors",
        "linked_folder": "linked/secret.safetensors",
    }[how]
    edit(folder, POSTPROCESSOR, lambda steps: steps[0].update(state_file=name))
    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        load_pipeline(folder, POSTPROCESSOR)


@pytest.mark.parametrize("artifact", ["../tokenizer", "/etc", "C:\\tokenizer"])
def test_an_artifact_outside_the_folder_is_refused(folder, artifact):
    edit(folder, PREPROCESSOR, lambda steps: steps[1].update(artifacts={"tokenizer_name": artifact}))
    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        load_pipeline(folder, PREPROCESSOR)


def test_links_of_the_hub_cache_are_followed(folder, tmp_path):
    cache = tmp_path / "models--me--pick"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for path in folder.iterdir():
        shutil.copy(path, cache / "blobs" / f"sum-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/sum-{path.name}")
    assert load_pipeline(snapshot, POSTPROCESSOR).steps[0].state().keys() == load_file(folder / STATE_FILE).keys()
    (snapshot / STATE_FILE).unlink()
    (snapshot / STATE_FILE).symlink_to(folder / STATE_FILE)
    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        load_pipeline(snapshot, POSTPROCESSOR)


def header(text, data=b""):
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        b"\xff" * 8,
        (2**31).to_bytes(8, "little") + b"{}",
        header(b"not json"),
        header(b"[]"),
        header(b'{"a": 3}'),
        header(b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', b"short"),
        header(b'{"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 16]}}', b"x" * 16),
        header(b"[" * 100_000),
    ],
)
def test_broken_weights_are_named_and_nothing_is_returned(folder, content):
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model.safetensors` is damaged"):
        load_pretrained(folder)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_weights_are_named(folder, share):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"model.safetensors` is damaged: it is truncated"):
        load_pretrained(folder)
