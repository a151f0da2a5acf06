"""Schedules: what a user is told, and properties that hold for every shape."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mimetic.errors import ConfigError
from mimetic.optim.build import make_optimizer
from mimetic.optim.config import (
    ConstantWithWarmupConfig,
    CosineAnnealingWithWarmupConfig,
    CosineDecayWithWarmupConfig,
    DiffuserSchedulerConfig,
    SchedulerConfig,
    SGDConfig,
    VQBeTSchedulerConfig,
)
from mimetic.optim.schedules import describe_schedule, make_factor, make_scheduler

DECAY = CosineDecayWithWarmupConfig(num_warmup_steps=1000, num_decay_steps=30000, peak_lr=1e-4, decay_lr=2.5e-6)


@pytest.mark.parametrize(
    ("config", "steps", "expected"),
    [
        (None, 100, "learning rate: constant at 0.0001"),
        (
            DECAY,
            100_000,
            "learning rate: cosine decay from 0.0001, warm-up 1000 steps, floor 2.5e-06 reached at step 30000 of 100000",
        ),
        (
            DECAY,
            3000,
            "learning rate: cosine decay from 0.0001, warm-up 100 steps, floor 2.5e-06 reached at step 3000 of 3000 "
            "(shortened from 30000)",
        ),
        (
            ConstantWithWarmupConfig(num_warmup_steps=10),
            5,
            "learning rate: constant from 0.0001, warm-up 10 steps, last update at 4e-05",
        ),
        (
            DiffuserSchedulerConfig(num_warmup_steps=500),
            1000,
            "learning rate: cosine from 0.0001, warm-up 500 steps, floor 0 reached at step 1000 of 1000",
        ),
        (
            DiffuserSchedulerConfig(name="constant"),
            1000,
            "learning rate: constant from 0.0001, no warm-up, last update at 0.0001",
        ),
        (
            CosineAnnealingWithWarmupConfig(num_warmup_steps=2000),
            1000,
            "learning rate: cosine to zero from 0.0001, warm-up 2000 steps, "
            "floor 0 not reached in this run: final lr 5e-05",
        ),
        (
            VQBeTSchedulerConfig(num_warmup_steps=0, num_vqvae_training_steps=500),
            1000,
            "learning rate: constant, then cosine from 0.0001, no warm-up, "
            "floor 0 not reached in this run: final lr 5.02e-05",
        ),
    ],
)
def test_a_run_is_described_in_one_line(config, steps, expected):
    assert describe_schedule(config, steps, 1e-4) == expected


def test_no_schedule_is_no_scheduler():
    assert make_scheduler(None, make_optimizer(SGDConfig(), [nn.Parameter(torch.zeros(1))]), 10) is None


def test_the_peak_is_never_quite_reached_as_in_lerobot():
    config = CosineDecayWithWarmupConfig(num_warmup_steps=4, num_decay_steps=20, peak_lr=1.0, decay_lr=0.1)
    factor = make_factor(config, 20, 1.0)
    assert [round(factor(step), 3) for step in range(6)] == [0.2, 0.4, 0.6, 0.8, 0.914, 0.868]


@given(
    warmup=st.integers(0, 50),
    decay=st.integers(1, 80),
    total=st.integers(1, 80),
    step=st.integers(0, 200),
    floor=st.floats(0, 1),
)
def test_a_cosine_decay_stays_between_its_start_and_its_peak(warmup, decay, total, step, floor):
    config = CosineDecayWithWarmupConfig(num_warmup_steps=warmup, num_decay_steps=decay, peak_lr=1.0, decay_lr=floor)
    value = make_factor(config, total, 1.0)(step)
    assert min(floor, 1 / (warmup + 1)) - 1e-12 <= value <= 1.0 + 1e-12
    if step >= max(warmup, decay):
        assert value == pytest.approx(floor, abs=1e-12)


def test_a_saved_state_continues_the_curve():
    config = DiffuserSchedulerConfig(num_warmup_steps=3)

    def build():
        optimizer = make_optimizer(SGDConfig(lr=0.1), [nn.Parameter(torch.zeros(1))])
        return optimizer, make_scheduler(config, optimizer, 12)

    optimizer, scheduler = build()
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    resumed_optimizer, resumed = build()
    resumed_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed.load_state_dict(scheduler.state_dict())
    for _ in range(5):
        for o, s in ((optimizer, scheduler), (resumed_optimizer, resumed)):
            o.step()
            s.step()
        assert resumed.get_last_lr() == scheduler.get_last_lr()
        assert resumed_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(),
        CosineDecayWithWarmupConfig(num_warmup_steps=0, num_decay_steps=0, peak_lr=1.0, decay_lr=0.1),
        CosineDecayWithWarmupConfig(num_warmup_steps=0, num_decay_steps=10, peak_lr=0.0, decay_lr=0.0),
        DiffuserSchedulerConfig(name="cosin", num_warmup_steps=0),
        DiffuserSchedulerConfig(name="piecewise_constant", num_warmup_steps=0),
        DiffuserSchedulerConfig(name="linear"),
    ],
)
def test_impossible_schedules_are_config_errors(config):
    with pytest.raises(ConfigError) as caught:
        make_factor(config, 10, 1e-3)
    assert caught.value.hint
