"""Claim: mimetic's vision tower of the published size encodes a frame faster than the one that LeRobot uses.

Both towers have 12 layers of width 768 and random weights, and encode one 512 x 512 frame at a time without gradient.
The second table sets the arithmetic and the least memory traffic of every part beside what it took; "torch's" and
"unfused" lines are what the fast kernels replace, and do not belong to the sum.

    python -m benchmarks.vision_tower [--rounds 5] [--all-threads]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.measure import Probe, Row, compared, interleave, least, peer_python, report

DTYPES = {"bfloat16": 2, "float32": 4}
"""Bytes of a number."""
TARGETS = {"bfloat16": 1.5, "float32": None}
TOKENS, WIDTH, MLP, LAYERS, PATCH_INPUT = 1024, 768, 3072, 12, 768
REPLACED = {"attention, torch's": "attention", "fc1, GELU, unfused": "fc1 + GELU"}


def measure(rounds: int, *, one_thread: bool) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    for dtype, target in TARGETS.items():
        sides = {
            "ours": Probe(sys.executable, "vision_ours.py", [dtype], one_thread=one_thread, peer=False),
            "peer": Probe(peer_python(), "vision_peer.py", [dtype], one_thread=one_thread, peer=True),
        }
        for probe in sides.values():
            probe.ask(what="frames", repeats=1)
        asks = {name: lambda probe=probe: probe.ask(what="frames", repeats=1) for name, probe in sides.items()}
        results = interleave(asks, rounds)
        for clock, name in (("cpu_s", "CPU"), ("wall_s", "wall")):
            figures = (least(results[side], clock) for side in ("ours", "peer"))
            goal = target if clock == "cpu_s" else None
            rows.append(compared(f"a frame through the vision tower, {dtype}: {name}", *figures, "s", target=goal))
        raw[dtype] = {**results, "parts": sides["ours"].ask(what="parts", repeats=rounds)["parts"]}
        for probe in sides.values():
            probe.close()
    return rows, raw


def work(size: int) -> dict[str, tuple[float, float]]:
    """Of every part of a frame, for numbers of `size` bytes: (operations [GFLOP], least memory traffic [MB])."""

    def product(rows: int, inner: int, columns: int, count: float, extra: int = 0) -> tuple[float, float]:
        numbers = rows * inner + inner * columns + rows * columns + extra
        return 2e-9 * rows * inner * columns * count, 1e-6 * size * numbers * count

    square = product(TOKENS, WIDTH, WIDTH, LAYERS, TOKENS * WIDTH)
    return {
        "patch embedding": product(TOKENS, PATCH_INPUT, WIDTH, 1),
        "q, k, v": product(TOKENS, WIDTH, 3 * WIDTH, LAYERS),
        "attention": (4e-9 * TOKENS * TOKENS * WIDTH * LAYERS, 4e-6 * size * TOKENS * WIDTH * LAYERS),
        "output + residual": square,
        "fc1 + GELU": product(TOKENS, WIDTH, MLP, LAYERS),
        "fc2 + residual": product(TOKENS, MLP, WIDTH, LAYERS, TOKENS * WIDTH),
        "LayerNorm": (8e-9 * TOKENS * WIDTH * (2 * LAYERS + 1), 2e-6 * size * TOKENS * WIDTH * (2 * LAYERS + 1)),
    }


def parts_table(dtype: str, parts: Mapping[str, float]) -> str:
    """Markdown: work, traffic, processor time and rate of every part."""
    analytic = work(DTYPES[dtype])
    lines = [
        f"| part of a frame, {dtype} | GFLOP | least MB | CPU ms | GFLOP per CPU s |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, seconds in parts.items():
        flop, traffic = analytic[REPLACED.get(name, name)]
        lines.append(f"| {name} | {flop:.3g} | {traffic:.3g} | {seconds * 1e3:.3g} | {flop / seconds:.3g} |")
    total = sum(seconds for name, seconds in parts.items() if name not in REPLACED)
    flop = sum(one for one, _ in analytic.values())
    lines.append(f"| sum of what is used | {flop:.4g} | | {total * 1e3:.4g} | {flop / total:.3g} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all-threads", action="store_true", help="torch's default number of threads instead of one")
    arguments = parser.parse_args()
    rows, raw = measure(arguments.rounds, one_thread=not arguments.all_threads)
    report(rows, raw, "vision_tower")
    for dtype in DTYPES:
        print("\n" + parts_table(dtype, raw[dtype]["parts"]))


if __name__ == "__main__":
    main()
