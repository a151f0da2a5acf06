"""Claim: building the full-size SmolVLA from a checkpoint takes under 3 s, a fraction of LeRobot's time.

The checkpoint has `load_vlm_weights=true`, as `lerobot/smolvla_base` and what is trained from it: LeRobot builds and
reads the whole backbone before the policy's own weights overwrite it; mimetic reads every weight once. Both sides build
the policy and its processors from files that the system has in memory; importing the libraries is given apart. Each
round is a fresh process.

    python -m benchmarks.smolvla_load [--rounds 3] [--one-thread]
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.measure import Row, compared, least, report
from benchmarks.smolvla_sides import MIXED, SIDES, Side, parser_for, rounds_of

LIMIT_S = 3.0


def measure(rounds: int, *, one_thread: bool = False) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""

    def once(side: Side) -> dict[str, float]:
        with side.opened(one_thread=one_thread) as probe:
            found = dict(probe.ask(what="loaded"))
        print(f"... {side.name}: {found['load_s']:.2f} s", file=sys.stderr, flush=True)
        return found

    results = rounds_of(SIDES, once, rounds)
    rows = []
    for ours in (side for side in SIDES if not side.is_peer):
        peer = next(side for side in SIDES if side.is_peer and (side.variant == "float32") == ("float32" in ours.name))
        for what, name, unit in (
            ("policy and processors (wall)", "load_s", "s"),
            ("policy and processors (cpu)", "load_cpu_s", "s"),
            ("importing (wall)", "import_s", "s"),
            ("peak memory while building", "peak_rss_mb", "MiB"),
        ):
            mine, theirs = least(results[ours.name], name), least(results[peer.name], name)
            row = compared(f"{what}: {ours.name} / {peer.name}", mine, theirs, unit, digits=4)
            rows.append(row)
    seconds = least(results[MIXED.name], "load_s")
    rows.append(Row(f"{MIXED.name}: within {LIMIT_S:g} s", f"{seconds:.3g} s", "", LIMIT_S / seconds, 1.0))
    return rows, results


def main() -> None:
    options = parser_for(__doc__).parse_args()
    report(*measure(options.rounds, one_thread=options.one_thread), "smolvla_load")


if __name__ == "__main__":
    main()
