"""The measured sides of the SmolVLA benchmarks: LeRobot and mimetic, each in processes of its own, on equal weights.

Every round starts fresh processes, so that no side keeps memory while another is measured. Rounds alternate the order.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import Probe, interleave, peer_python
from benchmarks.smolvla_setup import checkpoint


@dataclass(frozen=True)
class Side:
    """One way to run the model.

    Args:
        name: in tables.
        variant: checkpoint, one of `smolvla_setup.VARIANTS`.
        is_peer: LeRobot instead of mimetic.
        settings: mimetic's settings that differ from the checkpoint's.
    """

    name: str
    variant: str = "released"
    is_peer: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self, *, one_thread: bool) -> Iterator[Probe]:
        """A process with the loaded policy."""
        folder = str(checkpoint(self.variant))
        if self.is_peer:
            probe = Probe(peer_python(), "smolvla_peer.py", [folder], one_thread=one_thread, peer=True)
        else:
            arguments = [folder, json.dumps(dict(self.settings))]
            probe = Probe(sys.executable, "smolvla_ours.py", arguments, one_thread=one_thread, peer=False)
        try:
            yield probe
        finally:
            probe.close()


PEER = Side("LeRobot, released dtypes", is_peer=True)
PEER_FLOAT32 = Side("LeRobot, float32", "float32", is_peer=True)
MIXED = Side("mimetic, mixed", settings={"precision": "mixed"})
RELEASED = Side("mimetic, released dtypes", settings={"precision": "released"})
FLOAT32 = Side("mimetic, float32", settings={"precision": "float32"})
SIDES = (PEER, MIXED, RELEASED, FLOAT32, PEER_FLOAT32)
QUICK = (PEER, MIXED)

Measured = dict[str, list[dict[str, float]]]


def rounds_of(sides: Sequence[Side], measure_one: Callable[[Side], Mapping[str, float]], rounds: int) -> Measured:
    """Figures of every side in every round, interleaved."""

    def measured(side: Side) -> Callable[[], Mapping[str, float]]:
        return lambda: measure_one(side)

    return interleave({side.name: measured(side) for side in sides}, rounds)


def steps_of(probe: Probe, side: Side, batch: int, steps: int, *, cached: bool) -> dict[str, float]:
    """Least seconds of a training step and of its parts: `wall`, `cpu`, `wall <part>`, `cpu <part>`; and its loss."""
    more = {} if side.is_peer else {"features": cached}
    answer = probe.ask(what="step", batch=batch, steps=steps, timeout_s=3600, **more)
    return best(answer, "step") | {"loss": answer["loss"], "peak_rss_mb": answer["peak_rss_mb"]}


def best(answer: Mapping[str, Any], whole: str) -> dict[str, float]:
    """Least seconds of what is called `whole` and of each part.

    A part that is called several times within one `whole` counts with the sum of its calls.
    """
    found: dict[str, float] = {}
    for clock in ("wall", "cpu"):
        count = len(answer[clock][whole])
        for name, seconds in answer[clock].items():
            each = len(seconds) // count
            sums = [sum(seconds[i * each : (i + 1) * each]) for i in range(count)]
            found[clock if name == whole else f"{clock} {name}"] = min(sums)
    return found


def parser_for(description: str | None, *, rounds: int = 3) -> argparse.ArgumentParser:
    """Flags that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--quick", action="store_true", help="only mimetic's default precision against LeRobot in the released dtypes"
    )
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="one computing thread: on a busy machine processor time is meaningful only so (threads wait actively)",
    )
    return parser
