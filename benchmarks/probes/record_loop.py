"""A recording loop in real time that both sides run; prints what it cost as one JSON line."""

from __future__ import annotations

import json
import resource
import time

from record_frames import FPS, frames


def cpu_s() -> float:
    """Processor seconds of this process and of the children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def record(add_frame, save_episode, seconds: float) -> None:
    """Record one episode at 30 Hz and save it.

    Prints `save_s` (what the operator waits), `cpu_s` (loop, saving and everything behind them), `frames`, and
    `late_s`: how far the loop had fallen behind its clock at the end.
    """
    source = frames(int(seconds * FPS))
    first = next(source)
    start_cpu, start = cpu_s(), time.perf_counter()
    add_frame(first)
    count, late = 1, 0.0
    for frame in source:
        due = start + count / FPS
        now = time.perf_counter()
        if now < due:
            time.sleep(due - now)
        late = max(late, time.perf_counter() - due)
        add_frame(frame)
        count += 1
    loop_s = time.perf_counter() - start
    begin = time.perf_counter()
    save_episode()
    save_s = time.perf_counter() - begin
    used = cpu_s() - start_cpu
    print(json.dumps({"save_s": save_s, "cpu_s": used, "frames": count, "late_s": late, "loop_s": loop_s}), flush=True)
