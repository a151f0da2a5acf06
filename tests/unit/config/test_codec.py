"""Settings to JSON and back, in LeRobot's layout."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mimetic.config.codec import choice_name, decode, decode_choice, encode
from mimetic.config.legacy import migrate
from mimetic.data.config import DatasetConfig
from mimetic.errors import ConfigError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.optim.catalog import OPTIMIZERS
from mimetic.optim.config import AdamConfig, AdamWConfig, SGDConfig
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.catalog import POLICIES
from mimetic.train.config import TrainConfig

RUNS = Path(__file__).parents[2] / "fixtures/training"
PRETRAINED = sorted(RUNS.glob("run_*/checkpoints/0*/pretrained_model"))
FILE_LAYERS = ("lerobot", "next")


def config(**values: Any) -> TrainConfig:
    return TrainConfig(dataset=DatasetConfig(repo_id="me/x"), policy=ACTConfig(), **values)


def test_there_are_recorded_files() -> None:
    assert len(PRETRAINED) == 5


@pytest.mark.parametrize("folder", PRETRAINED, ids=lambda p: str(p.relative_to(RUNS).parent))
def test_policy_config_survives_byte_for_byte(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    found = decode_choice(POLICIES, json.loads(text), where="config.json")
    assert isinstance(found, ACTConfig)
    assert json.dumps(encode(found), indent=4) == text
    assert decode(ACTConfig, json.loads(text), where="config.json") == found


@pytest.mark.parametrize(
    "folder", [p for p in PRETRAINED if "after_061" not in str(p)], ids=lambda p: str(p.relative_to(RUNS).parent)
)
def test_train_config_survives_byte_for_byte(folder: Path) -> None:
    text = (folder / "train_config.json").read_text()
    found = decode(TrainConfig, json.loads(text), where="train_config.json")
    assert json.dumps(encode(found, layers=FILE_LAYERS), indent=4) == text


def test_newer_train_config_is_read_and_written_in_the_layout_that_both_read() -> None:
    path = RUNS / "run_grad_accum_after_061/checkpoints/000003/pretrained_model/train_config.json"
    theirs = json.loads(path.read_text())
    found = decode(TrainConfig, theirs, where="train_config.json")
    assert found.accelerator.gradient_accumulation.steps == 2
    ours = encode(found, layers=FILE_LAYERS)
    # What is written is theirs without the groups and settings that have their defaults.
    assert ours.pop("accelerator") == {"gradient_accumulation": {"steps": 2}}
    for name in ("checkpoint_format", "parallelism", "accelerator", "ema"):
        del theirs[name]
    del theirs["dataset"]["exclude_episodes"]
    assert json.dumps(ours) == json.dumps(theirs)


def test_newer_settings_are_written_only_when_they_matter() -> None:
    plain = encode(config(), layers=FILE_LAYERS)
    assert "accelerator" not in plain
    assert "exclude_episodes" not in plain["dataset"]
    assert "dry_run" not in plain
    full = encode(config(), full=True)
    assert full["accelerator"]["gradient_accumulation"] == {"steps": 1}
    assert full["accelerator"]["grad_scaler"]["enabled"] is True
    assert full["dataset"]["exclude_episodes"] is None
    assert full["dry_run"] is False
    one = encode(TrainConfig(dataset=DatasetConfig(repo_id="x", exclude_episodes=[3])), layers=FILE_LAYERS)
    assert one["dataset"]["exclude_episodes"] == [3]


def test_full_form_is_read_back_equal() -> None:
    value = config(
        optimizer=SGDConfig(momentum=0.9), output_dir=Path("out/x"), allow_missing=["a.*"], rename_map={"a": "b"}
    )
    again = decode(TrainConfig, json.loads(json.dumps(encode(value, full=True))), where="mimetic.json")
    assert again == value
    assert isinstance(again.output_dir, Path)


def test_choices_start_with_their_type_and_keep_order() -> None:
    data = encode(config(optimizer=AdamWConfig(lr=0.1)))
    assert list(data["optimizer"]) == ["type", "lr", "weight_decay", "grad_clip_norm", "betas", "eps"]
    assert data["optimizer"]["type"] == "adamw"
    assert next(iter(data["policy"])) == "type"
    assert choice_name(AdamConfig(), OPTIMIZERS) == "adam"


def test_enums_paths_and_tuples_are_plain_json() -> None:
    assert encode({"a": (1, 2), "b": Path("x/y"), "c": NormalizationMode.MEAN_STD}) == {
        "a": [1, 2],
        "b": str(Path("x/y")),
        "c": "MEAN_STD",
    }
    policy = replace(ACTConfig(), input_features={"s": PolicyFeature(FeatureType.STATE, (3,))})
    assert encode(policy)["input_features"] == {"s": {"type": "STATE", "shape": [3]}}


def test_every_wrong_field_is_named_in_one_error() -> None:
    data = {"type": "act", "chunk_sise": 3, "n_heads": "many", "feedforward_activation": "relux", "dropout": None}
    with pytest.raises(ConfigError) as caught:
        decode_choice(POLICIES, data, where="a/config.json")
    assert str(caught.value) == (
        "4 problems\n"
        "  - unknown setting `chunk_sise` in a/config.json; did you mean `chunk_size`?\n"
        '  - `n_heads` is `"many"` in a/config.json: expected a whole number\n'
        '  - `feedforward_activation` is `"relux"` in a/config.json: expected `relu`, `gelu` or `glu`; '
        "did you mean `relu`?\n"
        "  - `dropout` is `null` in a/config.json: expected a number"
    )


def test_unknown_fields_go_to_the_listener_when_there_is_one() -> None:
    heard: list[tuple[str, Any]] = []
    decode(
        ACTConfig, {"new": {"x": 1}}, where="config.json", on_unknown=lambda name, value: heard.append((name, value))
    )
    assert heard == [("new", {"x": 1})]


def test_fields_of_newer_versions_pass_only_at_the_value_that_changes_nothing() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Policy:
        neutral_unknown: ClassVar[dict[str, Any]] = {"later": False}
        size: int = setting(1, "Size")

    assert decode(Policy, {"later": False}, where="f") == Policy()
    with pytest.raises(ConfigError, match="unknown setting `later`"):
        decode(Policy, {"later": True}, where="f")
    data = {"dataset": {"repo_id": "x"}}
    decode(TrainConfig, {**data, "parallelism": {"dp_shard": 1, "cfg_parallel": 1}}, where="f")
    with pytest.raises(
        ConfigError, match=r"`parallelism.dp_shard` is `2` in f, which is LeRobot's and not part of mimetic yet"
    ):
        decode(TrainConfig, {**data, "parallelism": {"dp_shard": 2}}, where="f")


def test_missing_required_fields_are_named() -> None:
    with pytest.raises(ConfigError, match=r"`dataset.repo_id` is missing in f"):
        decode(TrainConfig, {"dataset": {"root": "x"}}, where="f")
    with pytest.raises(ConfigError, match=r"`dataset.repo_id` is missing in f"):
        decode(TrainConfig, {}, where="f")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "f has no `type`"),
        ({"type": 3}, "f has no `type`"),
        ({"type": "acd"}, r"unknown policy `acd` \(in f\)"),
        ({"type": "pi0"}, r"policy `pi0` is known from LeRobot but not part of mimetic yet \(in f\)"),
    ],
)
def test_a_config_without_a_usable_type_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_choice(POLICIES, data, where="f")


def test_a_type_that_contradicts_the_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting `type`"):
        decode(ACTConfig, {"type": "diffusion"}, where="f")


def test_old_names_of_sample_weighting_are_migrated() -> None:
    old = {"steps": 3, "use_rabc": True, "rabc_kappa": 0.5, "rabc_head_mode": "dense", "sample_weighting": None}
    assert migrate(old) == {"steps": 3, "sample_weighting": {"type": "rabc", "kappa": 0.5, "head_mode": "dense"}}
    assert migrate({"use_rabc": False, "rabc_kappa": 0.5, "rabc_progress_path": None}) == {}
    assert old["use_rabc"] is True
    keep = {"use_rabc": True, "sample_weighting": {"type": "uniform"}}
    assert migrate(keep) == {"sample_weighting": {"type": "uniform"}}
    assert migrate({"steps": 1}) == {"steps": 1}
