"""What a run leaves: its folder, its checkpoints, and what happens to a checkpoint that is written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mimetic.config.codec import encode
from mimetic.config.effective import as_json, effective
from mimetic.errors import CheckpointError, TrainingError
from mimetic.log import JsonLines
from mimetic.names import CHECKPOINTS_DIR, METRICS_JSONL, TRAINING_STATE_DIR
from mimetic.train.begin import Trained
from mimetic.train.checkpoint import Saved, check_last, clean_leftovers, save_checkpoint, set_later_aside
from mimetic.train.disk_space import estimate_bytes, newest_bytes, require_space, require_writable
from mimetic.train.ema import save_ema
from mimetic.train.metrics import drop_torn_line
from mimetic.train.model import Model
from mimetic.train.push import Pusher
from mimetic.train.resolve import Resolved
from mimetic.train.retention import point_best, prune
from mimetic.train.state import Progress, write_json
from mimetic.train.trackers.open import Trackers

logger = logging.getLogger(__name__)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run left half-written or half-removed among its checkpoints, and say so."""
    for name in clean_leftovers(folder / CHECKPOINTS_DIR):
        logger.info("Removed %s, a checkpoint that was being written or removed when the run was killed", name)


def prepare_folder(resolved: Resolved, step: int) -> JsonLines:
    """Make the run's folder, which exists, ready, and open its metrics file.

    Args:
        resolved: settings, and the checkpoint that is resumed.
        step: step that the run starts from.

    Raises:
        TrainingError: the folder cannot be written.
        CheckpointError: `last` is not ours.
    """
    folder, config, checkpoint = resolved.folder, resolved.config, resolved.checkpoint
    if config.save_checkpoint:
        require_writable(folder)
    try:
        checkpoints = folder / CHECKPOINTS_DIR
        check_last(checkpoints)
        remove_leftovers(folder)
        if checkpoint is not None and checkpoint.run == folder.resolve():
            set_later_aside(checkpoints, step, back_to=checkpoint.folder.name)
        name = "effective_config" if checkpoint is None else f"effective_config-resumed-{step}"
        write_json(_unused(folder, name), as_json(effective(config, resolved.origins)))
        drop_torn_line(folder / METRICS_JSONL)
        sink = JsonLines(folder / METRICS_JSONL)
        if checkpoint is not None:
            sink.write({"kind": "resume", "steps": step})
    except OSError as error:
        raise TrainingError(
            f"the run's folder {folder} cannot be written: {error.strerror or error}",
            "choose another place with `--output_dir`",
        ) from error
    return sink


def _unused(folder: Path, name: str) -> Path:
    """`<name>.json`, or with a number when an earlier attempt from the same step left one."""
    path, number = folder / f"{name}.json", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.json", number + 1
    return path


def make_saver(resolved: Resolved, model: Model, trained: Trained) -> Callable[[Progress], Path]:
    """The function that writes a checkpoint of everything and returns its folder."""
    # A resumed run is the same run: its files must not differ from those of a run that never stopped.
    config = replace(resolved.config, resume=False, checkpoint_path=None)
    extra: list[Callable[[Path], None]] = []
    ema, selection = trained.ema, trained.selection
    if ema is not None:
        extra.append(lambda step: save_ema(step, ema, model.policy, model.preprocessor, model.postprocessor))
    if selection is not None:
        extra.append(lambda step: selection.save(step / TRAINING_STATE_DIR))
    saved = Saved(
        policy=model.policy,
        preprocessor=model.preprocessor,
        postprocessor=model.postprocessor,
        optimizer=trained.optimizer,
        scheduler=trained.scheduler,
        scaler=trained.scaler,
        extra=extra,
        train_config=encode(config, layers=("lerobot", "next")),
        full_config=encode(config, full=True),
    )

    def save(progress: Progress) -> Path:
        parent = resolved.folder / CHECKPOINTS_DIR
        size = newest_bytes(parent)
        require_space(parent, progress.step, checkpoint_bytes(trained) if size is None else size)
        return save_checkpoint(resolved.folder, saved, progress, total_steps=config.steps)

    return save


def checkpoint_bytes(trained: Trained) -> int:
    """Size of a checkpoint before there is one [bytes]."""
    averages = trained.ema.averaged.values() if trained.ema is not None else ()
    return estimate_bytes(
        trained.policy,
        trained.optimizer,
        only_trainable=trained.policy.adapter is not None,
        copies=1 if trained.ema is None else 2,
    ) + sum(average.numel() * average.element_size() for average in averages)


def make_after_save(
    resolved: Resolved, trained: Trained, trackers: Trackers, pusher: Pusher | None
) -> Callable[[Path, int], None]:
    """The function that is told of each checkpoint: it is sent where it shall go, and older ones may be removed."""
    keep, parent = resolved.config.keep, resolved.folder / CHECKPOINTS_DIR

    def after_save(folder: Path, step: int) -> None:
        if pusher is not None:
            pusher.checkpoint(folder, step)
        trackers.saved(folder, step)
        best = trained.selection.ranking() if trained.selection is not None else []
        try:
            if keep.best:
                point_best(parent, best)
        except CheckpointError as error:  # the checkpoint is there; what fails is a name for it
            logger.warning("%s; %s", error.message, error.hint)
        prune(parent, keep, best=best, in_use=pusher.busy if pusher is not None else lambda path: False)

    return after_save
