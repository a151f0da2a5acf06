"""Claim: starting 4 loader workers costs at most half of LeRobot's processor time and memory.

Measured from making the loader to its first batch, over the whole process tree, on a dataset so small that reading it
costs nothing: processor seconds, time to the first batch, and the memory that is added (PSS: pages that processes
share count once). Then the whole training command for one step with its default 4 workers.

    python -m benchmarks.worker_start [--rounds 3]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measure import (
    WORK,
    Probe,
    Row,
    TreeSampler,
    compared,
    cpu_s,
    environment,
    interleave,
    least,
    peer_python,
    pss_mb,
    report,
    rss_mb,
    run,
    tree,
)
from benchmarks.tiny import DATASET, command, flags

WORKERS = 4
SIDES = ("ours", "peer")


def measure(rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    results = interleave({side: _loader(side) for side in SIDES}, rounds)
    results |= interleave({f"{side} command": _command(side) for side in SIDES}, max(1, rounds - 1))
    rows = []
    for prefix, name, target in (("", f"{WORKERS} workers to the first batch", 2.0), (" command", "one step", None)):
        ours, peer = results[f"ours{prefix}"], results[f"peer{prefix}"]
        label = name if not prefix else f"`train --steps=1 --num_workers={WORKERS}`"
        rows += [
            compared(f"{label}: CPU", least(ours, "cpu_s"), least(peer, "cpu_s"), "s", target=target),
            compared(f"{label}: wall", least(ours, "wall_s"), least(peer, "wall_s"), "s"),
            compared(
                f"{label}: memory{'' if prefix else ' added'} (PSS)",
                max(least(ours, "pss_mb"), 0.1),
                least(peer, "pss_mb"),
                "MiB",
                target=target,
                note=f"sum of RSS {least(ours, 'rss_mb'):.0f} and {least(peer, 'rss_mb'):.0f} MiB",
            ),
        ]
    return rows, results


def _loader(side: str) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        python = peer_python() if side == "peer" else sys.executable
        probe = Probe(python, f"workers_{side}.py", [str(DATASET)], one_thread=True, peer=side == "peer")
        probe.ask(workers=0)
        pid = probe.pid
        rss, pss = rss_mb(pid), pss_mb(pid)
        sampler = TreeSampler(pid, pss=True, period_s=0.1)
        start = time.perf_counter()
        own = probe.ask(workers=WORKERS)["cpu_s"]
        wall = time.perf_counter() - start
        sampler.stop()
        processes = tree(pid)
        figures = {
            "cpu_s": own + sum(cpu_s(child) for child in processes if child != pid),
            "wall_s": wall,
            "pss_mb": max(sampler.peak_pss_mb, sum(map(pss_mb, processes))) - pss,
            "rss_mb": max(sampler.peak_rss_mb, sum(map(rss_mb, processes))) - rss,
            "processes": len(processes),
        }
        probe.close()
        return figures

    return once


def _command(side: str) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        folder = WORK / "runs" / f"workers_{side}"
        shutil.rmtree(folder, ignore_errors=True)
        arguments = flags(steps=1, save_checkpoint=False, output_dir=folder, num_workers=WORKERS)
        cost = run([*command(side), *arguments], environment(one_thread=True, peer=side == "peer"), pss=True)
        return {
            "cpu_s": cost.cpu_s,
            "wall_s": cost.wall_s,
            "pss_mb": cost.peak_pss_mb,
            "rss_mb": cost.peak_rss_mb,
        }

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rows, raw = measure(parser.parse_args().rounds)
    report(rows, raw, "worker_start")


if __name__ == "__main__":
    main()
