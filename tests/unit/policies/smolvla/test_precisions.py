"""Dtypes of weights, gradients and optimiser state, copies for evaluation, and what checkpoints hold, by precision."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.names import WEIGHTS
from mimetic.optim.build import make_optimizer
from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapters import attach
from mimetic.policies.bricks.int8_linear import int8_works
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_weights
from mimetic.policies.smolvla import freezing
from mimetic.policies.tensors import save_weights
from mimetic.testing.smolvla import spread_weights, tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm

PRECISIONS = ("float32", "mixed", "released")
TRAINED = (
    {},
    {"train_state_proj": False},
    {"train_expert_only": False},
    {"train_expert_only": False, "freeze_vision_encoder": False},
)


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny", text_dtype=torch.bfloat16)


def build(vlm, precision, **settings):
    policy = make_policy(tiny_smolvla_config(vlm, precision=precision, **settings), init_backbone=False)
    policy.load_state_dict(spread_weights(policy.state_dict()))
    return policy.eval()


def scene(policy):
    torch.manual_seed(2)
    return tiny_smolvla_batch(policy.config, 2), torch.randn(2, *policy.config.noise_shape)


def update(policy, batch, *, fused=True, lr=0.01):
    optimizer = make_optimizer(policy.config.optimizer_preset(), policy.optim_groups(), fused=fused)
    optimizer.param_groups[0]["lr"] = lr
    policy.train()
    policy.loss(batch)[0].backward()
    optimizer.step()
    return optimizer


def dtypes(tensors):
    return {tensor.dtype for tensor in tensors if tensor is not None}


@pytest.mark.parametrize("settings", [*TRAINED, "adapter"])
def test_mixed_has_float32_weights_gradients_and_moments_wherever_something_is_trained(vlm, settings):
    policy = build(vlm, "mixed", **({} if settings == "adapter" else settings))
    if settings == "adapter":
        targets = policy.config.lora_targets
        attach(policy, AdapterConfig(target_modules=targets, base_model_name_or_path="base"))
    batch, _ = scene(policy)
    optimizer = update(policy, batch)
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert dtypes(trained) == dtypes(p.grad for p in trained) == {torch.float32}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    state = optimizer.state_dict()["state"]
    assert len(state) == len(trained)
    assert dtypes(value for entries in state.values() for value in entries.values()) == {torch.float32}
    frozen = {name: p.dtype for name, p in policy.named_parameters() if not p.requires_grad}
    vlm_weights = [dtype for name, dtype in frozen.items() if ".vlm." in name]
    assert set(vlm_weights) == {torch.bfloat16}
    if settings == "adapter":
        assert frozen["model.vlm_with_expert.lm_expert.layers.0.mlp.up_proj.weight"] is torch.bfloat16


@pytest.mark.parametrize("settings", TRAINED)
@pytest.mark.parametrize("precision", ["mixed", "released"])
def test_gradients_agree_with_float32(vlm, precision, settings):
    policy = build(vlm, precision, **settings)
    exact = build(vlm, "float32", **settings)
    exact.load_state_dict(policy.state_dict())  # the same numbers, computed in float32
    batch, noise = scene(policy)
    losses = []
    for made in (policy, exact):
        loss, _ = made.train().loss(batch, noise=noise, time=torch.tensor([0.3, 0.8]))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    grads, wanted = ({k: p.grad for k, p in made.named_parameters() if p.grad is not None} for made in (policy, exact))
    assert grads.keys() == wanted.keys()
    largest = max(g.norm() for g in wanted.values())
    for name, grad in wanted.items():
        # Products with 8 bits, 2^-8 each, through up to 4 layers and back; most are within 2 %.
        assert (grads[name].float() - grad).norm() <= 0.15 * grad.norm() + 1e-3 * largest, name


@pytest.mark.parametrize("settings", [{}, {"int8": True}])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_chunks_after_changes_are_those_of_a_new_policy_with_the_same_weights(vlm, precision, settings):
    if settings and not int8_works():
        pytest.skip("needs a CPU with fast 8-bit products")
    policy = build(vlm, precision, **settings)
    batch, noise = scene(policy)
    seen = [policy.predict_chunk(batch, noise=noise)]

    def check():
        chunk = policy.predict_chunk(batch, noise=noise)
        assert torch.equal(chunk, copy.deepcopy(policy).predict_chunk(batch, noise=noise))
        assert not torch.equal(chunk, seen[-1])
        seen.append(chunk)

    for fused in (True, False):
        update(policy, batch, fused=fused)
        check()
    policy.load_state_dict(spread_weights(policy.state_dict(), seed=8))
    check()
    average = spread_weights(policy.state_dict(), seed=9)
    with torch.no_grad():
        for name, tensor in policy.state_dict().items():
            tensor.lerp_(average[name], 0.5)
    check()
    for name, parameter in policy.named_parameters():
        parameter.data.copy_(average[name])
    check()
    for parameter in policy.parameters():
        parameter.data = parameter.data * 1.1
    check()
    policy.load_state_dict(spread_weights(policy.state_dict(), seed=10), assign=True)
    check()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_held_out_loss_follows_the_weights(vlm, precision):
    """The order of a training run: measure in inference mode, train with the fused optimiser, measure again."""
    policy = build(vlm, precision)
    batch, noise = scene(policy)
    given = {"noise": noise, "time": torch.tensor([0.3, 0.8])}
    measured = []
    for _ in range(3):
        with torch.inference_mode():
            measured.append(policy.eval().loss(batch, **given)[0].item())
            assert measured[-1] == copy.deepcopy(policy).loss(batch, **given)[0].item()
        update(policy, batch)
    assert len(set(measured)) == 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_inference_mode_and_copies(vlm, precision):
    policy = build(vlm, precision)
    batch, noise = scene(policy)
    expected = policy.predict_chunk(batch, noise=noise)
    with torch.inference_mode():
        assert torch.equal(policy.predict_chunk(batch, noise=noise), expected)
        assert torch.equal(policy.select_action(batch, noise=noise), expected[:, 0])
        made_inside = build(vlm, precision)
        assert torch.equal(made_inside.predict_chunk(batch, noise=noise), expected)
    update(copy.deepcopy(policy), batch)  # what was computed in inference mode is not in the way of gradients
    copied = pickle.loads(pickle.dumps(policy))
    assert torch.equal(copied.predict_chunk(batch, noise=noise), expected)
    update(copied, batch)
    assert torch.equal(policy.predict_chunk(batch, noise=noise), expected)  # copies share nothing


@pytest.mark.parametrize("precision", PRECISIONS)
def test_state_dicts_go_round(vlm, precision, tmp_path):
    policy, other = build(vlm, precision), build(vlm, precision)
    batch, noise = scene(policy)
    other.load_state_dict({key: torch.zeros_like(value) for key, value in policy.state_dict().items()})
    other.predict_chunk(batch, noise=noise)
    update(policy, batch, lr=1e-6)  # smaller than the steps of bfloat16
    save_weights(policy.state_dict(), tmp_path / WEIGHTS)
    stored = load_file(tmp_path / WEIGHTS)
    assert {key: value.dtype for key, value in stored.items()} == {k: v.dtype for k, v in policy.state_dict().items()}
    load_weights(other, tmp_path)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in policy.state_dict().items())
    assert torch.equal(policy.predict_chunk(batch, noise=noise), other.predict_chunk(batch, noise=noise))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_numbers_that_are_rounded_while_loading_are_announced(vlm, precision, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="mimetic")
    full = build(vlm, "float32").state_dict()
    save_file(full, tmp_path / WEIGHTS)
    policy = build(vlm, precision)
    load_weights(policy, tmp_path)
    told = [record for record in caplog.records if "are rounded to bfloat16" in record.getMessage()]
    assert len(told) == (precision != "float32")
    if told:
        text = told[0].getMessage()
        rounded = [key for key, value in policy.state_dict().items() if not torch.equal(value.float(), full[key])]
        assert f": {len(rounded)} of its tensors" in text
        assert "--policy.precision=float32" in text
        # mixed rounds what is frozen, as it is going to be used; released also what is trained.
        assert told[0].levelno == (logging.INFO if precision == "mixed" else logging.WARNING)
        assert ("0 of them trained" in text) == (precision == "mixed")
    caplog.clear()
    save_file({key: value.bfloat16().float() for key, value in full.items()}, tmp_path / WEIGHTS)
    load_weights(build(vlm, precision), tmp_path)  # wide, but every number fits: nothing is lost, nothing is said
    assert "rounded" not in caplog.text


@pytest.mark.parametrize(("is_native", "expected"), [(True, "mixed"), (False, "float32")])
def test_auto_asks_the_processor(vlm, monkeypatch, is_native, expected):
    monkeypatch.setattr(freezing, "has_native_bfloat16", lambda device: is_native)
    policy = build(vlm, "auto")
    assert policy.precision == expected
    assert (torch.bfloat16 in dtypes(policy.parameters())) == is_native


def test_the_expert_has_the_dtype_in_which_the_backbones_weights_are_loaded(tmp_path):
    """LeRobot loads them in bfloat16 whatever the backbone's config says, and the expert takes over that dtype."""
    plain = write_tiny_vlm(tmp_path / "vlm", text_dtype=torch.float32)
    for is_loaded, wanted in ((True, torch.bfloat16), (False, torch.float32)):
        model = build(plain, "released", load_vlm_weights=is_loaded).model
        expert = model.vlm_with_expert.lm_expert
        assert expert.norm.weight.dtype == expert.layers[0].mlp.up_proj.weight.dtype == wanted
        assert expert.layers[0].self_attn.k_proj.weight.dtype == wanted
        assert expert.layers[1].self_attn.k_proj.weight.dtype == torch.float32  # of a cross layer
