"""Checkpoints as artifacts of wandb, under LeRobot's names (spec/training.md 13).

The training only makes hard links to a checkpoint's files, in the folder of wandb's run, which takes no time and no
room. The upload reads the links in a thread of its own, so the checkpoint may be deleted at any time. Online, the links
go when they are uploaded; offline, `wandb sync` reads them. LeRobot uploads `model.safetensors` alone; here
the whole policy goes, so that what comes back from wandb can be used as `--policy.path`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from mimetic.names import PRETRAINED_DIR
from mimetic.train.trackers.worker import Worker

logger = logging.getLogger(__name__)

LONGEST_NAME = 128
"""What wandb accepts."""
SLOWEST_UPLOAD = 1e6
"""Bytes a second that a connection must carry for the end of a run to wait until all is sent."""
_OFF = "--wandb.disable_artifact=true"


class Artifacts:
    """Hands checkpoints to a run of wandb.

    Args:
        package: the module `wandb`.
        run: what `wandb.init` returned.
        tags: tags of the run, which the artifacts are named after.
        is_offline: whether the files must stay for a later `wandb sync`.
    """

    def __init__(self, package: Any, run: Any, tags: list[str], *, is_offline: bool) -> None:
        self._package = package
        self._run = run
        self._tags = tags
        self._is_offline = is_offline
        self._uploads = Path(run.dir).parent / "uploads"
        self._pending: dict[Path, int] = {}
        self._has_told = self._is_given_up = False
        self._worker = Worker("wandb")

    def take(self, checkpoint: Path) -> None:
        """Queue a checkpoint for upload; returns at once, and the checkpoint may be removed right after."""
        links = self._uploads / checkpoint.name
        try:
            size = _link_tree(checkpoint / PRETRAINED_DIR, links)
        except OSError as error:
            shutil.rmtree(links, ignore_errors=True)
            logger.warning("wandb: checkpoint %s is not uploaded: %s", checkpoint.name, error.strerror or error)
            return
        self._tell(size)
        self._pending[links] = size
        self._worker.put(lambda: self._send(links))

    def waiting_s(self) -> float:
        """How long the end of the run waits at most for what is not uploaded yet [s]."""
        return 0.0 if self._is_offline else sum(self._pending.values()) / SLOWEST_UPLOAD

    def close(self, deadline: float) -> None:
        """Wait for the uploads.

        Args:
            deadline: when to stop waiting, by `time.monotonic` [s].
        """
        if self._pending and not self._is_offline:
            logger.info(
                "wandb: uploading checkpoints (%s left, at most %.0f s; Ctrl-C ends the wait)",
                gigabytes(sum(self._pending.values())),
                max(0.0, deadline - time.monotonic()),
            )
        # `wandb sync` sends the numbers of such a run, but not its artifacts.
        hint = f"`wandb artifact put --type model --name PROJECT/NAME FOLDER` uploads what is left in {self._uploads}"
        self._is_given_up = not self._worker.close(deadline, hint=hint)

    def _send(self, links: Path) -> None:
        try:
            artifact = self._package.Artifact(artifact_name(self._tags, links.name), type="model")
            for path in sorted(path for path in links.rglob("*") if path.is_file()):
                # immutable: read where it lies. Otherwise wandb copies it to the home folder, offline for good.
                name = path.relative_to(links).as_posix()
                artifact.add_file(str(path), name=name, policy="immutable", skip_cache=True)
            logged = self._run.log_artifact(artifact)
            if not self._is_offline:
                logged.wait()
                shutil.rmtree(links, ignore_errors=True)
        except Exception as error:  # the next checkpoint may go through, and the numbers go their own way
            if self._is_given_up:  # reported already, and the links are what a person can still upload
                return
            reason = str(error) or type(error).__name__
            logger.warning("wandb: checkpoint %s is not uploaded: %s", links.name, reason)
            shutil.rmtree(links, ignore_errors=True)
        finally:
            self._pending.pop(links, None)

    def _tell(self, size: int) -> None:
        if self._has_told:
            return
        self._has_told = True
        if self._is_offline:
            logger.info(
                "wandb: %s of each checkpoint stay for `wandb sync`, even when --keep.* removes the checkpoint; "
                "%s keeps nothing",
                gigabytes(size),
                _OFF,
            )
        else:
            logger.info("wandb: %s of each checkpoint are uploaded; %s uploads none", gigabytes(size), _OFF)


def artifact_name(tags: list[str], step_name: str) -> str:
    """Name of a checkpoint at wandb: tags and step joined by "-", ":" and "/" as "_", at most 128 characters.

    Args:
        tags: tags of the run.
        step_name: folder name of the checkpoint, such as `020000`.
    """
    # wandb refuses every other character too.
    name = re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(tags))
    return f"{name[: LONGEST_NAME - 1 - len(step_name)]}-{step_name}"


def gigabytes(size: int) -> str:
    """A number of bytes for a person to read."""
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"


def _link_tree(source: Path, target: Path) -> int:
    """Hard links to all files of a folder, copies where the file system has none; returns the bytes linked."""
    size = 0
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:  # exFAT, some network file systems
            shutil.copyfile(path, place)
        size += place.stat().st_size
    return size
