"""SmolVLA's pipelines against what LeRobot 0.6.1 wrote and computed.

Tokens, masks and whatever passes through are compared exactly. Normalised values get 1e-6: the formula is element-wise
float32, and the margin is for fused multiply-adds of other machines.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.names import LANGUAGE_LONGEST, POSTPROCESSOR, PREPROCESSOR, WEIGHTS
from mimetic.policies.checkpoint import read_config
from mimetic.policies.pipelines import load_pipelines
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import unflatten
from mimetic.processing.store import save_pipeline

CHECKPOINT_OF_CASE = {
    "cross_b3": "tiny_cross",
    "cross_padding_mask": "tiny_cross",
    "self_b3": "tiny_self",
    "allcross_unfrozen_b3": "tiny_allcross",
    "bf16_b3": "tiny_bf16",
    "aloha": "cases/aloha",
}
CHECKPOINTS = ["tiny_cross", "tiny_self", "tiny_allcross", "tiny_bf16", "tiny_lora", "cases/aloha"]


@pytest.fixture
def smolvla(fixtures, monkeypatch):
    """Folder of the golden data, in which its relative names (`vlm_tiny`) mean something."""
    monkeypatch.chdir(fixtures / "smolvla")
    return fixtures / "smolvla"


def raw_batch(folder):
    """A batch as the training loop hands it over: uint8 cameras divided by 255."""
    batch = load_file(folder / "raw_batch.safetensors")
    batch = {key: value.float() / 255 if value.dtype == torch.uint8 else value for key, value in batch.items()}
    return {**batch, **json.loads((folder / "raw_batch_text.json").read_text())}


def assert_matches(result, expected):
    """Every expected tensor, exactly or within 1e-6 where it was normalised."""
    for key, wanted in expected.items():
        assert result[key].dtype == wanted.dtype, key
        if wanted.is_floating_point():
            torch.testing.assert_close(result[key], wanted, atol=1e-6, rtol=1e-6, msg=key)
        else:
            assert torch.equal(result[key], wanted), key


@pytest.mark.parametrize("case", CHECKPOINT_OF_CASE)
def test_training_batches_are_preprocessed_as_by_lerobot(smolvla, case):
    folder, checkpoint = smolvla / "cases" / case, smolvla / CHECKPOINT_OF_CASE[case]
    before, _ = load_pipelines(checkpoint, read_config(checkpoint))
    raw = raw_batch(folder)
    result = before(raw)
    expected = load_file(folder / "preprocessed.safetensors")
    cameras = {key for key, value in raw.items() if "images" in key and value.dim() == 5}
    assert_matches(result, expected)
    assert {key for key, value in result.items() if isinstance(value, torch.Tensor)} == expected.keys() | cameras
    assert all(result[key] is raw[key] for key in cameras)
    other = json.loads((folder / "preprocessed_other.json").read_text())
    assert {key: result[key] for key in other} == other
    assert result[LANGUAGE_LONGEST] == int(expected["observation.language.attention_mask"].sum(dim=1).max())


def test_a_robot_observation_is_preprocessed_and_its_actions_come_back_in_units(smolvla):
    folder = smolvla / "cases/robot_obs"
    before, after = load_pipelines(smolvla / "tiny_cross", read_config(smolvla / "tiny_cross"))
    raw = load_file(folder / "observation.safetensors")
    text = json.loads((folder / "text.json").read_text())
    images = {key: value.permute(2, 0, 1).float() / 255 for key, value in raw.items() if "images" in key}
    result = before({**raw, **images, **text})
    expected = load_file(folder / "expected.safetensors")
    assert_matches(result, {key: value for key, value in expected.items() if key.startswith("observation.")})
    assert result["observation.images.front"].shape == (1, 3, 96, 128)
    assert result["task"] == ["push the button\n"]
    assert result["action"] is None
    assert result[LANGUAGE_LONGEST] == 10
    # The way back, on the chunk of another case: exact for the same reason as above.
    sampling = load_file(smolvla / "cases/cross_b3/sampling.safetensors")
    chunk = after.run_action(sampling["chunk"])
    torch.testing.assert_close(chunk, sampling["chunk_unnormalized"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_pipelines_read_and_written_have_the_same_bytes(smolvla, tmp_path, name):
    folder = smolvla / name
    for pipeline in load_pipelines(folder, read_config(folder)):
        written = save_pipeline(pipeline, tmp_path)
        assert {path.name for path in written} == {path.name for path in folder.glob(f"{pipeline.name}*")}
        for path in written:
            assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    for tokenizer_file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "tokenizer" / tokenizer_file).read_bytes() == (
            smolvla / "vlm_tiny" / tokenizer_file
        ).read_bytes()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_new_pipelines_have_the_same_bytes(smolvla, tmp_path, name):
    folder = smolvla / name
    config = read_config(folder)
    stats = unflatten(load_file(next(folder.glob(f"{POSTPROCESSOR}_*.safetensors"))))
    pipelines = config.make_pipelines(
        input_features=config.input_features,
        output_features=config.output_features,
        norm_map=config.norm_map,
        stats=stats,
    )
    for pipeline in pipelines:
        for path in save_pipeline(pipeline, tmp_path):
            assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_an_old_checkpoint_gets_the_pipelines_that_lerobots_migration_writes(smolvla, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    shutil.copy(smolvla / "tiny_cross/config.json", old)
    weights = load_file(smolvla / "tiny_cross" / WEIGHTS)
    save_file(
        {**weights, **load_file(smolvla / "cases/legacy/legacy_normalization_tensors.safetensors")}, old / WEIGHTS
    )
    pipelines = load_pipelines(old, read_config(old))
    for pipeline in pipelines:
        for path in save_pipeline(pipeline, new):
            stored = smolvla / f"cases/legacy/migrated_{path.name}"
            if path.suffix == ".json":
                assert path.read_bytes() == stored.read_bytes()
                continue
            ours, theirs = load_file(path), load_file(stored)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    result = pipelines[0](raw_batch(smolvla / "cases/cross_b3"))
    assert_matches(result, load_file(smolvla / "cases/cross_b3/preprocessed.safetensors"))
    assert isinstance(pipelines[0], Pipeline)
    assert pipelines[0].name == PREPROCESSOR
