"""The loss scale, step by step, as torch's scaler moved it (tests/fixtures/training/README.md).

Everything is exact: the scale is a power of two, and the counters are whole numbers.
"""

import json
import math

import pytest
import torch
from torch import nn

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.precision import choose_precision
from mimetic.train.overflows import OverflowWatch
from mimetic.train.state import load_scaler, save_scaler
from mimetic.train.step import Stepper

CPU = torch.device("cpu")


class Slopes(nn.Module):
    """loss = weight . slope, so that the gradient is what a test prescribes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def loss(self, batch):
        return (self.weight * batch["action"]).sum(), {}


class Run:
    """A stepper with a loss scaler on the CPU, and what its updates did."""

    def __init__(self, settings, *, accumulation=1, optimizer=torch.optim.AdamW, clip_norm=10.0, **options):
        self.policy = Slopes()
        self.optimizer = optimizer(self.policy.parameters(), lr=1e-3, **options)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.scaler = LossScaler(GradScalerConfig(**settings), CPU)
        self.landed = []
        self.stepper = Stepper(
            self.policy,
            self.optimizer,
            self.scheduler,
            choose_precision("no", CPU),
            clip_norm=clip_norm,
            accumulation=accumulation,
            scaler=self.scaler,
            after_update=lambda landed: self.landed.append(bool(landed)),
        )
        self.watch = OverflowWatch(CPU)

    def step(self, slope):
        """One micro-batch; the trace of everything that a skipped update may or may not move."""
        number = {"inf": math.inf, "nan": math.nan}.get(slope, slope)
        before = self.policy.weight.detach().clone()
        result = self.stepper.forward_backward({"action": torch.tensor([float(number), 0.5])})
        landed = self.stepper.update()
        if landed is not None:
            self.watch.watch(self.scheduler.last_epoch, landed, self.scaler.tensor())
        state = self.optimizer.state.get(self.policy.weight, {})
        return {
            "changed": not torch.equal(before, self.policy.weight),
            "scale": self.scaler.value(),
            "tracker": self.scaler.state()["_growth_tracker"],
            "updates": int(state.get("step", 0)),
            "schedule": self.scheduler.last_epoch,
            "lr": self.optimizer.param_groups[0]["lr"],
            "norm": repr(None if result.grad_norm is None else result.grad_norm.item()),  # text, so that nan equals nan
            "skipped": self.watch.skipped,
        }


@pytest.fixture(scope="module")
def golden(fixtures):
    return json.loads((fixtures / "training/grad_scaler.json").read_text())


@pytest.mark.parametrize("fused", [False, True])
def test_scale_skips_optimiser_and_schedule_follow_the_recorded_trace(golden, fused):
    run = Run(golden["init"], fused=fused)
    trace = [run.step(slope) for slope in golden["gradient_before_scaling"]]
    updated = golden["updated"]
    assert [row["scale"] for row in trace] == golden["scale_after_update"]
    assert [row["tracker"] for row in trace] == golden["growth_tracker_after_update"]
    assert [row["changed"] for row in trace] == updated
    assert [row["updates"] for row in trace] == [sum(updated[: n + 1]) for n in range(len(updated))]
    # LeRobot's schedule is a function of the step, whether its update landed or not (spec/training.md 17.4).
    assert [row["schedule"] for row in trace] == list(range(1, len(updated) + 1))
    assert [row["lr"] for row in trace] == pytest.approx([1e-3 / (2 + n) for n in range(len(updated))])
    assert run.landed == updated
    assert run.watch.skipped == updated.count(False)
    assert run.watch.landed == updated.count(True)
    assert run.scaler.state() == golden["state_dict_after_last"]


def test_norms_are_those_of_the_unscaled_gradient(golden):
    run = Run(golden["init"], clip_norm=0.0)
    assert float(run.step(1)["norm"]) == pytest.approx(math.hypot(1, 0.5))
    assert [run.step(slope)["norm"] for slope in ("inf", "nan")] == ["inf", "nan"]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stop_after", range(1, 16))
def test_a_saved_and_resumed_scale_goes_on_as_if_it_had_not_stopped(golden, tmp_path, accumulation, stop_after):
    slopes = [*golden["gradient_before_scaling"], 1, 1, "inf", 1, 1, 1, 1, 1]
    whole = Run(golden["init"], accumulation=accumulation)
    expected = [whole.step(slope) for slope in slopes]

    first = Run(golden["init"], accumulation=accumulation)
    begun = [first.step(slope) for slope in slopes[:stop_after]]
    save_scaler(tmp_path, first.scaler)
    gradient = first.policy.weight.grad

    second = Run({"growth_interval": 3}, accumulation=accumulation)
    load_scaler(tmp_path, second.scaler)
    second.policy.load_state_dict(first.policy.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.scheduler.load_state_dict(first.scheduler.state_dict())
    second.stepper.micro_step = first.stepper.micro_step
    second.policy.weight.grad = gradient
    second.watch = OverflowWatch(CPU, landed=first.watch.landed, skipped=first.watch.skipped)
    assert [*begun, *(second.step(slope) for slope in slopes[stop_after:])] == expected
    assert torch.equal(second.policy.weight, whole.policy.weight)


def test_the_stored_file_is_the_five_values(golden, tmp_path):
    run = Run(golden["init"])
    for slope in golden["gradient_before_scaling"]:
        run.step(slope)
    save_scaler(tmp_path, run.scaler)
    text = (tmp_path / "scaler_state.json").read_text()
    assert text == json.dumps(golden["state_dict_after_last"], indent=4)
