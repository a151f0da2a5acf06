"""Five steps of LeRobot 0.6.1, repeated from its batches, weights and generator states (tests/fixtures/training/README.md).

Tolerance: the README's for another torch or processor: loss 1e-6 relative, norm 1e-5 relative, weights 1e-6 absolute; 5e-6 with a
learning rate of 1e-3 and Adam, which turns the last bit of a small gradient into a step. Biases of attention keys are left out.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from mimetic.accelerators.precision import choose_precision
from mimetic.config.parse import parse
from mimetic.optim.build import make_optimizer
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.build import make_policy
from mimetic.train.config import TrainConfig
from mimetic.train.step import Stepper

INPUTS = {
    "observation.state": {"type": "STATE", "shape": [3]},
    "observation.environment_state": {"type": "ENV", "shape": [2]},
}
OUTPUTS = {"action": {"type": "ACTION", "shape": [3]}}


@pytest.fixture(params=["plain", "sgd", "vae_dropout"])
def trajectory(request, fixtures):
    return fixtures / "training" / f"traj_{request.param}"


def build(folder):
    record = json.loads((folder / "trajectory.json").read_text())
    flags = [flag for flag in record["flags"] if not flag.startswith("--dataset.root")]
    config = parse(TrainConfig, flags, prog="mimetic train").value
    from dataclasses import replace

    from mimetic.features import FeatureType, PolicyFeature

    inputs = {k: PolicyFeature(FeatureType(v["type"]), tuple(v["shape"])) for k, v in INPUTS.items()}
    outputs = {k: PolicyFeature(FeatureType(v["type"]), tuple(v["shape"])) for k, v in OUTPUTS.items()}
    policy = make_policy(replace(config.policy, input_features=inputs, output_features=outputs), device="cpu")
    policy.load_state_dict(load_file(folder / "initial_weights.safetensors"), strict=True)
    if config.use_policy_training_preset:
        config = replace(config, optimizer=config.policy.optimizer_preset(), scheduler=config.policy.scheduler_preset())
        groups = policy.optim_groups()
    else:
        groups = [{"params": list(policy.parameters())}]
    optimizer = make_optimizer(config.optimizer, groups)
    scheduler = make_scheduler(config.scheduler, optimizer, config.steps) if config.scheduler else None
    stepper = Stepper(
        policy.train(),
        optimizer,
        scheduler,
        choose_precision("no", torch.device("cpu")),
        clip_norm=config.optimizer.grad_clip_norm,
    )
    return record, stepper


def meaningful(name, tensor):
    """Without the keys' biases: softmax ignores them, so their gradient is rounding noise that Adam turns into steps."""
    if not name.endswith("in_proj_bias"):
        return tensor
    dim = tensor.shape[0] // 3
    return torch.cat([tensor[:dim], tensor[2 * dim :]])


def batch_of(tensors, step):
    prefix = f"step_{step}/"
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def test_five_steps_equal_the_reference(trajectory):
    record, stepper = build(trajectory)
    batches = load_file(trajectory / "batches_preprocessed.safetensors")
    generator = load_file(trajectory / "rng_before_step.safetensors")
    for number, expected in enumerate(record["steps"], start=1):
        torch.set_rng_state(generator[f"step_{number}/torch_rng_state"])
        used = [group["lr"] for group in stepper.optimizer.param_groups]
        result = stepper.forward_backward(batch_of(batches, number))
        stepper.update()
        assert used == pytest.approx(expected["lr_used"], rel=1e-12)
        assert stepper.learning_rate() == pytest.approx(expected["lr_logged"], rel=1e-12)
        assert result.loss.item() == pytest.approx(expected["loss"], rel=1e-6)
        assert result.grad_norm.item() == pytest.approx(expected["grad_norm"], rel=1e-5)
        for name, value in expected["output"].items():
            assert result.outputs[name].item() == pytest.approx(value, rel=1e-6)
    final = load_file(trajectory / "final_weights.safetensors")
    ours = stepper.policy.state_dict()
    assert ours.keys() == final.keys()
    worst = max(
        (meaningful(key, ours[key]) - meaningful(key, value)).abs().max().item() for key, value in final.items()
    )
    assert worst <= (5e-6 if trajectory.name == "traj_vae_dropout" else 1e-6)


def test_the_optimiser_state_after_five_steps_equals_the_reference(trajectory):
    record, stepper = build(trajectory)
    batches = load_file(trajectory / "batches_preprocessed.safetensors")
    generator = load_file(trajectory / "rng_before_step.safetensors")
    for number in range(1, len(record["steps"]) + 1):
        torch.set_rng_state(generator[f"step_{number}/torch_rng_state"])
        stepper.forward_backward(batch_of(batches, number))
        stepper.update()
    expected = load_file(trajectory / "final_optimizer_state.safetensors")
    state = stepper.optimizer.state_dict()["state"]
    ours = {f"state/{n}/{k}": v for n, entries in state.items() for k, v in entries.items() if v is not None}
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
