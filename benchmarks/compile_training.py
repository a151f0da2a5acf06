"""Claim: compiled training has the losses of uncompiled training; what it costs at first and gives at each step.

`--accelerator.compile.enabled=true` against `false`, both mimetic: ACT of a medium size (width 256, 4 encoder layers,
two cameras of 96x96, chunk 50, dropout 0.1), batch 8, the same weights, batch and seed. `regional` compiles one layer
of each kind, `whole` the whole loss; inductor. The compiler starts with an empty cache.

    compile   seconds that the compiler needed, forward and backward
    step      forward and backward; rounds of all are interleaved, the least of each is given
    loss      largest relative difference of the losses of ten updates with SGD

    python -m benchmarks.compile_training [--rounds 5] [--threads 2] [--without-whole]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.activation_checkpointing import Batch, act, step
from benchmarks.measure import WORK, interleave, least, median
from mimetic.accelerators.config import AcceleratorConfig, CompileConfig
from mimetic.policies.base import Policy
from mimetic.policies.prepare import prepare_for_training

SIDES = {
    "none": CompileConfig(),
    "regional": CompileConfig(enabled=True),
    "whole": CompileConfig(enabled=True, regional=False),
}
SIZES: dict[str, Any] = {"dim_model": 256, "dim_feedforward": 1024, "chunk_size": 50, "n_action_steps": 50}
UPDATES = 10


def build(side: str) -> tuple[Policy, Batch]:
    """A policy with the same weights on every side, and its batch."""
    torch.manual_seed(0)
    policy, batch = act(8, side=96, **SIZES)
    prepare_for_training(policy, AcceleratorConfig(compile=SIDES[side]))
    return policy.train(), batch


def losses(policy: Policy, batch: Batch) -> list[float]:
    """Losses of a few updates; the policy is changed."""
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)
    found = []
    for _ in range(UPDATES):
        found.append(float(step(policy, batch)[0]))
        optimizer.step()
    return found


def compile_seconds(policy: Policy, batch: Batch) -> float:
    """Time of the first step that torch.compile spent."""
    from torch._dynamo.utils import calculate_time_spent

    before = calculate_time_spent().get("total_wall_time", 0.0)
    step(policy, batch)
    return calculate_time_spent().get("total_wall_time", 0.0) - before


def measure(sides: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Figures of every side."""
    built = {side: build(side) for side in sides}
    found = {side: {"compile": compile_seconds(*built[side])} for side in sides}

    def timed(side: str) -> dict[str, float]:
        start = time.perf_counter()
        step(*built[side])
        return {"step": time.perf_counter() - start}

    times = interleave({side: lambda side=side: timed(side) for side in sides}, rounds)  # type: ignore[misc]
    plain = losses(*built["none"])
    for side in sides:
        own = plain if side == "none" else losses(*built[side])
        found[side] |= {
            "step": least(times[side], "step"),
            "median": median(times[side], "step"),
            "loss": max(abs(a - b) / abs(b) for a, b in zip(own, plain, strict=True)),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-whole", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sides = [side for side in SIDES if not (options.without_whole and side == "whole")]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        found = measure(sides, options.rounds)
    print("| compiled | compile | step, least | median | against none | largest difference of losses |")
    print("|---|---:|---:|---:|---:|---:|")
    for side, figures in found.items():
        times = " | ".join(f"{1e3 * figures[name]:.0f} ms" for name in ("step", "median"))
        print(
            f"| {side} | {figures['compile']:.1f} s | {times} | {found['none']['step'] / figures['step']:.2f} x "
            f"| {figures['loss']:.1e} |"
        )
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "compile_training.json").write_text(json.dumps(found, indent=2))
    return 0 if all(figures["loss"] < 1e-4 for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
