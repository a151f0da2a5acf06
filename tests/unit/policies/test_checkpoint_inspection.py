"""`mimetic inspect` shows what is there and what is wrong, and its exit code says which."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.cli.inspect import main, with_path_flag
from mimetic.errors import CheckpointNotFound, ConfigError
from mimetic.names import WEIGHTS
from mimetic.policies.inspection import inspect_checkpoint


def test_a_run_is_described_completely(fixtures):
    found = inspect_checkpoint(fixtures / "training/run_preset").to_json()
    assert found["policy"] == "act"
    assert found["training_step"] == 6
    assert found["parameters"] == 8523
    assert found["dtypes"] == {"F32": 8683}
    assert found["weights"]["matched"] == 62
    assert found["problems"] == []
    assert found["pipelines"]["policy_postprocessor"] == ["unnormalizer_processor", "device_processor"]
    by_name = {row["name"]: row for row in found["features"]}
    assert by_name["observation.state"]["statistics"] == ["mean", "std"]
    assert by_name["observation.state"]["source"] == "policy_preprocessor_step_3_normalizer_processor.safetensors"
    assert by_name["observation.environment_state"]["mode"] == "IDENTITY"
    assert by_name["observation.environment_state"]["statistics"] == []


def test_the_statistics_of_an_old_checkpoint_come_from_its_weights(fixtures):
    found = inspect_checkpoint(fixtures / "act/legacy_migration/legacy_checkpoint")
    assert found.is_legacy
    assert {row.source for row in found.features} == {WEIGHTS}
    assert not found.problems


def test_all_problems_are_listed_at_once(fixtures, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(fixtures / "act/state_env/checkpoint", folder)
    tensors = load_file(folder / WEIGHTS)
    tensors["model.other.weight"] = tensors.pop("model.action_head.weight")
    save_file(tensors, folder / WEIGHTS)
    (folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors").unlink()
    problems = [message for message, _ in inspect_checkpoint(folder).problems]
    assert len(problems) == 2
    assert "missing 1, unexpected 1" in problems[0]
    assert "is not there" in problems[1]
    allowed = inspect_checkpoint(folder, allow_missing=["model.action_head*", "model.other*"])
    assert len(allowed.problems) == 1


def test_weights_that_are_not_finite_are_a_problem(fixtures, tmp_path):
    folder = tmp_path / "nan"
    shutil.copytree(fixtures / "act/state_env/checkpoint", folder)
    tensors = load_file(folder / WEIGHTS)
    tensors["model.action_head.bias"][0] = torch.nan
    save_file(tensors, folder / WEIGHTS)
    (problem, _), *rest = inspect_checkpoint(folder).problems
    assert not rest
    assert "1 tensors hold NaN or infinity: `model.action_head.bias`" in problem


def test_json_goes_to_stdout_and_problems_set_the_exit_code(fixtures, tmp_path, capsys):
    assert main([str(fixtures / "act/state_env/checkpoint"), "--json=true"], debug=False) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "act"
    # The weights of this fixture are not shipped.
    assert main([f"--path={fixtures / 'act/vision/checkpoint'}"], debug=False) == 1
    shown = capsys.readouterr()
    assert "observation.images.top, observation.images.wrist_left" in shown.out
    assert "model.safetensors` is not there" in shown.err


def test_migrating_writes_a_checkpoint_without_problems(fixtures, tmp_path, capsys):
    source = fixtures / "act/legacy_migration/legacy_checkpoint"
    assert main([str(source), f"--migrate_to={tmp_path / 'new'}"], debug=False) == 0
    assert "108 tensors matched" in capsys.readouterr().err
    assert main([str(tmp_path / "new")], debug=False) == 0


def test_a_path_may_stand_alone_and_must_be_there(tmp_path):
    assert with_path_flag(["a/b", "--json=true"]) == ["--path=a/b", "--json=true"]
    assert with_path_flag(["--json=true"]) == ["--json=true"]
    with pytest.raises(ConfigError, match="no checkpoint is named"):
        main([], debug=False)
    with pytest.raises(CheckpointNotFound):
        main([str(tmp_path / "nowhere")], debug=False)
