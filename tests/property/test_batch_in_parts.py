"""A batch in parts has the loss and the gradient of the whole batch, also where samples have different padding.

Without noise, which parts would draw otherwise. Sums of float32 in another order: 1e-5 of a loss, 1e-5 of the largest
gradient.
"""

import pytest
import torch

from mimetic.accelerators.precision import choose_precision
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.build import make_policy
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.testing.act import act_batch, tiny_act
from mimetic.testing.smolvla import tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm
from mimetic.train.pieces import batch_length, split_batch
from mimetic.train.step import Stepper

CPU = torch.device("cpu")
SIZE = 8


def uneven_padding(chunk):
    """Samples with 1, 2, ... valid actions and one with none at all."""
    return torch.arange(chunk)[None] >= torch.tensor([chunk, 1, 1, 2, chunk, 3, 0, chunk - 1])[:, None]


def gradient_in_parts(policy, batch, pieces, **options):
    stepper = Stepper(
        policy.train(),
        torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.1),
        None,
        choose_precision("no", CPU),
        clip_norm=0.0,
        pieces=pieces,
        **options,
    )
    result = stepper.forward_backward(batch)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    policy.zero_grad(set_to_none=True)
    return result, gradient


def assert_same(found, whole):
    (result, gradient), (expected, all_at_once) = found, whole
    assert result.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    assert (gradient - all_at_once).abs().max() <= 1e-5 * all_at_once.abs().max()
    for name, value in expected.outputs.items():
        assert result.outputs[name].item() == pytest.approx(value.item(), rel=1e-5), name


@pytest.mark.parametrize("pieces", [2, 3, 8, 64])
def test_act_with_uneven_padding_and_the_kl_term(monkeypatch, pieces):
    """The two terms of the loss are means over different things: valid actions, and samples."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    policy = tiny_act(use_vae=True, dropout=0.0, kl_weight=10.0)
    batch = act_batch(policy.config, size=SIZE, seed=1) | {"action_is_pad": uneven_padding(8)}
    assert_same(gradient_in_parts(policy, batch, pieces), gradient_in_parts(policy, batch, 1))


def test_a_batch_without_a_valid_action_has_no_loss_in_parts_either():
    policy = tiny_act(use_vae=False, dropout=0.0)
    batch = act_batch(policy.config, size=4, seed=1) | {"action_is_pad": torch.ones(4, 8, dtype=torch.bool)}
    result, gradient = gradient_in_parts(policy, batch, 2)
    assert result.loss.item() == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_keypoint_with_uneven_padding(pieces):
    camera, state = "observation.images.front", "observation.state"
    inputs = {camera: PolicyFeature(FeatureType.VISUAL, (3, 16, 24)), state: PolicyFeature(FeatureType.STATE, (6,))}
    config = KeypointConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        **{"chunk_size": 8, "n_action_steps": 8, "n_keypoints": 4, "n_channels": 8, "dim_hidden": 16},
        **{"image_shift": 0, "color_jitter": 0.0, "state_noise": 0.0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        policy = make_policy(config)
        batch = {camera: torch.randn(SIZE, 3, 16, 24), state: torch.randn(SIZE, 2, 6)}
        batch |= {"action": torch.randn(SIZE, 8, 4), "action_is_pad": uneven_padding(8)}
    assert_same(gradient_in_parts(policy, batch, pieces), gradient_in_parts(policy, batch, 1))


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("pieces", [2, 3, 8])
def test_smolvla_with_uneven_padding(tmp_path, monkeypatch, draws, pieces):
    """Every sample keeps its own noise and times, so that the parts can be compared with the whole."""
    policy = make_policy(tiny_smolvla_config(write_tiny_vlm(tmp_path / "vlm"), noise_draws=draws))
    batch = tiny_smolvla_batch(policy.config, SIZE) | {"action_is_pad": uneven_padding(8)}
    generator = torch.Generator().manual_seed(2)
    batch["noise"] = torch.randn(SIZE, draws, 8, 6, generator=generator)
    batch["time"] = torch.rand(SIZE, draws, generator=generator)
    loss = policy.loss
    monkeypatch.setattr(
        policy,
        "loss",
        lambda part: loss(part, noise=part["noise"].flatten(0, 1), time=part["time"].flatten()),
    )
    assert_same(gradient_in_parts(policy, batch, pieces), gradient_in_parts(policy, batch, 1))


def test_parts_know_the_padding_of_the_whole_and_are_still_parts():
    batch = {"action": torch.zeros(6, 4, 2), "action_is_pad": torch.zeros(6, 4, dtype=torch.bool), "longest": 7}
    batch["action_is_pad"][:2, 1:] = True
    parts = list(split_batch(batch, 3))
    assert [batch_length(part) for part in parts] == [2, 2, 2]
    assert [part["action_valid_per_sample"].item() for part in parts] == [3.0, 3.0, 3.0]
    assert all(part["longest"] == 7 for part in parts)
    assert "action_valid_per_sample" not in batch
