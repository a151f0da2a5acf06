"""Each shortcut of the ACT network equals the plain computation (mimetic.testing.act)."""

from __future__ import annotations

import pytest
import torch

from mimetic.policies.act.network import EncoderLayer
from mimetic.policies.act.policy import ACTPolicy
from mimetic.testing.act import plain_forward, plain_inputs

SETTINGS = {
    "environment": {"env": 5},
    "environment only": {"state": None, "env": 5},
    "pre-norm, gelu, two decoder layers": {
        "env": 5,
        "pre_norm": True,
        "feedforward_activation": "gelu",
        "n_decoder_layers": 2,
    },
    "no vae": {"env": 5, "use_vae": False},
    "one camera": {"cameras": [(3, 64, 64)]},
    "three equal cameras": {"cameras": [(3, 32, 64)] * 3},
    "cameras of two sizes": {"cameras": [(3, 32, 64), (3, 64, 32)]},
}


@pytest.fixture(params=SETTINGS, ids=str)
def settings(request):
    return SETTINGS[request.param]


def forward(policy, batch, *, plain, train=True):
    """Prediction and gradients with the same random draws."""
    inputs = plain_inputs(policy.config, batch)
    if train:
        inputs |= {"actions": batch["action"], "action_is_pad": batch["action_is_pad"]}
    policy.zero_grad()
    torch.manual_seed(5)
    predicted = plain_forward(policy.model, policy.config, **inputs) if plain else policy.model(**inputs)
    (predicted.actions.square().mean() + (0 if predicted.mu is None else predicted.mu.square().mean())).backward()
    gradients = {key: p.grad.clone() for key, p in policy.named_parameters() if p.grad is not None}
    return predicted.actions.detach(), gradients, torch.get_rng_state()


def assert_gradients_close(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, rtol=1e-4, atol=2e-6, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_equals_the_plain_path_and_draws_the_same_numbers(settings, dropout, make_config, make_batch):
    policy = ACTPolicy(make_config(**settings, dropout=dropout)).train()
    batch = make_batch(policy.config)
    actions, gradients, generator = forward(policy, batch, plain=False)
    plain_actions, plain_gradients, plain_generator = forward(policy, batch, plain=True)
    assert torch.equal(generator, plain_generator)
    # One ulp where convolutions are merged, none elsewhere (next test).
    torch.testing.assert_close(actions, plain_actions, rtol=1e-5, atol=1e-6)
    assert_gradients_close(gradients, plain_gradients)


@pytest.mark.parametrize("settings", [{"env": 5}, {"env": 5, "pre_norm": True, "n_decoder_layers": 2}], ids=str)
def test_training_with_dropout_equals_the_plain_path_bit_for_bit_on_a_cpu(settings, make_config, make_batch):
    policy = ACTPolicy(make_config(**settings, dropout=0.1)).train()
    batch = make_batch(policy.config)
    actions, gradients, _ = forward(policy, batch, plain=False)
    plain_actions, plain_gradients, _ = forward(policy, batch, plain=True)
    assert torch.equal(actions, plain_actions)
    for key, value in plain_gradients.items():
        assert torch.equal(gradients[key], value), key


@pytest.mark.parametrize("pre_norm", [False, True])
def test_computing_one_row_of_the_last_vae_layer_draws_and_yields_the_same(
    pre_norm, make_config, make_batch, monkeypatch
):
    policy = ACTPolicy(make_config(env=5, dropout=0.1, pre_norm=pre_norm)).train()
    batch = make_batch(policy.config)
    plain_actions, plain_gradients, plain_generator = forward(policy, batch, plain=True)
    monkeypatch.setattr(EncoderLayer, "may_skip_rows", lambda self, x: True)  # as on an accelerator
    actions, gradients, generator = forward(policy, batch, plain=False)
    assert torch.equal(generator, plain_generator)
    torch.testing.assert_close(actions, plain_actions, rtol=1e-5, atol=1e-6)
    assert_gradients_close(gradients, plain_gradients)


def test_prediction_equals_the_plain_path(settings, make_config, make_batch):
    policy = ACTPolicy(make_config(**settings)).eval()
    batch = make_batch(policy.config)
    actions, _, _ = forward(policy, batch, plain=False, train=False)
    plain_actions, _, _ = forward(policy, batch, plain=True, train=False)
    torch.testing.assert_close(actions, plain_actions, rtol=1e-5, atol=1e-6)


def test_long_sequences_without_gradient_use_the_fused_kernel_and_equal_the_plain_path(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5, cameras=[(3, 512, 640)])).eval()
    batch = make_batch(policy.config, 1)
    with torch.no_grad():
        fast = policy.predict_chunk(batch)
        plain = plain_forward(policy.model, policy.config, **plain_inputs(policy.config, batch)).actions
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


def test_an_uneven_batch_of_equal_cameras_is_split_back_in_their_order(make_config):
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)] * 2)).eval()
    images = [torch.randn(3, 3, 32, 32) for _ in range(2)]
    with torch.no_grad():
        together = policy.model.encode_cameras(images)
        alone = [policy.model.encode_cameras([image])[0] for image in images]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_seed_fixes_initial_weights_and_the_order_of_draws(make_config):
    states = []
    for _ in range(2):
        torch.manual_seed(1000)
        states.append(ACTPolicy(make_config(cameras=[(3, 32, 32)])).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_latent_of_zero_is_used_without_actions(make_config, make_batch):
    policy = ACTPolicy(make_config(env=5, dropout=0.0)).train()
    batch = make_batch(policy.config)
    inputs = plain_inputs(policy.config, batch)
    first, second = policy.model(**inputs), policy.model(**inputs)
    assert first.mu is None
    assert torch.equal(first.actions, second.actions)
