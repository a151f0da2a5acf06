import hashlib
import json
from types import SimpleNamespace

import pytest

from mimetic.testing.hub_server import HubServer, as_the_hub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the hub with the user `me` logged in, and an empty cache."""
    http = pytest.importorskip("huggingface_hub.utils._http", reason="needs huggingface_hub")
    from huggingface_hub import constants

    cache = tmp_path / "hub_cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    # The client waits seconds before it asks again.
    monkeypatch.setattr(http, "time", SimpleNamespace(sleep=lambda seconds: None), raising=False)
    with HubServer() as server:
        # Through monkeypatch too, which is undone after this: what a test sets goes back to what was there before.
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            yield server


MODEL = {
    "pretrained_model/config.json": b'{"type": "act"}',
    "pretrained_model/model.safetensors": b"weights",
    "pretrained_model/train_config.json": b'{"seed": 3}',
    "pretrained_model/policy_preprocessor.json": b"{}",
}
STATE = {
    "training_state/training_step.json": b'{"step": 2}',
    "training_state/rng_state.safetensors": b"generators",
    "training_state/optimizer_state.safetensors": b"moments",
    "training_state/optimizer_param_groups.json": b"[]",
}


def manifest_of(files):
    return json.dumps(
        {
            "format": 1,
            "files": {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()},
        }
    ).encode()


def checkpoint_files(*, manifest=True, **changes):
    """Content of a checkpoint folder, as small as it can be."""
    files = {**MODEL, **STATE, **changes}
    return {**files, "mimetic.json": manifest_of(files)} if manifest else files


def write_checkpoint(folder, **options):
    for name, data in checkpoint_files(**options).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def make_checkpoint(tmp_path):
    """Writes `<run>/checkpoints/<name>` and returns it."""

    def make(name="000002", run="run", **options):
        return write_checkpoint(tmp_path / run / "checkpoints" / name, **options)

    return make


@pytest.fixture
def remote_files():
    """Content of a checkpoint in a repository, by name there."""

    def make(name="000002", **options):
        return {f"checkpoints/{name}/{path}": data for path, data in checkpoint_files(**options).items()}

    return make
