"""Whether the checkpoints of a run fit on its disk (spec/training.md 24.3).

The system tells what is free on a disk, not what a quota leaves to one user; a save that meets a quota fails with its
own message.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from mimetic.errors import CheckpointError, TrainingError
from mimetic.names import CHECKPOINTS_DIR
from mimetic.train.checkpoint import newest_name, step_folders
from mimetic.train.config import TrainConfig

logger = logging.getLogger(__name__)

_OVERHEAD = 1 << 20
"""Room for configurations, statistics and generators beside the tensors [bytes]."""


@dataclass(frozen=True)
class SpacePlan:
    """What the checkpoints of a run will need.

    Args:
        each: size of one checkpoint [bytes].
        to_write: checkpoints that the run writes from now on, best ones not counted.
        to_stay: of these, how many are on the disk at the end.
        free: space on the disk now [bytes].
    """

    each: int
    to_write: int
    to_stay: int
    free: int

    def __str__(self) -> str:
        stay = f", {self.to_stay} of them stay" if self.to_stay < self.to_write else ""
        return f"checkpoints: {size_text(self.each)} each, {self.to_write} to write{stay}, {size_text(self.free)} free"


def check_space(folder: Path, each: int, config: TrainConfig, *, step: int) -> SpacePlan:
    """Compare the checkpoints of a run with the free space, and say the plan once.

    A run with retention needs room for one more than it keeps, since the new one is written before an old one goes.

    Args:
        folder: folder of the run; need not exist.
        each: size of one checkpoint [bytes].
        config: settings of the run.
        step: step that the run starts from.

    Raises:
        TrainingError: not even two checkpoints fit (or the only one that is written).
    """
    parent = folder / CHECKPOINTS_DIR
    writes = _steps_to_save(config, step)
    plan = SpacePlan(each, len(writes), _count_kept(config, writes), free_bytes(folder))
    most = len(writes)
    if config.keep.last or config.keep.best:  # what is there already makes room when newer ones come
        kept = _count_kept(config, _steps_to_save(config, 0))
        most = min(most, max(1, kept + 1 - len(step_folders(parent))))
    least = min(2, most)
    if plan.free < least * each:
        raise TrainingError(
            f"the disk of {folder} has {size_text(plan.free)} free, and a checkpoint of this run takes about "
            f"{size_text(each)}: not even {_COUNTS[least]} would fit",
            "make room there, choose another disk with `--output_dir`, or save none with `--save_checkpoint=false`",
        )
    logger.info("%s", plan)
    if plan.free < most * each:
        logger.warning(
            "%d checkpoints of %s each will not fit into the %s that are free; keep fewer with --keep.last=2, or save "
            "less often with --save_freq",
            most,
            size_text(each),
            size_text(plan.free),
        )
    return plan


_COUNTS = {1: "one", 2: "two"}


def require_space(parent: Path, step: int, each: int) -> None:
    """Refuse to begin a checkpoint that will not fit, since a disk that runs full harms everybody on it.

    Args:
        parent: `checkpoints/` of the run.
        step: step of the checkpoint.
        each: its size [bytes].

    Raises:
        CheckpointError: too little is free; names the step to resume from.
    """
    free = free_bytes(parent)
    if free >= each:
        return
    newest = newest_name(parent)
    raise CheckpointError(
        f"the checkpoint of step {step} takes about {size_text(each)}, and the disk of {parent} has "
        f"{size_text(free)} free",
        "make room there, then " + (f"resume from step {int(newest)}" if newest else "start again"),
    )


def require_writable(folder: Path) -> None:
    """Write a file into the run's folder, and into its `checkpoints` if there are any, and remove it.

    Permissions tell too little (read-only disks, access lists, quotas), and the first checkpoint may be hours away.

    Args:
        folder: folder of the run; must exist.

    Raises:
        TrainingError: a folder takes no files.
    """
    checkpoints = folder / CHECKPOINTS_DIR
    for place in (folder, checkpoints) if checkpoints.exists() else (folder,):
        probe = place / f".saving-probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(b"\0" * 4096)
                os.fsync(file.fileno())
        except OSError as error:
            raise TrainingError(
                f"no checkpoint could be written to {place}: {error.strerror or error}",
                "change its permissions, make room there, or choose another place with `--output_dir`",
            ) from error
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder [bytes]."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def newest_bytes(parent: Path) -> int | None:
    """Size of the newest complete checkpoint in `checkpoints/` [bytes]; None when there is none."""
    newest = newest_name(parent)
    return None if newest is None else folder_bytes(parent / newest)


def estimate_bytes(module: nn.Module, optimizer: Optimizer, *, only_trainable: bool = False, copies: int = 1) -> int:
    """Size of a checkpoint before the first one is written [bytes]; from above, but for small files hardly too high.

    Args:
        module: what is trained.
        optimizer: its state counts as it is, or before the first update as what its kind will have.
        only_trainable: only trained parameters are stored (an adapter).
        copies: how many times the weights are stored (2 with averaged weights).
    """
    if only_trainable:
        weights = _bytes(parameter for parameter in module.parameters() if parameter.requires_grad)
    else:
        weights = _bytes(value for value in module.state_dict().values() if isinstance(value, Tensor))
    return copies * weights + _optimizer_bytes(optimizer) + _OVERHEAD


def _optimizer_bytes(optimizer: Optimizer) -> int:
    if optimizer.state:
        return _bytes(v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    total = 0
    for group in optimizer.param_groups:
        # Adam's kind keeps two moments (three with amsgrad), SGD one with momentum.
        moments = 2 + bool(group.get("amsgrad")) if "betas" in group else int(bool(group.get("momentum")))
        total += moments * _bytes(parameter for parameter in group["params"] if parameter.requires_grad)
    return total


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Size of tensors; those that share their memory, as tied weights do, count once."""
    unique = {(tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape): tensor for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in unique.values())


def free_bytes(folder: Path) -> int:
    """Free space for this user on the disk of a folder that may not exist yet [bytes]."""
    for place in (folder.absolute(), *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except (FileNotFoundError, NotADirectoryError):
            continue
    raise FileNotFoundError(folder)  # not even the root exists


def size_text(count: float) -> str:
    """Bytes for people: "1.2 GB", "340 MB", "12 kB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _steps_to_save(config: TrainConfig, step: int) -> list[int]:
    regular = range(config.save_freq, config.steps + 1, config.save_freq) if config.save_freq > 0 else range(0)
    steps = [s for s in regular if s > step]
    return steps if steps and steps[-1] == config.steps else [*steps, config.steps]


def _count_kept(config: TrainConfig, writes: list[int]) -> int:
    keep = config.keep
    if not (keep.last or keep.best):
        return len(writes)
    kept = set(writes[-max(1, keep.last) :])
    if keep.every:
        kept |= {step for step in writes if step % keep.every == 0}
    measurements = config.steps // config.eval_steps if config.eval_steps > 0 else 0
    return len(kept) + min(keep.best, measurements)
