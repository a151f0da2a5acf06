"""Claim: a stream over local files costs no more processor time a sample than map-style access.

Two cameras of 640x480, a window of 50 actions, uint8 frames, batches of 8 in a shuffled order, no workers, one thread.
Each side is one process that stays alive; the rounds alternate. A gain of 0.95 counts as "no more": the same decoding
is behind both, and its time repeats within some per cent. LeRobot's own stream is measured where torchcodec loads,
which it needs.

    python -m benchmarks.streaming [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.make_video_dataset import dataset
from benchmarks.measure import PEER_VARIABLE, Probe, Row, compared, interleave, least, peer_python, report

SAMPLES = 160
TARGET = 0.95


def _once(probe: Probe) -> Callable[[], Mapping[str, float]]:
    rounds = [0]

    def once() -> Mapping[str, float]:
        rounds[0] += 1
        answer = probe.ask(epoch=rounds[0], samples=SAMPLES)
        assert answer["samples"] == SAMPLES
        return {"cpu_ms": answer["cpu_s"] * 1e3 / SAMPLES}

    return once


def _peer_streams() -> bool:
    """Whether LeRobot is here, and torchcodec loads there."""
    python = os.environ.get(PEER_VARIABLE, "")
    command = [python, "-c", "import torchcodec.decoders"]
    return bool(python) and subprocess.run(command, capture_output=True, check=False).returncode == 0


def measure(rounds: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    rows, raw = [], {}
    for variant in ("av1", "h264"):
        root = str(dataset(variant))
        probes = {
            "stream": Probe(sys.executable, "stream_ours.py", [root, "stream"], one_thread=True, peer=False),
            "map": Probe(sys.executable, "stream_ours.py", [root, "map"], one_thread=True, peer=False),
        }
        for probe in probes.values():
            probe.ask(epoch=0, samples=16)
        if _peer_streams():
            peer = Probe(peer_python(), "stream_peer.py", [root], one_thread=True, peer=True)
            try:
                peer.ask(epoch=0, samples=16)
                probes["peer"] = peer
            except SystemExit:  # the message says why; our own two sides are the claim
                print("LeRobot's stream fails here and is left out", file=sys.stderr)
        results = interleave({name: _once(probe) for name, probe in probes.items()}, rounds)
        for probe in probes.values():
            probe.close()
        raw[variant] = results
        stream, by_index = (least(results[name], "cpu_ms") for name in ("stream", "map"))
        rows.append(
            compared(
                f"{variant}, batch of 8: CPU a sample, stream against our map-style access",
                stream,
                by_index,
                "ms",
                target=TARGET,
            )
        )
        if "peer" in results:
            claim = f"{variant}, batch of 8: CPU a sample, stream against LeRobot's stream"
            rows.append(compared(claim, stream, least(results["peer"], "cpu_ms"), "ms", target=1.0))
    return rows, raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rows, raw = measure(parser.parse_args().rounds)
    report(rows, raw, "streaming", sides=("the stream", "the other"))


if __name__ == "__main__":
    main()
