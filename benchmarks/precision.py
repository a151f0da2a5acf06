"""Claim: on a CPU with bfloat16 units, bf16 autocast makes a training step of ACT faster, and the loss falls as well.

Two policies of equal weights train on the bundled recording (three episodes of a Unitree G1, one camera 480x640), one
in float32, one in bf16 autocast over float32 weights: the same batches, the same optimiser, step by step in turn, so
that the machine treats both alike. Time is that of forward, backward, clipping and update; the first step of each side
is not counted. The curves are means over windows of 30 steps; `curves.png` shows every step.

    python -m benchmarks.precision [--steps 300] [--full-size] [--threads 2]

`--full-size` adds a few steps of ACT at LeRobot's default size (52 M parameters, batch 8).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from benchmarks.measure import ROOT, WORK, Row, compared, report
from mimetic.config.parse import parse
from mimetic.data.loader import BatchLoader
from mimetic.train.config import TrainConfig
from mimetic.train.resolve import resolve
from mimetic.train.rng import seed_everything
from mimetic.train.run import _build, _make_stepper

RECORDING = ROOT / "tests" / "fixtures" / "real" / "g1_v21"
COMMON = (
    "--policy.type=act",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.pretrained_backbone_weights=null",
    "--dataset.repo_id=demo/g1",
    f"--dataset.root={RECORDING}",
    "--log_freq=0",
)
DEMO = (
    "--policy.dim_model=128",
    "--policy.n_heads=4",
    "--policy.dim_feedforward=512",
    "--policy.n_encoder_layers=2",
    "--policy.use_vae=false",
    "--policy.pre_norm=true",
    "--policy.dropout=0",
    "--policy.chunk_size=60",
    "--policy.n_action_steps=10",
    "--policy.optimizer_lr=1e-3",
    "--policy.optimizer_lr_backbone=1e-4",
    "--batch_size=4",
)
MODES = {"float32": "no", "bf16": "bf16"}
WINDOW = 30


class Side:
    """One policy in training.

    Args:
        mode: of `--accelerator.mixed_precision`.
        flags: of the training.
        steps: of the run, for the schedule.
    """

    def __init__(self, mode: str, flags: tuple[str, ...], steps: int) -> None:
        words = [*COMMON, *flags, f"--accelerator.mixed_precision={mode}", f"--steps={steps}", "--output_dir=unused"]
        parsed = parse(TrainConfig, words, prog="mimetic train")
        resolved = resolve(parsed.value, parsed.origins)
        seed_everything(parsed.value.seed)
        self.run = _build(resolved)
        self.stepper = _make_stepper(self.run)
        self.stepper.policy.train()
        self.generator = torch.get_rng_state()
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, raw: dict[str, Any]) -> None:
        """One update; noise and dropout come from this side's own generator, which both sides start alike."""
        torch.set_rng_state(self.generator)
        batch = self.run.model.preprocessor(dict(raw))
        started = time.perf_counter()
        result = self.stepper.forward_backward(batch)
        self.stepper.update()
        self.losses.append(result.loss.item())
        self.seconds.append(time.perf_counter() - started)
        self.generator = torch.get_rng_state()


def train_in_turn(flags: tuple[str, ...], steps: int) -> dict[str, Side]:
    """Both sides over the same batches."""
    sides = {name: Side(mode, flags, steps) for name, mode in MODES.items()}
    first = next(iter(sides.values())).run
    loader = BatchLoader(
        first.data.train,
        first.data.sampler,
        batch_size=first.resolved.config.batch_size,
        num_workers=1,
        prefetch_factor=2,
        seed=first.resolved.config.seed or 0,
    )
    batches = loader.endless(0, 0)
    for number in range(steps):
        raw = next(batches)
        for side in list(sides.values()) if number % 2 == 0 else list(sides.values())[::-1]:
            side.step(raw)
        if (number + 1) % WINDOW == 0:
            shown = ", ".join(f"{name} {statistics.mean(side.losses[-WINDOW:]):.4f}" for name, side in sides.items())
            print(f"... step {number + 1}: {shown}", flush=True)
    loader.close()
    return sides


def rows_of(name: str, sides: dict[str, Side]) -> list[Row]:
    """Step times as least and median, bf16 against float32."""
    counted = {side: one.seconds[1:] for side, one in sides.items()}
    rows = []
    for label, of in (("least", min), ("median", statistics.median)):
        rows.append(compared(f"{name}: step, {label}", of(counted["bf16"]), of(counted["float32"]), "s"))
    return rows


def show_curves(sides: dict[str, Side]) -> None:
    """Print the windows, and draw every step where matplotlib is installed."""
    print(f"\n| steps | {' | '.join(sides)} | difference |\n|---|---|---|---|")
    steps = len(next(iter(sides.values())).losses)
    for start in range(0, steps, WINDOW):
        means = [statistics.mean(side.losses[start : start + WINDOW]) for side in sides.values()]
        values = " | ".join(f"{mean:.4f}" for mean in means)
        print(f"| {start + 1} to {min(start + WINDOW, steps)} | {values} | {means[1] / means[0] - 1:+.1%} |")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for (name, side), style in zip(sides.items(), ("-", "--"), strict=True):
        axes.plot(range(1, steps + 1), side.losses, style, label=name, linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="ACT on the bundled recording")
    axes.legend()
    WORK.mkdir(parents=True, exist_ok=True)
    figure.savefig(WORK / "curves.png", dpi=120)
    print(f"\ncurves: {WORK / 'curves.png'}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--full-size", action="store_true")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows: list[Row] = []
    if options.full_size:
        rows += rows_of("ACT, default size, batch 8", train_in_turn(("--batch_size=8",), 6))
    sides = train_in_turn(DEMO, options.steps)
    rows = [*rows_of("ACT of the demo, batch 4", sides), *rows]
    raw = {name: {"seconds": side.seconds, "losses": side.losses} for name, side in sides.items()}
    report(rows, raw, "precision", sides=("bf16", "float32"))
    show_curves(sides)


if __name__ == "__main__":
    main()
