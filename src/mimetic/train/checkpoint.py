"""Checkpoint folders: complete or absent, never half (spec/training.md 15.1 and 24.3).

A checkpoint is written into a hidden folder beside its place, flushed to the disk, and given its name by one rename.
Then `last` is replaced by a rename too. A kill at any instant leaves the former checkpoints and the former `last`
untouched.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic import __version__
from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.errors import CheckpointError
from mimetic.names import (
    CHECKPOINTS_DIR,
    CONFIG_JSON,
    LAST,
    LAST_TXT,
    MIMETIC_JSON,
    PRETRAINED_DIR,
    RNG_STATE,
    TRAIN_CONFIG_JSON,
    TRAINING_STATE_DIR,
    TRAINING_STEP_JSON,
)
from mimetic.policies.base import Policy
from mimetic.policies.checkpoint import save_pretrained
from mimetic.processing.pipeline import Pipeline
from mimetic.train.links import flush_folder, point
from mimetic.train.rng import save_rng
from mimetic.train.state import (
    Progress,
    save_gradients,
    save_optimizer,
    save_progress,
    save_scaler,
    save_scheduler,
    write_json,
)

logger = logging.getLogger(__name__)

_SAVING = ".saving-"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint holds besides the position.

    Args:
        policy: the policy; its gradients are stored when an accumulation is unfinished.
        preprocessor: pipeline before the policy.
        postprocessor: pipeline after the policy.
        optimizer: the optimiser.
        scheduler: the schedule, if any.
        scaler: the loss scaler, in float16.
        extra: writes what else belongs to the step into its hidden folder, before that gets its name.
        train_config: content of `train_config.json`.
        full_config: every setting, LeRobot's newer ones and mimetic's own too.
    """

    policy: Policy
    preprocessor: Pipeline
    postprocessor: Pipeline
    optimizer: Optimizer
    scheduler: LRScheduler | None
    train_config: Mapping[str, Any]
    full_config: Mapping[str, Any]
    scaler: LossScaler | None = None
    extra: Sequence[Callable[[Path], None]] = ()


def step_name(step: int, total_steps: int) -> str:
    """Folder name of a step: at least six digits, as many as the run's last step needs."""
    return f"{step:0{max(6, len(str(total_steps)))}d}"


def save_checkpoint(run_folder: Path, saved: Saved, progress: Progress, *, total_steps: int) -> Path:
    """Write one checkpoint and point `last` to it.

    Args:
        run_folder: output folder of the run.
        saved: what to write.
        progress: position of the run.
        total_steps: steps of the whole run, for the folder's name.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: the disk refused; nothing half-written stays, older checkpoints are untouched.
    """
    parent = run_folder / CHECKPOINTS_DIR
    name = step_name(progress.step, total_steps)
    temporary = parent / f"{_SAVING}{name}-{os.getpid()}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        _write(temporary, saved, progress)
        _write_manifest(temporary)
        flush_tree(temporary)
        final = parent / name
        if final.exists():
            _move_aside(final)
        temporary.rename(final)
        flush_folder(parent)
        point_last(parent, name)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        newest = newest_name(parent)
        raise CheckpointError(
            f"the checkpoint of step {progress.step} could not be written to {parent}: {reason}",
            "make room there, then " + (f"resume from step {int(newest)}" if newest else "start again"),
        ) from error
    return final


