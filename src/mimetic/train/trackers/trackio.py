"""The numbers of a run written to trackio, a database on this machine with a page to look at it.

Nothing goes over the network and no server starts; `trackio show` opens the page whenever somebody asks.
What it leaves out: checkpoints. trackio cannot take points back: after a kill, the steps between the last checkpoint
and the kill appear twice.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mimetic.config.codec import encode
from mimetic.errors import MissingExtra, TrainingError
from mimetic.names import METRICS_JSONL
from mimetic.train.config import TrainConfig
from mimetic.train.state import write_json
from mimetic.train.tracker_config import TrackioConfig
from mimetic.train.trackers.tracker import named_values
from mimetic.train.trackers.worker import Worker, deadline_after

logger = logging.getLogger(__name__)

TRACKIO_RUN_JSON = "trackio_run.json"
"""In a run's folder: its project and name in trackio."""
_WITHOUT = f"leave out `--trackio.enable=true`: the same values stand in {METRICS_JSONL}"
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables that would make trackio send the run to another machine."""


class TrackioTracker:
    """A run of trackio.

    Args:
        run: what `trackio.init` returned.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._worker = Worker("trackio")

    def write(self, record: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        values = named_values(record)
        if values:
            step = int(record["steps"])
            self._worker.put(lambda: self._run.log(values, step=step))

    def saved(self, folder: Path, step: int) -> None:
        """See `Tracker`; checkpoints stay where they are."""

    def close(self, *, exit_code: int) -> None:
        """See `Tracker`."""
        self._worker.put(lambda: self._run.finish())
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that it uploads, which it does not
            self._worker.close(deadline_after(exit_code), hint="is its database on a disk that answers?")


def require_trackio(config: TrackioConfig) -> None:
    """Check, before anything else is done, that logging to trackio can start.

    Args:
        config: settings; nothing is checked unless they enable it.

    Raises:
        MissingExtra: trackio is not installed.
        TrainingError: the folder of its database cannot be written.
    """
    if not config.enable:
        return
    place = Path(_import().TRACKIO_DIR)
    try:
        place.mkdir(parents=True, exist_ok=True)
        probe = place / f".mimetic-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as error:  # trackio itself would go on without a word
        raise TrainingError(
            f"`--trackio.enable=true`: trackio's folder {place} cannot be written: {error.strerror or error}",
            f"choose another one with the environment variable TRACKIO_DIR, or {_WITHOUT}",
        ) from error


def open_trackio(config: TrainConfig, folder: Path, *, resumes: bool) -> TrackioTracker:
    """Start a run of trackio, or go on with the one that belongs to a resumed run.

    Args:
        config: complete settings of the training.
        folder: output folder, which exists; the name of trackio's run is stored in it.
        resumes: whether the training is resumed.

    Raises:
        MissingExtra: trackio is not installed.
        TrainingError: trackio could not start the run.
    """
    trackio = _import()
    known = _stored_name(folder, config.trackio.project) if resumes else None
    # trackio knows a run by its name, so two trainings must never share one.
    name = known or f"{config.job_name}-{uuid.uuid4().hex[:6]}"
    # In a context of its own, or trackio would finish the run once more, aloud, when Python ends.
    context = contextvars.copy_context()
    try:
        with contextlib.redirect_stdout(io.StringIO()), _on_this_machine():
            run = context.run(
                trackio.init,
                project=config.trackio.project,
                name=name,
                config=encode(config, full=True),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        write_json(folder / TRACKIO_RUN_JSON, {"project": config.trackio.project, "name": name})
    except Exception as error:
        raise TrainingError(f"trackio could not start the run: {error}", _WITHOUT) from error
    logger.info(
        'trackio: %s, %s, in %s; `trackio show --project "%s"` opens it',
        "the run goes on" if known else "a new run",
        name,
        trackio.TRACKIO_DIR,
        config.trackio.project,
    )
    return TrackioTracker(run)


@contextlib.contextmanager
def _on_this_machine() -> Iterator[None]:
    """Hide the variables that send runs elsewhere: a training must not depend on a server."""
    hidden = {name: os.environ.pop(name) for name in _ELSEWHERE if name in os.environ}
    for name in hidden:
        logger.info("trackio: %s is not followed, runs stay on this machine; `trackio sync` sends them later", name)
    try:
        yield
    finally:
        os.environ.update(hidden)


def _import() -> Any:
    try:
        import trackio

        if not hasattr(trackio, "init"):
            raise ImportError("Python finds only a folder of that name")
    except ImportError as error:
        raise MissingExtra(
            f"`--trackio.enable=true` needs the package `trackio`, which cannot be imported: {error}",
            f'`pip install "mimetic[trackio]"`, or {_WITHOUT}',
        ) from error
    return trackio


def _stored_name(folder: Path, project: str) -> str | None:
    """Name of trackio's run of a training; None where it has none in this project."""
    try:
        stored = json.loads((folder / TRACKIO_RUN_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stored = None
    if isinstance(stored, dict) and stored.get("project") == project and isinstance(stored.get("name"), str):
        return str(stored["name"]) or None
    logger.info("trackio: %s has no run in the project %s yet, so a new one begins", folder, project)
    return None
