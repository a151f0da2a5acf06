"""ACT's loss, messages and queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mimetic.errors import ConfigError, ShapeError
from mimetic.policies.act.policy import ACTPolicy


def test_loss_is_the_mean_over_valid_actions(make_config, make_batch):
    """Case 13: the definition, recomputed with loops."""
    policy = ACTPolicy(make_config(env=5, use_vae=False, dropout=0.0)).train()
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


def test_padded_frames_leave_the_loss_of_the_valid_ones(make_config, make_batch):
    """Case 13: eight valid frames against the same four with four frames of garbage."""
    policy = ACTPolicy(make_config(env=5, use_vae=False, dropout=0.0)).train()
    batch = make_batch(policy.config, 1)
    with torch.no_grad():
        predicted = policy.model(
            state=batch["observation.state"], env_state=batch["observation.environment_state"]
        ).actions
        expected = (batch["action"] - predicted).abs()[:, :4].mean().item()
        batch["action_is_pad"][:, 4:] = True
        batch["action"][:, 4:] = 1e6
        assert policy.loss(batch)[0].item() == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_padding_alone_has_loss_zero_and_finite_gradients(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5, use_vae=False)).train()
    batch = make_batch(policy.config)
    batch["action_is_pad"][:] = True
    loss, _ = policy.loss(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters())


def test_chunks_longer_than_the_episode_train(make_config, make_batch):
    """Case 25: one valid frame of a chunk of eight."""
    policy = ACTPolicy(make_config(env=5)).train()
    batch = make_batch(policy.config, 1)
    batch["action_is_pad"][:, 1:] = True
    batch["action"][:, 1:] = batch["action"][:, :1]
    loss, parts = policy.loss(batch)
    assert torch.isfinite(loss)
    assert loss.item() == pytest.approx((parts["l1_loss"] + 10.0 * parts["kld_loss"]).item(), rel=1e-6)


def test_kl_term_is_that_of_a_diagonal_gaussian(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5, dropout=0.0)).train()
    batch = make_batch(policy.config)
    _, parts = policy.loss(batch)
    actions = batch["action"].masked_fill(batch["action_is_pad"][:, :, None], 0.0)
    mu, s = policy.model.encode_actions(batch["observation.state"], actions, batch["action_is_pad"])
    latent = torch.distributions.Normal(mu, s.div(2).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
    expected = torch.distributions.kl_divergence(latent, prior).sum(-1).mean()
    assert parts["kld_loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_missing_camera_is_named_with_what_the_batch_has(make_config, make_batch):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)] * 2))
    batch = make_batch(policy.config)
    batch["observation.images.front"] = batch.pop("observation.images.cam1")
    with pytest.raises(ShapeError) as caught:
        policy.loss(batch)
    assert caught.value.message == (
        "the batch has no `observation.images.cam1`, which the policy reads; it has `action`, `action_is_pad`, "
        "`observation.images.cam0`, `observation.images.front`, `observation.state`"
    )
    assert "--rename_map" in caught.value.hint


def test_camera_of_another_size_is_refused_with_both_shapes(make_config, make_batch):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)]))
    batch = make_batch(policy.config) | {"observation.images.cam0": torch.zeros(3, 3, 48, 64)}
    with pytest.raises(ShapeError) as caught:
        policy.predict_chunk(batch)
    assert caught.value.message == (
        "`observation.images.cam0` has shape (3, 3, 48, 64), and the policy was built for (batch, 3, 32, 32)"
    )


def test_bytes_are_refused_instead_of_being_trained_on(make_config, make_batch):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)]))
    batch = make_batch(policy.config)
    batch["observation.images.cam0"] = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(ShapeError, match=r"uint8.*normalised"):
        policy.loss(batch)


def test_missing_padding_marks_are_refused(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5))
    batch = make_batch(policy.config)
    del batch["action_is_pad"]
    with pytest.raises(ShapeError, match="`action_is_pad` is missing"):
        policy.loss(batch)


def test_all_problems_of_a_config_are_reported_at_once(make_config):
    config = replace(make_config(), output_features={}, n_action_steps=9)
    with pytest.raises(ConfigError) as caught:
        ACTPolicy(config)
    for part in ("n_action_steps=9", "output `action`", "at least one camera"):
        assert part in caught.value.message


def test_temporal_ensembling_predicts_at_every_call(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5, temporal_ensemble_coeff=0.01, n_action_steps=1))
    batch = make_batch(policy.config, 2)
    calls = []
    policy.model.register_forward_hook(lambda *args: calls.append(1))
    first = policy.select_action(batch)
    assert torch.equal(first, policy.predict_chunk(batch)[:, 0])
    policy.select_action(batch)
    assert len(calls) == 3
    policy.reset()
    assert torch.equal(policy.select_action(batch), first)


def test_backbone_has_its_own_learning_rate(make_config):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)], optimizer_lr_backbone=3e-6))
    rest, backbone = policy.optim_groups()
    assert "lr" not in rest
    assert backbone["lr"] == 3e-6
    assert len(backbone["params"]) == 20  # the convolutions of ResNet-18; frozen norms are buffers
    assert {id(p) for p in backbone["params"]} == {id(p) for p in policy.model.backbone.parameters()}


def test_frozen_parameters_are_left_out_of_the_groups(make_config):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)]))
    policy.model.backbone.requires_grad_(False)
    assert policy.optim_groups()[1]["params"] == []


def test_bfloat16_weights_run_without_autocast(make_config, make_batch):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)])).to(torch.bfloat16)
    batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in make_batch(policy.config).items()}
    loss, _ = policy.train().loss(batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert policy.predict_chunk(batch).dtype is torch.bfloat16


def test_loss_reads_nothing_back_from_the_device(make_config, make_batch):
    """On the meta device any `.item()` or data-dependent branch fails."""
    with torch.device("meta"):
        policy = ACTPolicy(make_config(env=5))
    loss, parts = policy.train().loss({key: value.to("meta") for key, value in make_batch(policy.config).items()})
    assert loss.device.type == "meta"
    assert all(part.device.type == "meta" for part in parts.values())


@pytest.mark.parametrize("bad", [{"dim_model": 18, "n_heads": 2}, {"feedforward_activation": "glu"}])
def test_settings_that_cannot_work_are_refused(bad, make_config):
    with pytest.raises(ConfigError):
        ACTPolicy(make_config(cameras=[(3, 32, 32)], **bad))
