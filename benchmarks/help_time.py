"""Claim: `mimetic train --help` takes at most 1/20 of the processor time of `lerobot-train --help`, and below 0.3 s.

python -m benchmarks.help_time [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.measure import (
    Row,
    compared,
    environment,
    interleave,
    least,
    median,
    ours_command,
    peer_command,
    report,
    run,
)


def measure(rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    sides = {
        "ours": _measured([*ours_command(), "train", "--help"], peer=False),
        "peer": _measured([peer_command("lerobot-train"), "--help"], peer=True),
        "ours short": _measured([*ours_command(), "--help"], peer=False),
        "python": _measured([sys.executable, "-c", "pass"], peer=False),
    }
    for once in sides.values():
        once()  # the first start after an installation compiles byte code
    results = interleave(sides, rounds)
    ours, peer = results["ours"], results["peer"]
    python = least(results["python"], "cpu_s")
    spread = f"medians {median(ours, 'cpu_s'):.3g} and {median(peer, 'cpu_s'):.3g} s; python alone {python:.2g} s"
    rows = [
        compared("`train --help`: CPU", least(ours, "cpu_s"), least(peer, "cpu_s"), "s", target=20, note=spread),
        compared("`train --help`: wall", least(ours, "wall_s"), least(peer, "wall_s"), "s"),
        compared("`train --help`: peak memory", least(ours, "rss_mb"), least(peer, "rss_mb"), "MiB"),
        _absolute("`mimetic train --help` within 0.3 s", least(ours, "wall_s"), 0.3),
        _absolute("`mimetic --help` within 0.3 s", least(results["ours short"], "wall_s"), 0.3),
    ]
    return rows, results


def _measured(command: Sequence[str], *, peer: bool) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        cost = run(command, environment(one_thread=False, peer=peer))
        return {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "rss_mb": cost.peak_rss_mb}

    return once


def _absolute(claim: str, ours: float, limit: float) -> Row:
    return Row(claim, f"{ours:.3g} s", f"limit {limit} s", limit / ours, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rows, raw = measure(parser.parse_args().rounds)
    report(rows, raw, "help_time")


if __name__ == "__main__":
    main()
