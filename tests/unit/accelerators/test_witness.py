"""What the witness of one training step sees, and that nobody notices it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mimetic.accelerators.precision import Precision, choose_precision
from mimetic.accelerators.witness import MatmulWitness
from mimetic.errors import PrecisionError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.build import make_policy
from mimetic.testing.smolvla import tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm

CPU = torch.device("cpu")
FULL = choose_precision("no", CPU)
BF16 = choose_precision("bf16", CPU)
FP16 = Precision(torch.device("cuda"), torch.float16, "", scaler=True)


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


@pytest.fixture(scope="module")
def act():
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 32, 64)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        chunk_size=8,
        n_action_steps=8,
        dim_model=16,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        dropout=0.1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    generator = torch.Generator().manual_seed(3)
    batch = {key: torch.randn(3, *f.shape, generator=generator) for key, f in config.input_features.items()}
    batch["action"] = torch.randn(3, 8, 4, generator=generator)
    batch["action_is_pad"] = torch.arange(8).expand(3, 8) >= torch.tensor([8, 6, 4])[:, None]
    return make_policy(config), batch


def step(policy, batch, precision, witness=None):
    """Loss, gradients and weights after one update, and the generator's state."""
    policy = copy.deepcopy(policy).train()
    optimizer = torch.optim.AdamW(policy.optim_groups(), lr=1e-3)
    torch.manual_seed(11)
    with witness or torch.enable_grad():
        with precision.autocast():
            loss, parts = policy.loss(batch)
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in policy.parameters()]
        optimizer.step()
    return loss.detach(), parts, gradients, list(policy.state_dict().values()), torch.get_rng_state()


def assert_same(one, other):
    (loss, parts, gradients, weights, state), (loss2, parts2, gradients2, weights2, state2) = one, other
    assert torch.equal(loss, loss2)
    assert torch.equal(state, state2)
    assert all(torch.equal(parts[name], parts2[name]) for name in parts)
    assert [g is None for g in gradients] == [g is None for g in gradients2]
    pairs = [*zip(gradients, gradients2, strict=True), *zip(weights, weights2, strict=True)]
    assert all(a is None or (a.dtype is b.dtype and torch.equal(a, b)) for a, b in pairs)
    assert any(g is not None for g in gradients)


@pytest.mark.parametrize(("precision", "dtype"), [(FULL, "float32"), (BF16, "bfloat16")])
def test_act(act, precision, dtype):
    policy, batch = act
    witness = MatmulWitness()
    assert_same(step(policy, batch, precision), step(policy, batch, precision, witness))
    operator, first = witness.first
    assert first is getattr(torch, dtype)
    total = witness.by_dtype.total()
    assert total > 100  # forward and backward
    assert witness.by_dtype[first] > 0.9 * total
    text = witness.verdict(precision)
    assert text.startswith(f"first matrix product ran in {dtype} ({operator}), {witness.by_dtype[first]} of {total} in")


# SmolVLA's own plan, autocast -> dtype of the first product, and whether float32 appears too. `auto` asks the CPU.
SMOLVLA = [
    ("mixed", "no", torch.bfloat16, True),
    ("released", "no", torch.bfloat16, True),
    ("float32", "no", torch.float32, True),
    ("auto", "no", None, True),
    ("mixed", "bf16", torch.bfloat16, False),
    ("released", "bf16", torch.bfloat16, False),
    ("float32", "bf16", torch.bfloat16, False),
    ("auto", "bf16", torch.bfloat16, False),
]


@pytest.mark.parametrize(("plan", "name", "first", "has_float32"), SMOLVLA)
def test_smolvla(vlm, plan, name, first, has_float32):
    """Its linear layers have backward passes of their own, and its frozen parts run without gradients."""
    config = tiny_smolvla_config(vlm, precision=plan)
    torch.manual_seed(7)
    policy, batch = make_policy(config), tiny_smolvla_batch(config, 2)
    precision = choose_precision(name, CPU)
    witness = MatmulWitness()
    assert_same(step(policy, batch, precision), step(policy, batch, precision, witness))
    assert first is None or witness.first[1] is first
    assert (witness.by_dtype[torch.float32] > 0) is has_float32
    assert witness.by_dtype.total() > 50
    assert witness.verdict(precision).startswith("first matrix product ran in ")


