"""Normalisation for any numbers: the inverse undoes it, and what comes out is finite."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimetic.features import FeatureType, NormalizationMode
from mimetic.processing.normalization import FLOOR, FeatureScaling
from mimetic.processing.stats import STATS_OF_MODE

values = st.floats(-1e4, 1e4, width=32)
spreads = st.one_of(st.just(0.0), st.floats(2**-40, 1e4, width=32))
MODES = [mode for mode in NormalizationMode if mode is not NormalizationMode.IDENTITY]


def scaling(mode, low, spread):
    low = torch.tensor([low])
    high = torch.tensor([spread]) if mode is NormalizationMode.MEAN_STD else low + spread
    stats = dict(zip(STATS_OF_MODE[mode], (low, high), strict=True))
    return FeatureScaling("action", FeatureType.ACTION, mode, stats, eps=1e-8, exact=False)


@pytest.mark.parametrize("mode", MODES)
@given(low=values, spread=spreads, share=st.floats(-3, 3, width=32))
def test_step_then_inverse_is_the_identity_or_the_constant(mode, low, spread, share):
    one = scaling(mode, low, spread)
    x = torch.tensor([[low + share * spread]])
    y = one.forward(x)
    assert bool(torch.isfinite(y).all())
    back = one.inverse(y)
    if one.constant_dims():
        assert y.item() == (0 if mode is NormalizationMode.MEAN_STD else -1)
        assert back.item() == torch.tensor(low).item()
    else:
        # Rounding of x - low is relative to |low|, and comes back multiplied by nothing: a few units in the last place.
        # MEAN_STD adds eps = 1e-8 to std on the way in and not on the way out: up to 3 * 1e-8 for these shares.
        rounding = 8 * torch.finfo(torch.float32).eps * (abs(low) + 4 * spread)
        assert abs(back.item() - x.item()) <= rounding + (4e-8 if mode is NormalizationMode.MEAN_STD else 0.0)


@pytest.mark.parametrize("mode", MODES)
@given(low=values, spread=spreads, jitter=st.floats(-1e-3, 1e-3))
def test_jitter_around_the_statistics_is_never_blown_up_beyond_the_floor(mode, low, spread, jitter):
    y = scaling(mode, low, spread).forward(torch.tensor([[low + jitter]]))
    rounding = torch.finfo(torch.float32).eps * max(1, abs(low))
    assert abs(y.item()) <= 2 * (abs(jitter) + rounding) / FLOOR + 1
