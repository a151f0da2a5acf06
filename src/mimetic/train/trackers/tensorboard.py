"""The numbers of a run written for TensorBoard, into `tensorboard/` of the run's folder.

What it leaves out: checkpoints.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic.config.codec import encode
from mimetic.errors import MissingExtra, TrainingError
from mimetic.names import METRICS_JSONL
from mimetic.train.config import TrainConfig
from mimetic.train.tracker_config import TensorBoardConfig
from mimetic.train.trackers.tracker import named_values
from mimetic.train.trackers.worker import Worker, deadline_after

logger = logging.getLogger(__name__)

TENSORBOARD_DIR = "tensorboard"
_FLUSH_S = 30
_WITHOUT = f"leave out `--tensorboard.enable=true`: the same values stand in {METRICS_JSONL}"


class TensorBoardTracker:
    """A file of TensorBoard's events.

    Args:
        writer: a `SummaryWriter` of torch.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._worker = Worker("TensorBoard")

    def write(self, record: Mapping[str, Any]) -> None:
        """See `Tracker`."""
        values = named_values(record)
        if values:
            step = int(record["steps"])
            self._worker.put(lambda: self._add(values, step))

    def saved(self, folder: Path, step: int) -> None:
        """See `Tracker`; checkpoints stay where they are."""

    def close(self, *, exit_code: int) -> None:
        """See `Tracker`."""
        self._worker.put(lambda: self._writer.close())
        self._worker.close(deadline_after(exit_code), hint="is the run's folder on a disk that answers?")

    def _add(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


def require_tensorboard(config: TensorBoardConfig) -> None:
    """Check, before anything else is done, that TensorBoard's files can be written.

    Args:
        config: settings; nothing is checked unless they enable it.

    Raises:
        MissingExtra: tensorboard is not installed.
    """
    if config.enable:
        _import()


def open_tensorboard(config: TrainConfig, folder: Path, *, resumes: bool, step: int) -> TensorBoardTracker:
    """Begin a file of events, with the settings as a text.

    Args:
        config: complete settings of the training.
        folder: output folder, which exists.
        resumes: whether the training is resumed.
        step: steps done before; TensorBoard forgets the points after it that an earlier attempt left.

    Raises:
        MissingExtra: tensorboard is not installed.
        TrainingError: the file cannot be written.
    """
    place = folder / TENSORBOARD_DIR
    try:
        writer = _import()(log_dir=str(place), purge_step=step + 1 if resumes else None, flush_secs=_FLUSH_S)
        # Indented by four: TensorBoard shows texts as Markdown.
        text = json.dumps(encode(config, full=True), indent=2)
        writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()), step)
    except Exception as error:
        raise TrainingError(f"TensorBoard's file could not be begun in {place}: {error}", _WITHOUT) from error
    logger.info("TensorBoard: `tensorboard --logdir %s` opens it", place)
    return TensorBoardTracker(writer)


def _import() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra(
            f"`--tensorboard.enable=true` needs the package `tensorboard`, which cannot be imported: {error}",
            f'`pip install "mimetic[tensorboard]"`, or {_WITHOUT}',
        ) from error
    return SummaryWriter
