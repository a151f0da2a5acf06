"""Weights wider than their products: same numbers as casting by hand, less memory, never stale."""

import copy

import pytest
import torch
from torch.nn import functional as F

from mimetic.policies.bricks.int8_linear import int8_works
from mimetic.policies.bricks.master_weights import MasterLinear, gated_down


def layer(dtype=torch.bfloat16, bias=False, width=48, out=32):
    torch.manual_seed(0)
    made = MasterLinear(width, out, bias=bias)
    made.compute_dtype = dtype
    return made


@pytest.mark.parametrize("bias", [False, True])
def test_product_and_gradients_are_those_of_casting_by_hand(bias):
    master, x = layer(bias=bias), torch.randn(3, 5, 48, dtype=torch.bfloat16, requires_grad=True)
    plain = copy.deepcopy(master)
    y = x.detach().clone().requires_grad_()
    ours = master(x)
    wanted = F.linear(y, plain.weight.bfloat16(), None)
    wanted = wanted if plain.bias is None else wanted + plain.bias.bfloat16()
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, wanted)
    weights = torch.linspace(-1, 1, 32).bfloat16()
    (ours * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert master.weight.grad.dtype == torch.float32
    # The same sums in the same dtype; only their order over rows may differ.
    torch.testing.assert_close(master.weight.grad, plain.weight.grad, rtol=2**-7, atol=1e-2)
    torch.testing.assert_close(x.grad, y.grad, rtol=2**-7, atol=1e-2)


def test_no_narrow_copy_of_the_weights_is_kept_for_backward():
    master, kept = layer(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        master(torch.randn(2, 48, dtype=torch.bfloat16, requires_grad=True))
    assert not any(t.dtype == torch.bfloat16 and t.numel() == master.weight.numel() for t in kept)


@torch.no_grad()
def test_evaluation_sees_changed_weights():
    master, x = layer().eval(), torch.randn(4, 48)
    before = master(x)
    assert torch.equal(before, master(x))
    master.weight.mul_(2.0)
    torch.testing.assert_close(master(x), 2 * before, rtol=2**-7, atol=1e-3)
    master.weight.data = torch.zeros_like(master.weight)
    assert torch.equal(master(x), torch.zeros_like(before))


def test_the_kept_copy_is_dropped_in_training_and_not_copied_along():
    master, x = layer().eval(), torch.randn(4, 48)
    with torch.no_grad():
        master(x)
    assert master._ready is not None
    assert copy.deepcopy(master)._ready is None
    master.train()
    with torch.no_grad():
        master(x)
    assert master._ready is None


def test_evaluation_agrees_with_training():
    master, x = layer(bias=True), torch.randn(4, 48)
    trained = master.train()(x)
    with torch.no_grad():
        evaluated = master.eval()(x)
    # Another kernel may add up in another order before the one rounding to bfloat16.
    torch.testing.assert_close(evaluated, trained, rtol=2**-7, atol=2**-8)


def test_gated_down_is_the_plain_formula():
    torch.manual_seed(1)
    down = MasterLinear(24, 16)
    gate, up = (torch.randn(2, 3, 24, requires_grad=True) for _ in range(2))
    down_2, gate_2, up_2 = (
        copy.deepcopy(down),
        gate.detach().clone().requires_grad_(),
        up.detach().clone().requires_grad_(),
    )
    ours, plain = gated_down(gate, up, down), down_2(F.silu(gate_2) * up_2)
    assert torch.equal(ours, plain)
    ours.sin().sum().backward()
    plain.sin().sum().backward()
    for a, b in ((gate, gate_2), (up, up_2), (down.weight, down_2.weight)):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_gated_down_keeps_only_its_two_inputs():
    down, kept = MasterLinear(24, 16), []
    gate, up = (torch.randn(2, 3, 24, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        gated_down(gate, up, down)
    assert {t.data_ptr() for t in kept} == {gate.data_ptr(), up.data_ptr(), down.weight.data_ptr()}


def test_gated_down_multiplies_by_what_stands_in_the_layers_place():
    class Doubled(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight = base, base.weight

        def forward(self, x):
            return 2 * self.base(x)

    down = MasterLinear(24, 16)
    gate, up = torch.randn(3, 24, requires_grad=True), torch.randn(3, 24)
    torch.testing.assert_close(gated_down(gate, up, Doubled(down)), 2 * gated_down(gate, up, down))


@pytest.mark.skipif(not int8_works(), reason="needs a CPU with fast 8-bit products")
@torch.no_grad()
def test_int8_is_for_evaluation_only():
    master, x = layer(width=64, out=64), torch.randn(8, 64).bfloat16()
    plain = master(x)
    master.int8 = True
    assert torch.equal(master.train()(x), plain)
    rounded = master.eval()(x)
    assert not torch.equal(rounded, plain)
    assert (rounded.float() - plain.float()).norm() < 0.03 * plain.float().norm()


def halve(master):
    master.weight.data.mul_(0.5)


def swap_twice(master):
    """The second one may get the memory of the first weights back."""
    master.weight.data = master.weight.data * 4
    master.weight.data = master.weight.data / 8


def load_other(master):
    master.load_state_dict({"weight": master.weight.detach() * 0.5}, assign=True)


@pytest.mark.parametrize("change", [halve, swap_twice, load_other])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@torch.no_grad()
def test_eval_notices_changes_that_torch_does_not_count(change, dtype):
    """Writes to `weight.data` leave `_version` as it is, as moving averages of weights are often written."""
    master, x = layer(dtype).eval(), torch.randn(4, 48)
    before = master(x)
    change(master)
    master.eval()
    torch.testing.assert_close(master(x), before * 0.5, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_an_update_between_two_evaluations_is_seen(fused):
    """torch's fused optimisers do not count as a new version either; a copy from before would hide all training."""
    master, x = layer(), torch.randn(4, 48)
    optimizer = torch.optim.AdamW(master.parameters(), lr=0.1, fused=fused)
    with torch.inference_mode():
        before = master.eval()(x)
    master.train()
    for with_mode in (True, False):  # also where nobody calls `eval()` again
        master(x).float().square().sum().backward()
        assert master._ready is None
        optimizer.step()
        with torch.inference_mode():
            after = (master.eval() if with_mode else master)(x)
        assert torch.equal(after, copy.deepcopy(master)(x))
        assert (after.float() - before.float()).abs().max() > 0.1
        before = after


def test_training_frees_the_copy_before_its_first_step():
    master = layer().eval()
    with torch.no_grad():
        master(torch.randn(2, 48))
        kept = master._ready
        assert master.eval()._ready is kept  # nothing changed: not made again
    assert master.train()._ready is None


def test_weights_made_in_inference_mode():
    with torch.inference_mode():
        master, x = layer().eval(), torch.randn(4, 48)
        before = master(x)
        master.weight.mul_(2)
        torch.testing.assert_close(master.eval()(x), 2 * before, rtol=2**-7, atol=1e-6)


def test_devices_that_autocast_does_not_know():
    assert layer().to("meta")(torch.empty(2, 48, device="meta")).shape == (2, 32)
