"""Claim: training the full-size SmolVLA needs a fraction of LeRobot's memory: kept for backward, and at the peak.

Asked: kept for backward at most 1/3 a sample; resident memory at the peak of a batch-8 step at most 0.6 of LeRobot's in
the same dtypes. Two cameras 640x480, 12 task tokens.

`kept for backward` counts the distinct storages that autograd saves during one forward pass, parameters and the batch
left out; what a further sample adds is the difference between batches of 2 and 1. The peak is the highest resident
memory of a process that loads the policy and makes two steps; where features are cached they are made before, and the
mark starts anew. Times of a busy machine do not touch these figures, so one round is enough.

    python -m benchmarks.smolvla_memory [--batch 8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import smolvla_work as work
from benchmarks.measure import Row, compared, report
from benchmarks.smolvla_sides import FLOAT32, MIXED, PEER, PEER_FLOAT32, RELEASED, SIDES, Side

PAIRS = ((RELEASED, PEER), (MIXED, PEER), (FLOAT32, PEER_FLOAT32))
"""Ours and LeRobot's in the dtypes that belong together; mixed has no counterpart and stands beside the released."""
KINDS = ("cached", "computed")


def measure(rounds: int = 1, *, batch: int = 8, sides: Sequence[Side] = SIDES) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and all figures; `rounds` is there for `run_all` and not used."""
    del rounds
    found: dict[str, dict[str, float]] = {}
    for side in sides:
        for kind in ("computed",) if side.is_peer else KINDS:
            found[f"{side.name}, {kind}"] = _measured(side, kind, batch)
            print(f"... {side.name}, {kind}: {found[f'{side.name}, {kind}']}", file=sys.stderr, flush=True)
    rows = []
    for ours, peer in PAIRS:
        theirs = found[f"{peer.name}, computed"]
        for kind in KINDS:
            mine = found[f"{ours.name}, {kind}"]
            pair = f"{ours.name}, features {kind} / {peer.name}"
            for what, name, unit, target in (
                ("kept for backward, a further sample", "kept_mb", "MB", 3.0),
                ("kept for backward, first sample", "kept_first_mb", "MB", None),
                (f"peak memory, step of {batch}", "peak_rss_mb", "MiB", 1 / 0.6 if ours is not MIXED else None),
            ):
                row = compared(f"{what}: {pair}", mine[name], theirs[name], unit, target=target, digits=4)
                rows.append(row)
    return rows, {"figures": found}


def _measured(side: Side, kind: str, batch: int) -> dict[str, float]:
    more = {} if side.is_peer else {"features": kind == "cached"}
    with side.opened(one_thread=True) as probe:
        kept = [probe.ask(what="first_loss", batch=n, timeout_s=3600, **more)["kept_mb"] for n in (1, 2)]
    # The peak in a fresh process, which has not made anything but what it is measured for.
    with side.opened(one_thread=True) as probe:
        loading = probe.ask(what="loaded")["peak_rss_mb"]
        if not side.is_peer and kind == "cached":
            probe.ask(what="prepare", batch=batch, timeout_s=3600)
        peak = probe.ask(what="peak", task="step", batch=batch, steps=2, timeout_s=3600, **more)["peak_rss_mb"]
    return {
        "kept_first_mb": kept[0],
        "kept_mb": kept[1] - kept[0],
        "loading_mb": loading,
        "peak_rss_mb": max(loading, peak),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    rows, raw = measure(batch=options.batch)
    report(rows, raw, "smolvla_memory")
    kept = raw["figures"][f"{MIXED.name}, cached"]["kept_mb"]
    fits = int((24e9 - 1.5e9 - work.gpu_memory(0, 0)) / (kept * 1e6))
    print(f"\nestimate, not measured: on a card with 24 GB (1.5 GB left to the driver) a batch of about {fits} fits")


if __name__ == "__main__":
    main()
