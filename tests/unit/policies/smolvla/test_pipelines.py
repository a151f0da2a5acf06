"""What of a stored pipeline follows the policy's settings, and what stays as the checkpoint has it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from mimetic.errors import StatsError
from mimetic.names import POSTPROCESSOR, PREPROCESSOR
from mimetic.policies.checkpoint import read_config
from mimetic.policies.pipelines import load_pipelines
from mimetic.processing.steps.new_line import EndWithNewLine
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.processing.store import save_pipeline


@pytest.fixture
def vlm(fixtures):
    return fixtures / "smolvla/vlm_tiny"


@pytest.fixture
def folder(fixtures, tmp_path):
    """A checkpoint as LeRobot saves it: without its tokenizer. The weights are not needed."""
    target = tmp_path / "checkpoint"
    shutil.copytree(fixtures / "smolvla/tiny_cross", target, ignore=lambda *_: ["model.safetensors"])
    return target


def tokenize(folder, **overrides):
    """The tokenizer step of a checkpoint that is loaded with changed settings."""
    before, _ = load_pipelines(folder, read_config(folder, overrides))
    (step,) = before.find(Tokenize)
    return step


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_changed_settings_reach_the_stored_step(folder, vlm):
    plain = tokenize(folder)
    assert (plain.max_length, plain.padding, plain.tokenizer_name) == (24, "longest", "vlm_tiny")
    changed = tokenize(folder, tokenizer_max_length=7, pad_language_to="max_length", vlm_model_name=str(vlm))
    assert changed.tokenise(["pick\n"])[0].shape == (1, 7)
    assert changed.tokenizer.where == str(vlm)


def test_a_stored_step_that_differs_from_the_stored_config_is_left_alone(folder):
    # LeRobot writes a changed setting into config.json and goes on training with the old step.
    edit(folder / "config.json", lambda content: content.update(tokenizer_max_length=99))
    assert tokenize(folder).max_length == 24
    assert tokenize(folder, tokenizer_max_length=24).max_length == 24
    assert tokenize(folder, tokenizer_max_length=98).max_length == 98


def test_a_setting_that_the_stored_config_lacks_is_compared_with_its_default(folder):
    edit(folder / "config.json", lambda content: content.pop("tokenizer_max_length"))
    assert tokenize(folder).max_length == 24
    assert tokenize(folder, tokenizer_max_length=50).max_length == 50


def test_the_form_of_newer_lerobot_versions_is_saved_in_the_older_one(folder, vlm, fixtures, tmp_path):
    shutil.copytree(vlm, folder / "tokenizer")

    def newer(content):
        content["steps"][3]["config"]["tokenizer_name"] = "tokenizer"
        content["steps"][3]["artifacts"] = {"tokenizer_name": "tokenizer"}

    edit(folder / f"{PREPROCESSOR}.json", newer)
    before, _ = load_pipelines(folder, read_config(folder))
    assert before.find(Tokenize)[0].tokenizer.where == str(folder / "tokenizer")
    (tmp_path / "saved").mkdir()
    save_pipeline(before, tmp_path / "saved")
    name = f"{PREPROCESSOR}.json"
    assert (tmp_path / "saved" / name).read_bytes() == (fixtures / "smolvla/tiny_cross" / name).read_bytes()


def test_new_pipelines_take_the_tokenizer_of_the_folder_that_the_settings_come_from(folder, vlm):
    shutil.copytree(vlm, folder / "tokenizer")
    config = read_config(folder)
    numbers = {"mean": torch.zeros(5), "std": torch.ones(5)}
    features = {"input_features": config.input_features, "output_features": config.output_features}
    stats = {"observation.state": numbers, "action": {key: value[:4] for key, value in numbers.items()}}
    before, after = config.make_pipelines(**features, norm_map=config.norm_map, stats=stats)
    assert before.find(Tokenize)[0].tokenizer.where == str(folder / "tokenizer")
    assert [type(step) for step in before.steps[2:4]] == [EndWithNewLine, Tokenize]
    assert (before.name, after.name) == (PREPROCESSOR, POSTPROCESSOR)
    # No feature that is normalised may lack statistics, as the released checkpoint's do.
    foreign = {f"so100.buffer.{key}": value for key, value in stats.items()}
    with pytest.raises(StatsError, match=r"no statistics for `observation.state`"):
        config.make_pipelines(**features, norm_map=config.norm_map, stats=foreign)
