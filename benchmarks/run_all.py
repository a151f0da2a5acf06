"""Measures every claim of docs/benchmarks.md and prints one Markdown table; about 10 minutes on 2 quiet cores.

With --datasets also those about kept frames, streams and conversion: about 10 minutes more. Recording is measured in
real time and for itself: python -m benchmarks.record. With --smolvla also those about the full-size SmolVLA: about 40
minutes more, 2 GB on disk, 8 GB of memory.

python -m benchmarks.run_all [--rounds 3] [--datasets] [--smolvla] [--interop]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import (
    convert,
    frame_cache,
    help_time,
    interop,
    loop_overhead,
    random_access,
    smolvla_chunk,
    smolvla_load,
    smolvla_memory,
    smolvla_step,
    streaming,
    worker_start,
)
from benchmarks.make_video_dataset import VARIANTS, dataset
from benchmarks.measure import Row, environment, peer_python, report

_VERSIONS = """
import importlib.metadata as m, platform
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return "absent"
names = ("mimetic", "lerobot", "torch", "av", "torchcodec", "numpy", "pyarrow")
found = [f"{n} {version(n)}" for n in names if version(n) != "absent"]
print("Python " + platform.python_version() + ", " + ", ".join(found))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datasets", action="store_true", help="measure kept frames, streams and conversion as well")
    parser.add_argument("--smolvla", action="store_true", help="measure the full-size SmolVLA as well")
    parser.add_argument("--interop", action="store_true", help="check equality in both directions as well")
    options = parser.parse_args()
    peer_python()
    for variant in VARIANTS:
        dataset(variant)
    start = time.perf_counter()
    print(f"machine: {_machine()}, load {os.getloadavg()[0]:.1f} at the start")
    print(f"mimetic: {_versions(sys.executable)}")
    print(f"LeRobot: {_versions(peer_python())}\n")
    rows: list[Row] = []
    raw: dict[str, object] = {}
    modules: list[tuple[Any, int]] = [
        (help_time, options.rounds + 2),
        (random_access, options.rounds),
        (loop_overhead, options.rounds),
        (worker_start, options.rounds),
    ]
    if options.datasets:
        modules += [(each, options.rounds) for each in (frame_cache, streaming, convert)]
    if options.smolvla:
        modules += [(each, options.rounds) for each in (smolvla_load, smolvla_step, smolvla_chunk, smolvla_memory)]
    for module, rounds in modules:
        name = module.__name__.rpartition(".")[2]
        print(f"... {name}", file=sys.stderr, flush=True)
        measured, figures = module.measure(rounds)
        rows += measured
        raw[name] = figures
    report(rows, raw, "all")
    missed = [row.claim for row in rows if row.met is False]
    print(f"\n{len(missed)} targets missed{': ' if missed else ''}{', '.join(missed)}")
    print(f"took {(time.perf_counter() - start) / 60:.1f} minutes, load {os.getloadavg()[0]:.1f} at the end\n")
    if options.interop:
        sys.argv[1:] = []
        return interop.main()
    return 0


def _machine() -> str:
    model = platform.processor() or "unknown processor"
    path = Path("/proc/cpuinfo")
    if path.exists():
        lines = [line for line in path.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def _versions(python: str) -> str:
    env = environment(one_thread=True, peer=False)
    return subprocess.run([python, "-c", _VERSIONS], env=env, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
