"""Settings and stored states of the loss scaler; its trace is in tests/golden/test_grad_scaler.py."""

import logging

import pytest
import torch

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.loss_scaler import LossScaler, describe_scaler
from mimetic.errors import CheckpointError
from mimetic.train.state import load_scaler, write_json

CPU = torch.device("cpu")
STATE = {
    "scale": 1024.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 7,
    "_growth_tracker": 3,
}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"init_scale": 0.0}, "`--accelerator.grad_scaler.init_scale=0.0` must be above 0 and finite"),
        ({"init_scale": float("inf")}, "`--accelerator.grad_scaler.init_scale=inf` must be above 0 and finite"),
        ({"init_scale": float("nan")}, "`--accelerator.grad_scaler.init_scale=nan` must be above 0 and finite"),
        ({"growth_factor": 1.0}, "`--accelerator.grad_scaler.growth_factor=1.0` must be above 1 and finite"),
        ({"backoff_factor": 1.0}, "`--accelerator.grad_scaler.backoff_factor=1.0` must be between 0 and 1"),
        ({"backoff_factor": 0.0}, "`--accelerator.grad_scaler.backoff_factor=0.0` must be between 0 and 1"),
        ({"growth_interval": 0}, "`--accelerator.grad_scaler.growth_interval=0` must be at least 1"),
    ],
)
def test_settings_that_torch_would_take_in_silence_are_refused(settings, text):
    assert GradScalerConfig(**settings).check() == [text]


def test_defaults_are_torchs():
    state = LossScaler(GradScalerConfig(), CPU).state()
    assert state == {
        "scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 0,
    }
    assert GradScalerConfig().check() == []
    assert describe_scaler(GradScalerConfig()) == "loss scale 65536, x2 after 2000 updates, x0.5 after an overflow"


def test_flags_win_over_stored_factors_and_never_over_the_scale():
    scaler = LossScaler(GradScalerConfig(init_scale=8.0, growth_interval=99), CPU)
    scaler.load(STATE, given={"growth_interval", "init_scale"}, where="f")
    assert scaler.state() == STATE | {"growth_interval": 99}
    assert scaler.value() == 1024.0
    assert scaler.tensor().item() == 1024.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", 0.0),
        ("scale", float("inf")),
        ("scale", "65536"),
        ("scale", True),
        ("growth_factor", 1.0),
        ("backoff_factor", 1.5),
        ("growth_interval", 2.5),
        ("growth_interval", 0),
        ("_growth_tracker", -1),
        ("_growth_tracker", None),
    ],
)
def test_a_stored_state_that_cannot_be_one_is_refused(tmp_path, name, value):
    write_json(tmp_path / "scaler_state.json", STATE | {name: value})
    scaler = LossScaler(GradScalerConfig(), CPU)
    with pytest.raises(
        CheckpointError, match=r"scaler_state.json does not hold the state of a loss scaler: `"
    ) as caught:
        load_scaler(tmp_path, scaler)
    assert f"`{name}` = {value!r}" in caught.value.message
    assert scaler.value() == 65536.0


def test_a_missing_file_starts_afresh_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="mimetic"):
        load_scaler(tmp_path, LossScaler(GradScalerConfig(init_scale=256.0), CPU))
    assert "scaler_state.json is not there: the loss scale starts afresh at 256" in caplog.text


def test_a_file_of_another_kind_is_refused(tmp_path):
    write_json(tmp_path / "scaler_state.json", [1, 2])
    with pytest.raises(CheckpointError, match=r"scaler_state.json does not hold the state of a loss scaler"):
        load_scaler(tmp_path, LossScaler(GradScalerConfig(), CPU))
