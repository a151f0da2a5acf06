"""From a repository id to a folder on this machine, without the network.

Nothing here imports huggingface_hub: the layout of its cache is simple and public, and a local dataset must open at
once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from mimetic.errors import ConfigError

RepoType = Literal["dataset", "model"]

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
_LONGEST_ID = 200
_TRUE = ("1", "ON", "YES", "TRUE")


def is_offline() -> bool:
    """Whether the user forbade the network (`HF_HUB_OFFLINE`)."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE or (
        os.environ.get("TRANSFORMERS_OFFLINE", "").upper() in _TRUE
    )


def local_folder(name: str) -> Path | None:
    """The folder of that name on this machine, or None; any text may be asked for, as names come from files too."""
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user's home, a zero character
        return None


def hf_home() -> Path:
    """Folder of all Hugging Face caches (`HF_HOME`)."""
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface"


def lerobot_home() -> Path:
    """Folder of local datasets (`HF_LEROBOT_HOME`)."""
    if os.environ.get("HF_LEROBOT_HOME"):
        return Path(os.environ["HF_LEROBOT_HOME"]).expanduser()
    return hf_home() / "lerobot"


def hub_cache() -> Path:
    """The hub's own cache of snapshots (`HF_HUB_CACHE`)."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    return hf_home() / "hub"


def check_repo_id(repo_id: str) -> str:
    """Return a repository id that is safe to use in a path.

    Raises:
        ConfigError: empty, or not of the form `name` or `user/name`.
    """
    if not _REPO_ID.fullmatch(repo_id) or ".." in repo_id or len(repo_id) > _LONGEST_ID:
        raise ConfigError(
            f"`{repo_id[:_LONGEST_ID]}` is not a repository id",
            "ids look like `user/name`; for a folder use `--dataset.root`",
        )
    return repo_id


def cached_snapshot(repo_id: str, repo_type: RepoType, revision: str | None, cache: Path) -> Path | None:
    """Folder of a snapshot in a cache of the hub's layout, or None.

    Args:
        repo_id: `user/name`.
        repo_type: "dataset" or "model".
        revision: branch, tag or commit; without it any snapshot is taken, that of `main` first, else the newest.
        cache: folder of the cache.
    """
    folder = cache / f"{repo_type}s--{check_repo_id(repo_id).replace('/', '--')}"
    snapshots = folder / "snapshots"
    if not snapshots.is_dir() or (revision is not None and ".." in revision):
        return None
    names = [revision] if revision is not None else ["main", *_names(folder / "refs")]
    for name in names:
        ref = folder / "refs" / name
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else name
        if commit and (snapshots / commit).is_dir():
            return snapshots / commit
    if revision is None:
        found = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime)
        return found[-1] if found else None
    return None


def local_dataset(repo_id: str, revision: str | None = None) -> Path | None:
    """Folder of a dataset on this machine: below `HF_LEROBOT_HOME`, else in a cache of snapshots; None without one.

    Raises:
        ConfigError: not a repository id.
    """
    folder = lerobot_home() / check_repo_id(repo_id)
    if revision is None and (folder / "meta" / "info.json").is_file():
        return folder
    for cache in (lerobot_home() / "hub", hub_cache()):
        found = cached_snapshot(repo_id, "dataset", revision, cache)
        if found is not None and (found / "meta" / "info.json").is_file():
            return found
    return None


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_file())
