"""Folders to repositories of the hub: whether that will work, which files go, and which failures deserve another try.

One folder is one commit, so that a repository never shows half a checkpoint. Nothing here is called unless a
repository was named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic import __version__
from mimetic.errors import ConfigError, HubError, MimeticError, OfflineError
from mimetic.hub.locate import RepoType, is_offline

POLICY_FILES = (".json", ".safetensors", ".txt", ".md")
"""Endings of the files of a checkpoint: nothing else is sent or fetched, and none of them can hold code."""
_REPO_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
_LONGEST_ID = 96 - len("-ema")
_LARGE = 5_000_000
_BINARY = (".safetensors", ".parquet", ".mp4")
_SECRET = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|(?:api|wandb)[_-]?key['\"]?\s*[:=]\s*['\"]?[0-9a-f]{40}\b)", re.IGNORECASE
)
_LONGEST_TEXT = 2_000_000
POLICY_FLAG = "--policy.repo_id"


def client() -> Any:
    """The hub's client; its login and address are those of this machine (`hf auth login`, HF_TOKEN, HF_ENDPOINT)."""
    import huggingface_hub

    return huggingface_hub.HfApi(library_name="mimetic", library_version=__version__)


def check_push_id(repo_id: str, flag: str = POLICY_FLAG) -> None:
    """Refuse the name of a repository that the hub would refuse.

    Args:
        repo_id: `user/name`.
        flag: what the user gave it with, for messages.

    Raises:
        ConfigError: not of the form `user/name`, or with characters that no repository has.
    """
    name = repo_id.rpartition("/")[2]
    is_odd = "--" in repo_id or ".." in repo_id or repo_id.endswith((".git", "-", ".")) or len(repo_id) > _LONGEST_ID
    if not _REPO_ID.fullmatch(repo_id) or is_odd:
        raise ConfigError(
            f"`{flag}={repo_id[:200]}` is not a name that the hub takes",
            "it looks like `USER/NAME`, of letters, digits, `_`, `-` and `.`"
            + (f": `{flag}=USER/{name}`" if _REPO_ID.fullmatch(f"user/{repo_id}") else ""),
        )


def require_repo(
    repo_id: str,
    *,
    private: bool | None,
    create: bool = True,
    repo_type: RepoType = "model",
    flag: str = POLICY_FLAG,
) -> str:
    """Make sure, before the work begins, that its result can be pushed; makes the repository where it is absent.

    Args:
        repo_id: `user/name`.
        private: whether the repository shall be private; None leaves it to the account's default.
        create: False only looks at the login.
        repo_type: what it holds.
        flag: what the user gave the name with, for messages.

    Returns:
        What was found or done, one line for the log.

    Raises:
        ConfigError: nobody is logged in, the token is refused or may not write there, or a public repository would
            get what was meant to be private.
        OfflineError: the network is forbidden or not there.
        HubError: the hub fails.
    """
    check_push_id(repo_id, flag)
    if is_offline():
        raise OfflineError(
            f"`{flag}={repo_id}` asks to push to the hub, and HF_HUB_OFFLINE forbids the network",
            f"unset HF_HUB_OFFLINE; or {_without(flag)}",
        )
    hub = client()
    user = _require_login(hub, repo_id, flag)
    if not create:
        return f"the hub knows the login of this machine as `{user}`; nothing is made there"
    try:
        hub.create_repo(repo_id, private=private, exist_ok=False, repo_type=repo_type)
    except Exception as error:  # the edge to a third-party client: its errors differ between releases
        if status_of(error) not in (401, 402, 403, 409):
            raise _unusable(error, repo_id, flag) from error
        return _require_existing(hub, repo_id, user, private=private, repo_type=repo_type, flag=flag)
    is_private = hub.repo_info(repo_id, repo_type=repo_type).private
    seen = "private" if is_private else f"public; `{_private(flag)}=true` makes a private one"
    return f"the repository {repo_id} was made on the hub ({seen})"


def _without(flag: str) -> str:
    asks = "--push_to_hub" if flag in ("--repo_id", "--new_repo_id") else flag
    return f"leave `{asks}` out, and push afterwards with `hf upload`"


def _private(flag: str) -> str:
    """The flag that makes the repository private, beside that of its name."""
    return flag.removesuffix("repo_id") + "private"


