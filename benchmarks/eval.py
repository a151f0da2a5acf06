"""Claims: an evaluation is faster where pictures are drawn on demand than where they are drawn at every tick, and with
environments in processes of their own than with one after the other.

python -m benchmarks.eval [--rounds 3] [--episodes 8] [--renderer auto]

A small ACT (random weights, 10 executed steps a prediction) plays `reach` in the simulated cell with two 96x96 cameras,
60 control ticks an episode, without films. The baseline is one environment in the process of the policy; the others
have as many processes as cores. The first row compares the baseline with the same where the policy asks for every
observation, by the processor's time. Starting is left out: it is paid once. Every way plays the same episodes, which is
checked. Needs a machine with nothing else to do, and `mimetic[sim]`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.measure import Row, interleave, report
from mimetic.data.features import policy_features
from mimetic.envs.config import CellConfig, CellSuiteConfig
from mimetic.evaluate.rollout.cell import cell_features, cell_tasks
from mimetic.evaluate.rollout.environment import EnvTask
from mimetic.evaluate.rollout.passes import POLICY
from mimetic.evaluate.rollout.play import Plan, play
from mimetic.evaluate.rollout.player import Player
from mimetic.policies.act.config import ACTConfig
from mimetic.testing.untrained import untrained

TARGET = 1.0
_TICKS = 60
_SEED = 1000
_EVERY = "drawn at every tick"


def measure(rounds: int, episodes: int, renderer: str) -> tuple[list[Row], dict[str, Any]]:
    """Rows of the table and the figures of every round."""
    torch.set_num_threads(1)
    player, greedy = _player(), _player()
    greedy.policy.needs_observation = lambda: True  # type: ignore[method-assign]
    (task,) = cell_tasks(CellSuiteConfig(task="reach", renderer=renderer, episode_length=_TICKS))
    cores = os.cpu_count() or 1
    ways = {"one after the other": (1, 0)} | {f"{n} at once": (n, min(n, cores)) for n in (cores, 2 * cores)}
    played: dict[str, list[int]] = {}
    sides = {name: _way(task, player, *way, episodes, played, name) for name, way in ways.items()}
    sides[_EVERY] = _way(task, greedy, 1, 0, episodes, played, _EVERY)
    results = interleave(sides, rounds)
    if len({tuple(lengths) for lengths in played.values()}) != 1:
        raise SystemExit(f"the ways played different episodes: {played}")
    base = max(one["ticks_s"] for one in results["one after the other"])
    every, demand = (max(results[name], key=lambda one: one["ticks_cpu_s"]) for name in (_EVERY, "one after the other"))
    rows = [
        Row(
            "drawing on demand, not at every tick",
            f"{demand['ticks_cpu_s']:.0f} ticks/CPU s",
            f"{every['ticks_cpu_s']:.0f} ticks/CPU s",
            demand["ticks_cpu_s"] / every["ticks_cpu_s"],
            TARGET,
            "one environment in one process; 10 actions a prediction",
        )
    ]
    for name, (places, processes) in ways.items():
        best = max(results[name], key=lambda one: one["ticks_s"])
        rows.append(
            Row(
                f"{places} environments, {processes} other processes",
                f"{best['ticks_s']:.0f} ticks/s",
                f"{base:.0f} ticks/s",
                best["ticks_s"] / base,
                TARGET if processes else None,
                f"{best['episodes_min']:.0f} episodes/min of {_TICKS} ticks; policy {100 * best['policy']:.0f} % of "
                f"the time, {best['prediction_ms']:.1f} ms a prediction",
            )
        )
    return rows, {"rounds": results, "load": os.getloadavg()[0], "renderer": renderer}


def _player() -> Player:
    features = policy_features(cell_features(CellConfig()))
    sizes = {"chunk_size": 20, "n_action_steps": 10, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128}
    return Player(*untrained(ACTConfig, features, n_encoder_layers=2, pretrained_backbone_weights=None, **sizes))


def _way(
    task: EnvTask,
    player: Player,
    places: int,
    processes: int,
    episodes: int,
    played: dict[str, list[int]],
    name: str,
) -> Callable[[], Mapping[str, float]]:
    plan = Plan(run=POLICY, seed=_SEED, places=places, processes=processes)

    def once() -> Mapping[str, float]:
        opened: list[tuple[float, float]] = []
        found = sorted(
            play(task, player, plan, range(episodes), on_open=lambda _: opened.append(_clocks())),
            key=lambda one: one.episode,
        )
        seconds, cpu_seconds = (now - then for now, then in zip(_clocks(), opened[0], strict=True))
        played[name] = [one.length for one in found]
        latencies = sorted(value for one in found for value in one.latency_ms)
        return {
            "ticks_s": sum(one.length for one in found) / seconds,
            "ticks_cpu_s": sum(one.length for one in found) / cpu_seconds,
            "episodes_min": 60 * len(found) / seconds,
            "policy": sum(one.policy_s for one in found) / seconds,
            "prediction_ms": latencies[len(latencies) // 2],
        }

    return once


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--renderer", default="auto")
    options = parser.parse_args()
    rows, raw = measure(options.rounds, options.episodes, options.renderer)
    report(rows, raw, "eval", ("measured", "one after the other"))


if __name__ == "__main__":
    main()
