"""The keypoint policy's loss, its noise in training and nowhere else, its parameter groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mimetic.errors import ShapeError
from mimetic.optim.build import make_optimizer
from mimetic.policies.keypoint.policy import KeypointPolicy

ONE_OF = ["image_shift", "color_jitter", "state_noise"]


def test_loss_is_the_mean_over_valid_actions(make_config, make_batch):
    """The definition, recomputed with loops."""
    policy = KeypointPolicy(make_config()).eval()
    batch = make_batch(policy.config)
    loss, parts = policy.loss(batch)
    predicted = policy.predict_chunk(batch)
    errors = [
        abs(float(batch["action"][b, k, a]) - float(predicted[b, k, a]))
        for b in range(3)
        for k in range(8)
        for a in range(4)
        if not batch["action_is_pad"][b, k]
    ]
    assert len(errors) == (8 + 6 + 1) * 4
    assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-5)
    assert parts.keys() == {"l1_loss"}
    assert parts["l1_loss"].item() == loss.item()


def test_a_batch_of_padding_alone_has_loss_zero_and_finite_gradients(make_config, make_batch):
    policy = KeypointPolicy(make_config())
    batch = make_batch(policy.config)
    batch["action_is_pad"][:] = True
    loss, _ = policy.loss(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters())


@pytest.mark.parametrize("padding", [None, torch.zeros(3, 7, dtype=torch.bool)], ids=["absent", "another shape"])
def test_a_batch_without_its_padding_is_refused(make_config, make_batch, padding):
    policy = KeypointPolicy(make_config())
    batch = {**make_batch(policy.config), "action_is_pad": padding}
    with pytest.raises(ShapeError, match=r"`action_is_pad` with shape \(3, 8\)") as caught:
        policy.loss(batch)
    assert "end of an episode" in caught.value.hint


@pytest.mark.parametrize("only", ONE_OF)
def test_each_kind_of_noise_is_drawn_in_training_and_not_in_evaluation(make_config, make_batch, only):
    strength = {"image_shift": 2, "color_jitter": 0.2, "state_noise": 0.3}[only]
    policy = KeypointPolicy(make_config(**{**dict.fromkeys(ONE_OF, 0), only: strength}))
    batch = make_batch(policy.config)
    assert policy.train().loss(batch)[0] != policy.loss(batch)[0]
    assert policy.eval().loss(batch)[0] == policy.loss(batch)[0]


def test_without_noise_training_draws_nothing(make_config, make_batch):
    policy = KeypointPolicy(make_config(still=True)).train()
    batch = make_batch(policy.config)
    before = torch.get_rng_state()
    assert policy.loss(batch)[0] == policy.eval().loss(batch)[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_never_reaches_the_straight_way_nor_the_caller_s_batch(make_config, make_batch):
    """Else staying where one is would be taught wrongly."""
    policy = KeypointPolicy(make_config(state_noise=3.0)).train()
    for parameter in policy.model.head[-1].parameters():
        nn.init.zeros_(parameter)
    batch = make_batch(policy.config)
    batch["action"] = batch["observation.state"][:, None].expand(-1, 8, -1).clone()
    copies = {key: value.clone() for key, value in batch.items()}
    assert policy.loss(batch)[0].item() == 0.0
    assert all(torch.equal(batch[key], value) for key, value in copies.items())


def test_the_groups_have_a_weight_decay_each(make_config):
    config = make_config(optimizer_weight_decay=0.5, optimizer_weight_decay_cameras=0.02, optimizer_lr=2e-3)
    policy = KeypointPolicy(config)
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    optimizer = make_optimizer(config.optimizer_preset(), policy.optim_groups())
    found = [
        (group["weight_decay"], group["lr"], {names[id(p)].split(".")[1] for p in group["params"]})
        for group in optimizer.param_groups
    ]
    assert found == [(0.5, 2e-3, {"head"}), (0.02, 2e-3, {"cameras"}), (0.0, 2e-3, {"straight"})]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_a_frozen_part_leaves_its_group(make_config):
    policy = KeypointPolicy(make_config(state=0))
    policy.model.cameras.requires_grad_(False)
    head, cameras = policy.optim_groups()
    assert len(head["params"]) == 6
    assert cameras["params"] == []


def test_an_input_that_it_does_not_read_changes_nothing(make_config, make_batch):
    policy = KeypointPolicy(make_config())
    batch = make_batch(policy.config)
    chunk = policy.predict_chunk(batch)
    assert torch.equal(policy.predict_chunk({**batch, "task": ["other"] * 3}), chunk)