def _require_login(hub: Any, repo_id: str, flag: str) -> str:
    """Name of the user whose token this machine has."""
    import huggingface_hub

    login = "`hf auth login`, or set HF_TOKEN to a token that may write (https://huggingface.co/settings/tokens)"
    if not huggingface_hub.get_token():
        raise ConfigError(
            f"`{flag}={repo_id}` asks to push to the hub, and nobody is logged in on this machine",
            f"{login}; or {_without(flag)}",
        )
    try:
        account: dict[str, Any] = hub.whoami()
    except Exception as error:  # see require_repo
        if status_of(error) in (401, 403):
            raise ConfigError(
                f"`{flag}={repo_id}`: the hub does not accept the token of this machine "
                f"({status_of(error)}; expired or withdrawn)",
                f"{login}; or {_without(flag)}",
            ) from error
        raise _unusable(error, repo_id, flag) from error
    user = str(account.get("name", "?"))
    token = (account.get("auth") or {}).get("accessToken") or {}
    if token.get("role") == "read":
        raise ConfigError(f"`{flag}={repo_id}`: the token of `{user}` on this machine may only read", f"{login}")
    return user


def _require_existing(
    hub: Any, repo_id: str, user: str, *, private: bool | None, repo_type: RepoType, flag: str
) -> str:
    """Make sure that a repository that could not be made is there, takes files, and is as private as wanted."""
    from huggingface_hub import CommitOperationAdd

    try:
        # Asks how a file would have to be sent, which the hub answers only to those who may send it.
        hub.preupload_lfs_files(repo_id, additions=[CommitOperationAdd("README.md", b"#")], repo_type=repo_type)
        is_private = bool(hub.repo_info(repo_id, repo_type=repo_type).private)
    except Exception as error:  # see require_repo
        if status_of(error) in (401, 402, 403, 404):
            raise ConfigError(
                f"`{flag}={repo_id}`: the token of `{user}` may not write there ({status_of(error)})",
                f"name a repository of your own, such as `{flag}={user}/{repo_id.rpartition('/')[2]}`; "
                f"or {_without(flag)}",
            ) from error
        raise _unusable(error, repo_id, flag) from error
    if private and not is_private:
        raise ConfigError(
            f"`{_private(flag)}=true`, and the repository {repo_id} is there already and public",
            f"make it private in its settings on the hub, or name another one with `{flag}`",
        )
    return f"the repository {repo_id} is there on the hub ({'private' if is_private else 'public'})"


def _unusable(error: Exception, repo_id: str, flag: str) -> MimeticError:
    said = reason(error)
    if is_connection(error):
        return OfflineError(
            f"`{flag}={repo_id}` asks to push to the hub, which cannot be reached ({said})",
            f"try again with a connection; or {_without(flag)}",
        )
    return HubError(f"`{flag}={repo_id}`: the hub fails ({said})", f"try again later; or {_without(flag)}")


@dataclass(frozen=True, kw_only=True)
class Push:
    """One commit to make.

    Args:
        files: name below `into` -> file; all must still be there when it is sent.
        repo_id: `user/name`.
        into: folder of the repository; empty for its root.
        message: first line of the commit.
        more: further files, name in the repository -> content.
        tag: tag for the commit; one of that name is moved.
        replaces: whether a file that the repository has and this push has not would be a leftover of a push before.
        repo_type: what the repository holds.
    """

    files: Mapping[str, Path]
    repo_id: str
    into: str = ""
    message: str
    more: Mapping[str, bytes] = field(default_factory=dict)
    tag: str = ""
    replaces: Callable[[str], bool] = lambda name: False
    repo_type: RepoType = "model"


