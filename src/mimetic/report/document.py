"""Reads the files of an open-loop evaluation (open_loop.json, traces.npz, frames/) for its report.

The report knows the evaluation only by these files, so that it can be made again from them at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.errors import MimeticError

DOCUMENT = "open_loop.json"
TRACES = "traces.npz"
FORMAT = "mimetic open-loop evaluation"
FORMAT_VERSION = 1
SOURCES = ("policy", "hold", "mean")


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Numbers of one joint; NaN where there is none."""

    name: str
    scale: float
    mae: Mapping[str, float]
    rmse: Mapping[str, float]
    error: Mapping[str, float]
    skill_hold: float
    skill_hold_interval: tuple[float, float]
    skill_mean: float
    movement_ratio: float
    is_worse: bool

    @property
    def is_still(self) -> bool:
        """Whether the joint never moves, so that its error has no unit."""
        return not math.isfinite(self.scale)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Numbers of one episode."""

    episode: int
    frames: int
    task: str
    chunks: int
    error: Mapping[str, float]
    skill_hold: float
    skill_mean: float
    movement_ratio: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """Errors so many steps ahead."""

    seconds: float
    chunks: int
    error: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Recorded and predicted actions of one episode: (T, A), (n,), (n, K, A), (n, A)."""

    episode: int
    recorded: NDArray[np.float32]
    starts: NDArray[np.int64]
    predicted: NDArray[np.float32]
    hold: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A camera frame as JPEG bytes."""

    camera: str
    episode: int
    frame: int
    jpeg: bytes


@dataclass(frozen=True, kw_only=True)
class Overall:
    """Numbers over all joints that move."""

    error: Mapping[str, float]
    skill_hold: float
    skill_hold_interval: tuple[float, float]
    skill_mean: float
    skill_mean_interval: tuple[float, float]
    movement_ratio: float


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """How much the error grows without an input."""

    name: str
    growth: float
    growth_interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Document:
    """One evaluation, as read from its folder."""

    level: str
    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]
    caveats: tuple[str, ...]
    overall: Overall
    ablations: tuple[Ablation, ...]
    joints: tuple[Joint, ...]
    horizon: tuple[Step, ...]
    episodes: tuple[Episode, ...]
    were_trained_on: bool | None
    training_note: str
    baselines: Mapping[str, str]
    meaning: Mapping[str, str]
    facts: Mapping[str, str]
    fps: float
    chunk_size: int
    n_action_steps: int
    chunks: int
    pictures: tuple[Picture, ...]
    traces: tuple[Trace, ...]


def read_document(folder: Path) -> Document:
    """Read the files of one evaluation.

    Raises:
        MimeticError: there is no evaluation in the folder, or it is of a newer format.
    """
    path = folder / DOCUMENT
    if not path.is_file():
        raise MimeticError(f"`{folder}` holds no open-loop evaluation (no {DOCUMENT})", "`mimetic eval` makes one")
    data = json.loads(path.read_text(encoding="utf-8"))
    if data.get("format") != FORMAT or data.get("format_version") != FORMAT_VERSION:
        raise MimeticError(
            f"`{path}` has format {data.get('format')!r} version {data.get('format_version')!r}; "
            f"this release reads version {FORMAT_VERSION}"
        )
    verdict, evaluation, overall = data["verdict"], data["evaluation"], data["overall"]
    return Document(
        level=verdict["level"],
        headline=verdict["headline"],
        findings=tuple(verdict["findings"]),
        advice=tuple(verdict["advice"]),
        caveats=tuple(verdict["caveats"]),
        overall=Overall(
            error=_numbers(overall["error"]),
            skill_hold_interval=_pair(overall["skill_hold_interval"]),
            skill_mean_interval=_pair(overall["skill_mean_interval"]),
            **{key: _number(overall[key]) for key in ("skill_hold", "skill_mean", "movement_ratio")},
        ),
        ablations=_ablations(data),
        joints=tuple(_joint(item) for item in data["joints"]),
        horizon=tuple(
            Step(seconds=float(item["seconds"]), chunks=int(item["chunks"]), error=_numbers(item))
            for item in data["horizon"]
        ),
        episodes=tuple(_episode(item) for item in data["episodes"]),
        were_trained_on=data["trained_on"]["value"],
        training_note=data["trained_on"]["note"],
        baselines={"hold": data["baselines"]["hold"], "mean": data["baselines"]["mean"]},
        meaning=data["meaning"],
        facts=_facts(data),
        fps=float(data["dataset"]["fps"]),
        chunk_size=int(evaluation["chunk_size"]),
        n_action_steps=int(evaluation["n_action_steps"]),
        chunks=int(evaluation["chunks"]),
        pictures=tuple(_picture(folder, item) for item in data["pictures"]),
        traces=_traces(folder),
    )


def _ablations(data: Mapping[str, Any]) -> tuple[Ablation, ...]:
    if "ablations" in data:
        return tuple(
            Ablation(name=item["name"], growth=_number(item["growth"]), growth_interval=_pair(item["growth_interval"]))
            for item in data["ablations"]
        )
    # Evaluations before the interval was measured.
    blind, error = _number(data["overall"].get("blind_error")), _number(data["overall"]["error"]["policy"])
    if not math.isfinite(blind) or not error > 0:
        return ()
    return (Ablation(name="blind", growth=blind / error - 1.0, growth_interval=(math.nan, math.nan)),)


def _joint(item: Mapping[str, Any]) -> Joint:
    return Joint(
        name=item["name"],
        scale=_number(item["scale"]),
        mae=_numbers(item["mae"]),
        rmse=_numbers(item["rmse"]),
        error=_numbers(item["error"]),
        skill_hold=_number(item["skill_hold"]),
        skill_hold_interval=_pair(item["skill_hold_interval"]),
        skill_mean=_number(item["skill_mean"]),
        movement_ratio=_number(item["movement_ratio"]),
        is_worse=bool(item["worse_than_hold"]),
    )


def _episode(item: Mapping[str, Any]) -> Episode:
    return Episode(
        episode=int(item["episode"]),
        frames=int(item["frames"]),
        task=item["task"],
        chunks=int(item["chunks"]),
        error=_numbers(item["error"]),
        skill_hold=_number(item["skill_hold"]),
        skill_mean=_number(item["skill_mean"]),
        movement_ratio=_number(item["movement_ratio"]),
    )


def _picture(folder: Path, item: Mapping[str, Any]) -> Picture:
    path = (folder / item["file"]).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise MimeticError(f"`{folder / DOCUMENT}` names a picture outside its folder: {item['file']}")
    return Picture(
        camera=item["camera"], episode=int(item["episode"]), frame=int(item["frame"]), jpeg=path.read_bytes()
    )


def _traces(folder: Path) -> tuple[Trace, ...]:
    path = folder / TRACES
    if not path.is_file():
        return ()
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(
            Trace(
                episode=int(episode),
                recorded=arrays[f"{episode}.recorded"],
                starts=arrays[f"{episode}.starts"],
                predicted=arrays[f"{episode}.predicted"],
                hold=arrays[f"{episode}.hold"],
            )
            for episode in arrays["episodes"]
        )


def _facts(data: Mapping[str, Any]) -> dict[str, str]:
    checkpoint, dataset, evaluation = data["checkpoint"], data["dataset"], data["evaluation"]
    seed = evaluation["seed"]
    return {
        "checkpoint": f"{checkpoint['path']} ({checkpoint['type']})",
        "dataset": f"{dataset['repo_id']} in {dataset['root']}" if dataset["repo_id"] else dataset["root"],
        "episodes": ", ".join(str(episode) for episode in dataset["episodes"]),
        "predictions": (
            f"{evaluation['chunks']} chunks of {evaluation['chunk_size']} steps, one every {evaluation['stride']} "
            f"frames at {dataset['fps']:g} frames a second; {evaluation['steps']} valid steps"
        ),
        "device": evaluation["device"],
        "seed": "none" if seed is None else str(seed),
        "time": f"{evaluation['seconds']:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
    }


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _number(values[name]) for name in SOURCES}


def _pair(values: list[float | None]) -> tuple[float, float]:
    return _number(values[0]), _number(values[1])
