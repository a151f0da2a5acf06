"""N micro-batches train like one batch of their samples (spec/training.md 5).

The sums are taken in another order, so float32 differs in its last bits: 1e-6 of a gradient's norm, 1e-6 of a weight
near 1 after two updates. bf16 rounds each pass by itself: 1e-2 of the norm. Noise would differ: there is none here.
"""

import pytest
import torch

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.precision import choose_precision
from mimetic.testing.act import act_batch, tiny_act
from mimetic.train.pieces import split_batch
from mimetic.train.step import Stepper

CPU = torch.device("cpu")


def act(tmp_path):
    policy = tiny_act(use_vae=False, dropout=0.0, cameras={"observation.images.top": (3, 32, 48)})
    return policy, [act_batch(policy.config, size=8, seed=seed) for seed in (1, 2)]


def update(policy, batches, *, accumulation, precision="no", scaled=False):
    """Gradient norms and weights after one update for each batch."""
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    stepper = Stepper(
        policy.train(),
        torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=1e-2),
        None,
        choose_precision(precision, CPU),
        clip_norm=1e9,
        accumulation=accumulation,
        scaler=LossScaler(GradScalerConfig(), CPU) if scaled else None,
    )
    norms = []
    for batch in batches:
        for part in split_batch(batch, accumulation):
            norm = stepper.forward_backward(part).grad_norm
            stepper.update()
            if norm is not None:
                norms.append(norm.item())
    after = torch.cat([p.detach().flatten() for p in policy.parameters() if p.requires_grad])
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            parameter.copy_(before[name])
    return norms, after


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_micro_batches_equal_one_batch(tmp_path, accumulation, scaled):
    policy, batches = act(tmp_path)
    whole_norms, whole = update(policy, batches, accumulation=1)
    norms, weights = update(policy, batches, accumulation=accumulation, scaled=scaled)
    assert norms == pytest.approx(whole_norms, rel=1e-6)
    assert len(norms) == len(batches)
    assert torch.allclose(weights, whole, rtol=0, atol=1e-6)
    assert not torch.equal(weights, torch.cat([p.detach().flatten() for p in policy.parameters() if p.requires_grad]))


def test_micro_batches_equal_one_batch_in_bf16(tmp_path):
    policy, batches = act(tmp_path)
    whole, _ = update(policy, batches, accumulation=1, precision="bf16")
    parts, _ = update(policy, batches, accumulation=4, precision="bf16")
    assert parts == pytest.approx(whole, rel=1e-2)
