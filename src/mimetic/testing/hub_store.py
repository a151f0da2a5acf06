"""Repositories of the stand-in for the hub: commits, tags and files in memory; nothing here speaks HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_LARGE = (".safetensors", ".bin", ".parquet", ".mp4", ".pt")
_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class Refused(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        code: value of the header `X-Error-Code`, by which the client names its errors.
        message: text for people.
    """

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message or code)
        self.status = status
        self.code = code
        self.message = message or code


@dataclass(frozen=True)
class Account:
    """Somebody with a token.

    Args:
        name: user name, the first half of their repositories' ids.
        orgs: organisations that they may write to.
        role: "write", "read" or "fineGrained".
    """

    name: str
    orgs: tuple[str, ...] = ()
    role: str = "write"


@dataclass(frozen=True)
class Blob:
    """Content of one file.

    Args:
        data: the bytes.
        is_large: whether the hub keeps it outside git (LFS).
    """

    data: bytes
    is_large: bool

    @property
    def sha256(self) -> str:
        """Hash that names large files."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def git_hash(self) -> str:
        """Hash that git gives the file; of a large one, its pointer's."""
        data = self.data
        if self.is_large:
            data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(data)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def etag(self) -> str:
        """What the client takes for the file's identity."""
        return self.sha256 if self.is_large else self.git_hash

    def entry(self, path: str) -> dict[str, Any]:
        """Row of a listing."""
        row: dict[str, Any] = {"type": "file", "path": path, "size": len(self.data), "oid": self.git_hash}
        if self.is_large:
            row["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 130}
        return row


@dataclass(frozen=True)
class Commit:
    """One commit: its hash, its first line, and all files after it."""

    oid: str
    title: str
    files: Mapping[str, Blob]


@dataclass
class Repo:
    """One repository; `private` ones are seen by their owner only."""

    repo_id: str
    repo_type: str
    private: bool
    commits: list[Commit] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Mapping[str, Blob]:
        """Files of the newest commit."""
        return self.commits[-1].files

    def read(self, path: str) -> bytes:
        """Content of a file in the newest commit."""
        return self.files[path].data

    def add(self, title: str, files: Mapping[str, Blob]) -> Commit:
        """Append a commit with these files, all others gone."""
        text = json.dumps([self.repo_id, title, len(self.commits), {p: b.git_hash for p, b in sorted(files.items())}])
        commit = Commit(hashlib.sha1(text.encode()).hexdigest(), title, dict(files))
        self.commits.append(commit)
        return commit

    def commit(self, revision: str) -> Commit:
        """The commit that a branch, tag or hash means.

        Raises:
            Refused: there is none (404).
        """
        if revision == "main":
            return self.commits[-1]
        wanted = self.tags.get(revision, revision)
        for commit in self.commits:
            if commit.oid == wanted:
                return commit
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")


def upload_mode(path: str, size: int) -> str:
    """How the client must send a file: "lfs" or "regular"."""
    return "lfs" if path.endswith(_LARGE) or size > 10_000_000 else "regular"


@dataclass
class HubStore:
    """All repositories and the large files that were uploaded, by hash."""

    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)

    def repo(self, repo_id: str, repo_type: str = "model") -> Repo:
        """A repository that is there.

        Raises:
            Refused: it is not (404).
        """
        found = self.repos.get((repo_type, repo_id))
        if found is None:
            raise Refused(404, "RepoNotFound", f"{repo_type} {repo_id} not found")
        return found

    def create(self, repo_id: str, repo_type: str = "model", *, private: bool = False) -> Repo:
        """A new repository, with the one file that the hub puts there.

        Raises:
            Refused: it is there already (409).
        """
        if (repo_type, repo_id) in self.repos:
            raise Refused(409, "", "You already created this repo")
        repo = self.repos[(repo_type, repo_id)] = Repo(repo_id, repo_type, private)
        repo.add("initial commit", {".gitattributes": Blob(_ATTRIBUTES, False)})
        return repo

    def put(self, repo_id: str, files: Mapping[str, bytes], *, title: str = "files", repo_type: str = "model") -> Repo:
        """Add files to a repository as somebody else would have, making it where it is absent."""
        repo = self.repos.get((repo_type, repo_id)) or self.create(repo_id, repo_type)
        blobs = {path: Blob(data, upload_mode(path, len(data)) == "lfs") for path, data in files.items()}
        repo.add(title, {**repo.files, **blobs})
        return repo

    def apply(self, repo: Repo, lines: Iterable[Mapping[str, Any]]) -> Commit:
        """Make a commit of what the client sends: a header, then one operation a line.

        Raises:
            Refused: an operation cannot be done (400); then nothing of the commit is.
        """
        files, title = dict(repo.files), ""
        for line in lines:
            key, value = line["key"], line["value"]
            path = value.get("path", "")
            if key == "header":
                title = value["summary"]
                continue
            if not path or path.startswith("/") or ".." in path.split("/"):
                raise Refused(400, "", f"invalid path {path!r}")
            if key == "file":
                files[path] = Blob(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                if value["oid"] not in self.large:
                    raise Refused(400, "", f"{path}: the large file {value['oid']} was never uploaded")
                files[path] = Blob(self.large[value["oid"]], True)
            elif key == "deletedFile":
                if path not in files:
                    raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {path}")
                del files[path]
            elif key == "deletedFolder":
                files = {name: blob for name, blob in files.items() if not name.startswith(path.rstrip("/") + "/")}
            else:
                raise Refused(400, "", f"unknown operation {key!r}")
        if not title:
            raise Refused(400, "", "a commit needs a summary")
        return repo.add(title, files)

    def tree(self, commit: Commit, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        """Listing of a folder of a commit.

        Raises:
            Refused: there is no such folder (404).
        """
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        rows: dict[str, dict[str, Any]] = {}
        for path, blob in sorted(commit.files.items()):
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                if recursive or depth == 1:
                    name = prefix + "/".join(parts[:depth])
                    rows[name] = {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}
            if recursive or len(parts) == 1:
                rows[path] = blob.entry(path)
        if prefix and not rows:
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on this revision")
        return list(rows.values())
