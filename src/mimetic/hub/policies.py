"""From what a user calls a policy (`--policy.path`) to the folder that holds it."""

from __future__ import annotations

import logging
from pathlib import Path

from mimetic.errors import CheckpointNotFound
from mimetic.hub.checkpoints import newest_policy, require_safe
from mimetic.hub.download import download_files, download_snapshot, list_files
from mimetic.hub.locate import cached_snapshot, hub_cache, is_offline
from mimetic.hub.upload import POLICY_FILES
from mimetic.names import CHECKPOINTS_DIR, CONFIG_JSON, LAST, LAST_TXT, PRETRAINED_DIR, TRAIN_CONFIG_JSON, WEIGHTS

logger = logging.getLogger(__name__)


def find_policy(path: str | Path, *, revision: str | None = None) -> Path:
    """Folder with `config.json` and the weights.

    Args:
        path: a `pretrained_model` folder, a checkpoint, a run folder (its last checkpoint), or a hub id `user/name`.
        revision: branch, tag or commit on the hub.

    Raises:
        CheckpointNotFound: the folder is not there or holds no policy.
        OfflineError: a hub id that is not on this machine, and the network is forbidden or not there.
        HubError: the hub refuses.
    """
    folder = Path(path).expanduser()
    if folder.is_file() and folder.name in (CONFIG_JSON, WEIGHTS, TRAIN_CONFIG_JSON):
        folder = folder.parent
    if folder.exists():
        for candidate in _candidates(folder):
            if (candidate / CONFIG_JSON).is_file():
                return candidate
        raise CheckpointNotFound(
            f"no policy at {path} (expected {CONFIG_JSON})",
            "give the run folder, a checkpoint, or its `pretrained_model` folder",
        )
    text = str(path)
    if text.count("/") != 1 or text.startswith((".", "/", "~")) or "\\" in text:
        raise CheckpointNotFound(f"no policy at {path} (the path does not exist)", _nearest(folder))
    cached = cached_snapshot(text, "model", revision, hub_cache())
    if cached is not None and (cached / CONFIG_JSON).is_file():
        return cached
    if is_offline():
        raise CheckpointNotFound(
            f"no policy at {path}: there is no such folder, and HF_HUB_OFFLINE forbids looking on the hub",
            _nearest(folder),
        )
    folder = download_snapshot(
        text,
        "model",
        revision=revision,
        allow_patterns=["*.json", "*.safetensors", "tokenizer/*", "*.txt"],
        ignore_patterns=[f"{CHECKPOINTS_DIR}/*"],  # a run that pushes its checkpoints keeps them in its repository
    )
    return folder if (folder / CONFIG_JSON).is_file() else _of_newest_checkpoint(text, revision)


def _of_newest_checkpoint(repo_id: str, revision: str | None) -> Path:
    """The policy of a repository whose run has only pushed checkpoints so far."""
    commit, files = list_files(repo_id, revision=revision)
    place = newest_policy(list(files))
    if place is None:
        raise CheckpointNotFound(
            f"the hub's `{repo_id}` holds no policy (expected {CONFIG_JSON})", "name another repository"
        )
    wanted = [name for name in files if name.startswith(f"{place}/") and name.endswith(POLICY_FILES)]
    require_safe(wanted, repo_id)
    logger.info("hub: %s holds no finished policy; taking %s, its newest checkpoint", repo_id, place)
    return download_files(repo_id, wanted, revision=commit) / place


def _candidates(folder: Path) -> list[Path]:
    parent = folder if folder.name == CHECKPOINTS_DIR else folder / CHECKPOINTS_DIR
    found = [folder, folder / PRETRAINED_DIR, parent / LAST / PRETRAINED_DIR]
    note = parent / LAST_TXT
    if note.is_file():
        found.append(parent / note.read_text(encoding="utf-8").strip() / PRETRAINED_DIR)
    return found


def _nearest(folder: Path) -> str:
    parent = folder.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    names = sorted(child.name for child in parent.iterdir() if child.is_dir() and not child.name.startswith("."))
    inside = f"; it holds {', '.join(names[:5])}" if names else ""
    return f"the nearest folder that exists is {parent}{inside}"
