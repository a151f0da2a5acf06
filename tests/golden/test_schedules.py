"""Learning rates against LeRobot 0.6.1 (fixtures/training/lr_curves.json): 34 settings, 1e-14 relative.

The formulas are the same; what is left is the last bits of float64.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from mimetic.errors import ConfigError
from mimetic.optim.build import make_optimizer
from mimetic.optim.catalog import SCHEDULERS
from mimetic.optim.config import SGDConfig
from mimetic.optim.schedules import describe_schedule, make_scheduler

CURVES = json.loads((Path(__file__).parents[1] / "fixtures" / "training" / "lr_curves.json").read_text())["curves"]
WITH_RATES = [curve for curve in CURVES if curve.get("lr")]
WITH_ERRORS = [curve for curve in CURVES if "error" in curve]


def build(curve):
    parameters = [nn.Parameter(torch.zeros(1)) for _ in curve["base_lrs"]]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(parameters, curve["base_lrs"], strict=True)]
    optimizer = make_optimizer(SGDConfig(), groups)
    config = SCHEDULERS.load_config(curve["type"])(**curve["config"])
    return config, optimizer, make_scheduler(config, optimizer, curve["num_training_steps"])


def identify(curve):
    settings = ",".join(f"{key}={value}" for key, value in curve["config"].items())
    return f"{curve['type']}({settings})T={curve['num_training_steps']}"


def test_the_file_holds_thirty_four_settings_three_of_them_errors():
    assert (len(WITH_RATES), len(WITH_ERRORS)) == (31, 3)


@pytest.mark.parametrize("curve", WITH_RATES, ids=identify)
def test_rates_of_every_group_at_every_recorded_step(curve, caplog):
    caplog.set_level(logging.INFO, logger="mimetic")
    config, optimizer, scheduler = build(curve)
    rates = {}
    for step in range(max(curve["scheduler_step_index"]) + 1):
        rates[step] = [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()
    for step, expected in zip(curve["scheduler_step_index"], curve["lr"], strict=True):
        assert rates[step] == pytest.approx(expected, rel=1e-14, abs=1e-25), step
    assert [record.getMessage() for record in caplog.records] == curve["log_messages"]
    assert "\n" not in describe_schedule(config, curve["num_training_steps"], curve["base_lrs"][0])


@pytest.mark.parametrize("curve", WITH_ERRORS, ids=identify)
def test_impossible_settings_are_refused(curve):
    with pytest.raises(ConfigError) as caught:
        build(curve)
    assert "--scheduler." in caught.value.message
    assert caught.value.hint


def test_state_has_lerobots_keys_and_holds_no_function():
    curve = next(c for c in WITH_RATES if c["type"] == "cosine_decay_with_warmup" and c["num_training_steps"] == 10)
    _, optimizer, scheduler = build(curve)
    optimizer.step()
    scheduler.step()
    state = scheduler.state_dict()
    folder = Path(__file__).parents[1] / "fixtures/training/run_sched/checkpoints/000003/training_state"
    recorded = json.loads((folder / "scheduler_state.json").read_text())
    assert set(recorded) <= set(state)
    assert state["lr_lambdas"] == [None, None]
    json.dumps(state)
