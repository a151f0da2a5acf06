"""Claim: activation checkpointing keeps a fraction of the bytes for the backward pass, and gradients stay bit-equal.

`--accelerator.activation_checkpointing.mode=full` against `none`, both mimetic, on the same weights, batch and seed:

    kept     bytes that the forward pass keeps for the backward pass, each storage once, without the weights
    peak     of the process's memory in a step, less what it held before the first one (a process for each side)
    step     forward and backward; rounds of both sides are interleaved, the least of each is given
    same     whether loss, every gradient and the generator afterwards are equal to the bit

ACT has its default size, two cameras of 224x224 and batch 8; SmolVLA is a stand-in of 8 layers with a frozen backbone
(`expert`) and with everything trained (`all`), float32, batch 8.

    python -m benchmarks.activation_checkpointing [--rounds 3] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import WORK, environment, interleave, least, rss_mb, run
from mimetic.accelerators.config import AcceleratorConfig, ActivationCheckpointingConfig
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import ACTION, CONFIG_JSON, PAD_SUFFIX, STATE
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.base import Policy
from mimetic.policies.prepare import prepare_for_training

MODES = ("none", "full")
CASES = ("act", "smolvla expert", "smolvla all")
TEXT = {
    "hidden_size": 320,
    "intermediate_size": 1280,
    "num_hidden_layers": 8,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "head_dim": 64,
}
VISION = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "image_size": 128,
}
Batch = dict[str, Tensor]


def build(case: str, mode: str) -> tuple[Policy, Batch]:
    """A policy with the same weights in both modes, and its batch."""
    torch.manual_seed(0)
    policy, batch = act(8) if case == "act" else smolvla(case, 8)
    prepare_for_training(policy, AcceleratorConfig(activation_checkpointing=ActivationCheckpointingConfig(mode=mode)))
    return policy.train(), batch


def act(size: int, *, side: int = 224, **settings: Any) -> tuple[Policy, Batch]:
    """ACT with two square cameras and 6 joints, and a batch of random numbers."""
    cameras = {f"observation.images.{i}": PolicyFeature(FeatureType.VISUAL, (3, side, side)) for i in "ab"}
    inputs = {STATE: PolicyFeature(FeatureType.STATE, (6,)), **cameras}
    outputs = {ACTION: PolicyFeature(FeatureType.ACTION, (6,))}
    fixed: dict[str, Any] = {"pretrained_backbone_weights": None, "device": "cpu", "push_to_hub": False}
    config = ACTConfig(input_features=inputs, output_features=outputs, **fixed, **settings)
    batch = {key: torch.randn(size, *feature.shape) for key, feature in inputs.items()}
    batch[ACTION] = torch.randn(size, config.chunk_size, 6)
    batch[ACTION + PAD_SUFFIX] = torch.zeros(size, config.chunk_size, dtype=torch.bool)
    return ACTPolicy(config), batch


def smolvla(case: str, size: int) -> tuple[Policy, Batch]:
    """A small SmolVLA with random weights, and a batch of random numbers."""
    from mimetic.policies.build import make_policy
    from mimetic.testing import smolvla as stand_in

    settings: dict[str, Any] = {
        "chunk_size": 50,
        "n_action_steps": 50,
        "resize_imgs_with_padding": (128, 128),
        "num_vlm_layers": TEXT["num_hidden_layers"],
    }
    if case.endswith("all"):
        settings |= {"train_expert_only": False, "freeze_vision_encoder": False}
    with tempfile.TemporaryDirectory() as folder:
        vlm = stand_in.write_tiny_vlm(Path(folder) / "vlm", weights=False)
        sizes = json.loads((vlm / CONFIG_JSON).read_text())
        sizes["text_config"] |= TEXT
        sizes["vision_config"] |= VISION
        (vlm / CONFIG_JSON).write_text(json.dumps(sizes))
        config = stand_in.tiny_smolvla_config(vlm, **settings)
        policy = make_policy(config, init_backbone=False)
    policy.load_state_dict(stand_in.spread_weights(policy.state_dict()))
    return policy, stand_in.tiny_smolvla_batch(config, size, n_tokens=16)


def step(policy: Policy, batch: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor], Tensor]:
    """Loss and gradients of a step, and a number drawn after it."""
    policy.zero_grad()
    torch.manual_seed(7)
    loss, _ = policy.loss(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), [p.grad for p in policy.parameters() if p.grad is not None], torch.rand(1)


def kept_bytes(policy: Policy, batch: Mapping[str, Tensor]) -> int:
    """See the module's text."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*policy.parameters(), *policy.buffers())}
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor keeps its address from being used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.loss(batch)
    return sum(size for size, _ in kept.values())


def same(one: tuple[Tensor, list[Tensor], Tensor], other: tuple[Tensor, list[Tensor], Tensor]) -> bool:
    """Whether loss, gradients and generator are equal to the bit."""
    ends = torch.equal(one[0], other[0]) and torch.equal(one[2], other[2])
    return ends and all(torch.equal(a, b) for a, b in zip(one[1], other[1], strict=True))


def peak_mb(case: str, mode: str) -> float:
    """Growth of a process's peak memory [MiB] by two steps."""
    command = [sys.executable, "-m", "benchmarks.activation_checkpointing", "--probe", case, "--mode", mode]
    cost = run(command, environment(one_thread=True, peer=False))
    return cost.peak_rss_mb - float(json.loads(cost.output.splitlines()[-1])["before_mb"])


def probe(case: str, mode: str) -> None:
    """What `peak_mb` runs."""
    policy, batch = build(case, mode)
    before = rss_mb(os.getpid())
    for _ in range(2):
        step(policy, batch)
    print(json.dumps({"before_mb": before}))


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Figures of one case."""
    built = {mode: build(case, mode) for mode in MODES}
    found: dict[str, Any] = {"kept": {mode: kept_bytes(*built[mode]) / 2**20 for mode in MODES}}
    found["same"] = same(step(*built["none"]), step(*built["full"]))

    def timed(mode: str) -> dict[str, float]:
        start = time.perf_counter()
        step(*built[mode])
        return {"step": time.perf_counter() - start}

    times = interleave({mode: lambda mode=mode: timed(mode) for mode in MODES}, rounds)  # type: ignore[misc]
    found["step"] = {mode: least(times[mode], "step") for mode in MODES}
    found["peak"] = {mode: peak_mb(case, mode) for mode in MODES}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="without the largest case")
    parser.add_argument("--probe", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=MODES, default="none", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe, options.mode)
        return 0
    columns = [f"{name}, {mode}" if mode else "ratio" for name in ("kept", "peak", "step") for mode in (*MODES, "")]
    print(f"| policy | {' | '.join(columns)} | same |\n|---|{'---:|' * len(columns)}---|")
    raw = {}
    for case in CASES[1:] if options.quick else CASES:
        raw[case] = found = measure(case, options.rounds)
        cells = []
        for name, unit in (("kept", "MiB"), ("peak", "MiB"), ("step", "s")):
            none, full = found[name]["none"], found[name]["full"]
            cells += [f"{none:.3g} {unit}", f"{full:.3g} {unit}", f"{full / none:.2f}"]
        print(f"| {case} | {' | '.join(cells)} | {'yes' if found['same'] else '**no**'} |", flush=True)
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "activation_checkpointing.json").write_text(json.dumps(raw, indent=2))
    return 0 if all(found["same"] for found in raw.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
