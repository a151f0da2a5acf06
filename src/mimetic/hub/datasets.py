"""A dataset folder to a dataset repository of the hub: one commit, tagged with the version of the layout.

Nothing here is called unless a push was asked for and a repository was named (spec/dataset.md 14).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic.errors import ConfigError, HubError, MimeticError, OfflineError
from mimetic.hub.locate import check_repo_id, is_offline
from mimetic.hub.upload import client, is_connection, reason, status_of

_FOLDERS = ("meta/", "data/", "videos/")
"""Folders of a repository that belong to the dataset: what is in them and not in the push is of an older version."""
_KIND = "dataset"
_CARD = "README.md"
_LOGIN = "`hf auth login`, or set HF_TOKEN to a token that may write"


def require_dataset_repo(repo_id: str, *, private: bool | None = None) -> str:
    """Make sure, before any work, that a dataset can be pushed; makes the repository where it is absent.

    Args:
        repo_id: `user/name`.
        private: whether a repository that is made is private; None leaves it to the account's default.

    Returns:
        What was found or done, one line for the log.

    Raises:
        ConfigError: nobody is logged in, the token may not write there, or a public repository would get what was meant
            to be private.
        OfflineError: the network is forbidden or not there.
        HubError: the hub fails.
    """
    import huggingface_hub

    if check_repo_id(repo_id).count("/") != 1:
        raise ConfigError(f"`--repo_id={repo_id}` is not a name on the hub", "it looks like `USER/NAME`")
    if is_offline():
        raise OfflineError(
            f"`--push_to_hub=true` needs the network for `{repo_id}`, and HF_HUB_OFFLINE forbids it",
            "unset HF_HUB_OFFLINE, or leave `--push_to_hub` out",
        )
    if not huggingface_hub.get_token():
        raise ConfigError(f"`--push_to_hub=true`: nobody is logged in on this machine to push to `{repo_id}`", _LOGIN)
    hub = client()
    try:
        hub.create_repo(repo_id, repo_type=_KIND, private=private, exist_ok=False)
        return f"the repository {repo_id} was made on the hub"
    except Exception as error:  # the edge to a third-party client: its errors differ between releases
        if status_of(error) != 409:
            raise _translated(error, repo_id) from error
    try:
        is_private = bool(hub.repo_info(repo_id, repo_type=_KIND).private)
    except Exception as error:  # see above
        raise _translated(error, repo_id) from error
    if private and not is_private:
        raise ConfigError(
            f"`--private=true`, and the repository {repo_id} is there already and public",
            "make it private in its settings on the hub, or name another one",
        )
    return f"the repository {repo_id} is there on the hub"


def push_dataset(folder: Path, repo_id: str) -> str:
    """Send a dataset as one commit, and tag it with its version as LeRobot looks for it.

    Files of an older layout in the same folders of the repository are removed by the same commit; they stay in its
    history and under its older tags.

    Args:
        folder: a dataset of any version.
        repo_id: `user/name`; the repository exists.

    Returns:
        Address of the dataset.

    Raises:
        ConfigError: the token may not write there.
        HubError: the hub refuses or fails; the same call sends only what has not arrived.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    info = json.loads((folder / "meta" / "info.json").read_text(encoding="utf-8"))
    wanted: dict[str, Path | bytes] = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.relative_to(folder).as_posix().startswith(_FOLDERS)
    }
    hub = client()
    try:
        there = hub.list_repo_files(repo_id, repo_type=_KIND)
        if _CARD not in there:
            wanted[_CARD] = card_of(repo_id, info).encode()
        stale = [name for name in there if name.startswith(_FOLDERS) and name not in wanted]
        additions = [
            CommitOperationAdd(name, str(content) if isinstance(content, Path) else content)
            for name, content in sorted(wanted.items())
        ]
        hub.preupload_lfs_files(repo_id, additions=additions, repo_type=_KIND)
        commit = hub.create_commit(
            repo_id,
            repo_type=_KIND,
            operations=[*(CommitOperationDelete(name) for name in stale), *additions],
            commit_message=f"Upload dataset ({info['codebase_version']})",
        )
        _tag(hub, repo_id, str(info["codebase_version"]), str(commit.oid))
    except Exception as error:  # see above
        raise _translated(error, repo_id) from error
    return f"{hub.endpoint}/datasets/{repo_id}"


def card_of(repo_id: str, info: Mapping[str, Any]) -> str:
    """Dataset card for a repository that has none; it names no licence, which only the owner of the data can."""
    return f"""\
---
task_categories:
- robotics
tags:
- LeRobot
configs:
- config_name: default
  data_files: data/*/*.parquet
---

# {repo_id.rpartition("/")[2]}

A robot dataset in the LeRobotDataset {info["codebase_version"]} layout: {info.get("total_episodes")} episodes,
{info.get("total_frames")} frames at {info.get("fps")} Hz.

```json
{json.dumps(info, indent=4, ensure_ascii=False)}
```
"""


def _tag(hub: Any, repo_id: str, tag: str, commit: str) -> None:
    """Point the tag of the version to the commit."""
    for ref in hub.list_repo_refs(repo_id, repo_type=_KIND).tags:
        if ref.name == tag:
            if ref.target_commit == commit:
                return
            hub.delete_tag(repo_id, repo_type=_KIND, tag=tag)
    hub.create_tag(repo_id, repo_type=_KIND, tag=tag, revision=commit)


def _translated(error: Exception, repo_id: str) -> MimeticError:
    if isinstance(error, MimeticError):
        return error
    said = reason(error)
    if is_connection(error):
        return OfflineError(f"the hub cannot be reached for `{repo_id}` ({said})", "try again with a connection")
    if status_of(error) in (401, 402, 403, 404):
        return ConfigError(
            f"the token of this machine may not write to `{repo_id}` ({said})",
            f"name a repository of your own; {_LOGIN}",
        )
    return HubError(f"the hub fails for `{repo_id}` ({said})", "try again later; what has arrived is not sent again")