def _write(folder: Path, saved: Saved, progress: Progress) -> None:
    model, state = folder / PRETRAINED_DIR, folder / TRAINING_STATE_DIR
    model.mkdir(parents=True)
    state.mkdir()
    save_pretrained(saved.policy, model, saved.preprocessor, saved.postprocessor)
    write_json(model / TRAIN_CONFIG_JSON, saved.train_config)
    write_json(model / MIMETIC_JSON, {"format": 1, "mimetic_version": __version__, "config": saved.full_config})
    save_progress(state, progress)
    save_rng(state / RNG_STATE)
    save_optimizer(state, saved.optimizer)
    if saved.scheduler is not None:
        save_scheduler(state, saved.scheduler)
    if saved.scaler is not None:
        save_scaler(state, saved.scaler)
    if progress.micro_step:
        module: nn.Module = saved.policy
        save_gradients(state, module)
    for write in saved.extra:
        write(folder)


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    write_json(
        folder / MIMETIC_JSON,
        {
            "format": 1,
            "mimetic_version": __version__,
            "files": {
                path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
                for path in files
            },
        },
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_tree(folder: Path) -> None:
    """Make the operating system write every file and folder below `folder` to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        else:
            flush_folder(path)
    flush_folder(folder)


def _move_aside(folder: Path) -> Path:
    number = 1
    while (target := folder.with_name(f"{folder.name}.superseded-{number}")).exists():
        number += 1
    folder.rename(target)
    logger.info("Checkpoint %s of an earlier attempt is kept as %s", folder.name, target.name)
    return target


def point_last(parent: Path, name: str) -> None:
    """Make `last` mean the checkpoint `name`: a relative link, or `last.txt` where links are not allowed.

    Raises:
        CheckpointError: `last` is something else that a person put there.
    """
    check_last(parent)
    last = parent / LAST
    if last.is_dir() and not last.is_symlink():
        _move_aside(last)
    point(parent, LAST, name)


def check_last(parent: Path) -> None:
    """Refuse a `last` that is neither a link nor a copy of a checkpoint (copying a run may turn the link into one).

    Raises:
        CheckpointError: it is something else, which must not be lost.
    """
    last = parent / LAST
    if last.exists() and not last.is_symlink() and not is_complete(last):
        raise CheckpointError(
            f"{last} is a real folder, not a link to a checkpoint", f"move it away: `mv {last} {last}.old`"
        )


def is_complete(folder: Path) -> bool:
    """Whether a step folder holds all that its manifest lists; without a manifest, what every checkpoint has."""
    return not folder.name.startswith(".") and folder.is_dir() and first_lack(folder) is None


def first_lack(folder: Path) -> str | None:
    """What a step folder lacks first: a missing file, or one of another size than its manifest says; None: nothing."""
    manifest = folder / MIMETIC_JSON
    if not manifest.is_file():
        wanted = (f"{PRETRAINED_DIR}/{CONFIG_JSON}", f"{TRAINING_STATE_DIR}/{TRAINING_STEP_JSON}")
        return next((name for name in wanted if not (folder / name).is_file()), None)
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        sizes: dict[str, int] = {str(name): entry["bytes"] for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"a readable {MIMETIC_JSON}"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            return name
        if path.stat().st_size != size:
            return f"the whole of {name} ({path.stat().st_size} of {size} bytes)"
    return None


def step_folders(parent: Path) -> list[Path]:
    """Complete checkpoints in `checkpoints/`, oldest step first."""
    if not parent.is_dir():
        return []
    steps = [path for path in parent.iterdir() if path.name.isdigit() and not path.is_symlink() and is_complete(path)]
    return sorted(steps, key=lambda path: int(path.name))


def newest_name(parent: Path) -> str | None:
    """Name of the newest complete checkpoint in `checkpoints/`."""
    steps = step_folders(parent)
    return steps[-1].name if steps else None


def last_checkpoint(parent: Path) -> Path | None:
    """The checkpoint that `last` or `last.txt` names; the newest complete one when neither leads to a complete one."""
    last = parent / LAST
    named: Path | None = None
    if last.is_symlink():
        named = parent / last.readlink()
    elif (parent / LAST_TXT).is_file():
        named = parent / (parent / LAST_TXT).read_text(encoding="utf-8").strip()
    if named is not None and named.resolve().parent == parent.resolve() and is_complete(named):
        return named
    newest = newest_name(parent)
    if newest is not None and named is not None:
        logger.warning("`%s` does not lead to a complete checkpoint; taking %s, the newest complete one", last, newest)
    return parent / newest if newest else None


def clean_leftovers(parent: Path) -> list[str]:
    """Remove half-written checkpoints that a killed run left (only names that mimetic gives); returns their names."""
    removed = []
    for path in parent.glob(f"{_SAVING}*") if parent.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        removed.append(path.name)
    return removed


def set_later_aside(parent: Path, step: int, *, back_to: str) -> list[Path]:
    """Rename checkpoints of steps after `step`, so that a run continued from there does not mix with them.

    Args:
        parent: `checkpoints/`.
        step: the step that the run continues from.
        back_to: folder name of its checkpoint; `last` means it from now on, so that it never leads nowhere.
    """
    later = [path for path in step_folders(parent) if int(path.name) > step]
    if later and back_to != LAST:
        point_last(parent, back_to)
    return [_move_aside(path) for path in later]
