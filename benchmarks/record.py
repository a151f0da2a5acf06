"""Claim: recording takes half of LeRobot's processor time at most, and saving an episode of 60 s less than a second.

Two cameras of 640x480 and six joints at 30 Hz, in real time, one episode. LeRobot runs with the defaults of its record
command (pictures as PNG in eight threads, AV1 in `save_episode`), and once more with its streaming encoder. mimetic
runs with its default, `fast` (H.264), and with `small`, which is LeRobot's own encoder setting. Processor time is that
of the whole process tree, from the first frame to the end of `save_episode`. The pictures exist before.

    python -m benchmarks.record [--seconds 60] [--rounds 1] [--without-peer]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measure import (
    PROBES,
    WORK,
    Row,
    compared,
    environment,
    interleave,
    least,
    peer_python,
    report,
    run,
)

OURS, PEER = ("fast", "small"), ("default", "streaming")
LONGEST_WAIT_S = 1.0


def measure(seconds: float, rounds: int, *, with_peer: bool) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    sides = {f"ours {mode}": _recording("ours", mode, seconds) for mode in OURS}
    if with_peer:
        sides |= {f"peer {mode}": _recording("peer", mode, seconds) for mode in PEER}
    results = interleave(sides, rounds)
    rows: list[Row] = []
    fast = results["ours fast"]
    wait = least(fast, "save_s")
    if not with_peer:
        rows.append(Row("waiting in save_episode", f"{wait:.3g} s", "", LONGEST_WAIT_S / wait, 1.0))
        rows.append(Row("CPU a recorded frame", f"{least(fast, 'cpu_ms'):.3g} ms", "", 1.0))
        return rows, results
    for mode in PEER:
        peer = results[f"peer {mode}"]
        target = 2.0 if mode == "default" else None
        rows += [
            compared(
                f"waiting in save_episode, against LeRobot's {mode}",
                wait,
                least(peer, "save_s"),
                "s",
                note=f"ours below {LONGEST_WAIT_S:g} s: {'met' if wait < LONGEST_WAIT_S else '**missed**'}",
            ),
            compared(
                f"CPU a recorded frame of two pictures, against LeRobot's {mode}",
                least(fast, "cpu_ms"),
                least(peer, "cpu_ms"),
                "ms",
                target=target,
                note=f"the loop was late by up to {least(fast, 'late_s'):.2f} s and {least(peer, 'late_s'):.2f} s",
            ),
        ]
    small, peer = results["ours small"], results["peer default"]
    rows.append(compared("CPU a recorded frame, both AV1", least(small, "cpu_ms"), least(peer, "cpu_ms"), "ms"))
    rows.append(compared("size of the episode", least(fast, "size_mb"), least(peer, "size_mb"), "MB"))
    return rows, results


def _recording(side: str, mode: str, seconds: float) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        folder = WORK / f"record_{side}"
        shutil.rmtree(folder, ignore_errors=True)
        WORK.mkdir(parents=True, exist_ok=True)
        python = peer_python() if side == "peer" else sys.executable
        command = [python, str(PROBES / f"record_{side}.py"), str(folder), str(seconds), mode]
        cost = run(command, environment(one_thread=True, peer=side == "peer"))
        line = next(line for line in reversed(cost.output.splitlines()) if line.startswith('{"save_s"'))
        figures: dict[str, float] = json.loads(line)
        figures["cpu_ms"] = 1000 * figures["cpu_s"] / figures["frames"]
        figures["size_mb"] = sum(path.stat().st_size for path in folder.rglob("*.mp4")) / 1e6
        shutil.rmtree(folder, ignore_errors=True)
        return figures

    return once


def main() -> int:
    """Measure and print; 1 when a claim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args()
    rows, raw = measure(options.seconds, options.rounds, with_peer=not options.without_peer)
    report(rows, raw, "record")
    is_quick = all(figures["save_s"] < LONGEST_WAIT_S for figures in raw["ours fast"])
    return 0 if is_quick and all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
