"""Claim: `mimetic dataset check` reads 600 000 frames once, in under 30 s and 1 GB, and with --quick in under 2 s.

The dataset is built from recordings of `mimetic.testing.recordings` (two arms, 14 joints), repeated with fresh noise
until there are 2000 episodes of about 300 frames: rows that compress and compare like a person's. No cameras, since
these levels do not look at pictures. Each level runs in a process of its own, which tells its peak memory.

    python -m benchmarks.check [--frames 600000]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import WORK, Cost, environment, ours_command, run
from mimetic.testing.recordings import ALOHA, Demonstration, Recording, demonstrations, write_recording

_ORIGINALS = 50


def build(root: Path, frames: int) -> int:
    """Write the dataset unless it is there; the number of its frames is returned."""
    done = root / "meta" / "stats.json"
    if not done.is_file():
        shutil.rmtree(root, ignore_errors=True)
        spec = Recording(
            episodes=_ORIGINALS, names=ALOHA, fps=30, seconds=(9.0, 9.5), positions=5, episodes_per_file=500
        )
        originals = demonstrations(spec)
        generator = np.random.default_rng(0)
        made: list[Demonstration] = []
        total = 0
        while total < frames:
            item = originals[len(made) % _ORIGINALS]
            shift = generator.normal(0, 2.0, item.action.shape[1])
            ramp = np.sin(np.linspace(0, np.pi, item.length))[:, None]
            state = item.state + shift * ramp + generator.normal(0, 0.05, item.state.shape)
            made.append(Demonstration(state, item.action + shift * ramp, item.timestamp, 0))
            total += item.length
        write_recording(root, Recording(**{**vars(spec), "episodes": len(made)}), made)
    return int(json.loads((root / "meta" / "info.json").read_text(encoding="utf-8"))["total_frames"])


def main() -> int:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=600_000)
    arguments = parser.parse_args()
    root = WORK / f"check_{arguments.frames}"
    root.parent.mkdir(parents=True, exist_ok=True)
    frames = build(root, arguments.frames)
    print("| level | frames | wall [s] | CPU [s] | peak memory [MB] |")
    print("|---|---|---|---|---|")
    for flag in ("--quick", "--policy.type=act"):
        command = [*ours_command(), "dataset", "check", str(root), flag, "--json"]
        cost: Cost = run(command, environment(one_thread=False, peer=False))
        name = "quick" if flag == "--quick" else "rows"
        print(f"| {name} | {frames} | {cost.wall_s:.1f} | {cost.cpu_s:.1f} | {cost.peak_rss_mb:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
