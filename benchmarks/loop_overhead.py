"""Claim: what the training loop adds to a step of a tiny policy is at most half of what LeRobot's loop adds.

The time of a step is the difference between two runs of the whole training command, divided by the difference of their
steps, so that start-up cancels. The bare step (forward, backward, clipping, update of the same network on a batch that
is already there) is measured in a process of its own on each side, each with its own network and its own clipping.
Overhead = step - bare: loading the batch, processing it, the loop itself, the log. One computing thread, no workers,
batch 8, no checkpoints. An overhead is the small difference of larger figures, so it is given with its uncertainty (by
which the two best rounds differ), and never taken as smaller than that.

    python -m benchmarks.loop_overhead [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    WORK,
    Probe,
    Row,
    compared,
    environment,
    interleave,
    least,
    peer_python,
    report,
    run,
)
from benchmarks.tiny import command, flags

SHORT, LONG = 200, 1400
BARE_STEPS = 600
SIDES = ("ours", "peer")


def measure(rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    bare = {side: _bare(side) for side in SIDES}
    measured: dict[str, Callable[[], Mapping[str, float]]] = {}
    for side in SIDES:
        measured[f"{side} short"] = _training(side, SHORT)
        measured[f"{side} long"] = _training(side, LONG)
        measured[f"{side} bare"] = _steps(bare[side])
    results = interleave(measured, rounds)
    for probe in bare.values():
        probe.close()
    rows = []
    for clock, name, target in (("cpu_s", "CPU", 2.0), ("wall_s", "wall", None)):
        step = {side: _per_step(results, side, clock) for side in SIDES}
        alone = {side: least(results[f"{side} bare"], clock) * 1e3 / BARE_STEPS for side in SIDES}
        doubt = {side: _doubt(results, side, clock) for side in SIDES}
        over = {side: max(step[side] - alone[side], doubt[side]) for side in SIDES}
        bound = "at most " if over["ours"] == doubt["ours"] else ""
        note = (
            f"bare step {alone['ours']:.3g} and {alone['peer']:.3g} ms; "
            f"uncertainty {doubt['ours']:.2g} and {doubt['peer']:.2g} ms"
        )
        row = compared(f"loop overhead: {name} a step", *_pair(over), "ms", target=target, note=note)
        rows.append(replace(row, ours=bound + row.ours))
        rows.append(compared(f"whole step: {name}", *_pair(step), "ms"))
    return rows, results


def _pair(values: Mapping[str, float]) -> tuple[float, float]:
    return values["ours"], values["peer"]


def _per_step(results: Mapping[str, list[dict[str, float]]], side: str, clock: str) -> float:
    difference = least(results[f"{side} long"], clock) - least(results[f"{side} short"], clock)
    return difference * 1e3 / (LONG - SHORT)


def _doubt(results: Mapping[str, list[dict[str, float]]], side: str, clock: str) -> float:
    """Uncertainty of the overhead [ms]: how much the two best rounds differ, in the long run and in the bare steps."""
    total = 0.0
    for kind, steps in (("long", LONG - SHORT), ("bare", BARE_STEPS)):
        best = sorted(one[clock] for one in results[f"{side} {kind}"])[:2]
        total += (best[-1] - best[0]) * 1e3 / steps
    return max(total, 0.02)


def _training(side: str, steps: int) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        folder = WORK / "runs" / f"loop_{side}_{steps}"
        shutil.rmtree(folder, ignore_errors=True)
        arguments = flags(steps=steps, save_checkpoint=False, output_dir=folder)
        cost = run([*command(side), *arguments], environment(one_thread=True, peer=side == "peer"))
        return {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s}

    return once


def _bare(side: str) -> Probe:
    folder = WORK / "runs" / f"bare_{side}"
    shutil.rmtree(folder, ignore_errors=True)
    run([*command(side), *flags(steps=1, output_dir=folder)], environment(one_thread=True, peer=side == "peer"))
    python = peer_python() if side == "peer" else sys.executable
    model = next(Path(folder).glob("checkpoints/0*/pretrained_model"))
    probe = Probe(python, f"bare_{side}.py", [str(model)], one_thread=True, peer=side == "peer")
    probe.ask(steps=60)
    return probe


def _steps(probe: Probe) -> Callable[[], Mapping[str, float]]:
    return lambda: probe.ask(steps=BARE_STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rows, raw = measure(parser.parse_args().rounds)
    report(rows, raw, "loop_overhead")


if __name__ == "__main__":
    main()
