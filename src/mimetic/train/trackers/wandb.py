"""The numbers of a run sent to Weights & Biases, under LeRobot's names (spec/training.md 13)."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic.config.codec import encode
from mimetic.errors import ConfigError, MissingExtra, TrainingError
from mimetic.names import METRICS_JSONL, WANDB_RUN_JSON
from mimetic.train.config import TrainConfig
from mimetic.train.state import write_json
from mimetic.train.tracker_config import WandbConfig
from mimetic.train.trackers.artifacts import Artifacts
from mimetic.train.trackers.tracker import named_values
from mimetic.train.trackers.worker import Worker, deadline_after

logger = logging.getLogger(__name__)

FINISH_S = 30.0
"""How long wandb itself tries to send what is left at the end of a run [s]."""
_MARGIN_S = 10.0
_LONGEST_TAG = 64
_WITHOUT = f"leave out `--wandb.enable=true`: the same values stand in {METRICS_JSONL}"
_OFFLINE = f"keep the values on this machine with `--wandb.mode=offline`, or {_WITHOUT}"


class WandbTracker:
    """A run of wandb.

    Args:
        run: what `wandb.init` returned.
        artifacts: takes the checkpoints; None: they are not wanted.
    """

    def __init__(self, run: Any, artifacts: Artifacts | None = None) -> None:
        self._run = run
        self._artifacts = artifacts
        self._worker = Worker("wandb")

    def write(self, record: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        values = named_values(record)
        if values:
            step = int(record["steps"])
            self._worker.put(lambda: self._run.log(values, step=step))

    def saved(self, folder: Path, step: int) -> None:
        """See `Tracker`."""
        if self._artifacts is not None:
            self._artifacts.take(folder)

    def close(self, *, exit_code: int) -> None:
        """See `Tracker`."""
        hint = f"`wandb sync --include-online {Path(self._run.dir).parent}` sends it"
        if self._artifacts is not None:
            self._artifacts.close(deadline_after(exit_code, longer_s=self._artifacts.waiting_s()))
        # Even when uploads hang: a run that is not finished holds up the end of Python until they are through.
        self._worker.put(lambda: self._finish(exit_code, hint))
        self._worker.close(time.monotonic() + FINISH_S + _MARGIN_S, hint=hint)

    def _finish(self, exit_code: int, hint: str) -> None:
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError:
            logger.warning("wandb has not taken everything after %.0f s; %s", FINISH_S, hint)


def require_wandb(config: WandbConfig) -> None:
    """Check, before anything else is done, that logging to wandb can start.

    Args:
        config: settings; nothing is checked unless they enable it.

    Raises:
        MissingExtra: wandb is not installed.
        ConfigError: nobody is logged in, or the login is refused.
    """
    if not config.enable or wandb_mode(config) == "disabled":
        return
    wandb = _import(config)
    if wandb_mode(config) == "offline":
        return
    try:
        is_logged_in = wandb.login(prompt=False)
    except TypeError:  # an older wandb has no `prompt`, and says itself at the start that nobody is logged in
        return
    except Exception as error:  # its own error classes, of a package that may be absent
        raise ConfigError(
            f"`--wandb.enable=true`: wandb refuses the login: {error}", f"`wandb login`, or {_OFFLINE}"
        ) from error
    if not is_logged_in:
        raise ConfigError(
            "`--wandb.enable=true`: nobody is logged in to wandb on this machine (no WANDB_API_KEY, no ~/.netrc)",
            f"`wandb login`, or {_OFFLINE}",
        )


def wandb_mode(config: WandbConfig) -> str:
    """online, offline or disabled: the flag, else the environment variable WANDB_MODE, else online."""
    mode = config.mode or os.environ.get("WANDB_MODE", "")
    return mode if mode in ("offline", "disabled") else "online"


def open_wandb(config: TrainConfig, folder: Path, *, resumes: bool) -> WandbTracker:
    """Start a run of wandb, or go on with the one that belongs to a resumed run.

    Args:
        config: complete settings of the training.
        folder: output folder, which exists; the id of wandb's run is stored in it.
        resumes: whether the training is resumed.

    Raises:
        MissingExtra: wandb is not installed.
        TrainingError: wandb could not start the run.
    """
    wandb = _import(config.wandb)
    known = config.wandb.run_id or (_stored_id(folder) if resumes else None)
    try:
        run = wandb.init(**_init_arguments(config, folder, known, resumes), settings=_settings(wandb))
        place = {"id": run.id, "project": config.wandb.project, "entity": config.wandb.entity}
        write_json(folder / WANDB_RUN_JSON, place)
    except Exception as error:
        raise TrainingError(f"wandb could not start the run: {error}", _OFFLINE) from error
    is_offline = wandb_mode(config.wandb) == "offline"
    what = "the run goes on" if resumes and known else "a new run"
    if is_offline:
        place_here = Path(run.dir).parent
        logger.info("wandb: %s, id %s, offline; `wandb sync %s` sends it later", what, run.id, place_here)
    else:
        logger.info("wandb: %s, id %s, at %s", what, run.id, run.url)
    if config.wandb.disable_artifact:
        return WandbTracker(run)
    return WandbTracker(run, Artifacts(wandb, run, run_tags(config), is_offline=is_offline))


def _init_arguments(config: TrainConfig, folder: Path, run_id: str | None, resumes: bool) -> dict[str, Any]:
    """What `wandb.init` gets, as from LeRobot."""
    return {
        "id": run_id,
        "project": config.wandb.project,
        "entity": config.wandb.entity,
        "name": config.job_name,
        "notes": config.wandb.notes,
        "tags": run_tags(config) if config.wandb.add_tags else None,
        "dir": str(folder),
        "config": encode(config, full=True),
        "save_code": False,
        "job_type": "train_eval",
        # Not "must" as in LeRobot: a run that was offline so far is not known to the server.
        "resume": "allow" if resumes and run_id else None,
        "mode": wandb_mode(config.wandb),
    }


def _settings(wandb: Any) -> dict[str, Any]:
    known = getattr(getattr(wandb, "Settings", None), "model_fields", {})
    # Without it, a connection that hangs would hold up the end of Python for good. Older versions have no such limit.
    limit = {"finish_timeout": FINISH_S, "finish_timeout_raises": True}
    return {"silent": True} | (limit if limit.keys() <= known.keys() else {})


def run_tags(config: TrainConfig) -> list[str]:
    """Tags of the run: policy, seed and dataset, each at most 64 characters long."""
    tags = [] if config.policy is None else [f"policy:{config.policy.type_name}"]
    tags += [] if config.seed is None else [f"seed:{config.seed}"]
    tags.append(f"dataset:{config.dataset.repo_id}")
    return [tag[:_LONGEST_TAG] for tag in tags]


def _import(config: WandbConfig) -> Any:
    if wandb_mode(config) == "offline":
        # The package would send reports about itself even then; it reads this when it is imported.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        import wandb

        if not hasattr(wandb, "init"):
            raise ImportError("Python finds only a folder of that name")  # wandb leaves one wherever it has run
    except ImportError as error:
        raise MissingExtra(
            f"`--wandb.enable=true` needs the package `wandb`, which cannot be imported: {error}",
            f'`pip install "mimetic[wandb]"`, or {_WITHOUT}',
        ) from error
    return wandb


def _stored_id(folder: Path) -> str | None:
    """Id of wandb's run of a training: from our file, else from the folder that LeRobot's runs leave."""
    try:
        stored = json.loads((folder / WANDB_RUN_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = None
    if isinstance(stored, dict) and isinstance(stored.get("id"), str) and stored["id"]:
        return str(stored["id"])
    for path in sorted((folder / "wandb" / "latest-run").glob("run-*.wandb")):
        return path.stem.removeprefix("run-")
    logger.info("wandb: %s has no run there yet, so a new one begins", folder)
    return None