def push(job: Push, *, progress: Callable[[], None] = lambda: None) -> str:
    """Make one commit; calling it again after a failure sends only what is not there yet.

    Args:
        job: what to send.
        progress: called whenever something has arrived; what it raises ends the push between two files.

    Returns:
        The commit's hash.

    Raises:
        ConfigError: a file holds a secret; nothing was sent.
        Exception: whatever the client raises, see `is_transient`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    prefix = f"{job.into}/" if job.into else ""
    wanted: dict[str, Path | bytes] = {prefix + name: path for name, path in job.files.items()}
    wanted |= job.more
    require_no_secret(wanted)
    hub = client()
    there = hub.list_repo_files(job.repo_id, repo_type=job.repo_type)
    stale = [name for name in there if name not in wanted and job.replaces(name)]
    additions = [CommitOperationAdd(name, str(c) if isinstance(c, Path) else c) for name, c in sorted(wanted.items())]
    # One after the other in this thread: the client's own pool would hold up the end of the process.
    for addition in additions:
        if addition.upload_info.size >= _LARGE:
            hub.preupload_lfs_files(job.repo_id, additions=[addition], repo_type=job.repo_type)
            progress()
    commit = hub.create_commit(
        job.repo_id,
        operations=[*(CommitOperationDelete(name) for name in stale), *additions],
        commit_message=job.message,
        repo_type=job.repo_type,
    )
    progress()
    if job.tag:
        _tag(hub, job, str(commit.oid))
    return str(commit.oid)


def _tag(hub: Any, job: Push, commit: str) -> None:
    try:
        hub.create_tag(job.repo_id, tag=job.tag, revision=commit, repo_type=job.repo_type)
    except Exception as error:  # see require_repo
        if status_of(error) != 409:
            raise
        refs = hub.list_repo_refs(job.repo_id, repo_type=job.repo_type)
        if any(ref.name == job.tag and ref.target_commit == commit for ref in refs.tags):
            return
        hub.delete_tag(job.repo_id, tag=job.tag, repo_type=job.repo_type)
        hub.create_tag(job.repo_id, tag=job.tag, revision=commit, repo_type=job.repo_type)


def files_of(folder: Path) -> dict[str, Path]:
    """Files of a folder that may be pushed: no hidden ones, no links, only endings of `POLICY_FILES`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not path.is_symlink() and not is_hidden and path.suffix in POLICY_FILES:
            found[name.as_posix()] = path
    return found


def require_no_secret(files: Mapping[str, Path | bytes]) -> None:
    """Refuse to send what looks like a token or a key, or is the one of this machine.

    Args:
        files: name -> file or content.

    Raises:
        ConfigError: names file and line.
    """
    import huggingface_hub

    own = huggingface_hub.get_token()
    for name, source in files.items():
        if name.endswith(_BINARY) or (isinstance(source, Path) and source.stat().st_size > _LONGEST_TEXT):
            continue
        content = source.read_bytes() if isinstance(source, Path) else source
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
            if _SECRET.search(line) or (own and own in line):
                raise ConfigError(
                    f"line {number} of {source if isinstance(source, Path) else name} holds what looks like a token "
                    "or key, so nothing of it is sent to the hub",
                    "take it out of the setting that it came from",
                )


def holds_secret(text: str) -> bool:
    """Whether a text holds what looks like a token or key, or is the token of this machine."""
    try:
        require_no_secret({"settings": text.encode()})
    except ConfigError:
        return True
    return False


def is_policy_file(name: str) -> bool:
    """Whether a name at the root of a repository is one that a pushed policy may have, from this push or another."""
    stem, _, ending = name.rpartition(".")
    if name.startswith(("backbone/", "tokenizer/")):
        return name.count("/") == 1
    known = ("config", "model", "adapter_config", "adapter_model", "train_config", "mimetic")
    begins = ("policy_preprocessor", "policy_postprocessor", "mimetic_")
    return ending in ("json", "safetensors") and "/" not in name and (stem in known or stem.startswith(begins))


def status_of(error: BaseException) -> int | None:
    """HTTP status of the hub's answer behind an error of the client; None when there was no answer."""
    for one in _chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None


def retry_after(error: BaseException) -> float:
    """Seconds that the hub asks to wait for; 0 when it does not."""
    for one in _chain(error):
        text = str(getattr(getattr(one, "response", None), "headers", {}).get("Retry-After", ""))
        if text.isdigit():
            return float(text)
    return 0.0


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: the connection, overload and conflicts, but not a refusal or bad content."""
    if isinstance(error, MimeticError):
        return False
    status = status_of(error)
    if status is not None:
        return status in (408, 409, 412, 423, 425, 429) or status >= 500
    if is_connection(error):
        return True
    return not isinstance(error, (ValueError, TypeError, OSError, NotImplementedError))


def is_connection(error: BaseException) -> bool:
    """Whether the hub was not reached, or the connection broke."""
    for one in _chain(error):
        if isinstance(one, (ConnectionError, TimeoutError)):
            return True
        if any(word in type(one).__name__ for word in ("Connect", "Timeout", "Protocol", "Network", "ReadError")):
            return True
    return False


def reason(error: BaseException) -> str:
    """What an error of the client says, on one line, without its advice."""
    status = status_of(error)
    if status is not None:
        headers = next(one.response.headers for one in _chain(error) if getattr(one, "response", None) is not None)  # type: ignore[attr-defined]
        said = str(headers.get("X-Error-Message", ""))
        return f"status {status}" + (f": {' '.join(said.split())[:160]}" if said else "")
    last = list(_chain(error))[-1]
    return f"{type(last).__name__}: {' '.join(str(last).split())[:160]}".removesuffix(": ")


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found
