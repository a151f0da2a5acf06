"""Continuing a run from its checkpoints on the hub: `--resume=true --config_path=user/name` (spec/training.md 16)."""

from __future__ import annotations

import datetime
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic.errors import CheckpointError, ConfigError, MimeticError
from mimetic.hub.checkpoints import RemoteCheckpoint, newest_checkpoint
from mimetic.names import CHECKPOINTS_DIR
from mimetic.train.checkpoint import flush_tree, last_checkpoint, point_last
from mimetic.train.links import flush_folder
from mimetic.train.resume import Checkpoint
from mimetic.train.run_folder import free_name
from mimetic.train.state import write_json

logger = logging.getLogger(__name__)

SOURCE_JSON = "hub_source.json"
_FETCHING = ".fetching-"


class HubRun:
    """A run on the hub that is to be continued here.

    Args:
        repo_id: `user/name`.

    Raises:
        CheckpointNotFound: it holds no complete checkpoint.
        CheckpointError: a name in it is dangerous.
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """

    def __init__(self, repo_id: str) -> None:
        self.repo_id = repo_id
        self.checkpoint, lacks = newest_checkpoint(repo_id)
        for lack in lacks:
            logger.warning("hub: %s; taking %s, the newest complete one", lack, self.checkpoint.name)

    def settings(self) -> Mapping[str, Any]:
        """The run's settings; of the checkpoint, only its two small files are fetched for them."""
        return _Settings(self.checkpoint.settings_folder()).settings()

    @property
    def where(self) -> str:
        """Where the settings come from, for messages."""
        return f"{self.repo_id} on the hub, {self.checkpoint.place}"

    def fetch(self, output_dir: Path | None) -> Checkpoint:
        """Bring the checkpoint onto this machine, as the run that goes on.

        Args:
            output_dir: folder of the run; `outputs/train/<date>/<time>_resume` without it. When it holds this run
                already, because the same command was started before, its own newest checkpoint is taken.

        Returns:
            The checkpoint in the run's folder.

        Raises:
            ConfigError: the folder holds something else.
            CheckpointError: what arrived is damaged, or could not be written.
            OfflineError: the network is forbidden or not there.
            HubError: the hub refuses.
        """
        now = datetime.datetime.now()
        default = Path("outputs") / "train" / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}_resume"
        folder = output_dir or free_name(default)
        there = _continued_before(folder, self.repo_id)
        if there is not None:
            logger.info("hub: %s holds this run already; going on from its checkpoint %s", folder, there.name)
            return Checkpoint(there.resolve())
        _require_free(folder)
        remote = self.checkpoint
        logger.info(
            "hub: fetching checkpoint %s of %s (%.1f MB, commit %s)",
            remote.name,
            remote.repo_id,
            remote.bytes / 1e6,
            remote.commit[:12],
        )
        _fetch(remote, folder)
        logger.info("hub: checkpoint %s is in %s", remote.name, folder)
        return Checkpoint((folder / CHECKPOINTS_DIR / remote.name).resolve())


class _Settings(Checkpoint):
    """Reads settings like a checkpoint, from a `pretrained_model` folder that holds nothing else."""

    @property
    def pretrained(self) -> Path:
        """The folder itself."""
        return self.folder


def _fetch(remote: RemoteCheckpoint, folder: Path) -> None:
    temporary = folder.parent / f"{_FETCHING}{folder.name}-{os.getpid()}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        free = shutil.disk_usage(temporary).free
        if free < remote.bytes:
            raise CheckpointError(
                f"the checkpoint has {remote.bytes / 1e6:.0f} MB, and {folder.parent} has {free / 1e6:.0f} MB left",
                "make room there, or choose another place with `--output_dir`",
            )
        remote.download(temporary)
        write_json(
            temporary / SOURCE_JSON, {"repo_id": remote.repo_id, "commit": remote.commit, "checkpoint": remote.name}
        )
        point_last(temporary / CHECKPOINTS_DIR, remote.name)
        flush_tree(temporary)
        if folder.is_dir():
            folder.rmdir()  # empty, as was checked
        temporary.rename(folder)
        flush_folder(folder.parent)
    except OSError as error:
        if isinstance(error, MimeticError):
            raise
        raise CheckpointError(
            f"the checkpoint from the hub could not be written to {folder}: {error.strerror or error}",
            f"it needs {remote.bytes / 1e6:.0f} MB; choose another place with `--output_dir`",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _continued_before(folder: Path, repo_id: str) -> Path | None:
    """The newest checkpoint of a folder that continues a repository's run; None: it does not."""
    try:
        source = json.loads((folder / SOURCE_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(source, dict) or source.get("repo_id") != repo_id:
        return None
    return last_checkpoint(folder / CHECKPOINTS_DIR)


def _require_free(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            f"`--output_dir={folder}` exists already, and a run from the hub needs a new folder",
            f"choose another folder, or continue what is there: `--resume=true --config_path={folder}`",
        )
