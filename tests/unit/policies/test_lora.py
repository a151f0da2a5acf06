"""The arithmetic of an adapted layer, and that it starts and rounds as peft's does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mimetic.errors import ConfigError
from mimetic.policies.bricks.lora import LoRALinear
from mimetic.policies.bricks.master_weights import MasterLinear as Linear


def adapted(base=None, rank=4, alpha=8, *, random=True, **options):
    """A layer 6 -> 8 whose B is not zero."""
    torch.manual_seed(0)
    layer = LoRALinear(nn.Linear(6, 8) if base is None else base, rank, alpha, **options)
    if random:
        nn.init.normal_(layer.lora_B.weight)
    return layer


def delta(layer, x, scale):
    """What the adapter adds, in float64."""
    return scale * (x.double() @ layer.lora_A.weight.double().T @ layer.lora_B.weight.double().T)


@pytest.mark.parametrize(
    ("rank", "alpha", "stabilised", "scale"), [(4, 8, False, 2.0), (4, 8, True, 4.0), (2, 1, False, 0.5)]
)
def test_the_formula_and_its_scale(rank, alpha, stabilised, scale):
    layer = adapted(rank=rank, alpha=alpha, rank_stabilised=stabilised)
    x = torch.randn(3, 5, 6)
    expected = layer.base_layer(x).double() + delta(layer, x, scale)
    # float32 sums of at most 12 products of size 1
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert (delta(layer, x, scale).abs() > 0.1).any()


@pytest.mark.parametrize("init", ["kaiming", "gaussian"])
def test_a_new_adapter_changes_no_bit(init):
    layer = adapted(random=False, init=init)
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), layer.base_layer(x))
    assert layer.lora_A.weight.abs().min() > 0


def test_initial_values_have_their_laws():
    torch.manual_seed(0)
    uniform = LoRALinear(nn.Linear(100, 8), 64, 8).lora_A.weight.detach()
    assert 0.095 < uniform.abs().max() <= 0.1  # 1 / sqrt(100); the largest of 6400 is near the end of the range
    assert uniform.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)  # 5 deviations of 6400 draws
    normal = LoRALinear(nn.Linear(100, 8), 64, 8, init="gaussian").lora_A.weight.detach()
    assert normal.std().item() == pytest.approx(1 / 64, rel=0.05)
    assert normal.abs().max() > 3 / 64


@pytest.mark.parametrize(
    ("init", "first"),
    [
        ("kaiming", [-0.019115664064884186, -0.27249884605407715, 0.2486077845096588]),
        ("gaussian", [0.05379561334848404, -0.13104841113090515, -0.4508409798145294]),
    ],
)
def test_the_same_seed_gives_pefts_first_values(init, first):
    # peft 0.21.2 with torch 2.11 on a CPU, rank 4 on a layer 6 -> 8, right after manual_seed(1).
    base = nn.Linear(6, 8, bias=False)
    torch.manual_seed(1)
    layer = LoRALinear(base, 4, 8, init=init)
    assert layer.lora_A.weight.flatten()[:3].tolist() == pytest.approx(first, rel=1e-6)


def test_only_the_adapter_is_trained():
    layer = adapted()
    layer(torch.randn(3, 6)).sum().backward()
    trained = {name for name, p in layer.named_parameters() if p.requires_grad}
    assert trained == {"lora_A.weight", "lora_B.weight"}
    assert trained == {name for name, p in layer.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 8), lambda: Linear(6, 8, bias=True)])
def test_on_a_bfloat16_layer_the_sum_is_rounded_once(make):
    layer = adapted(make().bfloat16(), alpha=2)
    assert layer.lora_A.weight.dtype is layer.lora_B.weight.dtype is torch.float32
    x = torch.randn(64, 6, dtype=torch.bfloat16)
    down, up = layer.lora_A.weight, layer.lora_B.weight
    exact = layer.base_layer(x).float() + F.linear(F.linear(x.float(), down), up) * 0.5
    assert torch.equal(layer(x), exact.bfloat16())  # as peft does: its layer gave these bits
    twice = layer.base_layer(x) + (F.linear(F.linear(x.float(), down), up) * 0.5).bfloat16()
    assert not torch.equal(layer(x), twice)


def test_a_layer_that_multiplies_in_bfloat16_takes_its_adapter_along():
    base = Linear(6, 8, bias=True)
    base.compute_dtype = torch.bfloat16
    layer = adapted(base)
    x = torch.randn(64, 6)
    down, up = layer.lora_A.weight.bfloat16(), layer.lora_B.weight.bfloat16()
    added = F.linear(F.linear(x.bfloat16(), down), up) * 2.0
    assert torch.equal(layer(x), base(x) + added)
    assert layer(x).dtype is torch.bfloat16
    layer(x).float().sum().backward()
    assert layer.lora_A.weight.grad.dtype is torch.float32
    assert layer.compute_dtype is torch.bfloat16


def test_dropout_hides_inputs_of_the_adapter_in_training_only():
    layer = adapted(dropout=0.5)
    x = torch.ones(1000, 6)
    layer.eval()
    plain = layer(x)
    assert torch.equal(plain, layer(x))
    layer.train()
    dropped = layer(x)
    assert not torch.equal(dropped, plain)
    # The mean stays: 1000 draws of 6 inputs whose contributions are of size 3.
    torch.testing.assert_close(dropped.mean(0), plain[0], rtol=0, atol=0.5)
    rows = {tuple(row) for row in (dropped - layer.base_layer(x)).detach().round(decimals=3).tolist()}
    assert len(rows) == 2**6  # each input is hidden or doubled


def test_the_weight_is_that_of_the_whole_and_hands_gradients_on():
    layer = adapted()
    x = torch.randn(5, 6)
    direct = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(direct, layer(x), rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(layer(x).sum(), [layer.lora_A.weight, layer.lora_B.weight])
    found = torch.autograd.grad(direct.sum(), [layer.lora_A.weight, layer.lora_B.weight])
    for one, other in zip(found, wanted, strict=True):
        assert one.abs().max() > 0.1
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert (layer.in_features, layer.out_features) == (6, 8)


def test_a_weight_cannot_express_dropout():
    layer = adapted(dropout=0.1)
    with pytest.raises(ConfigError, match="dropout"):
        layer.weight  # noqa: B018
    assert layer.eval().weight.shape == (8, 6)


def test_merging_keeps_the_outputs():
    layer = adapted()
    x = torch.randn(100, 6)
    before = layer(x)
    merged = layer.merged()
    assert type(merged) is nn.Linear
    torch.testing.assert_close(merged(x), before, rtol=1e-6, atol=2e-6)  # values of size 5


def test_merging_into_bfloat16_rounds_to_its_eight_bits():
    layer = adapted(nn.Linear(6, 8).bfloat16())
    exact = layer.base_layer.weight.double() + 2.0 * layer.lora_B.weight.double() @ layer.lora_A.weight.double()
    merged = layer.merged().weight
    assert merged.dtype is torch.bfloat16
    torch.testing.assert_close(merged.double(), exact, rtol=2**-8, atol=0)
