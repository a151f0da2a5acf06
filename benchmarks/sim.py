"""Claim: the simulated cell does 300 control steps a second with two 96x96 cameras by OpenGL on 2 cores, 100 by rays.

python -m benchmarks.sim [--rounds 3] [--processes 2]

A control step is 10 physics steps, the judgement of success and two pictures. The cells play recorded demonstrations
of pick_place, so that contacts cost what they cost in use. Needs `mimetic[sim]`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.measure import Row, interleave, report
from mimetic.envs.cell import Cell
from mimetic.envs.config import CellConfig
from mimetic.envs.demonstration import demonstrate
from mimetic.envs.manner import IDEAL
from mimetic.envs.render.choose import failure
from mimetic.envs.vector import CellGroup

TARGETS = {"egl": 300.0, "osmesa": 300.0, "native": 300.0, "rays": 100.0}
_TICKS = 100
_CELLS = 4


def measure(rounds: int, processes: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    renderers = [name for name in ("egl", "rays") if name == "rays" or not failure(name)]
    seeds = list(range(_CELLS))
    actions = _actions(seeds)
    groups = {name: CellGroup(CellConfig(renderer=name), _CELLS, processes=processes) for name in renderers}
    sides = {name: _played(group, seeds, actions) for name, group in groups.items()}
    results = interleave(sides, rounds)
    alone = {name: _alone(name, actions[:, 0]) for name in renderers}
    for group in groups.values():
        group.close()
    rows = []
    for name in renderers:
        best = max(one["steps_s"] for one in results[name])
        target = TARGETS[name]
        physics, pictures = alone[name]["physics_ms"], alone[name]["pictures_ms"]
        note = f"CPU of one cell: physics {physics:.2f} ms, two pictures {pictures:.2f} ms"
        rows.append(
            Row(
                f"{name}, {processes} processes",
                f"{best:.0f} steps/s",
                f"{target:.0f} steps/s",
                best / target,
                1.0,
                note,
            )
        )
    return rows, {"rounds": results, "alone": alone, "load": os.getloadavg()[0]}


def _actions(seeds: list[int]) -> np.ndarray:
    """Actions (ticks, cells, 6) of demonstrations."""
    cell = Cell(CellConfig(renderer="rays", width=16, height=16))
    return np.stack(
        [demonstrate(cell, IDEAL, seed, pictures=False).frames["action"][:_TICKS] for seed in seeds], axis=1
    )


def _played(group: CellGroup, seeds: list[int], actions: np.ndarray) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        group.reset(seeds)
        begin = time.perf_counter()
        for goals in actions:
            group.step(goals)
        return {"steps_s": actions.shape[0] * actions.shape[1] / (time.perf_counter() - begin)}

    return once


def _alone(renderer: str, actions: np.ndarray) -> dict[str, float]:
    """CPU time a step of one cell in this process, physics and pictures apart [ms]."""
    cell = Cell(CellConfig(renderer=renderer))
    cell.reset(0)
    cell.observe()
    physics = pictures = 0.0
    for action in actions:
        begin = time.process_time()
        cell.step(action)
        middle = time.process_time()
        cell.observe()
        physics, pictures = physics + middle - begin, pictures + time.process_time() - middle
    return {"physics_ms": physics / len(actions) * 1e3, "pictures_ms": pictures / len(actions) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    rows, raw = measure(options.rounds, options.processes)
    report(rows, raw, "sim", ("measured", "asked"))


if __name__ == "__main__":
    main()
