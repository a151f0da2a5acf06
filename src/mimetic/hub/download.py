"""Snapshots from the hub; the only module that opens a connection, and only when the user's settings allow it."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimetic.errors import HubError, MimeticError, OfflineError
from mimetic.hub.locate import RepoType, check_repo_id, is_offline, lerobot_home
from mimetic.hub.upload import is_connection

logger = logging.getLogger(__name__)

WANTED_VERSION = (3, 0)


def download_dataset(repo_id: str, revision: str | None = None) -> Path:
    """Download a dataset into `$HF_LEROBOT_HOME/hub` and return its folder.

    Args:
        repo_id: `user/name`.
        revision: branch, tag or commit; without it the tag that fits v3.0 best, else an older readable one.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses (no such repository, no access).
    """
    _require_network(repo_id)
    wanted = revision or _best_version(repo_id)
    logger.info("downloading dataset %s (%s) from the hub", repo_id, wanted or "main")
    return download_snapshot(repo_id, "dataset", revision=wanted, cache=lerobot_home() / "hub")


def download_snapshot(
    repo_id: str,
    repo_type: RepoType,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    allow_patterns: Sequence[str] | None = None,
    ignore_patterns: Sequence[str] | None = None,
) -> Path:
    """Download a repository and return the folder of its snapshot.

    Args:
        repo_id: `user/name`.
        repo_type: "dataset" or "model".
        revision: branch, tag or commit.
        cache: folder of the cache; the hub's default without it.
        allow_patterns: file patterns to fetch; all without it. `*` stands for slashes too.
        ignore_patterns: file patterns to leave out.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    check_repo_id(repo_id)
    _require_network(repo_id)
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repo_id,
            repo_type=repo_type,
            revision=revision,
            cache_dir=cache,
            allow_patterns=list(allow_patterns) if allow_patterns is not None else None,
            ignore_patterns=list(ignore_patterns) if ignore_patterns is not None else None,
        )
    except Exception as error:  # the edge to a third-party client: its errors differ between releases
        raise _translated(error, repo_id, repo_type) from error
    return Path(folder)


def list_files(repo_id: str, *, revision: str | None = None) -> tuple[str, dict[str, int]]:
    """The newest commit of a model's repository, and its files with their sizes [bytes].

    Args:
        repo_id: `user/name`.
        revision: branch, tag or commit; `main` without it.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    check_repo_id(repo_id)
    _require_network(repo_id)
    import huggingface_hub

    try:
        hub = huggingface_hub.HfApi()
        commit = str(hub.repo_info(repo_id, revision=revision).sha)
        rows: Any = hub.list_repo_tree(repo_id, recursive=True, revision=commit)
        return commit, {str(row.path): int(row.size) for row in rows if hasattr(row, "size")}
    except Exception as error:  # see download_snapshot
        raise _translated(error, repo_id, "model") from error


def download_files(repo_id: str, paths: Sequence[str], *, revision: str, into: Path | None = None) -> Path:
    """Download single files of a model's repository and return the folder above them.

    Args:
        repo_id: `user/name`.
        paths: names in the repository, without characters that patterns use.
        revision: commit.
        into: folder that gets the files themselves; the hub's cache without it.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    check_repo_id(repo_id)
    _require_network(repo_id)
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=list(paths), local_dir=into
        )
    except Exception as error:  # see download_snapshot
        raise _translated(error, repo_id, "model") from error
    if into is not None:
        shutil.rmtree(into / ".cache", ignore_errors=True)  # the client's notes on what it fetched
    return Path(folder)


def dataset_commit(repo_id: str, revision: str | None = None) -> str:
    """The commit of a dataset that a revision stands for.

    Args:
        repo_id: `user/name`.
        revision: branch, tag or commit; without it the tag that fits v3.0 best, else an older readable one.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    check_repo_id(repo_id)
    _require_network(repo_id)
    wanted = revision or _best_version(repo_id)
    import huggingface_hub

    try:
        return str(huggingface_hub.HfApi().repo_info(repo_id, repo_type="dataset", revision=wanted).sha)
    except Exception as error:  # see download_snapshot
        raise _translated(error, repo_id, "dataset") from error


def download_dataset_file(repo_id: str, path: str, *, revision: str, cache: Path) -> Path:
    """Download one file of a dataset into a cache and return its path.

    Args:
        repo_id: `user/name`.
        path: name in the repository.
        revision: commit.
        cache: folder of the cache.

    Raises:
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses, or has no such file.
    """
    check_repo_id(repo_id)
    _require_network(repo_id)
    import huggingface_hub

    try:
        return Path(
            huggingface_hub.hf_hub_download(repo_id, path, repo_type="dataset", revision=revision, cache_dir=cache)
        )
    except Exception as error:  # see download_snapshot
        translated = _translated(error, repo_id, "dataset")
        translated.message = f"`{path}` of dataset `{repo_id}` cannot be fetched: {translated.message}"
        raise translated from error


def _require_network(repo_id: str) -> None:
    if is_offline():
        raise OfflineError(
            f"`{repo_id}` is not on this machine, and HF_HUB_OFFLINE forbids the network",
            "copy it here and give its folder, or unset HF_HUB_OFFLINE",
        )


def _best_version(repo_id: str) -> str | None:
    """Tag or branch of the repository that names the newest readable version, or None when it names no version."""
    import huggingface_hub

    try:
        refs: Any = huggingface_hub.HfApi().list_repo_refs(check_repo_id(repo_id), repo_type="dataset")
    except Exception as error:  # see download_snapshot
        raise _translated(error, repo_id, "dataset") from error
    names = [str(ref.name) for ref in [*refs.tags, *refs.branches]]
    return best_version(names)


def best_version(names: Sequence[str]) -> str | None:
    """The tag or branch that fits this reader best: v3.0, else the newest of v3.x, v2.1 and v2.0, else None."""
    versions = {}
    for name in names:
        match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", name)
        if match:
            versions[(int(match[1]), int(match[2]))] = name
    if WANTED_VERSION in versions:
        return versions[WANTED_VERSION]
    readable = [version for version in versions if (2, 0) <= version < (WANTED_VERSION[0] + 1, 0)]
    return versions[max(readable)] if readable else None


def _translated(error: Exception, repo_id: str, repo_type: str) -> MimeticError:
    name = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    # LocalEntryNotFoundError: the hub was not reached and the cache is empty; whether the hub has it is not known.
    is_absent = "NotFound" in name and name != "LocalEntryNotFoundError"
    if is_absent or status in (401, 403, 404):
        return HubError(
            f"the hub has no {repo_type} `{repo_id}` that you may read ({name})",
            "check the spelling; a private repository needs a login (`hf auth login`)",
        )
    if isinstance(error, OSError) or is_connection(error) or "Offline" in name:
        return OfflineError(
            f"`{repo_id}` is not on this machine, and the hub cannot be reached ({_reason(error)})",
            "copy it here and give its folder, or try again with a connection",
        )
    return HubError(f"the hub failed for `{repo_id}` ({name}: {str(error)[:200]})")


def _reason(error: BaseException) -> str:
    """Name and text of the innermost cause, on one line: the client wraps a failed connection in advice of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:120]
