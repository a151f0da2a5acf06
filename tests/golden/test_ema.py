"""Averaged weights against the newer LeRobot (fixtures/training/ema.json): six settings, 12 updates each, 1e-7.

The average's subtraction, product and subtraction are rounded as there, so that float32 values near 10, which lie 1e-6
apart, are the same ones. torch's lerp is not within this tolerance.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from mimetic.optim.ema import Ema, EmaDecay

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "training" / "ema.json").read_text())["cases"]


def decay_of(args):
    return EmaDecay(
        max_decay=args["decay"],
        min_decay=args["min_decay"],
        update_after_step=args["update_after_step"],
        inv_gamma=args["inv_gamma"],
        power=args["power"],
    )


def identify(case):
    return ",".join(f"{key}={value}" for key, value in case["args"].items())


def test_the_file_holds_six_settings_of_twelve_updates():
    assert [len(case["rows"]) for case in CASES] == [12] * 6


@pytest.mark.parametrize("is_on_device", [False, True], ids=["counted by the host", "counted by the device"])
@pytest.mark.parametrize("case", CASES, ids=identify)
def test_decay_and_shadow_are_the_references(case, is_on_device):
    weight = nn.Parameter(torch.tensor(case["initial"]))
    ema = Ema({"weight": weight}, decay_of(case["args"]))
    for row in case["rows"]:
        with torch.no_grad():
            weight.copy_(torch.tensor(row["live"]))
        ema.update(torch.tensor(True) if is_on_device else None)
        assert ema.updates == row["optimizer_update"]
        assert ema.decay == pytest.approx(row["decay"], rel=1e-14, abs=0)
        expected = torch.tensor(row["shadow"], dtype=torch.float64)
        torch.testing.assert_close(ema.averaged["weight"].double(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_the_device_computes_the_same_decay(case):
    decay = decay_of(case["args"])
    for row in case["rows"]:
        found = decay.on_device(torch.tensor(row["optimizer_update"]))
        assert found.item() == pytest.approx(row["decay"], rel=1e-14, abs=0)
