"""Pipelines against files and tensors that LeRobot 0.6.1 made: files byte for byte, tensors bit for bit.

Exact, because the arithmetic is element-wise float32 in a fixed order: there is no summation whose order could differ.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from mimetic.features import NormalizationMode
from mimetic.names import POSTPROCESSOR, PREPROCESSOR
from mimetic.policies.checkpoint import read_config
from mimetic.processing.standard import standard_pipelines
from mimetic.processing.stats import unflatten
from mimetic.processing.store import load_pipeline, save_pipeline

FOLDERS = [
    "act/vision/checkpoint",
    "act/state_env/checkpoint",
    "act/single_image_novae/checkpoint",
    "act/legacy_migration/lerobot_result_single_image_novae",
    "training/run_preset/checkpoints/000003/pretrained_model",
    "training/run_sched/checkpoints/000006/pretrained_model",
    "training/run_grad_accum_after_061/checkpoints/000003/pretrained_model",
]


@pytest.mark.parametrize("name", [PREPROCESSOR, POSTPROCESSOR])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_pipeline_read_and_written_gives_the_same_bytes(fixtures, tmp_path, folder, name):
    written = save_pipeline(load_pipeline(fixtures / folder, name), tmp_path)
    assert {path.name for path in written} == {path.name for path in (fixtures / folder).glob(f"{name}*")}
    for path in written:
        assert path.read_bytes() == (fixtures / folder / path.name).read_bytes(), path.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_fresh_pipelines_from_the_same_statistics_give_the_same_bytes(fixtures, tmp_path, folder):
    folder = fixtures / folder
    config = read_config(folder)
    # The postprocessor's file holds the statistics as the dataset gave them, before images are reshaped.
    stats = unflatten(load_file(next(folder.glob(f"{POSTPROCESSOR}_*.safetensors"))))
    pipelines = standard_pipelines(
        input_features=config.input_features,
        output_features=config.output_features,
        norm_map=config.norm_map,
        stats=stats,
    )
    for pipeline in pipelines:
        for path in save_pipeline(pipeline, tmp_path):
            assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("trajectory", "run"),
    [("traj_plain", "run_sched"), ("traj_sgd", "run_sched"), ("traj_vae_dropout", "run_preset")],
)
def test_batches_of_a_run_are_preprocessed_bit_for_bit(fixtures, trajectory, run):
    folder = fixtures / "training" / trajectory
    raw, expected = (load_file(folder / f"batches_{name}.safetensors") for name in ("raw", "preprocessed"))
    pipeline = load_pipeline(fixtures / f"training/{run}/checkpoints/000003/pretrained_model", PREPROCESSOR)
    for step in range(1, 6):
        batch = {key.split("/", 1)[1]: value for key, value in raw.items() if key.startswith(f"step_{step}/")}
        before = {key: value.clone() for key, value in batch.items()}
        result = pipeline({**batch, "task": ["a", "b", "c", "d"]})
        tensors = {key: value for key, value in result.items() if isinstance(value, torch.Tensor)}
        wanted = {key.split("/", 1)[1]: value for key, value in expected.items() if key.startswith(f"step_{step}/")}
        assert tensors.keys() == wanted.keys()
        for key, value in wanted.items():
            assert tensors[key].dtype == value.dtype
            assert torch.equal(tensors[key], value), key
        assert result["task"] == ["a", "b", "c", "d"]
        assert {key: result[key] for key in ("next.reward", "next.done", "next.truncated", "info")} == {
            "next.reward": 0.0,
            "next.done": False,
            "next.truncated": False,
            "info": {},
        }
        assert all(torch.equal(batch[key], value) for key, value in before.items())  # the input is not written to


@pytest.mark.parametrize("case", ["vision", "state_env", "single_image_novae"])
def test_act_inputs_are_normalised_bit_for_bit_also_from_uint8_images(fixtures, case):
    golden = load_file(fixtures / "act" / case / "golden.safetensors")
    pipeline = load_pipeline(fixtures / "act" / case / "checkpoint", PREPROCESSOR)
    raw = {key.removeprefix("raw/"): value for key, value in golden.items() if key.startswith("raw/")}
    cameras = [key for key, value in raw.items() if value.dtype == torch.uint8]
    floats = {key: value.float() / 255 if key in cameras else value for key, value in raw.items()}
    expected = {key.removeprefix("pre/"): value for key, value in golden.items() if key.startswith("pre/")}
    assert expected
    assert bool(cameras) == (case != "state_env")
    for batch in (raw, floats):
        result = pipeline(batch)
        for key, value in expected.items():
            assert torch.equal(result[key], value), key


@pytest.mark.parametrize("case", ["vision", "state_env", "single_image_novae"])
def test_act_actions_are_unnormalised_bit_for_bit(fixtures, case):
    golden = load_file(fixtures / "act" / case / "golden.safetensors")
    pipeline = load_pipeline(fixtures / "act" / case / "checkpoint", POSTPROCESSOR)
    assert torch.equal(pipeline.run_action(golden["eval/chunk"]), golden["eval/chunk_post"])
    assert torch.equal(pipeline.run_action(golden["select/actions"]), golden["select/post"])


def test_golden_statistics_have_no_near_constant_dimension(fixtures):
    # So the tests above say nothing about the floor, and the floor changes nothing in them.
    pipeline = load_pipeline(fixtures / "act/vision/checkpoint", PREPROCESSOR)
    assert pipeline.steps[3].constant_dims() == {}
    assert set(pipeline.steps[3].norm_map.values()) == {NormalizationMode.MEAN_STD}
