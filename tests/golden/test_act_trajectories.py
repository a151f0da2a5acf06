"""Five training steps of LeRobot 0.6.1 on a tiny ACT, repeated with the policy, optimiser, schedule and clipping.

With torch's attention written out (`testing/act.py`) the network is the reference's sequence of operations; the fast
network must equal that bit for bit, dropout included. Against the recorded numbers the tolerance is the one for other
builds and processors: loss 1e-6 relative, gradient norm 1e-5 relative, weights 1e-6 absolute.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mimetic.features import FeatureType, PolicyFeature
from mimetic.optim.build import make_optimizer
from mimetic.optim.clip import clip_gradients
from mimetic.optim.config import AdamWConfig, ConstantWithWarmupConfig, CosineDecayWithWarmupConfig, SGDConfig
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.build import make_policy
from mimetic.testing.act import plain_forward

FIXTURES = Path(__file__).parents[1] / "fixtures" / "training"
INPUTS = {
    "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
    "observation.environment_state": PolicyFeature(FeatureType.ENV, (2,)),
}
OUTPUTS = {"action": PolicyFeature(FeatureType.ACTION, (3,))}
TINY = {
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 32,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
    "chunk_size": 8,
    "n_action_steps": 8,
}
NO_NOISE = ACTConfig(**TINY, use_vae=False, dropout=0.0)
RUNS = {
    "plain": (
        NO_NOISE,
        AdamWConfig(lr=1e-3, weight_decay=0.01, grad_clip_norm=1.0),
        CosineDecayWithWarmupConfig(num_warmup_steps=4, num_decay_steps=20, peak_lr=1e-3, decay_lr=1e-4),
    ),
    "sgd": (
        NO_NOISE,
        SGDConfig(lr=0.05, momentum=0.9, weight_decay=1e-3, grad_clip_norm=0),
        ConstantWithWarmupConfig(num_warmup_steps=2),
    ),
    "vae_dropout": (ACTConfig(**TINY, optimizer_lr=1e-3), None, None),
}


def run(name, *, plain=False):
    """Losses, norms, rates, final weights and optimiser state of the five steps."""
    folder = FIXTURES / f"traj_{name}"
    config, optimizer_config, scheduler_config = RUNS[name]
    policy = make_policy(config, input_features=INPUTS, output_features=OUTPUTS, device="cpu")
    policy.load_state_dict(load_file(folder / "initial_weights.safetensors"))
    if plain:
        policy.model.forward = partial(plain_forward, policy.model, policy.config)
    preset = optimizer_config is None
    optimizer_config = optimizer_config or config.optimizer_preset()
    optimizer = make_optimizer(optimizer_config, policy.optim_groups() if preset else policy.parameters())
    scheduler = make_scheduler(scheduler_config, optimizer, 5)
    batches = load_file(folder / "batches_preprocessed.safetensors")
    generators = load_file(folder / "rng_before_step.safetensors")
    result = SimpleNamespace(losses=[], parts=[], norms=[], rates=[])
    for step in range(1, 6):
        torch.set_rng_state(generators[f"step_{step}/torch_rng_state"])
        prefix = f"step_{step}/"
        batch = {key.removeprefix(prefix): value for key, value in batches.items() if key.startswith(prefix)}
        result.rates.append([group["lr"] for group in optimizer.param_groups])
        loss, parts = policy.loss(batch)
        loss.backward()
        result.losses.append(loss.item())
        result.parts.append({key: value.item() for key, value in parts.items()})
        result.norms.append(clip_gradients(policy.parameters(), optimizer_config.grad_clip_norm).item())
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    result.weights = policy.state_dict()
    result.groups = optimizer.state_dict()["param_groups"]
    return result


@pytest.fixture(autouse=True)
def _keep_generator():
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize("name", RUNS)
def test_a_seed_gives_lerobots_initial_weights_bit_for_bit(name):
    torch.manual_seed(1000)
    policy = make_policy(RUNS[name][0], input_features=INPUTS, output_features=OUTPUTS)
    expected = load_file(FIXTURES / f"traj_{name}" / "initial_weights.safetensors")
    assert policy.state_dict().keys() == expected.keys()
    for key, value in policy.state_dict().items():
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("name", RUNS)
def test_fast_network_trains_as_the_plain_one_bit_for_bit(name):
    fast, plain = run(name), run(name, plain=True)
    assert fast.losses == plain.losses
    assert fast.norms == plain.norms
    for key, value in fast.weights.items():
        assert torch.equal(value, plain.weights[key]), key


@pytest.mark.parametrize("name", RUNS)
def test_losses_norms_and_rates_are_the_recorded_ones(name):
    recorded = json.loads((FIXTURES / f"traj_{name}" / "trajectory.json").read_text())
    result = run(name)
    for i, step in enumerate(recorded["steps"]):
        assert result.losses[i] == pytest.approx(step["loss"], rel=1e-6)
        assert result.parts[i] == pytest.approx(step["output"], rel=1e-6)
        assert result.norms[i] == pytest.approx(step["grad_norm"], rel=1e-5)
        assert result.rates[i] == pytest.approx(step["lr_used"], rel=1e-14)


@pytest.mark.parametrize("name", RUNS)
def test_final_weights_are_the_recorded_ones(name):
    result = run(name)
    for key, expected in load_file(FIXTURES / f"traj_{name}" / "final_weights.safetensors").items():
        actual, limit = result.weights[key], 1e-6
        if key.endswith("in_proj_bias"):
            # Softmax ignores a shift of all logits, so the true gradient of key biases is zero and Adam turns rounding
            # noise into steps of up to the learning rate: they differ between processors and mean nothing.
            width = len(expected) // 3
            expected, actual = (torch.cat([x[:width], x[2 * width :]]) for x in (expected, actual))
        if name == "vae_dropout":
            limit = 5e-6  # a few gradients near 1e-8 at a hundred times the usual learning rate
        torch.testing.assert_close(actual, expected, rtol=0, atol=limit, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", RUNS)
def test_parameter_groups_have_the_recorded_settings(name):
    recorded = json.loads((FIXTURES / f"traj_{name}" / "trajectory.json").read_text())["param_groups"]
    found = run(name).groups
    assert len(found) == len(recorded)
    for group, expected in zip(found, recorded, strict=True):
        for key, value in expected.items():
            if key == "params":
                assert len(group["params"]) == value
            elif key != "lr":
                assert (list(group[key]) if isinstance(group[key], tuple) else group[key]) == value, key


@pytest.mark.parametrize("name", ["act_tiny_vec_vae", "act_tiny_vec_no_vae", "act_default_one_camera"])
def test_parameters_have_lerobots_numbers(name):
    recorded = json.loads((FIXTURES / "param_order.json").read_text())[name]
    inputs = {
        key: PolicyFeature(
            FeatureType.VISUAL if "images" in key else FeatureType.ENV if "environment" in key else FeatureType.STATE,
            tuple(shape),
        )
        for key, shape in recorded["inputs"].items()
    }
    n_actions = recorded["groups"][0]["params"][-1][2][0]
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (n_actions,))}
    with torch.device("meta"):
        config = ACTConfig(input_features=inputs, output_features=outputs, **recorded["settings"])
        policy = ACTPolicy(config, init_backbone=False)
    names = {id(parameter): key for key, parameter in policy.named_parameters()}
    number = 0
    for group, expected in zip(policy.optim_groups(), recorded["groups"], strict=True):
        assert {key: value for key, value in group.items() if key != "params"} == expected["extra"]
        found = []
        for parameter in group["params"]:
            found.append([number, names[id(parameter)], list(parameter.shape), parameter.requires_grad])
            number += 1
        assert found == expected["params"]
