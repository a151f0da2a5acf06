"""Claim: samples from kept frames cost at most a tenth of LeRobot's processor time, at 224, at 512 and at full size.

Two cameras of 640x480 in AV1, a window of 50 actions, uint8 frames, batches of 16 random samples, one thread, page
cache warm. LeRobot decodes (with torchcodec, or PyAV where that does not load), and resizes with torchvision (bilinear,
without antialiasing, in uint8); mimetic reads the frames that it decoded and resized once. Full size is what
`--dataset.cache=auto` keeps, exact to the bit. Each side is one process that stays alive; the rounds alternate. What
building costs, and the first visit of each frame, when its checksum is compared, are printed too.

    python -m benchmarks.frame_cache [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.make_video_dataset import dataset
from benchmarks.measure import WORK, Probe, Row, compared, interleave, least, peer_python, report

SIZES = {"224x168": (168, 224), "512x384": (384, 512), "640x480, exact": (0, 0)}
SAMPLES = {"ours": 1600, "peer": 160}
TARGET = 10.0


def _once(probe: Probe, side: str) -> Callable[[], Mapping[str, float]]:
    rounds = [0]

    def once() -> Mapping[str, float]:
        rounds[0] += 1
        answer = probe.ask(mode="batch", seed=rounds[0], samples=SAMPLES[side])
        return {"cpu_ms": answer["cpu_s"] * 1e3 / SAMPLES[side], "wall_ms": answer["wall_s"] * 1e3 / SAMPLES[side]}

    return once


def measure(rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    root, rows, raw = dataset("av1"), [], {}
    for name, (height, width) in SIZES.items():
        size = [str(height), str(width)]
        ours = Probe(
            sys.executable, "cache_ours.py", [str(root), str(WORK / "frames"), *size], one_thread=True, peer=False
        )
        peer = Probe(peer_python(), "cache_peer.py", [str(root), *size], one_thread=True, peer=True)
        built = ours.ask(mode="built")
        first = ours.ask(mode="first")
        sums = [probe.ask(mode="sum", seed=9, samples=12)["sums"] for probe in (ours, peer)]
        decoder = peer.ask(mode="decoder")["decoder"]
        apart = max(abs(one - two) for one, two in zip(*sums, strict=True))
        results = interleave({"ours": _once(ours, "ours"), "peer": _once(peer, "peer")}, rounds)
        ours.close()
        peer.close()
        raw[name] = {**results, "built": built, "first": first, "means apart": apart}
        note = (
            f"LeRobot with {decoder}; first visit {first['cpu_s'] * 1e3 / first['samples']:.3g} ms; "
            f"means of 24 frames within {apart:.2g} of 255"
        )
        if built["built_s"] > 1:
            note += f"; built at {built['frames'] / built['built_s']:.0f} frames/s"
        for clock, of in (("cpu_ms", "CPU"), ("wall_ms", "wall")):
            rows.append(
                compared(
                    f"2 cameras, {name}: {of} a sample",
                    least(results["ours"], clock),
                    least(results["peer"], clock),
                    "ms",
                    target=TARGET if clock == "cpu_ms" else None,
                    note=note if clock == "cpu_ms" else "",
                )
            )
    return rows, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rows, raw = measure(parser.parse_args().rounds)
    report(rows, raw, "frame_cache")


if __name__ == "__main__":
    main()
