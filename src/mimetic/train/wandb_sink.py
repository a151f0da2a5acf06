"""The numbers of a run sent to Weights & Biases too, under LeRobot's names (spec/training.md 13).

`metrics.jsonl` is the record, this is a copy to look at. What cannot work is refused before the first step; after it,
nothing here holds up or ends a training: a thread of its own hands the values over, and a failure costs one warning.

What it leaves out: checkpoints are not uploaded as artifacts.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from mimetic.config.codec import encode
from mimetic.errors import ConfigError, MissingExtra, TrainingError
from mimetic.names import METRICS_JSONL, WANDB_RUN_JSON
from mimetic.train.config import TrainConfig
from mimetic.train.state import write_json
from mimetic.train.tracker_config import WandbConfig

logger = logging.getLogger(__name__)

_PATIENCE = 60.0
"""How long the end of a run waits for wandb to send what is left [s]."""
_LONGEST_TAG = 64
_WITHOUT = "leave out `--wandb.enable=true`: the same values stand in metrics.jsonl"
_OFFLINE = f"or keep the values on this machine with `--wandb.mode=offline`, or {_WITHOUT}"
_PREFIXES = {"train": "train", "heldout": "eval"}


class WandbSink:
    """Hands records to a run of wandb, in a thread, until that fails once.

    Args:
        run: what `wandb.init` returned.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._is_abandoned = False
        self._queue: SimpleQueue[tuple[dict[str, float], int] | int] = SimpleQueue()
        self._thread = Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def write(self, record: Mapping[str, Any]) -> None:
        """Queue the scalars of one record of `metrics.jsonl`; returns at once."""
        values = named_values(record)
        if values:
            self._queue.put((values, int(record["steps"])))

    def close(self, *, exit_code: int) -> None:
        """Finish the run, and wait up to a minute for what is left to be sent.

        Args:
            exit_code: 0 when the training ended well.
        """
        self._queue.put(exit_code)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._is_abandoned = True
            place = Path(self._run.dir).parent
            logger.warning("wandb has not sent everything after %.0f s; `wandb sync %s` sends it", _PATIENCE, place)

    def _work(self) -> None:
        try:
            while not isinstance(item := self._queue.get(), int):
                values, step = item
                self._run.log(values, step=step)
            self._run.finish(exit_code=item)
        except Exception as error:  # whatever it is: a training is worth more than its copy
            if not self._is_abandoned:  # then it is reported already
                reason = str(error) or type(error).__name__
                logger.warning(
                    "wandb failed and gets nothing more of this run: %s; %s has it all", reason, METRICS_JSONL
                )


def named_values(record: Mapping[str, Any]) -> dict[str, float]:
    """Scalars of a record of `metrics.jsonl` under LeRobot's names, such as `train/loss` and `eval/eval_loss`."""
    prefix = _PREFIXES.get(record.get("kind", ""))
    if prefix is None:
        return {}
    scalars = {name: value for name, value in record.items() if isinstance(value, (int, float))}
    if prefix == "eval":
        del scalars["steps"]
    return {f"{prefix}/{name}": value for name, value in scalars.items()}


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
    wandb = _import()
    if wandb_mode(config) == "offline":
        return
    try:
        is_logged_in = wandb.login(prompt=False)
    except TypeError:  # an older wandb has no `prompt`, and says itself at the start that nobody is logged in
        return
    except Exception as error:  # its own error classes, of a package that may be absent
        raise ConfigError(
            f"`--wandb.enable=true`: wandb refuses the login: {error}", f"`wandb login`, {_OFFLINE}"
        ) from error
    if not is_logged_in:
        raise ConfigError(
            "`--wandb.enable=true`: nobody is logged in to wandb on this machine (no WANDB_API_KEY, no ~/.netrc)",
            f"`wandb login`, {_OFFLINE}",
        )


def wandb_mode(config: WandbConfig) -> str:
    """online, offline or disabled: the flag, else the environment variable WANDB_MODE, else online."""
    mode = config.mode or os.environ.get("WANDB_MODE", "")
    return mode if mode in ("offline", "disabled") else "online"


def open_wandb(config: TrainConfig, folder: Path, *, resumes: bool) -> WandbSink | None:
    """Start a run of wandb, or go on with the one that belongs to a resumed run.

    Args:
        config: complete settings of the training.
        folder: output folder, made here; the id of wandb's run is stored in it. When wandb cannot start, a new run
            leaves no folder, so that its command can be repeated.
        resumes: whether the training is resumed.

    Returns:
        None when logging is off.

    Raises:
        MissingExtra: wandb is not installed.
        TrainingError: wandb could not start the run, or the folder cannot be written.
    """
    if not config.wandb.enable:
        return None
    if wandb_mode(config.wandb) == "disabled":
        logger.info("wandb: nothing is logged (mode disabled)")
        return None
    wandb = _import()
    known = config.wandb.run_id or (_stored_id(folder) if resumes else None)
    try:
        folder.mkdir(parents=True, exist_ok=resumes)
    except OSError as error:
        raise TrainingError(
            f"the run's folder {folder} cannot be made: {error.strerror}", "choose another place with `--output_dir`"
        ) from error
    try:
        run = wandb.init(**_init_arguments(config, folder, known, resumes))
        place = {"id": run.id, "project": config.wandb.project, "entity": config.wandb.entity}
        write_json(folder / WANDB_RUN_JSON, place)
    except BaseException as error:
        if not resumes:
            shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        raise TrainingError(f"wandb could not start the run: {error}", _OFFLINE.removeprefix("or ")) from error
    _announce(run, config.wandb, folder, is_continued=bool(resumes and known))
    return WandbSink(run)


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
        "settings": {"silent": True},
    }


def run_tags(config: TrainConfig) -> list[str]:
    """Tags of the run: policy, seed and dataset, each at most 64 characters long."""
    tags = [] if config.policy is None else [f"policy:{config.policy.type_name}"]
    tags += [] if config.seed is None else [f"seed:{config.seed}"]
    tags.append(f"dataset:{config.dataset.repo_id}")
    return [tag[:_LONGEST_TAG] for tag in tags]


def _announce(run: Any, config: WandbConfig, folder: Path, *, is_continued: bool) -> None:
    what = "the run goes on" if is_continued else "a new run"
    if wandb_mode(config) == "offline":
        place = Path(run.dir).parent
        logger.info("wandb: %s, id %s, offline; `wandb sync %s` sends it later", what, run.id, place)
    else:
        logger.info("wandb: %s, id %s, at %s", what, run.id, run.url)
    if not config.disable_artifact:
        logger.info(
            "wandb: checkpoints are not uploaded (as with --wandb.disable_artifact=true); they are in %s", folder
        )


def _import() -> Any:
    try:
        import wandb
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
