"""Temporal ensembling equals its definition: a weighted mean of all predictions for a tick, the oldest first."""

from __future__ import annotations

import pytest
import torch

from mimetic.policies.act.ensemble import TemporalEnsemble


@pytest.mark.parametrize("coeff", [0.0, 0.01, -0.3, 1.0])
@pytest.mark.parametrize("chunk_size", [1, 2, 7])
def test_each_action_is_the_weighted_mean_of_all_predictions_for_its_tick(coeff, chunk_size):
    chunks = torch.randn(15, 2, chunk_size, 3, generator=torch.Generator().manual_seed(0))
    ensemble = TemporalEnsemble(coeff, chunk_size)
    for tick in range(15):
        action = ensemble.update(chunks[tick])
        predictions = torch.stack(
            [chunks[made][:, tick - made] for made in range(max(0, tick - chunk_size + 1), tick + 1)]
        )
        weights = torch.exp(-coeff * torch.arange(len(predictions)))[:, None, None]
        torch.testing.assert_close(action, (predictions * weights).sum(0) / weights.sum(0), rtol=1e-5, atol=1e-5)


def test_reset_forgets_the_episode():
    ensemble = TemporalEnsemble(0.01, 4)
    chunk = torch.randn(1, 4, 2)
    first = ensemble.update(chunk)
    ensemble.update(torch.randn(1, 4, 2))
    ensemble.reset()
    assert torch.equal(ensemble.update(chunk), first)


def test_the_callers_chunk_is_left_alone():
    ensemble, chunk = TemporalEnsemble(0.01, 4), torch.randn(1, 4, 2)
    before = chunk.clone()
    ensemble.update(chunk)
    ensemble.update(chunk)
    assert torch.equal(chunk, before)
