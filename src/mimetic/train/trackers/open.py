"""All trackers of a run as one (spec/training.md 13)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mimetic.errors import TrainingError
from mimetic.names import METRICS_JSONL
from mimetic.train.config import TrainConfig
from mimetic.train.trackers.tensorboard import open_tensorboard, require_tensorboard
from mimetic.train.trackers.tracker import Tracker
from mimetic.train.trackers.trackio import open_trackio, require_trackio
from mimetic.train.trackers.wandb import open_wandb, require_wandb, wandb_mode

logger = logging.getLogger(__name__)


class Trackers:
    """Several trackers as one, none of which can disturb the training or another one.

    Args:
        trackers: the trackers; none is fine.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def __len__(self) -> int:
        return len(self._trackers)

    def write(self, record: Mapping[str, Any]) -> None:
        """Copy the scalars of one record of `metrics.jsonl`; returns at once and never fails."""
        self._each(lambda tracker: tracker.write(record))

    def saved(self, folder: Path, step: int) -> None:
        """Tell that a checkpoint is complete; returns at once and never fails.

        Args:
            folder: the checkpoint, `<run>/checkpoints/<step>`; it may be removed right after.
            step: steps done.
        """
        self._each(lambda tracker: tracker.saved(folder, step))

    def close(self, *, exit_code: int) -> None:
        """Hand over what is left, for a limited time; never fails, and does nothing the second time.

        Args:
            exit_code: 0 when the training ended well.
        """
        self._each(lambda tracker: tracker.close(exit_code=exit_code))
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # whatever it is: a training is worth more than its copy
                self._trackers.remove(tracker)
                logger.warning(
                    "%s failed and gets nothing more of this run: %s; %s has it all",
                    type(tracker).__name__,
                    str(error) or type(error).__name__,
                    METRICS_JSONL,
                    exc_info=logger.isEnabledFor(logging.DEBUG),
                )


def require_trackers(config: TrainConfig) -> None:
    """Check, before anything else is done, that every tracker that the settings enable can start.

    Raises:
        MissingExtra: a package is not installed.
        ConfigError: nobody is logged in to wandb.
        TrainingError: the folder of trackio's database cannot be written.
    """
    require_wandb(config.wandb)
    require_trackio(config.trackio)
    require_tensorboard(config.tensorboard)


def open_trackers(config: TrainConfig, folder: Path, *, resumes: bool, step: int = 0) -> Trackers:
    """Start every tracker that the settings enable.

    Args:
        config: complete settings of the training.
        folder: output folder of the run, made here when it is absent and a tracker needs it. When a tracker cannot
            start, a folder that was made here is gone again, so that the command can be repeated.
        resumes: whether the training is resumed.
        step: steps done before.

    Raises:
        MissingExtra: a package is not installed.
        TrainingError: a tracker could not start, or the folder cannot be made.
    """
    openers: list[Callable[[], Tracker]] = []
    if config.wandb.enable and wandb_mode(config.wandb) == "disabled":
        logger.info("wandb: nothing is logged (mode disabled)")
    elif config.wandb.enable:
        openers.append(lambda: open_wandb(config, folder, resumes=resumes))
    if config.trackio.enable:
        openers.append(lambda: open_trackio(config, folder, resumes=resumes))
    if config.tensorboard.enable:
        openers.append(lambda: open_tensorboard(config, folder, resumes=resumes, step=step))
    if not openers:
        return Trackers()
    made, opened = _make(folder), list[Tracker]()
    try:
        for opener in openers:
            opened.append(opener())
    except BaseException:  # Ctrl-C while wandb waits for its server, too
        Trackers(opened).close(exit_code=1)
        if made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Trackers(opened)


def _make(folder: Path) -> bool:
    """Make the folder; returns whether it was absent."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise TrainingError(
            f"the run's folder {folder} cannot be made: {error.strerror}", "choose another place with `--output_dir`"
        ) from error
    return True
