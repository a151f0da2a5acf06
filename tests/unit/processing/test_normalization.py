"""The arithmetic of normalisation: equal to the written formulas, safe where those explode."""

from __future__ import annotations

import logging

import pytest
import torch

from mimetic import log
from mimetic.errors import ShapeError
from mimetic.features import FeatureType, NormalizationMode
from mimetic.processing.normalization import FLOOR, FeatureScaling

MODES = [mode for mode in NormalizationMode if mode is not NormalizationMode.IDENTITY]
EPS = 1e-8


def draw(shape, scale=3.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) * scale


def stats_for(shape):
    low = draw(shape)
    spread = draw(shape).abs() + 0.1
    return {
        "mean": low, "std": spread, "min": low, "max": low + spread,
        "q01": low, "q99": low + 2 * spread, "q10": low, "q90": low + spread / 3,
    }  # fmt: skip


def scaling(mode, stats, *, kind=FeatureType.STATE, exact=False):
    return FeatureScaling("observation.state", kind, mode, stats, eps=EPS, exact=exact)


def naive_forward(mode, x, s):
    """The formulas of the format, written out."""
    if mode is NormalizationMode.MEAN_STD:
        return (x - s["mean"]) / (s["std"] + EPS)
    low, high = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}[mode.value]
    d = s[high] - s[low]
    d = torch.where(d == 0, torch.tensor(EPS), d)
    return 2 * (x - s[low]) / d - 1


def naive_inverse(mode, y, s):
    if mode is NormalizationMode.MEAN_STD:
        return y * s["std"] + s["mean"]
    low, high = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}[mode.value]
    d = s[high] - s[low]
    d = torch.where(d == 0, torch.tensor(EPS), d)
    if mode is NormalizationMode.MIN_MAX:
        return (y + 1) / 2 * d + s[low]
    return (y + 1.0) * d / 2.0 + s[low]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "stat"), [((5, 6), (6,)), ((4, 8, 6), (6,)), ((2, 3, 4, 5), (3, 1, 1))])
def test_both_directions_equal_the_formulas_bit_for_bit(mode, exact, shape, stat):
    stats, x = stats_for(stat), draw(shape)
    one = scaling(mode, stats, exact=exact)
    assert torch.equal(one.forward(x), naive_forward(mode, x, stats))
    assert torch.equal(one.inverse(x), naive_inverse(mode, x, stats))


@pytest.mark.parametrize("mode", MODES)
def test_the_input_is_never_written_to(mode):
    x = draw((4, 6))
    before = x.clone()
    one = scaling(mode, stats_for((6,)))
    one.forward(x)
    one.inverse(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_is_computed_in_float32_and_cast_back(mode):
    stats, x = stats_for((6,)), draw((4, 6)).to(torch.bfloat16)
    result = scaling(mode, stats).forward(x)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, naive_forward(mode, x.float(), stats).to(torch.bfloat16))


def test_float64_stays_float64():
    stats, x = stats_for((6,)), draw((4, 6)).double()
    result = scaling(NormalizationMode.MEAN_STD, stats).forward(x)
    assert result.dtype == torch.float64
    wanted = (x - stats["mean"].double()) / (stats["std"].double() + EPS)
    assert torch.equal(result, wanted)


def test_integers_become_floats_and_uint8_images_are_divided_by_255():
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8, generator=generator)
    stats = stats_for((3, 1, 1))
    one = scaling(NormalizationMode.MEAN_STD, stats, kind=FeatureType.VISUAL)
    assert torch.equal(one.forward(images), naive_forward(NormalizationMode.MEAN_STD, images.float() / 255, stats))
    numbers = torch.arange(12).reshape(2, 6)
    state = scaling(NormalizationMode.MIN_MAX, stats_for((6,)))
    assert torch.equal(
        state.forward(numbers), naive_forward(NormalizationMode.MIN_MAX, numbers.float(), stats_for((6,)))
    )


def test_identity_leaves_everything_but_uint8_images_alone():
    image = scaling(NormalizationMode.IDENTITY, {}, kind=FeatureType.VISUAL)
    tokens = scaling(NormalizationMode.IDENTITY, {}, kind=FeatureType.LANGUAGE)
    x, ids = draw((2, 3, 4, 4)), torch.arange(4)
    assert image.forward(x) is x
    assert tokens.forward(ids) is ids
    assert torch.equal(image.forward(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)), torch.ones(1, 3, 2, 2))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [0.0, 0.3, -2000.0])
def test_a_constant_dimension_gives_the_formulas_value_of_its_constant_and_the_constant_back(mode, value):
    stats = stats_for((3,))
    for name in stats:
        stats[name][1] = 0.0 if name == "std" else value
    one = scaling(mode, stats)
    x = torch.tensor([[0.5, value, 0.5], [0.5, value + 0.001, 0.5]])
    y = one.forward(x)
    assert torch.equal(y[:, 1], torch.full((2,), 0.0 if mode is NormalizationMode.MEAN_STD else -1.0))
    assert torch.equal(y[:, [0, 2]], naive_forward(mode, x, stats)[:, [0, 2]])
    assert torch.equal(one.inverse(draw((4, 3)))[:, 1], torch.full((4,), value))
    # The formulas themselves blow the jitter up; `exact` keeps them for those who need the same numbers.
    exact = scaling(mode, stats, exact=True)
    assert torch.equal(exact.forward(x), naive_forward(mode, x, stats))
    assert exact.forward(x)[1, 1].abs() > 9e4


def test_the_floor_is_relative_to_the_value_and_strict():
    def std_of(value, std):
        return scaling(
            NormalizationMode.MEAN_STD, {"mean": torch.tensor([value]), "std": torch.tensor([std])}
        ).constant_dims()

    assert std_of(0.0, FLOOR * 1.01) == []
    assert std_of(0.0, FLOOR * 0.99) == [0]
    assert std_of(500.0, FLOOR * 499) == [0]
    assert std_of(500.0, FLOOR * 501) == []


def test_a_constant_dimension_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(log.LOGGER, "propagate", True)
    stats = {"mean": torch.zeros(4), "std": torch.tensor([1.0, 0.0, 1.0, 0.0])}
    with caplog.at_level(logging.WARNING, "mimetic"):
        scaling(NormalizationMode.MEAN_STD, stats)
        scaling(NormalizationMode.MEAN_STD, stats)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "`observation.state` hardly varies in dimension 1, 3" in messages[0]


@pytest.mark.parametrize(("stat", "data"), [((6,), (4, 7)), ((6,), (4, 1)), ((1,), (4, 6)), ((3, 1, 1), (2, 1, 4, 4))])
def test_data_that_would_broadcast_by_accident_are_refused(stat, data):
    with pytest.raises(ShapeError, match=r"`observation.state` arrives with shape"):
        scaling(NormalizationMode.MEAN_STD, stats_for(stat)).forward(draw(data))
