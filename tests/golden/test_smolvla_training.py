"""SmolVLA's loss, gradients, optimiser steps and random draws against LeRobot 0.6.1 (fixtures/smolvla).

Tolerances of its README for float32: loss 1e-6 relative, gradient norms 1e-5 relative, losses of five steps 1e-5
relative.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from smolvla_cases import FLOAT32, SMOLVLA, assert_near, assert_norms_near, case, gradient_norms

from mimetic.optim.build import make_optimizer
from mimetic.optim.clip import clip_gradients
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.smolvla.flow import draw_noise, draw_time

TRAINED = [name for name in FLOAT32 if (SMOLVLA / "cases" / name / "train_steps.json").exists()]


@pytest.fixture(autouse=True)
def in_the_fixtures(monkeypatch):
    monkeypatch.chdir(SMOLVLA)


@pytest.mark.parametrize("name", FLOAT32)
def test_loss_its_parts_and_the_loss_of_each_sample(name):
    c = case(name)
    policy, noise, time = c.policy(), c.expected["noise"], c.expected["time"]
    loss, parts = policy.loss(c.batch(), noise=noise, time=time)
    assert loss.item() == pytest.approx(c.numbers["loss"], rel=1e-6)
    expected = {key: value for key, value in c.numbers["loss_dict"].items() if key in parts}
    assert len(expected) >= 3
    assert {key: parts[key].item() for key in expected} == pytest.approx(expected, rel=1e-6)
    each = policy.loss_per_sample(c.batch(), noise=noise, time=time)
    assert_near(each.detach(), c.expected["loss_per_sample"], atol=0, rtol=1e-6)
    assert each.mean().item() == pytest.approx(c.numbers["loss_dict_reduction_none"]["loss"], rel=1e-6)


@pytest.mark.parametrize("name", FLOAT32)
def test_the_same_parameters_get_the_same_gradients(name):
    c = case(name)
    policy = c.policy().train()
    policy.loss(c.batch(), noise=c.expected["noise"], time=c.expected["time"])[0].backward()
    parameters = dict(policy.named_parameters())
    assert_norms_near(gradient_norms(parameters.items()), c.numbers["grad_norms"], rel=1e-5)
    stored = [key for key in c.expected if key.startswith("grad.")]
    assert stored
    for key in stored:
        # 2e-6 of elements up to 1: another order of sums over 200 tokens.
        assert_near(parameters[key.removeprefix("grad.")].grad, c.expected[key], atol=2e-6)
    assert clip_gradients(policy.parameters(), 1e9).item() == pytest.approx(c.numbers["total_grad_norm"], rel=1e-5)


@pytest.mark.parametrize("name", FLOAT32)
def test_what_is_trainable_and_nothing_else_is_the_reference_s(name):
    c = case(name)
    trainable = [key for key, parameter in c.policy().named_parameters() if parameter.requires_grad]
    assert set(trainable) == set(c.numbers["grad_norms"])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", TRAINED)
def test_five_optimiser_steps(name, fused):
    c = case(name)
    record, draws = c.json("train_steps"), load_file(c.folder / "train_noise_time.safetensors")
    policy = c.policy().train()
    preset = policy.config.optimizer_preset()
    optimizer = make_optimizer(preset, policy.optim_groups(), fused=fused)
    scheduler = make_scheduler(policy.config.scheduler_preset(), optimizer, record["scheduler_total_steps"])
    assert len(record["steps"]) == 5
    for number, step in enumerate(record["steps"]):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(step["lr"], rel=1e-12)
        loss, _ = policy.loss(c.batch(), noise=draws["noise"][number], time=draws["time"][number])
        assert loss.item() == pytest.approx(step["loss"], rel=1e-5)
        loss.backward()
        norm = clip_gradients(policy.parameters(), preset.grad_clip_norm)
        assert norm.item() == pytest.approx(step["grad_norm"], rel=1e-5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    parameters = dict(policy.named_parameters())
    assert set(record["final_parameters"]) == {key for key, p in parameters.items() if p.requires_grad}
    for key, expected in record["final_parameters"].items():
        value = parameters[key].detach().double()
        if key.endswith("self_attn.k_proj.bias"):
            # Its true gradient is zero; Adam makes a step of up to 1e-4 in a random direction of each rounding error.
            assert value.sum().item() == pytest.approx(expected["sum"], abs=1e-3 * value.numel()), key
            continue
        assert value.norm().item() == pytest.approx(expected["norm"], rel=1e-6), key
        # Adam may step the other way where a gradient is all but zero: two such elements are allowed for.
        assert value.sum().item() == pytest.approx(expected["sum"], abs=2e-4), key


def test_noise_and_time_are_drawn_as_the_reference_draws_them():
    folder = SMOLVLA / "cases/rng"
    expected, numbers = load_file(folder / "expected.safetensors"), json.loads((folder / "expected.json").read_text())
    c = case("cross_b3")
    policy, device = c.policy(), torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        assert torch.equal(draw_noise((3, 8, 32), device), expected["seed1234_noise"])
        assert torch.equal(draw_time(3, device), expected["seed1234_time"])
        torch.manual_seed(1234)
        loss, _ = policy.loss(c.batch())
        assert loss.item() == pytest.approx(numbers["seed1234_loss_on_cross_b3_batch"], rel=1e-6)
        torch.manual_seed(99)
        times = draw_time(4096, device)
        assert torch.equal(times, expected["seed99_time4096"])
        assert times.mean().item() == pytest.approx(numbers["time4096_mean"], rel=1e-6)
        torch.manual_seed(4321)
        assert_near(policy.predict_chunk(c.batch()), expected["seed4321_chunk"], atol=1e-5)


@pytest.mark.parametrize(("precision", "bound"), [("released", 5e-4), ("float32", 5e-3), ("mixed", 5e-3)])
def test_bfloat16_autocast(precision, bound):
    """5e-3 is the README's bound for casts in another order; float32 throughout is 1.6e-3 away.

    With the reference's kernels 8e-5 was measured, from bfloat16 products of other shapes; a state token that is
    rounded where the reference's float32 prefix is not costs 2e-4.
    """
    c, streams = case("cross_b3"), []
    policy = c.policy(precision=precision)
    norm = policy.model.vlm.text_model.layers[0].input_layernorm
    norm.register_forward_pre_hook(lambda module, args: streams.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = policy.loss(c.batch(), noise=c.expected["noise"], time=c.expected["time"])
    assert streams == [torch.float32, torch.float32]  # pictures and words; the state
    assert loss.item() == pytest.approx(c.json("expected_autocast_bf16")["loss"], rel=bound)
