"""Old SmolVLA checkpoints (statistics among the weights) against LeRobot's own migration (fixtures/smolvla/cases/legacy)."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file
from smolvla_cases import SMOLVLA, assert_near, case

from mimetic.names import WEIGHTS
from mimetic.policies.checkpoint import load_pretrained
from mimetic.policies.migrate import migrate

LEGACY = SMOLVLA / "cases" / "legacy"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A checkpoint from before the processors: no pipelines, statistics in the weights' file."""
    monkeypatch.chdir(SMOLVLA)
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copy(SMOLVLA / "tiny_cross" / "config.json", folder)
    statistics = load_file(LEGACY / "legacy_normalization_tensors.safetensors")
    save_file(load_file(SMOLVLA / "tiny_cross" / WEIGHTS) | statistics, folder / WEIGHTS)
    return folder


def test_the_migrated_files_are_lerobots(old, tmp_path):
    migrate(old, tmp_path / "new")
    stems = {path.name.removeprefix("migrated_") for path in LEGACY.glob("migrated_*")}
    assert len(stems) == 5
    for name in stems:
        found, expected = tmp_path / "new" / name, LEGACY / f"migrated_{name}"
        if name.endswith(".safetensors"):
            mine, theirs = load_file(found), load_file(expected)
            assert mine.keys() == theirs.keys()
            assert all(mine[key].equal(theirs[key]) for key in theirs)
        else:
            assert json.loads(found.read_text()) == json.loads(expected.read_text()), name


def test_the_migrated_weights_are_those_of_the_model(old, tmp_path):
    migrate(old, tmp_path / "new")
    found, expected = load_file(tmp_path / "new" / WEIGHTS), load_file(SMOLVLA / "tiny_cross" / WEIGHTS)
    assert found.keys() == expected.keys()
    assert all(found[key].equal(expected[key]) for key in expected)


@pytest.mark.parametrize("migrated", [False, True])
def test_an_old_checkpoint_acts_like_the_new_one(old, tmp_path, migrated):
    c = case("cross_b3")
    if migrated:
        migrate(old, tmp_path / "new")
    loaded = load_pretrained(tmp_path / "new" if migrated else old, config_overrides={"precision": "float32"})
    chunk = loaded.policy.predict_chunk(c.batch(), noise=c.sampling["noise"])
    assert_near(chunk, c.sampling["chunk"], atol=1e-5)
    assert_near(loaded.postprocessor({"action": chunk})["action"], c.sampling["chunk_unnormalized"], atol=3e-4)
