"""Claim: random access costs at most half of LeRobot's processor time with two cameras, and 1/50 without cameras.

Both sides draw the same random positions of the same dataset, with a window of 50 actions and uint8 frames, without
workers. Each side is one process that stays alive; the rounds alternate between the sides. `item` is `dataset[i]`;
`batch` is 8 samples collated: `Dataset.batch` against `dataset[i]` and torch's `default_collate`.
The floor is PyAV alone: seek, decode and convert the same frames.

    python -m benchmarks.random_access [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.make_video_dataset import dataset
from benchmarks.measure import Probe, Row, compared, interleave, least, peer_python, report

WINDOW = 50
VIDEO_SAMPLES = 160
ROW_SAMPLES = {"ours": 8000, "peer": 400}


class Side:
    """One reader of one dataset: its probe, started on first use."""

    def __init__(self, side: str, variant: str, backend: str, threads: str) -> None:
        python = peer_python() if side == "peer" else sys.executable
        arguments = [str(dataset(variant)), backend, str(WINDOW), threads]
        self.probe = Probe(python, f"access_{side}.py", arguments, one_thread=threads != "default", peer=side == "peer")
        self.samples = VIDEO_SAMPLES if variant != "rows" else ROW_SAMPLES.get(side, VIDEO_SAMPLES)
        self.probe.ask(mode="item", seed=0, samples=16)
        self._round: dict[str, int] = {}

    def measure(self, mode: str) -> Callable[[], Mapping[str, float]]:
        """A function that measures one round; round n draws the same positions on every side."""

        def once() -> Mapping[str, float]:
            self._round[mode] = self._round.get(mode, 0) + 1
            answer = self.probe.ask(mode=mode, seed=self._round[mode], samples=self.samples)
            return {
                "cpu_ms": answer["cpu_s"] * 1e3 / self.samples,
                "wall_ms": answer["wall_s"] * 1e3 / self.samples,
            }

        return once


def equal(variant: str, backend: str) -> bool:
    """Whether both sides read the same values: sums of every tensor of 24 random items."""
    digests = []
    for side in ("ours", "peer"):
        one = Side(side, variant, backend if side == "peer" else "auto", "1")
        digests.append(one.probe.ask(mode="digest", seed=99, samples=24)["digest"])
        one.probe.close()
    return all(
        a.keys() == b.keys() and all(math.isclose(a[k], b[k], rel_tol=1e-12, abs_tol=1e-12) for k in a)
        for a, b in zip(*digests, strict=True)
    )


def measure(rounds: int, *, quick: bool = False) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    rows, raw = [], {}
    for variant in ("av1", "h264", "rows"):
        for threads in ("1",) if quick else ("1", "default"):
            results = _variant(variant, threads, rounds, pyav=not quick and threads == "1")
            raw[f"{variant}, {threads}"] = results
            rows += _rows(variant, threads, results)
    return rows, raw


def _variant(variant: str, threads: str, rounds: int, *, pyav: bool) -> dict[str, list[dict[str, float]]]:
    video = variant != "rows"
    sides = {
        "ours": Side("ours", variant, "auto", threads),
        "peer": Side("peer", variant, "torchcodec" if video else "none", threads),
    }
    if video:
        sides["floor"] = Side("floor", variant, "pyav", threads)
    if pyav and video:
        sides["peer pyav"] = Side("peer", variant, "pyav", threads)
    measured = {f"{name} item": side.measure("item") for name, side in sides.items()}
    measured |= {f"{name} batch": sides[name].measure("batch") for name in ("ours", "peer")}
    results = interleave(measured, rounds)
    for side in sides.values():
        side.probe.close()
    return results


def _rows(variant: str, threads: str, results: dict[str, list[dict[str, float]]]) -> list[Row]:
    name = {"av1": "2 cameras, AV1", "h264": "2 cameras, H.264", "rows": "rows without video"}[variant]
    label = "one thread" if threads == "1" else "default threads"
    unit = "ms" if variant != "rows" else "us"
    scale = 1.0 if variant != "rows" else 1e3
    target = 50.0 if variant == "rows" else 2.0
    rows = []
    for mode, what in (("item", "`dataset[i]`"), ("batch", "batch of 8")):
        ours, peer = results[f"ours {mode}"], results[f"peer {mode}"]
        for clock, of in (("cpu_ms", "CPU"), ("wall_ms", "wall")):
            note = ""
            if clock == "cpu_ms" and mode == "item" and "floor item" in results:
                note = f"floor (PyAV alone) {least(results['floor item'], clock):.3g} ms"
            if clock == "cpu_ms" and mode == "item" and "peer pyav item" in results:
                note += f"; LeRobot with pyav {least(results['peer pyav item'], clock):.3g} ms"
            rows.append(
                compared(
                    f"{name}, {what}, {label}: {of} a sample",
                    least(ours, clock) * scale,
                    least(peer, clock) * scale,
                    unit,
                    target=target if clock == "cpu_ms" else None,
                    note=note,
                )
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one thread only, without LeRobot's pyav")
    options = parser.parse_args()
    for variant, backend in (("av1", "torchcodec"), ("h264", "torchcodec"), ("rows", "none")):
        print(f"{variant}: items equal: {'yes' if equal(variant, backend) else 'NO'}")
    rows, raw = measure(options.rounds, quick=options.quick)
    report(rows, raw, "random_access")


if __name__ == "__main__":
    main()
