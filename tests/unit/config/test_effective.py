"""The table of the effective configuration."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

from mimetic.config.effective import as_json, effective
from mimetic.config.parse import Parsed
from mimetic.optim.config import AdamWConfig


def test_values_and_origins_stand_side_by_side(trained: Callable[..., Parsed]) -> None:
    parsed = trained("--steps=5", "--dataset.episodes=[1,2]")
    table = as_json(effective(parsed.value, parsed.origins))
    assert table["steps"] == {"value": 5, "origin": "flag"}
    assert table["dataset.episodes"] == {"value": [1, 2], "origin": "flag"}
    assert table["policy.type"] == {"value": "act", "origin": "flag"}
    assert table["policy.normalization_mapping"]["value"]["STATE"] == "MEAN_STD"
    assert table["peft"] == {"value": None, "origin": "default"}
    assert set(table) == set(parsed.origins)


def test_decisions_of_a_command_are_shown_with_their_origin(trained: Callable[..., Parsed]) -> None:
    parsed = trained()
    value = replace(parsed.value, optimizer=AdamWConfig(lr=0.5))
    origins = {**parsed.origins, "optimizer.type": "preset", "optimizer.lr": "preset"}
    table = as_json(effective(value, origins))
    assert table["optimizer.type"] == {"value": "adamw", "origin": "preset"}
    assert table["optimizer.lr"] == {"value": 0.5, "origin": "preset"}


def test_the_text_of_every_row_can_be_typed_again(trained: Callable[..., Parsed]) -> None:
    first = trained(
        "--job_name=null_run",
        "--rename_map={a: b}",
        "--seed=null",
        "--wandb.notes='null'",
        "--optimizer.type=sgd",
        "--policy.tags=[a, 'b c']",
    )
    rows = [row for row in effective(first.value, first.origins) if row.flag != "checkpoint_path"]
    words = shlex.split(" ".join(f"--{row.flag}={shlex.quote(row.text)}" for row in rows))
    assert trained(*words).value == first.value
    assert first.value.wandb.notes == "null"
