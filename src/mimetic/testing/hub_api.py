"""The calls of the hub's HTTP API that the stand-in answers, one method a call; sockets are `hub_server`'s business."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from mimetic.testing.hub_store import Account, Blob, Commit, Refused, Repo, upload_mode

if TYPE_CHECKING:
    from mimetic.testing.hub_server import HubServer

_TYPES = {"models": "model", "datasets": "dataset", "spaces": "space"}


@dataclass(frozen=True)
class Answer:
    """What goes back.

    Args:
        status: HTTP status.
        body: content.
        headers: headers besides the content's type and length.
        content_type: type of the content.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


class Request:
    """One request and what it asks of the store.

    Args:
        hub: the server that got it.
        method: HTTP method.
        url: its address, split.
        body: its content.
        headers: its headers.
    """

    def __init__(self, hub: HubServer, method: str, url: Any, body: bytes, headers: Mapping[str, str]) -> None:
        self.hub, self.method, self.body = hub, method, body
        # Split before decoding: a revision such as `refs/pr/1` comes with its slashes encoded.
        self.parts = [unquote(part) for part in url.path.split("/") if part]
        self.query = parse_qs(url.query)
        self.headers = {name.lower(): value for name, value in headers.items()}

    def answer(self) -> Answer:
        """Do it.

        Raises:
            Refused: the answer is an error.
        """
        match (self.method, *self.parts):
            case ("GET", "api", "whoami-v2"):
                return self._whoami()
            case ("POST", "api", "repos", "create"):
                return self._create()
            case ("POST", "api", "validate-yaml"):
                return self._validate_yaml()
            case (_, "api", kind, user, name, *rest) if kind in _TYPES:
                return self._repo_call(f"{user}/{name}", _TYPES[kind], rest)
            case ("POST", *prefix, user, name, "info", "lfs", "objects", "batch") if name.endswith(".git"):
                return self._batch(self._repo(f"{user}/{name[:-4]}", _prefixed(prefix), write=True))
            case ("PUT", "_large", sha256):
                return self._upload(sha256)
            case ("GET" | "HEAD", kind, user, name, "resolve", revision, *path) if kind in _TYPES:
                return self._resolve(self._repo(f"{user}/{name}", _TYPES[kind]), revision, "/".join(path))
            case ("GET" | "HEAD", user, name, "resolve", revision, *path):
                return self._resolve(self._repo(f"{user}/{name}", "model"), revision, "/".join(path))
        raise Refused(404, "", f"this stand-in has no {self.method} /{'/'.join(self.parts)}")

    def _account(self) -> Account | None:
        token = self.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not token:
            return None
        if token not in self.hub.accounts:
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return self.hub.accounts[token]

    def _repo(self, repo_id: str, repo_type: str, *, write: bool = False) -> Repo:
        account = self._account()
        if write and account is None:
            raise Refused(401, "", "Invalid username or password.")
        found = self.hub.store.repos.get((repo_type, repo_id))
        may_write = account is not None and _may_write(account, repo_id.split("/")[0])
        is_member = account is not None and repo_id.split("/")[0] in (account.name, *account.orgs)
        if found is None or (found.private and not is_member):
            raise Refused(404 if account else 401, "RepoNotFound", "Repository not found")
        if write and not may_write:
            raise Refused(403, "", "You do not have the right to write to this repository")
        return found

    def _whoami(self) -> Answer:
        account = self._account()
        if account is None:
            raise Refused(401, "", "Invalid username or password.")
        return _json(
            {
                "type": "user",
                "name": account.name,
                "orgs": [{"type": "org", "name": name} for name in account.orgs],
                "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": account.role}},
            }
        )

    def _create(self) -> Answer:
        account, wanted = self._account(), json.loads(self.body)
        if account is None:
            raise Refused(401, "", "Invalid username or password.")
        owner = wanted.get("organization") or account.name
        if not _may_write(account, owner):
            raise Refused(403, "", f"You don't have the rights to create a model under the namespace {owner!r}")
        repo_id = f"{owner}/{wanted['name']}"
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        repo_type, url = wanted.get("type") or "model", f"{self.hub.url}/{repo_id}"
        if (repo_type, repo_id) in self.hub.store.repos:
            return _json({"error": "You already created this model repo", "url": url, "name": repo_id}, 409)
        self.hub.store.create(repo_id, repo_type, private=private)
        return _json({"url": url, "name": repo_id})

    def _validate_yaml(self) -> Answer:
        import yaml

        content = json.loads(self.body)["content"]
        front = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            data = yaml.safe_load(front[1]) if front else {}
        except yaml.YAMLError as error:
            data = str(error)
        if not isinstance(data, dict):
            return _json({"errors": [{"message": f"not a mapping: {str(data)[:200]}"}], "warnings": []}, 400)
        return _json({"errors": [], "warnings": []})

    def _repo_call(self, repo_id: str, repo_type: str, rest: Sequence[str]) -> Answer:
        match (self.method, *rest):
            case ("GET",):
                return self._info(self._repo(repo_id, repo_type), "main")
            case ("GET", "revision", revision):
                return self._info(self._repo(repo_id, repo_type), revision)
            case ("GET", "refs"):
                return self._refs(self._repo(repo_id, repo_type))
            case ("GET", "tree", revision, *folder):
                commit = self._repo(repo_id, repo_type).commit(revision)
                recursive = self.query.get("recursive", [""])[0].lower() == "true"
                return _json(self.hub.store.tree(commit, "/".join(folder), recursive=recursive))
            case ("POST", "preupload", revision):
                return self._preupload(self._repo(repo_id, repo_type, write=True), revision)
            case ("POST", "commit", "main"):
                return self._commit(self._repo(repo_id, repo_type, write=True))
            case ("POST", "tag", revision):
                return self._tag(self._repo(repo_id, repo_type, write=True), revision)
            case ("DELETE", "tag", tag):
                repo = self._repo(repo_id, repo_type, write=True)
                if repo.tags.pop(tag, None) is None:
                    raise Refused(404, "RevisionNotFound", f"no tag {tag}")
                return _json({})
        raise Refused(404, "", f"this stand-in has no {self.method} /{'/'.join(self.parts)}")

    def _info(self, repo: Repo, revision: str) -> Answer:
        commit = repo.commit(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        return _json(
            {
                "_id": "0" * 24,
                "id": repo.repo_id,
                "modelId": repo.repo_id,
                "sha": commit.oid,
                "private": repo.private,
                "tags": [],
                "siblings": siblings,
            }
        )

    def _refs(self, repo: Repo) -> Answer:
        def rows(refs: Mapping[str, str], kind: str) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": oid} for n, oid in refs.items()]

        head = {"main": repo.commits[-1].oid}
        return _json({"branches": rows(head, "heads"), "tags": rows(repo.tags, "tags"), "converts": []})

    def _preupload(self, repo: Repo, revision: str) -> Answer:
        files, there = json.loads(self.body)["files"], repo.commit(revision).files
        rows = []
        for item in files:
            mode = upload_mode(item["path"], item["size"])
            old = there.get(item["path"])
            rows.append(
                {
                    "path": item["path"],
                    "uploadMode": mode,
                    "shouldIgnore": False,
                    "oid": old.etag if old is not None and old.is_large == (mode == "lfs") else None,
                }
            )
        return _json({"files": rows, "commitOid": repo.commits[-1].oid})

    def _batch(self, repo: Repo) -> Answer:
        objects = []
        for item in json.loads(self.body)["objects"]:
            row = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.store.large:
                row["actions"] = {"upload": {"href": f"{self.hub.url}/_large/{item['oid']}", "header": {}}}
            objects.append(row)
        return _json({"transfer": "basic", "objects": objects})

    def _upload(self, sha256: str) -> Answer:
        if Blob(self.body, True).sha256 != sha256:
            raise Refused(400, "", "the content has another hash than announced")
        self.hub.store.large[sha256] = self.body
        return _json({})

    def _commit(self, repo: Repo) -> Answer:
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        commit = self.hub.store.apply(repo, lines)
        url = f"{self.hub.url}/{repo.repo_id}/commit/{commit.oid}"
        return _json({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    def _tag(self, repo: Repo, revision: str) -> Answer:
        tag = json.loads(self.body)["tag"]
        if tag in repo.tags:
            raise Refused(409, "", f"Tag {tag} already exists")
        repo.tags[tag] = repo.commit(revision).oid
        return _json({})

    def _resolve(self, repo: Repo, revision: str, path: str) -> Answer:
        commit: Commit = repo.commit(revision)
        headers = {"X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
        blob = commit.files.get(path)
        if blob is None:
            message = f"Entry not found: {path}"
            return Answer(404, b"", {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": message})
        headers["ETag"] = f'"{blob.etag}"'
        if blob.is_large:
            headers |= {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.data))}
        begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        if begin and int(begin[1]) < len(blob.data):
            start, size = int(begin[1]), len(blob.data)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            return Answer(206, blob.data[start:], headers, "application/octet-stream")
        return Answer(200, blob.data, headers, "application/octet-stream")


def _prefixed(prefix: Sequence[str]) -> str:
    return _TYPES.get(prefix[0], "model") if prefix else "model"


def _may_write(account: Account, owner: str) -> bool:
    return account.role != "read" and owner in (account.name, *account.orgs)
