"""Claim: a training step of the full-size SmolVLA takes mimetic a fraction of LeRobot's time, on the same weights.

Asked, features cached: batch 8 at least 4.5 times faster than LeRobot in the released dtypes and 10 times than in
float32; batch 1 at least 2.5 and 4 times. Without the cache at least 1.5 times (released dtypes).

A step is forward, backward, clipping and AdamW on a batch that is already preprocessed: two cameras 640x480, 12 task
tokens, a chunk of 50. The first step of each size is not counted. Both sides draw their noise and times after the same
seed; the losses that are printed last belong to equal weights, data and draws, after the same number of updates.

    python -m benchmarks.smolvla_step [--rounds 3] [--one-thread] [--quick] [--batches 1 8] [--draws 4]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import smolvla_work as work
from benchmarks.measure import Row, compared, least, report
from benchmarks.smolvla_sides import (
    MIXED,
    PEER,
    PEER_FLOAT32,
    QUICK,
    SIDES,
    Measured,
    Side,
    parser_for,
    rounds_of,
    steps_of,
)

WORDS = 12
TARGETS = {
    ("cached", 8, PEER.name): 4.5,
    ("cached", 8, PEER_FLOAT32.name): 10.0,
    ("cached", 1, PEER.name): 2.5,
    ("cached", 1, PEER_FLOAT32.name): 4.0,
    ("computed", 8, PEER.name): 1.5,
}
REPEATS = {1: 4, 8: 2}


def measure(
    rounds: int,
    *,
    one_thread: bool = False,
    batches: Sequence[int] = (1, 8),
    draws: int = 0,
    quick: bool = False,
) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""

    def once(side: Side) -> dict[str, float]:
        found: dict[str, float] = {}
        with side.opened(one_thread=one_thread) as probe:
            for batch in batches:
                for kind in _kinds(side):
                    cached = kind == "cached"
                    steps_of(probe, side, batch, 1, cached=cached)
                    costs = steps_of(probe, side, batch, REPEATS.get(batch, 2), cached=cached)
                    found |= {f"{kind} {batch} {name}": value for name, value in costs.items()}
        print(f"... {side.name}: {_shown(found, batches)}", file=sys.stderr, flush=True)
        return found

    sides = list(QUICK if quick else SIDES)
    if draws:
        sides.append(Side(f"mimetic, mixed, {draws} draws", settings={**MIXED.settings, "noise_draws": draws}))
    results = rounds_of(sides, once, rounds)
    rows = [
        row
        for batch in batches
        for kind in ("cached", "computed")
        for ours in (side for side in sides if not side.is_peer and kind in _kinds(side))
        for row in _rows(results, ours, batch, kind)
    ]
    return rows, {"rounds": results}


def _kinds(side: Side) -> tuple[str, ...]:
    """LeRobot computes features at every step; draws matter beside the prefix only, so they are measured cached."""
    if side.is_peer:
        return ("computed",)
    return ("cached",) if "noise_draws" in side.settings else ("cached", "computed")


def _rows(results: Measured, ours: Side, batch: int, kind: str) -> list[Row]:
    """A side of ours against LeRobot in both dtypes; targets are those of the default precision."""
    rows = []
    for peer in (one for one in (PEER, PEER_FLOAT32) if one.name in results):
        for clock in ("wall", "cpu"):
            mine, theirs = f"{kind} {batch} {clock}", f"computed {batch} {clock}"
            target = TARGETS.get((kind, batch, peer.name)) if ours is MIXED else None
            parts = ", ".join(
                f"{name} {least(results[ours.name], f'{mine} {name}'):.2g}"
                for name in ("vision", "prefix", "projection", "expert", "backward", "clip", "optimizer")
                if f"{mine} {name}" in results[ours.name][0]
            )
            row = compared(
                f"step, batch {batch}, features {kind}: {ours.name} / {peer.name} ({clock})",
                least(results[ours.name], mine),
                least(results[peer.name], theirs),
                "s",
                target=target,
                note=parts if peer is PEER else "",
            )
            rows.append(row)
    return rows


def _shown(found: dict[str, float], batches: Sequence[int]) -> str:
    names = [f"{kind} {batch}" for kind in ("cached", "computed") for batch in batches]
    return ", ".join(
        f"{name}: {found[name + ' wall']:.2f} s wall, {found[name + ' cpu']:.2f} s CPU"
        for name in names
        if name + " wall" in found
    )


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--draws", type=int, default=0, help="also measure so many draws of noise and time a sample")
    options = parser.parse_args()
    rows, raw = measure(
        options.rounds,
        one_thread=options.one_thread,
        batches=options.batches,
        draws=options.draws,
        quick=options.quick,
    )
    report(rows, raw, "smolvla_step")
    machine = work.measure_machine(1 if options.one_thread else 2)
    print("\n" + work.table(WORDS) + "\n\n" + work.floors(machine, WORDS))
    print("\nEstimate for a 24 GB card, not measured: " + work.floors(work.RTX_4090, WORDS, work.GPU_SHARE))
    for name, figures in raw["rounds"].items():
        losses = {key: round(value, 5) for key, value in figures[0].items() if key.endswith("loss")}
        print(f"losses of {name}: {losses}")


if __name__ == "__main__":
    main()
