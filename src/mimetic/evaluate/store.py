"""Files of an open-loop evaluation.

    <output_dir>/
      open_loop.json    every number, the verdict, and where they come from; NaN as null
      episodes.jsonl    one line an evaluated episode
      traces.npz        recorded and predicted actions of a few episodes, for the plots
      frames/           camera pictures of the first of them

The report (`report/open_loop.py`) is made from these files alone.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mimetic.errors import ConfigError
from mimetic.evaluate.effect import BLIND
from mimetic.evaluate.metrics import HOLD, INTERVAL, MEAN, NOTABLE, POLICY, SOURCES, Floats, Scores
from mimetic.evaluate.result import OpenLoopResult

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FORMAT = "mimetic open-loop evaluation"
FORMAT_VERSION = 1
DOCUMENT = "open_loop.json"
EPISODES = "episodes.jsonl"
TRACES = "traces.npz"
FRAMES = "frames"

MEANING: dict[str, str] = {
    "mae": "mean absolute difference between predicted and recorded action over valid steps, in the dataset's units",
    "rmse": "root of the mean squared difference, in the dataset's units",
    "error": "mae divided by the scale of the joint; overall: mean over the joints that move",
    "worse_than_hold": f"whether the error exceeds that of holding still by more than {NOTABLE} scales",
    "skill": "1 - mae / mae of the baseline: 1 is perfect, 0 is as good as the baseline, negative is worse",
    "interval": INTERVAL,
    "movement_ratio": "root mean square of the displacement in predicted chunks over that in recorded ones",
    "blind_error": "overall error with every camera replaced by its mean colour",
    "ablations": "overall error without an input, and its growth: error without / error with - 1, with a 95 % interval "
    "over pairs of predictions from the same noise; blind: cameras show their mean colour, mute: the instruction is "
    "empty, swap: it is that of another task of the dataset",
}


def check_absent(folder: Path) -> None:
    """Refuse a folder that exists, before any work is done.

    Raises:
        ConfigError: the folder, or a file of that name, exists.
    """
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"the output folder `{folder}` exists already",
            "choose another `--output_dir`, or leave it out for a new one named by the time",
        )


def save(result: OpenLoopResult, folder: Path) -> Path:
    """Write all files of a result; the folder appears complete or not at all.

    Returns:
        The path of open_loop.json.

    Raises:
        ConfigError: the folder exists.
    """
    check_absent(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    try:
        _write(result, partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder / DOCUMENT


def _write(result: OpenLoopResult, folder: Path) -> None:
    text = json.dumps(to_document(result), indent=2, allow_nan=False, ensure_ascii=False)
    (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")
    lines = [json.dumps(line, allow_nan=False, ensure_ascii=False) for line in _episodes(result)]
    (folder / EPISODES).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    if result.numbers.traces:
        arrays: dict[str, Any] = _traces(result)  # the stubs take any keyword for a flag
        np.savez_compressed(folder / TRACES, **arrays)
    for name, picture in zip(_picture_names(result), result.pictures, strict=True):
        (folder / FRAMES).mkdir(exist_ok=True)
        (folder / name).write_bytes(picture.jpeg)


def to_document(result: OpenLoopResult) -> dict[str, Json]:
    """The content of open_loop.json."""
    verdict = result.verdict
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "verdict": {
            "level": verdict.level,
            "headline": verdict.headline,
            "findings": list(verdict.findings),
            "advice": list(verdict.advice),
            "caveats": list(verdict.caveats),
        },
        "overall": _overall(result),
        "ablations": _effects(result),
        "joints": _joints(result),
        "horizon": _horizon(result),
        "episodes": _episodes(result),
        "trained_on": {"value": result.choice.were_trained_on, "note": result.choice.note},
        "baselines": {
            "hold": result.hold,
            "mean": result.mean_source,
            "mean_action": [_number(value) for value in result.mean_action],
        },
        "checkpoint": {"path": result.checkpoint, "type": result.policy_type},
        "dataset": {
            "repo_id": result.repo_id,
            "root": result.root,
            "fps": result.fps,
            "episodes": list(result.choice.episodes),
        },
        "evaluation": {
            "chunk_size": result.numbers.chunk_size,
            "n_action_steps": result.n_action_steps,
            "stride": result.stride,
            "chunks": result.numbers.scores.chunks,
            "steps": result.numbers.scores.steps,
            "device": result.device,
            "seed": result.seed,
            "seconds": _number(result.seconds),
        },
        "pictures": [
            {"camera": picture.camera, "episode": picture.episode, "frame": picture.frame, "file": name}
            for name, picture in zip(_picture_names(result), result.pictures, strict=True)
        ],
        "meaning": {**MEANING, "scale": result.scale_source},
        "versions": dict(result.versions),
        "config": to_json(result.settings),
    }


def _overall(result: OpenLoopResult) -> dict[str, Json]:
    scores, bounds = result.numbers.scores, result.numbers.bounds
    return {
        **_summary(scores),
        "skill_hold_interval": _numbers(bounds.overall_skill_hold),
        "skill_mean_interval": _numbers(bounds.overall_skill_mean),
        "blind_error": next((_number(effect.error) for effect in result.effects if effect.name == BLIND), None),
    }


def _effects(result: OpenLoopResult) -> list[Json]:
    return [
        {
            "name": effect.name,
            "error": _number(effect.error),
            "growth": _number(effect.growth),
            "growth_interval": [_number(bound) for bound in effect.interval],
        }
        for effect in result.effects
    ]


def _summary(scores: Scores) -> dict[str, Json]:
    return {
        "mae": _by_source(scores.mae.mean(axis=1)),
        "rmse": _by_source(np.sqrt(np.square(scores.rmse).mean(axis=1))),
        "error": _by_source(scores.overall),
        "skill_hold": _number(scores.overall_skill_hold),
        "skill_mean": _number(scores.overall_skill_mean),
        "movement_ratio": _number(scores.overall_movement),
    }


def _joints(result: OpenLoopResult) -> list[Json]:
    scores, bounds = result.numbers.scores, result.numbers.bounds
    return [
        {
            "name": name,
            "scale": _number(result.numbers.scale[index]),
            "mae": _by_source(scores.mae[:, index]),
            "rmse": _by_source(scores.rmse[:, index]),
            "error": _by_source(scores.normalised[:, index]),
            "skill_hold": _number(scores.skill_hold[index]),
            "skill_hold_interval": _numbers(bounds.skill_hold[index]),
            "skill_mean": _number(scores.skill_mean[index]),
            "skill_mean_interval": _numbers(bounds.skill_mean[index]),
            "movement_ratio": _number(scores.movement[index]),
            "worse_than_hold": bool(scores.worse_than_hold[index]),
        }
        for index, name in enumerate(result.joints)
    ]


def _horizon(result: OpenLoopResult) -> list[Json]:
    return [
        {
            "steps_ahead": step,
            "seconds": _number(step / result.fps),
            "chunks": int(result.numbers.step_count[step]),
            **_by_source(result.numbers.horizon[:, step]),
        }
        for step in range(result.numbers.horizon.shape[1])
    ]


def _episodes(result: OpenLoopResult) -> list[Json]:
    return [
        {
            "episode": item.episode,
            "frames": item.frames,
            "task": item.task,
            "chunks": item.scores.chunks,
            **_summary(item.scores),
            "joint_mae": dict(zip(result.joints, _numbers(item.scores.mae[POLICY]), strict=True)),
        }
        for item in result.numbers.episodes
    ]


def _traces(result: OpenLoopResult) -> dict[str, Any]:
    arrays: dict[str, NDArray[Any]] = {"episodes": np.array([trace.episode for trace in result.numbers.traces])}
    for trace in result.numbers.traces:
        arrays[f"{trace.episode}.recorded"] = trace.recorded.astype(np.float32)
        arrays[f"{trace.episode}.starts"] = trace.starts
        arrays[f"{trace.episode}.predicted"] = trace.predicted.astype(np.float32)
        arrays[f"{trace.episode}.hold"] = trace.hold.astype(np.float32)
    return arrays


def _picture_names(result: OpenLoopResult) -> list[str]:
    names = []
    for index, picture in enumerate(result.pictures):
        camera = re.sub(r"[^A-Za-z0-9_-]+", "_", picture.camera.rpartition(".")[2])[:40]
        names.append(f"{FRAMES}/{index:02d}_{camera}_{picture.frame:06d}.jpg")
    return names


def _by_source(values: Floats) -> dict[str, Json]:
    return {
        name: _number(values[index]) for index, name in ((POLICY, SOURCES[0]), (HOLD, SOURCES[1]), (MEAN, SOURCES[2]))
    }


def _numbers(values: Floats) -> list[Json]:
    return [_number(value) for value in values]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def to_json(value: object) -> Json:
    """A setting as JSON: mappings and sequences are kept, what JSON does not know becomes text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return str(value)
