"""Gradient clipping."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mimetic.optim.clip import clip_gradients


def parameters(*gradients):
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient) if gradient else 1))
        parameter.grad = torch.tensor(gradient) if gradient else None
        made.append(parameter)
    return made


def test_norm_is_over_all_gradients_and_they_are_scaled_to_the_limit():
    made = parameters([3.0, 0.0], None, [4.0])
    assert clip_gradients(made, 1.0).item() == 5.0
    factor = 1.0 / (5.0 + 1e-6)
    torch.testing.assert_close(made[0].grad, torch.tensor([3.0 * factor, 0.0]))
    torch.testing.assert_close(made[2].grad, torch.tensor([4.0 * factor]))
    assert made[1].grad is None


def test_small_gradients_are_left_alone():
    made = parameters([0.3, 0.4])
    assert clip_gradients(iter(made), 1.0).item() == pytest.approx(0.5)
    assert torch.equal(made[0].grad, torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_no_limit_measures_without_touching(limit):
    made = parameters([3.0], [4.0])
    assert clip_gradients(made, limit).item() == 5.0
    assert [p.grad.item() for p in made] == [3.0, 4.0]


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_norm_that_is_not_finite_is_reported_and_no_error(limit):
    assert math.isinf(clip_gradients(parameters([float("inf")], [1.0]), limit).item())


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_without_any_gradient_the_norm_is_zero(limit):
    assert clip_gradients(parameters(None), limit).item() == 0.0


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_nothing_is_read_back_from_the_device(limit):
    parameter = nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.zeros(3, device="meta")
    assert clip_gradients([parameter], limit).device.type == "meta"
