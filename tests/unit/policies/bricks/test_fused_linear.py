"""Fused linear layers: the same numbers as the plain ones, and used only where they may be."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mimetic.policies.bricks import fused_linear
from mimetic.policies.bricks.fused_linear import linear, linear_add, linear_gelu

# Against float32 on the rounded inputs: float32 sums in another order; bfloat16 one rounding of results below 4.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
VARIANTS = ("plain", "gelu", "add")


@pytest.fixture(params=TOLERANCE, ids=str)
def case(request):
    torch.manual_seed(0)
    layer = nn.Linear(40, 24).to(request.param)
    return torch.randn(2, 5, 40).to(request.param), layer, torch.randn(2, 5, 24).to(request.param)


@pytest.fixture
def calls(monkeypatch):
    """How often the fused operators are asked for."""
    seen = []
    original = fused_linear._pointwise
    monkeypatch.setattr(fused_linear, "_pointwise", lambda: seen.append(1) or original())
    return seen


def compute(variant, x, layer, residual):
    if variant == "gelu":
        return linear_gelu(x, layer)
    return linear_add(x, layer, residual) if variant == "add" else linear(x, layer)


def expected(variant, x, layer, residual):
    out = F.linear(x.float(), layer.weight.float(), None if layer.bias is None else layer.bias.float())
    if variant == "gelu":
        return F.gelu(out, approximate="tanh")
    return out + residual.float() if variant == "add" else out


@pytest.mark.parametrize("works", [True, False], ids=["as probed", "without the operators"])
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_plain_layer(monkeypatch, case, variant, with_grad, works):
    x = case[0]
    if not works:
        monkeypatch.setattr(fused_linear, "fused_operators_work", lambda dtype: False)
    with torch.set_grad_enabled(with_grad):
        found = compute(variant, *case)
    assert found.dtype is x.dtype
    # Unfused, bfloat16 rounds the sum before the GELU or the residual as well.
    atol = TOLERANCE[x.dtype] * (2 if with_grad or not works else 1)
    torch.testing.assert_close(found.float(), expected(variant, *case), rtol=0, atol=atol)


@torch.no_grad()
def test_the_bias_is_left_out_only_where_fused(monkeypatch, case):
    x, layer, _ = case
    atol = TOLERANCE[x.dtype]
    if fused_linear.fused_operators_work(x.dtype):
        found = linear(x, layer, may_drop_bias=True)
        torch.testing.assert_close(found.float(), F.linear(x.float(), layer.weight.float()), rtol=0, atol=atol)
    monkeypatch.setattr(fused_linear, "fused_operators_work", lambda dtype: False)
    assert torch.equal(linear(x, layer, may_drop_bias=True), layer(x))


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_flow(case, variant):
    x, layer, residual = case
    x.requires_grad_()
    compute(variant, x, layer, residual).float().sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None


def test_used_without_gradient_wherever_the_operators_work(case, calls):
    if not fused_linear.fused_operators_work(case[0].dtype):
        pytest.skip("this torch or processor has no fused operators for the dtype")
    calls.clear()
    with torch.no_grad():
        for variant in VARIANTS:
            compute(variant, *case)
    frozen = case[1].requires_grad_(False)
    linear(case[0], frozen)  # gradients are on, but nothing here needs one
    assert len(calls) == 4


def wrapped(layer):
    return nn.Sequential(layer)


def hooked(layer):
    layer.register_forward_hook(lambda module, args, out: out * 2)
    return layer


def subclassed(layer):
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    other = Doubled(40, 24).to(layer.weight.dtype)
    other.load_state_dict(layer.state_dict())
    return other


@pytest.mark.parametrize("change", [wrapped, hooked, subclassed])
@torch.no_grad()
def test_a_layer_that_is_more_than_linear_is_called(case, calls, change):
    x, layer, residual = case
    layer = change(layer)
    calls.clear()
    assert torch.equal(linear(x, layer), layer(x))
    assert torch.equal(linear_gelu(x, layer), F.gelu(layer(x), approximate="tanh"))
    assert torch.equal(linear_add(x, layer, residual), residual + layer(x))
    assert not calls


@torch.no_grad()
def test_autocast_decides_the_dtype(calls):
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.ones(2, 8), nn.Linear(8, 4)).dtype is torch.bfloat16
    assert not calls


@torch.no_grad()
def test_a_wider_residual_keeps_its_dtype(case):
    x, layer, residual = case
    assert linear_add(x, layer, residual.double()).dtype is torch.float64


def test_a_probe_that_finds_other_numbers_says_no(monkeypatch):
    class Wrong:
        def __call__(self, x, weight, bias, *rest):
            return F.linear(x, weight, bias) + 1

        def binary(self, x, other, weight, bias, attribute):
            return F.linear(x, weight, bias) + other

    def missing():
        raise AttributeError("no such operator")

    fused_linear.fused_operators_work.cache_clear()
    try:
        for pointwise in (Wrong, missing):
            monkeypatch.setattr(fused_linear, "_pointwise", pointwise)
            assert not fused_linear.fused_operators_work(torch.float32)
            fused_linear.fused_operators_work.cache_clear()
    finally:
        fused_linear.fused_operators_work.cache_clear()
