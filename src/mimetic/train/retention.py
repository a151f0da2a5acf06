"""Which checkpoints stay on the disk, and what the held-out losses say (`--keep.*`, `--early_stop.*`).

`Selection` remembers the losses: which step was the best, and whether to go on. It is stored with each checkpoint,
so that a resumed run decides as one that never stopped. `prune` removes checkpoints (spec/training.md 24.3): a folder
goes only when mimetic can show that it wrote all of it and no rule keeps it. It first gets a hidden name, by
one rename, and is emptied under that: a kill in between leaves no half checkpoint, and the next start removes the
rest (`checkpoint.clean_leftovers`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mimetic.errors import CheckpointError
from mimetic.names import CHECKPOINTS_DIR, LAST, MIMETIC_JSON
from mimetic.train.checkpoint import step_folders
from mimetic.train.keep_config import EarlyStopConfig, KeepConfig
from mimetic.train.links import BEST, flush_folder, named, point, unlink
from mimetic.train.state import read_json, write_json

logger = logging.getLogger(__name__)

REMOVED = ".saving-removed-"
"""Beginning of a hidden name that startup removes."""
SELECTION_JSON = "selection.json"


@dataclass(frozen=True)
class Judgement:
    """What one measurement means.

    Args:
        is_best: the loss is lower than all before; a checkpoint of this step is worth saving.
        stop: the loss has not fallen for as many measurements as the user wants to wait.
        reason: why the run stops, as a sentence for the log; empty when it goes on.
    """

    is_best: bool
    stop: bool
    reason: str = ""


@dataclass
class Selection:
    """The held-out losses of a run so far.

    Two questions, two marks: the best checkpoint is the one of the lowest loss, however small the difference;
    patience waits for a fall of more than `min_delta` below the loss that it last counted as progress.

    Args:
        early_stop: when to stop.
        keep: whether `checkpoints/best` is there to be named.
        losses: loss by step, oldest first; not finite ones included.
        progress_loss: the loss that patience compares with; None before the first finite one.
        waited: measurements in a row without progress.
    """

    early_stop: EarlyStopConfig = field(default_factory=EarlyStopConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)
    losses: dict[int, float] = field(default_factory=dict)
    progress_loss: float | None = None
    waited: int = 0

    def note(self, step: int, loss: float) -> Judgement:
        """Take a measurement into account.

        Args:
            step: step after which it was made.
            loss: the held-out loss; one that is not finite is never the best and counts as no progress.
        """
        lowest = self.lowest
        is_best = math.isfinite(loss) and (lowest is None or loss < lowest[1])
        self.losses[step] = loss
        if math.isfinite(loss) and (
            self.progress_loss is None or loss < self.progress_loss - self.early_stop.min_delta
        ):
            self.progress_loss, self.waited = loss, 0
        else:
            self.waited += 1
        return Judgement(is_best, self.is_over, self.verdict() if self.is_over else "")

    @property
    def is_over(self) -> bool:
        """Whether patience is at its end; true again in a run that is resumed after it ended so."""
        return 0 < self.early_stop.patience <= self.waited

    @property
    def lowest(self) -> tuple[int, float] | None:
        """Step and value of the lowest loss, the earlier one of two that are equal; None before a finite one."""
        ranking = self.ranking()
        return (ranking[0], self.losses[ranking[0]]) if ranking else None

    def ranking(self) -> list[int]:
        """Steps by rising loss, the earlier one first of two that are equal; without those that are not finite."""
        finite = [step for step, loss in self.losses.items() if math.isfinite(loss)]
        return sorted(finite, key=lambda step: (self.losses[step], step))

    def verdict(self) -> str:
        """What patience waited for, and where the lowest loss is: a sentence for the log."""
        less = f" by more than {self.early_stop.min_delta:g}" if self.early_stop.min_delta else ""
        text = f"the held-out loss has not fallen{less} for {_measurements(self.waited)}"
        lowest = self.lowest
        if lowest is None:
            return f"{text}; it was never a finite number"
        place = f", {CHECKPOINTS_DIR}/{BEST}" if self.keep.best else ""
        return f"{text}; lowest {lowest[1]:.4g} at step {lowest[0]}{place}"

    def save(self, folder: Path) -> None:
        """Write `selection.json` into a `training_state` folder."""
        losses = [[step, loss if math.isfinite(loss) else None] for step, loss in self.losses.items()]
        state = {"format": 1, "losses": losses, "progress_loss": self.progress_loss, "waited": self.waited}
        write_json(folder / SELECTION_JSON, state)

    @classmethod
    def load(cls, folder: Path, early_stop: EarlyStopConfig | None = None, keep: KeepConfig | None = None) -> Selection:
        """Read what `save` wrote; a checkpoint without the file (LeRobot's, or one before the first measurement) gives
        an empty selection.

        Args:
            folder: `training_state` folder.
            early_stop: when to stop; may differ from that of the run before.
            keep: which checkpoints stay; may differ too.

        Raises:
            CheckpointError: the file is broken.
        """
        fresh = cls(early_stop or EarlyStopConfig(), keep or KeepConfig())
        path = folder / SELECTION_JSON
        if not path.exists():
            return fresh
        stored = read_json(path)
        try:
            losses = {int(step): math.nan if loss is None else float(loss) for step, loss in stored["losses"]}
            mark = stored["progress_loss"]
            progress_loss = None if mark is None else float(mark)
            return replace(fresh, losses=losses, progress_loss=progress_loss, waited=int(stored["waited"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} does not hold the held-out losses of a run ({error!r})",
                "an older checkpoint of the run may be complete",
            ) from error


def _measurements(count: int) -> str:
    return f"{count} measurement{'' if count == 1 else 's'}"


def prune(
    parent: Path,
    keep: KeepConfig,
    *,
    best: Sequence[int] = (),
    in_use: Callable[[Path], bool] = lambda path: False,
) -> list[str]:
    """Remove the checkpoints that no rule keeps; call it after a checkpoint has been saved.

    Never removed: the newest one, those that `last` and `best` lead to, those in use, incomplete ones, those that
    hold files which mimetic did not write, and whatever has another name than a step.

    Args:
        parent: `checkpoints/` of the run.
        keep: the rules.
        best: steps by rising held-out loss; those without a checkpoint are passed over.
        in_use: whether a checkpoint is being read just now (uploaded, say); asked right before its removal.

    Returns:
        Names of the folders that are gone, oldest step first. What the system refuses to remove is said in a warning
        and tried again next time: no run ends over that.
    """
    removed = []
    for folder in dispensable(parent, keep, best=best):
        if in_use(folder):
            logger.debug("%s is in use and is removed later", folder)
        elif _remove(folder):
            removed.append(folder.name)
    if removed:
        rules = ", ".join(f"--keep.{name}={value}" for name, value in vars(keep).items() if value)
        logger.info("Removed checkpoint%s %s (%s)", "s" if len(removed) > 1 else "", ", ".join(removed), rules)
    return removed


def dispensable(parent: Path, keep: KeepConfig, *, best: Sequence[int] = ()) -> list[Path]:
    """The checkpoints that no rule keeps and that are mimetic's to remove, oldest step first."""
    if not (keep.last or keep.best):
        return []
    folders = step_folders(parent)
    named_ones = {path.name for path in (named(parent, LAST), named(parent, BEST)) if path is not None}
    kept = {path.name for path in folders[-max(1, keep.last) :]} | named_ones
    by_step = {int(path.name): path.name for path in folders}
    kept |= {by_step[step] for step in [step for step in best if step in by_step][: keep.best]}
    if keep.every:
        kept |= {name for step, name in by_step.items() if step % keep.every == 0}
    return [path for path in folders if path.name not in kept and _is_ours(path)]


def point_best(parent: Path, best: Sequence[int]) -> None:
    """Make `best` lead to the complete checkpoint of lowest held-out loss, and to nothing when there is none.

    Args:
        parent: `checkpoints/` of the run.
        best: steps by rising held-out loss.

    Raises:
        CheckpointError: the disk refused, or a real folder has the name `best`.
    """
    by_step = {int(path.name): path.name for path in step_folders(parent)}
    name = next((by_step[step] for step in best if step in by_step), None)
    current = named(parent, BEST)
    if (None if current is None else current.name) == name:
        return
    try:
        if name is None:
            unlink(parent, BEST)
        else:
            point(parent, BEST, name)
    except FileExistsError as error:
        raise CheckpointError(
            f"{parent / BEST} is not a link to a checkpoint", f"move it away: `mv {parent / BEST} {parent / BEST}.old`"
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"`{parent / BEST}` could not be written: {error.strerror or error}",
            "make room there, or change the permissions of that folder",
        ) from error


def _is_ours(folder: Path) -> bool:
    """Whether the manifest lists every file; a hidden one (a file browser's) is not looked at."""
    try:
        listed = set(json.loads((folder / MIMETIC_JSON).read_text(encoding="utf-8"))["files"])
    except FileNotFoundError:
        logger.debug("%s has no manifest of mimetic and stays", folder)
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    foreign = sorted(path.as_posix() for path in found if not path.name.startswith("."))
    foreign = [name for name in foreign if name not in listed and name != MIMETIC_JSON]
    if foreign:
        logger.debug("%s holds %s, which mimetic did not write, and stays", folder, foreign[0])
    return not foreign


def _remove(folder: Path) -> bool:
    hidden = folder.with_name(f"{REMOVED}{folder.name}-{os.getpid()}")
    try:
        folder.rename(hidden)
        flush_folder(folder.parent)  # else a power cut could bring back the name of a folder that is half empty
    except OSError as error:
        logger.warning("checkpoint %s could not be removed: %s", folder, error.strerror or error)
        return False
    try:
        shutil.rmtree(hidden)
    except OSError as error:
        logger.warning(
            "%s, a removed checkpoint, still takes space (%s); the next start of the run removes it",
            hidden,
            error.strerror or error,
        )
    return True
