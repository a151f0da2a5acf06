"""The average: when it moves, what it costs, and that standing in for the weights leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mimetic.optim import ema as module_under_test
from mimetic.optim.ema import Ema, EmaDecay

WARM = EmaDecay()


class Net(nn.Module):
    """A frozen layer, a trained one, and a parameter that is trained and never used."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.trained = nn.Linear(4, 3)
        self.unused = nn.Parameter(torch.ones(2))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)

    def forward(self, x):
        return self.trained(self.frozen(x))


def make(net, decay=WARM):
    return Ema(dict(net.named_parameters()), decay)


def move(net, step):
    """Stand-in for an optimiser's update."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter += torch.full_like(parameter, 0.1 * (step + 1)).sin()


def values(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (EmaDecay(power=1.0, inv_gamma=2.0), [0, 1 / 3, 1 / 2, 3 / 5]),
        (EmaDecay(power=1.0, update_after_step=2), [0, 0, 0, 1 / 2]),
        (EmaDecay(power=1.0, max_decay=0.55), [0, 1 / 2, 0.55, 0.55]),
        (EmaDecay(power=1.0, min_decay=0.7), [0, 0.7, 0.7, 3 / 4]),
        (EmaDecay(min_decay=0.9, max_decay=0.9), [0, 0.9, 0.9, 0.9]),
        (EmaDecay(min_decay=1.0, max_decay=1.0, update_after_step=1), [0, 0, 1, 1]),
    ],
)
def test_decay_of_the_first_updates(decay, expected):
    assert [decay.at(update) for update in (1, 2, 3, 4)] == pytest.approx(expected, rel=1e-15)
    assert decay.at(0) == 0


@pytest.mark.parametrize("update", [0, 1, 2, 11, 12, 1000, 10**7])
def test_the_device_knows_the_same_decay(update):
    decay = EmaDecay(update_after_step=10, inv_gamma=1.7, power=0.6)
    found = decay.on_device(torch.tensor(update))
    assert found.dtype is torch.float64
    assert found.item() == pytest.approx(decay.at(update), rel=1e-14)


def test_the_average_starts_from_the_weights_and_the_first_update_copies_them():
    net = Net()
    ema = make(net)
    assert_same(values(ema.shadow), values(dict(net.named_parameters())))
    assert (ema.updates, ema.decay) == (0, 0.0)
    move(net, 0)
    ema.update()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(ema.shadow[name], parameter.detach(), rtol=0, atol=1e-6)
    before = values(ema.averaged)
    move(net, 1)
    ema.update()
    share = 1 - WARM.at(2)
    for name, shadow in ema.averaged.items():
        expected = before[name].double() + share * (net.get_parameter(name).double() - before[name].double())
        torch.testing.assert_close(shadow.double(), expected.detach(), rtol=1e-6, atol=1e-6)
    assert (ema.updates, ema.decay) == (2, WARM.at(2))


def test_a_frozen_parameter_is_its_own_shadow_and_costs_no_memory():
    net = Net()
    ema = make(net)
    assert ema.shadow["frozen.weight"] is net.frozen.weight
    assert ema.averaged.keys() == {"trained.weight", "trained.bias", "unused"}
    pointers = {tensor.untyped_storage().data_ptr() for tensor in ema.averaged.values()}
    assert pointers.isdisjoint(p.untyped_storage().data_ptr() for p in net.parameters())
    assert sum(tensor.untyped_storage().nbytes() for tensor in ema.averaged.values()) == 4 * (12 + 3 + 2)
    assert not any(tensor.requires_grad for tensor in ema.averaged.values())


def test_narrow_weights_are_averaged_in_float32():
    net = Net(torch.bfloat16)
    ema = make(net, EmaDecay(min_decay=0.999, max_decay=0.999))
    ema.update()
    with torch.no_grad():
        net.trained.weight += 1
    start = ema.averaged["trained.weight"].clone()
    ema.update()
    moved = ema.averaged["trained.weight"] - start  # below half a unit of bfloat16 around 1
    assert ema.averaged["trained.weight"].dtype is torch.float32
    torch.testing.assert_close(moved, torch.full_like(moved, 0.001), rtol=0.02, atol=0)
    with ema.swapped(net):
        assert net.trained.weight.dtype is torch.bfloat16
        assert torch.equal(net.trained.weight, ema.averaged["trained.weight"].bfloat16())


@pytest.mark.parametrize(
    ("numbers_at_once", "pieces"), [(1, [2, 3, 12, 3]), (14, [2, 3, 12, 3]), (15, [2, 3, 15]), (10**6, [2, 3, 15])]
)
def test_how_many_numbers_are_updated_at_once_changes_no_bit(monkeypatch, numbers_at_once, pieces):
    net = Net()
    net.extra = nn.Parameter(torch.ones(3, dtype=torch.float64))  # by itself: a GPU updates one dtype at a time
    expected = make(net)
    monkeypatch.setattr(module_under_test, "_AT_ONCE", numbers_at_once)
    ema = make(net)
    assert [sum(tensor.numel() for tensor in shadows) for shadows, _ in ema._pairs] == pieces
    for step in range(3):
        move(net, step)
        for average in (expected, ema):
            average.update()
    assert_same(ema.averaged, expected.averaged)
    assert ema.averaged["extra"].dtype is torch.float64


def test_nothing_trained_is_nothing_to_do():
    net = Net().requires_grad_(False)
    ema = make(net)
    ema.update()
    with ema.swapped(net):
        pass
    assert (ema.averaged, ema.updates) == ({}, 1)


# Skipped updates


@pytest.mark.parametrize("as_flag", [lambda landed: torch.tensor(landed), lambda landed: torch.tensor([float(landed)])])
def test_a_skipped_update_moves_and_counts_nothing(as_flag):
    net = Net()
    told, plain = make(net), make(net)
    for step, landed in enumerate([False, True, True, False, False, True, False, True]):
        if landed:
            move(net, step)
            plain.update()
        told.update(as_flag(landed))
        assert told.updates == plain.updates
        assert told.decay == plain.decay
        assert_same(told.averaged, plain.averaged)
    assert told.updates == 4


def test_the_count_may_move_to_the_device_at_any_time():
    net = Net()
    mixed, plain = make(net), make(net)
    for step, flag in enumerate([None, torch.tensor(True), None, torch.tensor(True), None]):
        move(net, step)
        mixed.update(flag)
        plain.update()
    assert mixed.updates == 5
    assert_same(mixed.averaged, plain.averaged)


@pytest.mark.parametrize("kind", ["told", "not told"])
def test_an_update_never_waits_for_the_device(kind):
    # Reading a number from the meta device raises, as it has none.
    with torch.device("meta"):
        net = nn.Linear(3, 2)
        landed = torch.tensor(True) if kind == "told" else None
    ema = make(net)
    for _ in range(2):
        ema.update(landed)
    if landed is not None:
        with pytest.raises(RuntimeError, match="meta"):
            _ = ema.updates


# Standing in for the weights


def test_the_average_stands_in_and_the_weights_come_back():
    net = Net()
    ema = make(net)
    for step in range(3):
        move(net, step)
        ema.update()
    own, objects = values(dict(net.named_parameters())), list(net.parameters())
    addresses = [parameter.data_ptr() for parameter in objects]
    average = values(ema.averaged)
    x = torch.ones(2, 4)
    trained = net(x)
    with ema.swapped(net):
        assert_same(values(dict(net.named_parameters())), {**own, **average})
        assert not torch.equal(net(x), trained)
        assert list(net.parameters()) == objects
        assert [parameter.data_ptr() for parameter in net.parameters()] == addresses
    assert_same(values(dict(net.named_parameters())), own)
    assert_same(ema.averaged, average)
    assert [parameter.data_ptr() for parameter in net.parameters()] == addresses
    assert torch.equal(net(x), trained)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_weights_come_back_after_an_error(error):
    net = Net()
    ema = make(net)
    move(net, 0)
    own, average = values(dict(net.named_parameters())), values(ema.averaged)
    with pytest.raises(error), ema.swapped(net):
        raise error
    assert_same(values(dict(net.named_parameters())), own)
    assert_same(ema.averaged, average)
    ema.update()
    with ema.swapped(net):
        pass


def test_the_weights_come_back_when_the_average_stood_in_by_half(monkeypatch):
    net = Net()
    ema = make(net)
    move(net, 0)
    own = values(dict(net.named_parameters()))
    real, calls = module_under_test._overwrite, []

    def stop_half_way(module, parameters, tensors):
        calls.append(len(parameters))
        if len(calls) > 1:
            real(module, parameters, tensors)
            return
        real(module, parameters[:1], tensors[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(module_under_test, "_overwrite", stop_half_way)
    with pytest.raises(KeyboardInterrupt), ema.swapped(net):
        pytest.fail("it never got this far")
    assert_same(values(dict(net.named_parameters())), own)


@pytest.mark.parametrize("fused", [False, True])
def test_training_goes_on_bit_for_bit_as_if_nothing_had_been_evaluated(fused):
    results = []
    for evaluates in (False, True):
        net = Net()
        ema = make(net)
        optimizer = torch.optim.AdamW(net.trained.parameters(), lr=0.1, fused=fused)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            net(torch.randn(6, 4, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ema.update()
            if evaluates:
                with ema.swapped(net), torch.inference_mode():
                    net(torch.ones(2, 4))
        state = {f"{n}.{key}": value for n, s in optimizer.state_dict()["state"].items() for key, value in s.items()}
        results.append(values(dict(net.named_parameters())) | values(ema.averaged) | state)
    assert_same(*results)


class Keeper(nn.Linear):
    """Keeps its output for ones until it enters training, as layers with packed weights do."""

    kept = None

    def train(self, mode=True):
        if mode:
            self.kept = None
        return super().train(mode)

    def forward(self, x):
        if self.kept is None:
            self.kept = super().forward(x)
        return self.kept


def test_what_layers_derived_from_their_weights_is_dropped_both_ways():
    net = nn.Sequential(Keeper(2, 2)).eval()
    ema = make(net)
    x = torch.ones(1, 2)
    own = net(x)
    with torch.no_grad():
        ema.averaged["0.weight"] += 1
    with ema.swapped(net):
        averaged = net(x)
    torch.testing.assert_close(averaged, own + 2)
    assert torch.equal(net(x), own)


def test_the_mode_of_every_part_stays():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2))).train()
    net[1].eval()
    net[1][1].train()
    modes = [part.training for part in net.modules()]
    assert len(set(modes)) == 2
    ema = make(net)
    with ema.swapped(net):
        assert [part.training for part in net.modules()] == modes
    assert [part.training for part in net.modules()] == modes


def test_what_makes_no_sense_is_refused():
    net = Net()
    ema = make(net)
    with ema.swapped(net):
        with pytest.raises(RuntimeError, match="cannot be updated while it stands in"):
            ema.update()
        with pytest.raises(RuntimeError, match="stands in for the weights already"), ema.swapped(net):
            pass
    with pytest.raises(ValueError, match="another module's parameters"), ema.swapped(Net()):
        pass
    assert ema.updates == 0


def test_a_stored_average_is_taken_over():
    net = Net()
    ema = make(net)
    for step in range(4):
        move(net, step)
        ema.update()
    other = make(net)
    other.restore(values(ema.averaged), ema.updates)
    addresses = [tensor.data_ptr() for tensor in other.averaged.values()]
    for step in range(4, 6):
        move(net, step)
        for average in (ema, other):
            average.update()
    assert (other.updates, other.decay) == (6, WARM.at(6))
    assert_same(other.averaged, ema.averaged)
    assert [tensor.data_ptr() for tensor in other.averaged.values()] == addresses