def products(compute, **settings):
    with MatmulWitness(**settings) as witness:
        compute()
    return witness


X = torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    ("compute", "operator"),
    [
        (lambda dtype: X[0].to(dtype) @ X[0].to(dtype).t(), "aten.mm"),
        (lambda dtype: torch.addmm(torch.ones(3).to(dtype), X[0].to(dtype), X[0].to(dtype).t()), "aten.addmm"),
        (lambda dtype: torch.bmm(X.to(dtype), X.to(dtype).mT), "aten.bmm"),
        (lambda dtype: torch.baddbmm(torch.ones(3, 3).to(dtype), X.to(dtype), X.to(dtype).mT), "aten.baddbmm"),
        (lambda dtype: X[0].to(dtype) @ X[0, 0].to(dtype), "aten.mv"),
        (lambda dtype: F.linear(X[0].to(dtype), X[0].to(dtype), torch.ones(3).to(dtype)), "aten.addmm"),
        (lambda dtype: torch.einsum("bij,bkj->bik", X.to(dtype), X.to(dtype)), "aten.bmm"),
        (lambda dtype: F.conv1d(X.to(dtype), torch.ones(2, 3, 1).to(dtype)), "aten.convolution"),
        (lambda dtype: F.conv2d(X[None].to(dtype), torch.ones(1, 2, 1, 1).to(dtype)), "aten.convolution"),
        (
            lambda dtype: F.scaled_dot_product_attention(*[X[None].to(dtype)] * 3),
            "aten._scaled_dot_product_flash_attention_for_cpu",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators(compute, operator, dtype):
    witness = products(lambda: compute(dtype))
    assert witness.first == (operator, dtype)
    assert witness.by_dtype == {dtype: 1}


def test_operators_of_onednn():
    x, weight = X[0], torch.ones(5, 4)
    witness = products(lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""))
    assert witness.first == ("mkldnn._linear_pointwise", torch.float32)


def test_inference_mode_is_seen_too():
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        witness = products(lambda: layer(X))
    assert witness.by_dtype == {torch.float32: 1}


def test_other_operators_are_not_counted():
    witness = products(lambda: (X + 1).softmax(-1).sum() * F.layer_norm(X, (4,)).mean())
    assert witness.first is None
    assert witness.verdict(BF16) == "no matrix product was seen"


def test_the_backward_pass_counts():
    layer = nn.Linear(4, 4)
    witness = products(lambda: layer(X[0].clone().requires_grad_()).sum().backward())
    assert witness.by_dtype == {torch.float32: 3}  # forward, and one for each of weight and input


def test_the_verdict_counts_the_others():
    with MatmulWitness() as witness:
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(3):
                X[0] @ X[0].t()
        X[0] @ X[0].t()
    assert witness.verdict(BF16) == ("first matrix product ran in bfloat16 (aten.mm), 3 of 4 in bfloat16, 1 in float32")
    assert witness.verdict(FULL) == witness.verdict(BF16)


@pytest.mark.parametrize("precision", [BF16, FP16])
def test_a_run_that_is_silently_in_full_precision_is_refused(precision):
    with MatmulWitness() as witness, torch.autocast("cpu", enabled=False):
        X[0] @ X[0].t()
    dtype = str(precision.autocast_dtype).removeprefix("torch.")
    with pytest.raises(PrecisionError) as caught:
        witness.verdict(precision)
    assert caught.value.message == (
        f"autocast is {dtype}, and none of the 1 matrix products of the first step ran in it (the first, aten.mm, ran "
        "in float32): the policy or this torch switches autocast off"
    )
    assert "mixed_precision=no" in caught.value.hint


def test_an_error_inside_leaves_no_mode_behind():
    witness = MatmulWitness()
    with pytest.raises(ZeroDivisionError), witness:
        raise ZeroDivisionError
    X[0] @ X[0].t()
    assert witness.first is None


def test_what_is_compiled_runs_plain_meanwhile_and_is_still_compiled_afterwards():
    compiled = []

    def backend(graph, example_inputs):
        compiled.append(graph)
        return graph.forward

    function = torch.compile(lambda x: torch.relu(x @ x.t()), backend=backend)
    witness = products(lambda: function(X[0]))
    assert witness.by_dtype == {torch.float32: 1}
    assert compiled == []
    function(X[0])
    assert len(compiled) == 1
    torch._dynamo.reset()
