"""Recomputed layers: the same gradients to the bit, fewer kept bytes, the same names, the same generator."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mimetic.accelerators.config import AcceleratorConfig, ActivationCheckpointingConfig
from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import FEATURES_PREFIX
from mimetic.optim.build import make_optimizer
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.activation_checkpointing import checkpoint_activations
from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapters import attach
from mimetic.policies.base import Policy
from mimetic.policies.bricks import grouped_attention
from mimetic.policies.bricks.recompute import recompute_layer
from mimetic.policies.build import make_policy
from mimetic.policies.prepare import prepare_for_training
from mimetic.policies.repeated_layers import LayerClass, set_training_forward
from mimetic.testing.smolvla import spread_weights, tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm

FULL = AcceleratorConfig(activation_checkpointing=ActivationCheckpointingConfig(mode="full"))
SIZES = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 3, "n_vae_encoder_layers": 2}


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny", text_dtype=torch.bfloat16)


CAMERAS = ((3, 32, 64), (3, 32, 32))


def act(cameras=(), **settings):
    torch.manual_seed(0)
    images = {f"observation.images.{i}": PolicyFeature(FeatureType.VISUAL, shape) for i, shape in enumerate(cameras)}
    others = {
        "observation.state": PolicyFeature(FeatureType.STATE, (5,)),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (3,)),
    }
    config = ACTConfig(
        input_features=others | images,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        **{"pretrained_backbone_weights": None, "chunk_size": 8, "n_action_steps": 8, "device": "cpu", **SIZES},
        **settings,
    )
    return ACTPolicy(config)


def act_batch(policy, size=3):
    generator = torch.Generator().manual_seed(1)
    batch = {k: torch.randn(size, *f.shape, generator=generator) for k, f in policy.config.input_features.items()}
    batch["action"] = torch.randn(size, 8, 4, generator=generator)
    batch["action_is_pad"] = torch.arange(8).expand(size, 8) >= torch.tensor([8, 6, 1])[:size, None]
    return batch


def smolvla(vlm, precision, **settings):
    policy = make_policy(tiny_smolvla_config(vlm, precision=precision, **settings), init_backbone=False)
    policy.load_state_dict(spread_weights(policy.state_dict()))
    return policy


def gradients(policy, batch, dtype=None, micro_batches=1):
    """Loss and gradients by name, and a random number that is drawn afterwards."""
    policy.zero_grad()
    torch.manual_seed(7)
    for _ in range(micro_batches):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss, _ = policy.loss(batch)
        loss.backward()
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return loss.detach(), found, torch.rand(1)


def assert_same(one, other):
    assert torch.equal(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    assert len(one[1]) > 4
    different = [name for name, gradient in one[1].items() if not torch.equal(gradient, other[1][name])]
    assert not different
    assert torch.equal(one[2], other[2])  # the generator goes on from the same place


def kept_bytes(policy, batch):
    """Bytes that the forward pass keeps for the backward pass, each storage once, without the weights."""
    own = {t.untyped_storage().data_ptr() for t in (*policy.parameters(), *policy.buffers())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = policy.loss(batch)
    loss.backward()
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("settings", [{}, {"dropout": 0.0}, {"pre_norm": True, "use_vae": False}])
def test_act_has_the_same_gradients(settings, dtype):
    plain, recomputing = act(**settings), act(**settings)
    prepare_for_training(recomputing, FULL)
    batch = act_batch(plain)
    assert_same(gradients(plain, batch, dtype), gradients(recomputing, batch, dtype))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_cameras_have_the_same_gradients(dtype):
    plain, recomputing = act(CAMERAS), act(CAMERAS)
    prepare_for_training(recomputing, FULL)
    batch = act_batch(plain)
    assert_same(gradients(plain, batch, dtype), gradients(recomputing, batch, dtype))


def test_accumulated_micro_batches_have_the_same_gradients():
    plain, recomputing = act(), act()
    prepare_for_training(recomputing, FULL)
    batch = act_batch(plain)
    assert_same(gradients(plain, batch, micro_batches=3), gradients(recomputing, batch, micro_batches=3))


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_act_keeps_a_fraction_of_the_bytes(backbone):
    plain, recomputing = (act(((3, 64, 64),), vision_backbone=backbone) for _ in range(2))
    prepare_for_training(recomputing, FULL)
    batch = act_batch(plain)
    assert kept_bytes(recomputing, batch) < 0.5 * kept_bytes(plain, batch)


SMOLVLA = (
    ("float32", {}, None),
    ("float32", {}, torch.bfloat16),
    ("float32", {"noise_draws": 3}, None),
    ("float32", {"self_attn_every_n_layers": 0}, None),
    ("float32", {"train_expert_only": False, "freeze_vision_encoder": False}, None),
    ("mixed", {}, None),
    ("mixed", {"train_expert_only": False, "freeze_vision_encoder": False}, None),
    ("released", {}, None),
    ("released", {"train_expert_only": False}, None),
)


@pytest.mark.parametrize(("precision", "settings", "dtype"), SMOLVLA)
def test_smolvla_has_the_same_gradients(vlm, precision, settings, dtype):
    plain, recomputing = smolvla(vlm, precision, **settings), smolvla(vlm, precision, **settings)
    prepare_for_training(recomputing, FULL)
    batch = tiny_smolvla_batch(plain.config, 3)
    assert_same(gradients(plain, batch, dtype), gradients(recomputing, batch, dtype))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_an_adapter_has_the_same_gradients(vlm, dropout):
    policies = [smolvla(vlm, "mixed") for _ in range(2)]
    # A layer whose weight is used directly cannot have dropout; the MLP's layers are called.
    targets = r".*lm_expert.*\.(gate_proj|up_proj)"
    for policy in policies:
        torch.manual_seed(4)
        attach(policy, AdapterConfig(target_modules=targets, lora_dropout=dropout, base_model_name_or_path="base"))
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    prepare_for_training(policies[1], FULL)
    batch = tiny_smolvla_batch(policies[0].config, 2)
    assert_same(*(gradients(policy, batch) for policy in policies))


def test_kept_features_have_the_same_gradients(vlm):
    plain, recomputing = smolvla(vlm, "mixed"), smolvla(vlm, "mixed")
    prepare_for_training(recomputing, FULL)
    batch = tiny_smolvla_batch(plain.config, 2)
    encoder = plain.frame_encoder()
    for key in encoder.cameras:
        generator = torch.Generator().manual_seed(5)
        features = torch.randn(2, *encoder.shape, generator=generator).to(encoder.dtype)
        batch[FEATURES_PREFIX + key.removeprefix("observation.")] = features
        del batch[key]
    assert_same(gradients(plain, batch), gradients(recomputing, batch))


@pytest.mark.parametrize(
    ("precision", "settings", "most"),
    [
        ("float32", {}, 0.6),
        ("float32", {"train_expert_only": False, "freeze_vision_encoder": False}, 0.4),
        ("mixed", {}, 0.6),
        ("released", {}, 0.6),
    ],
)
def test_smolvla_keeps_a_fraction_of_the_bytes(vlm, precision, settings, most):
    plain, recomputing = smolvla(vlm, precision, **settings), smolvla(vlm, precision, **settings)
    prepare_for_training(recomputing, FULL)
    batch = tiny_smolvla_batch(plain.config, 4)
    assert kept_bytes(recomputing, batch) < most * kept_bytes(plain, batch)


def test_operations_are_not_recomputed_once_more_inside_a_layer(vlm, monkeypatch):
    calls = []
    reference = grouped_attention._reference
    monkeypatch.setattr(grouped_attention, "_reference", lambda *inputs: calls.append(1) or reference(*inputs))
    policy = smolvla(vlm, "released")
    batch = tiny_smolvla_batch(policy.config, 2)
    gradients(policy, batch)
    before = len(calls)  # forward and backward
    calls.clear()
    prepare_for_training(policy, FULL)
    gradients(policy, batch)
    assert len(calls) == before


def test_names_parameters_and_evaluation_stay(vlm):
    for policy, batch in ((p := act(), act_batch(p)), (p := smolvla(vlm, "mixed"), tiny_smolvla_batch(p.config, 2))):
        names, parameters = list(policy.state_dict()), [id(p) for p in policy.parameters()]
        modules = [name for name, _ in policy.named_modules()]
        torch.manual_seed(1)
        before = policy.eval().predict_chunk(batch)
        prepare_for_training(policy, FULL)
        torch.manual_seed(1)
        assert torch.equal(policy.predict_chunk(batch), before)
        assert list(policy.state_dict()) == names
        assert [id(p) for p in policy.parameters()] == parameters
        assert [name for name, _ in policy.named_modules()] == modules


def test_nothing_is_recomputed_in_evaluation():
    policy = act()
    prepare_for_training(policy, FULL)
    batch = act_batch(policy)
    plain = act()
    assert kept_bytes(policy.eval(), batch) == kept_bytes(plain.eval(), batch)


def test_a_copy_runs_its_own_layers():
    policy = act(dropout=0.0)
    prepare_for_training(policy, FULL)
    twin = copy.deepcopy(policy)
    batch = act_batch(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert_same(gradients(act(dropout=0.0), batch), gradients(twin, batch))


def test_training_ends_at_the_same_weights():
    ends = []
    for config in (AcceleratorConfig(), FULL):
        policy = act()
        prepare_for_training(policy, config)
        optimizer = make_optimizer(policy.config.optimizer_preset(), policy.optim_groups())
        torch.manual_seed(3)
        for _ in range(3):
            policy.loss(act_batch(policy))[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(policy.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.linear(x)).relu())


class NormedPolicy(Policy):
    layer_classes = (LayerClass(Normed, "layers"),)

    def __init__(self):
        super().__init__(ACTConfig())
        self.layers = nn.ModuleList(Normed() for _ in range(2))

    def loss(self, batch):
        x = batch["x"]
        for layer in self.layers:
            x = layer(x)
        return x.square().mean(), {}

    predict_chunk = select_action = reset = optim_groups = None


def test_running_statistics_are_updated_once():
    runs = []
    for config in (AcceleratorConfig(), FULL):
        torch.manual_seed(0)
        policy = NormedPolicy()
        prepare_for_training(policy, config)
        result = gradients(policy, {"x": torch.randn(6, 4, generator=torch.Generator().manual_seed(2))})
        runs.append((result, policy.state_dict()))
    assert_same(runs[0][0], runs[1][0])
    assert all(torch.equal(tensor, runs[1][1][name]) for name, tensor in runs[0][1].items())
    assert runs[1][1]["layers.0.norm.num_batches_tracked"] == 1


def test_a_layer_that_fails_in_its_second_run_keeps_its_statistics():
    layer = Normed()
    fails = []

    def forward(layer, x):
        if fails:
            raise KeyboardInterrupt
        return Normed.forward(layer, x)

    set_training_forward(layer, lambda *inputs: recompute_layer(forward, *inputs))
    loss = layer(torch.randn(6, 4)).sum()
    buffers = dict(layer.norm._buffers)
    fails.append(1)
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert all(layer.norm._buffers[name] is tensor for name, tensor in buffers.items())


def test_what_is_recomputed_is_said(vlm):
    assert prepare_for_training(act(), AcceleratorConfig()) == []
    assert prepare_for_training(act(CAMERAS), FULL) == [
        "activation checkpointing: only the inputs of 5 encoder layers, 1 decoder layer, 8 ResNet blocks are kept, and "
        "the rest is computed again in the backward pass "
        "(--accelerator.activation_checkpointing.mode=none keeps everything)"
    ]
    assert "of 4 expert layers, 4 text layers are kept" in checkpoint_activations(smolvla(vlm, "mixed"))
    trained = smolvla(vlm, "float32", train_expert_only=False, freeze_vision_encoder=False)
    assert ", 1 vision layer are kept" in checkpoint_activations(trained)


def test_a_policy_without_layers_is_refused(monkeypatch):
    monkeypatch.setattr(NormedPolicy, "layer_classes", ())
    with pytest.raises(ConfigError) as caught:
        prepare_for_training(NormedPolicy(), FULL)
    assert str(caught.value) == (
        "`--accelerator.activation_checkpointing.mode=full`: policy `act` has no layers that could be computed again"
    )
    assert caught.value.hint == "leave it out, or set `--accelerator.activation_checkpointing.mode=none`"
