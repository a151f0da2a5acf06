"""What training and evaluation will take, from a few real steps and a few real seconds of play."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mimetic.data.store.atomic import write_bytes
from mimetic.demo.child import Ended
from mimetic.demo.config import DemoConfig
from mimetic.demo.recipes import steps_of
from mimetic.demo.state import State
from mimetic.demo.steps import VIDEOS, dataset_folder, places_of, plan_folder
from mimetic.errors import ConfigError, MimeticError
from mimetic.names import CHECKPOINTS_DIR, INFO_JSON, METRICS_JSONL, SIMULATION_JSON

PLAN = "plan.json"
_SPARE = 200e6
"""Bytes that stay free beside what is planned: logs, pages, and what other programs write meanwhile."""
_STRIP = 20e3
"""Bytes of an episode's strip of pictures; small beside the films, so it is not measured."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What one step will take.

    Args:
        seconds: least time [s].
        seconds_at_most: most time [s]; the same where the step has no choice.
        memory_gb: most memory of a process [GiB]; None where the system does not tell.
        disk_bytes: that it leaves [bytes].
    """

    seconds: float
    seconds_at_most: float
    memory_gb: float | None
    disk_bytes: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was measured, and what follows from it.

    Args:
        frames: of the demonstrations.
        frames_per_s: that were recorded, starting up included [1/s]; 0 where the recording was interrupted.
        step_s: a training step [s].
        ticks_per_s: control ticks that the evaluation plays [1/s].
        train: forecast of the training.
        eval: forecast of the evaluation.
    """

    frames: int
    frames_per_s: float
    step_s: float
    ticks_per_s: float
    train: Forecast
    eval: Forecast

    def save(self, folder: Path) -> None:
        """Write it into the demo's folder."""
        write_bytes(folder / PLAN, (json.dumps(asdict(self), indent=2) + "\n").encode("utf-8"))


def read_plan(folder: Path) -> Plan | None:
    """The plan in a demo's folder; None where there is none that can be read."""
    try:
        data = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        train, play = Forecast(**data.pop("train")), Forecast(**data.pop("eval"))
        return Plan(**data, train=train, eval=play)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def make_plan(config: DemoConfig, state: State, probes: Mapping[str, Ended], *, most_ticks: int, cores: int) -> Plan:
    """Read what the trials measured.

    Args:
        config: settings.
        state: of the demo; its recording is done.
        probes: how the trial of "train" and that of "eval" ended.
        most_ticks: after which an episode is cut off.
        cores: of this machine.

    Raises:
        MimeticError: a file of the trials cannot be read.
    """
    folder, data = plan_folder(config), dataset_folder(config)
    try:
        steps, step_s = _training(folder / "train" / METRICS_JSONL)
        tick_s, video_bytes = _playing(folder / "eval")
        lengths = sorted(int(one["length"]) for one in _json(data / SIMULATION_JSON)["episodes"])
        frames = int(_json(data / INFO_JSON)["total_frames"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        raise MimeticError(
            f"the trials in {folder} cannot be read, so nothing can be planned: {type(error).__name__}: {error}",
            "run the same command again: they are repeated",
        ) from error
    ticks_per_s = places_of(config, cores) / tick_s
    # What happens once (imports, opening files, the first steps, saving) is what the trial took beside its steps.
    once = max(0.0, probes["train"].seconds - steps * step_s)
    train_s = once + steps_of(config) * step_s
    played = sum(int(one["length"]) for one in _lines(folder / "eval" / "episodes.jsonl"))
    once = max(0.0, probes["eval"].seconds - played / ticks_per_s)
    whole = config.n_episodes / ticks_per_s
    recording = state.steps["record"]
    is_whole = recording.parts == 1 and recording.seconds > 0  # of a recording in parts, some time is not known
    films = min(VIDEOS, config.n_episodes) * video_bytes * lengths[len(lengths) // 2]
    return Plan(
        frames=frames,
        frames_per_s=frames / recording.seconds if is_whole else 0.0,
        step_s=step_s,
        ticks_per_s=ticks_per_s,
        train=Forecast(
            seconds=train_s,
            seconds_at_most=train_s,
            memory_gb=probes["train"].memory_gb,
            # The newest checkpoint goes after the next one is complete.
            disk_bytes=2.0 * size_of(folder / "train" / CHECKPOINTS_DIR),
        ),
        eval=Forecast(
            seconds=once + whole * lengths[len(lengths) // 2],
            seconds_at_most=once + whole * most_ticks,
            memory_gb=probes["eval"].memory_gb,
            disk_bytes=films + 3 * config.n_episodes * _STRIP,
        ),
    )


def require_disk(plan: Plan, folder: Path) -> None:
    """Refuse to go on where the disk will not suffice.

    Raises:
        ConfigError: too little is free.
    """
    needed = plan.train.disk_bytes + plan.eval.disk_bytes + _SPARE
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"training and evaluation need about {size_words(needed)} in {folder}, and {size_words(free)} are free",
            "free some space and run the same command again, or move the folder to another disk and name it with "
            "`--output_dir`",
        )


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; symbolic links count nothing."""
    if not path.is_dir():
        return path.stat().st_size if path.is_file() else 0
    return sum(
        (Path(root) / name).stat().st_size
        for root, _, names in os.walk(path)
        for name in names
        if not (Path(root) / name).is_symlink()
    )


def size_words(size: float) -> str:
    """Bytes as people say them: 134000000 -> 134 MB."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def time_words(seconds: float) -> str:
    """Seconds as people say them: 75 -> 1 min 15 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _training(path: Path) -> tuple[int, float]:
    """Steps of the trial, and the mean time of a step after the first log line's [s]."""
    windows = [one for one in _lines(path) if one.get("kind") == "train"]
    steps = [int(one["steps"]) for one in windows]
    later = windows[1:] or windows
    return steps[-1], sum(float(one["step_s"]) for one in later) / len(later)


def _playing(folder: Path) -> tuple[float, float]:
    """Time of a tick of one of the episodes that run at once [s], and bytes of film a tick."""
    episodes = _lines(folder / "episodes.jsonl")
    ticks = sum(int(one["length"]) for one in episodes)
    filmed = [one for one in episodes if one.get("video")]
    film_ticks = sum(int(one["length"]) for one in filmed)
    film_bytes = sum(size_of(folder / str(one["video"])) for one in filmed)
    return sum(float(one["wall_s"]) for one in episodes) / ticks, film_bytes / max(1, film_ticks)


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(_objects(path.read_text(encoding="utf-8").splitlines()))


def _objects(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        if line:
            yield json.loads(line)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
