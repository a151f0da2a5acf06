"""Files of an evaluation in an environment.

<output_dir>/
  eval_info.json     LeRobot's file, with its keys; undefined numbers are null
  closed_loop.json   every result with its interval, the findings, and what they rest on
  eval_config.json   settings, seed, checkpoints, environments and versions
  episodes.jsonl     one line an episode of every pass
  videos/            films of the first episodes of each task, as LeRobot names them
  strips/            a few pictures of every episode, for the report
  report.html        made of these files alone (`report/rollout.py`)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.store.atomic import write_bytes
from mimetic.evaluate.rollout.passes import POLICY
from mimetic.evaluate.rollout.play import Episode
from mimetic.evaluate.rollout.shifts import ShiftEffect
from mimetic.evaluate.rollout.summary import Difference, Latency, Rate

FORMAT = "mimetic closed-loop evaluation"
FORMAT_VERSION = 1
EVAL_INFO, CLOSED_LOOP, EVAL_CONFIG = "eval_info.json", "closed_loop.json", "eval_config.json"

MEANING = {
    "pc_success": "successful episodes in percent",
    "interval": "Wilson's 95 % interval of the success rate, in percent",
    "difference": "success rate of the policy minus that of the other pass over the same episodes, in points",
    "difference_interval": "Newcombe's 95 % interval of that difference (method 10, for pairs), in points",
    "p_value": "exact two-sided McNemar test that both succeed equally often",
    "shift": "success rate in a split minus that in the split that it is compared with, in points; tasks weigh the "
    "same",
    "shift_interval": "Newcombe's 95 % interval of that difference (method 10, for independent rates), in points",
    "shift_p_value": "Fisher's exact two-sided test that both splits succeed equally often",
    "shift_p_corrected": "the same, corrected by Holm for the number of comparisons; verdicts go by it",
    "shift_detectable": "smallest fall that so many episodes find with 80 % chance at the corrected level, in points; "
    "none where success is too rare to fall",
    "detectable": "smallest difference that so many episodes find with 80 % chance at the 5 % level, in points",
}


def eval_info(episodes: Sequence[Episode], *, folder: Path, seconds: float) -> dict[str, Any]:
    """The content of eval_info.json, in LeRobot's form.

    Args:
        episodes: of the policy's own pass, sorted.
        folder: of the evaluation; paths of videos begin with it, as LeRobot's do.
        seconds: of the whole evaluation.
    """
    tasks = list(dict.fromkeys((one.group, one.task_id) for one in episodes))
    per_task = []
    for group, task_id in tasks:
        own = [one for one in episodes if (one.group, one.task_id) == (group, task_id)]
        metrics = {
            "sum_rewards": [one.sum_reward for one in own],
            "max_rewards": [one.max_reward for one in own],
            "successes": [one.success for one in own],
            **_paths(own, folder),
        }
        per_task.append({"task_group": group, "task_id": task_id, "metrics": metrics})
    groups = list(dict.fromkeys(group for group, _ in tasks))
    return {
        "per_task": per_task,
        "per_group": {group: _means([one for one in episodes if one.group == group], folder) for group in groups},
        "overall": {
            **_means(episodes, folder),
            "eval_s": seconds,
            "eval_ep_s": seconds / len(episodes) if episodes else None,
        },
    }


def _means(episodes: Sequence[Episode], folder: Path) -> dict[str, Any]:
    paths = _paths(episodes, folder)
    return {
        "avg_sum_reward": _mean([one.sum_reward for one in episodes]),
        "avg_max_reward": _mean([one.max_reward for one in episodes]),
        "pc_success": _mean([100.0 * one.success for one in episodes]),
        "n_episodes": len(episodes),
        **paths,
    }


def _paths(episodes: Sequence[Episode], folder: Path) -> dict[str, list[str]]:
    return {
        "video_paths": [str(folder / one.video) for one in episodes if one.video is not None],
        "predicted_video_paths": [],
    }


def _mean(values: Sequence[float]) -> float | None:
    return number(float(np.mean(values))) if values else None


def closed_loop(
    *,
    headline: str,
    main: Rate,
    reading: str,
    findings: Sequence[str],
    caveats: Sequence[str],
    whole: Rate,
    tasks: Sequence[Rate],
    splits: Sequence[Rate],
    others: Sequence[Rate],
    differences: Sequence[Difference],
    shifts: Sequence[ShiftEffect],
    shifts_by_task: Sequence[ShiftEffect],
    latency: Latency | None,
    stopped: Sequence[str],
) -> dict[str, Any]:
    """The content of closed_loop.json.

    Args:
        headline: the result in one line.
        main: the rate that it is about.
        reading: what success depends on, in one sentence; empty when that was not looked at.
        findings: sentences.
        caveats: sentences.
        whole: all episodes of the policy.
        tasks: by task and split.
        splits: by split.
        others: rates of other passes.
        differences: against other passes.
        shifts: split against split.
        shifts_by_task: the same task by task; empty with one task.
        latency: of the policy.
        stopped: titles of tasks that ended early.
    """
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "headline": headline,
        "reading": reading,
        "findings": list(findings),
        "caveats": list(caveats),
        "main": _rate(main),
        "overall": _rate(whole),
        "tasks": [_rate(one) for one in tasks],
        "splits": [_rate(one) for one in splits],
        "other_passes": [_rate(one) for one in others],
        "differences": [_difference(one) for one in differences],
        "shifts": [_shift(one) for one in shifts],
        "shifts_by_task": [_shift(one) for one in shifts_by_task],
        "latency": None if latency is None else _latency(latency),
        "stopped_early": list(stopped),
        "meaning": MEANING,
    }


def _rate(one: Rate) -> dict[str, Any]:
    low, high = one.interval
    return {
        "title": one.title,
        "run": one.run,
        "n_episodes": one.n,
        "successes": one.successes,
        "pc_success": number(100 * one.share),
        "interval": [100 * low, 100 * high],
        "mean_length_of_successes": number(one.mean_length),
    }


def _difference(one: Difference) -> dict[str, Any]:
    pairs, (low, high) = one.pairs, one.interval
    return {
        "run": one.run,
        "verdict": one.verdict,
        "sentence": one.sentence,
        "both": pairs.both,
        "only_policy": pairs.only_first,
        "only_other": pairs.only_second,
        "neither": pairs.neither,
        "difference": number(100 * pairs.difference),
        "difference_interval": [100 * low, 100 * high],
        "p_value": one.p_value,
        "detectable": 100 * one.detectable,
    }


def _shift(one: ShiftEffect) -> dict[str, Any]:
    (low, high), (successes, n), (other_successes, other_n) = one.interval, one.here, one.there
    return {
        "split": one.split,
        "reference": one.shift.reference,
        "task": one.task or None,
        "changes": one.shift.short,
        "is_harder": one.shift.is_harder,
        "verdict": one.verdict,
        "sentence": one.sentence,
        "successes": successes,
        "n_episodes": n,
        "reference_successes": other_successes,
        "reference_n_episodes": other_n,
        "difference": number(100 * one.difference),
        "difference_interval": [100 * low, 100 * high],
        "p_value": one.p_value,
        "p_corrected": one.p_corrected,
        "comparisons": one.comparisons,
        "detectable": None if one.detectable is None else 100 * one.detectable,
    }


def _latency(one: Latency) -> dict[str, Any]:
    return {
        "sentence": one.sentence,
        "keeps_up": one.keeps_up,
        "fps": one.fps,
        "tick_ms": one.tick_ms,
        "median_ms": one.median_ms,
        "p95_ms": one.p95_ms,
        "mean_per_tick_ms": one.mean_ms,
        "predictions": one.predictions,
    }


def number(value: float) -> float | None:
    """A number for JSON; None where it is not finite."""
    return value if math.isfinite(value) else None


def write_document(path: Path, value: Mapping[str, Any], *, indent: int = 2) -> None:
    """Write JSON at once; not-a-number never stands in it."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode("utf-8"))


def policy_episodes(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes of the policy's own pass."""
    return [one for one in episodes if one.run == POLICY]
