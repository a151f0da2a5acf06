"""Compiled training: the loss of uncompiled code, the same names, and one clear error where it cannot work."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

from mimetic.accelerators.config import AcceleratorConfig, ActivationCheckpointingConfig, CompileConfig
from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies import compiling
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.build import make_policy
from mimetic.policies.prepare import prepare_for_training
from mimetic.testing.smolvla import spread_weights, tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm

pytestmark = pytest.mark.filterwarnings("default")  # the compiler's own


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny", text_dtype=torch.bfloat16)


def compiled(backend="eager", *, mode=None, regional=True, recompute="none"):
    return AcceleratorConfig(
        compile=CompileConfig(enabled=True, backend=backend, mode=mode, regional=regional),
        activation_checkpointing=ActivationCheckpointingConfig(mode=recompute),
    )


def act(**settings):
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (5,)),
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (3,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        **{
            "chunk_size": 8,
            "n_action_steps": 8,
            "device": "cpu",
            "dim_model": 16,
            "n_heads": 2,
            "dim_feedforward": 32,
            "n_encoder_layers": 3,
            "n_vae_encoder_layers": 2,
            **settings,
        },
    )
    return ACTPolicy(config)


def act_batch(policy, size=3):
    generator = torch.Generator().manual_seed(1)
    batch = {k: torch.randn(size, *f.shape, generator=generator) for k, f in policy.config.input_features.items()}
    batch["action"] = torch.randn(size, 8, 4, generator=generator)
    batch["action_is_pad"] = torch.arange(8).expand(size, 8) >= torch.arange(8, 8 - size, -1)[:, None]
    return batch


def smolvla(vlm, precision="mixed", **settings):
    policy = make_policy(tiny_smolvla_config(vlm, precision=precision, **settings), init_backbone=False)
    policy.load_state_dict(spread_weights(policy.state_dict()))
    return policy


def step(policy, batch, dtype=None):
    """Loss and gradients by name, and a random number that is drawn afterwards."""
    policy.zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss, _ = policy.loss(batch)
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}, torch.rand(1)


def assert_close(one, other, rtol=0.0, atol=0.0):
    torch.testing.assert_close(one[0], other[0], rtol=rtol, atol=atol)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=rtol, atol=atol, msg=lambda text, n=name: n + text)
    assert torch.equal(one[2], other[2])


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("regional", [True, False])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_act_has_the_loss_and_gradients_of_uncompiled_code(regional, recompute, dtype):
    if recompute == "full" and not regional:
        return  # refused, see below
    plain, policy = act(), act()
    prepare_for_training(policy, compiled(regional=regional, recompute=recompute))
    before = graphs()
    batch = act_batch(plain)
    assert_close(step(plain, batch, dtype), step(policy, batch, dtype))
    assert graphs() > before


@pytest.mark.parametrize(
    "precision",
    ["mixed", pytest.param("float32", marks=pytest.mark.slow), pytest.param("released", marks=pytest.mark.slow)],
)
def test_smolvla_has_the_loss_and_gradients_of_uncompiled_code(vlm, precision):
    plain, policy = smolvla(vlm, precision), smolvla(vlm, precision)
    prepare_for_training(policy, compiled())
    before = graphs()
    batch = tiny_smolvla_batch(plain.config, 2)
    assert_close(step(plain, batch), step(policy, batch), rtol=1e-5, atol=1e-6)
    assert graphs() > before


def test_one_compilation_serves_all_layers_of_a_kind():
    counts = []
    for layers in (2, 5):
        torch._dynamo.reset()
        policy = act(n_encoder_layers=layers)
        prepare_for_training(policy, compiled())
        before = graphs()
        step(policy, act_batch(policy))
        counts.append(graphs() - before)
    assert counts[0] == counts[1] <= 5


def test_a_shorter_batch_is_compiled_once_and_the_old_one_stays(caplog):
    caplog.set_level(logging.INFO)
    policy = act()
    prepare_for_training(policy, compiled())
    step(policy, act_batch(policy, 3))
    first = graphs()
    step(policy, act_batch(policy, 2))
    second = graphs()
    assert second > first
    for size in (3, 2, 3, 2):
        step(policy, act_batch(policy, size))
    assert graphs() == second
    said = [r.message for r in caplog.records if r.message.startswith("compiled ")]
    assert len(said) == 2
    assert " of step 1" in said[0]
    assert said[1].endswith(" of step 2: its batch has other sizes than those before")


@pytest.mark.slow
def test_instructions_of_other_lengths_are_not_compiled_again(vlm):
    policy = smolvla(vlm)
    prepare_for_training(policy, compiled())
    for n_tokens in (8, 10):  # two lengths, so that none of the tiny sizes is taken for another one that is equal
        step(policy, tiny_smolvla_batch(policy.config, 3, n_tokens=n_tokens))
    before = graphs()
    for n_tokens in (9, 11, 12, 14):
        step(policy, tiny_smolvla_batch(policy.config, 3, n_tokens=n_tokens))
    assert graphs() == before


@pytest.mark.parametrize("regional", [True, False])
def test_names_parameters_and_evaluation_stay(regional):
    policy = act()
    names, parameters = list(policy.state_dict()), [id(p) for p in policy.parameters()]
    modules = [name for name, _ in policy.named_modules()]
    batch = act_batch(policy)
    before, chunk = policy.eval().loss(batch)[0], policy.predict_chunk(batch)
    prepare_for_training(policy, compiled(regional=regional))
    step(policy.train(), batch)
    count = graphs()
    with torch.inference_mode():
        assert torch.equal(policy.eval().loss(batch)[0], before)
    assert torch.equal(policy.predict_chunk(batch), chunk)
    assert graphs() == count
    assert list(policy.state_dict()) == names
    assert [id(p) for p in policy.parameters()] == parameters
    assert [name for name, _ in policy.named_modules()] == modules


@pytest.mark.parametrize("regional", [True, False])
def test_a_copy_trains_itself(regional):
    policy = act()
    prepare_for_training(policy, compiled(regional=regional))
    twin = copy.deepcopy(policy)
    batch = act_batch(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert_close(step(act(), batch), step(twin, batch))


def test_what_is_compiled_is_said(vlm):
    off = "the first step takes longer (`--accelerator.compile.enabled=false` trains without a compiler)"
    assert prepare_for_training(act(), compiled()) == [
        f"compiling one layer of each kind for all of its kind (5 encoder layers, 1 decoder layer) with eager; {off}"
    ]
    assert prepare_for_training(act(), compiled(regional=False)) == [
        f"compiling the whole loss of policy `act` with eager; {off}"
    ]
    assert "(4 expert layers, 4 text layers)" in prepare_for_training(smolvla(vlm), compiled())[0]
    assert len(prepare_for_training(act(), compiled(recompute="full"))) == 2


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        (
            compiled("indcutor"),
            "`--accelerator.compile.backend=indcutor` is no backend of torch.compile",
            "did you mean `inductor`? this torch has aot_eager, ",
        ),
        (
            compiled("inductor", mode="fastest"),
            "`--accelerator.compile.mode=fastest` is no mode of torch.compile",
            "choose one of default, ",
        ),
        (
            compiled("eager", mode="max-autotune"),
            "`--accelerator.compile.mode=max-autotune` is a mode of `inductor`, and the backend is `eager`",
            "leave out `--accelerator.compile.mode`",
        ),
        (
            compiled(regional=False, recompute="full"),
            "`--accelerator.activation_checkpointing.mode=full` with `--accelerator.compile.enabled=true`: layers are "
            "recomputed, and `--accelerator.compile.regional=false` leaves none, because the compiler plans the memory "
            "of the whole loss",
            "use `--accelerator.compile.regional=true`, or leave out one of the two",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(config, message, hint):
    with pytest.raises(ConfigError) as caught:
        prepare_for_training(act(), config)
    assert str(caught.value) == message
    assert caught.value.hint.startswith(hint)


def test_changing_sizes_are_not_compiled_and_recomputed(vlm):
    with pytest.raises(ConfigError) as caught:
        prepare_for_training(smolvla(vlm), compiled(recompute="full"))
    assert str(caught.value) == (
        "`--accelerator.activation_checkpointing.mode=full` with `--accelerator.compile.enabled=true`: the inputs of "
        "policy `smolvla` change their sizes from batch to batch, and torch may recompute a layer with other compiled "
        "code than it ran first"
    )


def test_changing_sizes_are_not_compiled_as_a_whole(vlm):
    with pytest.raises(ConfigError) as caught:
        prepare_for_training(smolvla(vlm), compiled(regional=False))
    assert str(caught.value) == (
        "`--accelerator.compile.regional=false`: the sizes inside the loss of policy `smolvla` change from batch to "
        "batch, so it cannot be compiled as a whole"
    )


def test_a_policy_without_layers_can_only_be_compiled_as_a_whole(monkeypatch):
    monkeypatch.setattr(ACTPolicy, "layer_classes", ())
    with pytest.raises(ConfigError, match="regional=true`: policy `act` has no repeated layers"):
        prepare_for_training(act(), compiled())
    assert prepare_for_training(act(), compiled(regional=False))


def test_a_missing_compiler_is_one_error_before_training(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(ConfigError) as caught:
        prepare_for_training(act(), compiled("inductor"))
    assert str(caught.value).startswith(
        "`--accelerator.compile.enabled=true`: backend `inductor` does not work on this machine: "
    )
    assert "\n" not in str(caught.value)
    assert caught.value.hint == (
        "it needs a C++ compiler (Debian, Ubuntu: `apt-get install g++`; `CXX` names another one); "
        "`--accelerator.compile.enabled=false` trains without a compiler"
    )


def test_a_compiler_that_fails_at_the_policy_is_one_error(monkeypatch):
    policy = act()
    prepare_for_training(policy, compiled())

    def fails(graph, inputs):
        raise ValueError("it cannot")

    forward = torch.compile(compiling._three_operations, backend=fails)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(x))
    with pytest.raises(ConfigError, match="the compiler failed at policy `act`: ") as caught:
        policy.loss(act_batch(policy))
    assert "it cannot" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, {"mode": "max-autotune-no-cudagraphs"}, {"recompute": "full"}, {"regional": False}],
    ids=["regional", "mode", "recomputed", "whole"],
)
def test_inductor_has_the_loss_and_dropout_of_uncompiled_code(settings):
    plain, policy = act(), act()
    prepare_for_training(policy, compiled("inductor", **settings))
    batch = act_batch(plain)
    # Sums of float32 in another order; another dropout mask would change the loss in the first digits.
    assert_close(step(plain, batch), step(policy, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_inductor_gives_a_resumed_run_the_bits_of_one_that_went_on():
    policy = act()
    prepare_for_training(policy, compiled("inductor"))
    sizes = (3, 2, 3)
    went_on = [step(policy, act_batch(policy, size)) for size in sizes]
    torch._dynamo.reset()
    resumed = act()
    prepare_for_training(resumed, compiled("inductor"))
    for size, expected in zip(sizes[1:], went_on[1:], strict=True):  # begins with the shorter batch
        assert_close(step(resumed, act_batch(resumed, size)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_inductor_has_the_loss_of_uncompiled_smolvla(vlm, precision):
    plain, policy = smolvla(vlm, precision), smolvla(vlm, precision)
    prepare_for_training(policy, compiled("inductor"))
    batch = tiny_smolvla_batch(plain.config, 2)
    ours, theirs = step(policy, batch), step(plain, batch)
    tolerance = 1e-4 if precision == "float32" else 2e-2  # bfloat16 has 8 bits
    torch.testing.assert_close(ours[0], theirs[0], rtol=tolerance, atol=0.0)
