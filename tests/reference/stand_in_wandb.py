"""A server that answers the package `wandb` (0.31) as far as a training needs it, and remembers what it got.

Written from the requests that the package sends. Used by tests of runs that are online.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VIEWER = {"id": "U1", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
PROJECT = {"id": "P1", "internalId": "P1", "name": "lerobot", "entity": {"id": "E1", "name": "me"}}


class StandIn:
    """What arrived, and what to do with what arrives.

    Attributes:
        requests: path, or name of the operation, of each request.
        history: rows of the run by step.
        uploads: content of uploaded files by name.
        artifacts: input of each artifact that was begun.
        committed: number of artifacts that were completed.
        runs: id at each time that a run was begun or updated.
        exit_code: of the last run that ended.
        broken: parts of paths or names of operations that are answered with an error 400.
        silent: parts of paths or names of operations that are never answered, until `wake` is set.
    """

    def __init__(self):
        self.requests, self.history, self.uploads, self.artifacts, self.runs = [], {}, {}, [], []
        self.committed, self.exit_code = 0, None
        self.broken, self.silent, self.wake = set(), set(), threading.Event()
        self.url = ""

    def answer(self, path, body):
        """JSON for a request; None: an error."""
        if path.startswith("/upload/"):
            self.uploads[path.removeprefix("/upload/")] = body
            return {}
        if path.endswith("/file_stream"):
            self._stream(json.loads(body))
            return {}
        if path.startswith("/graphql"):
            request = json.loads(body)
            return {"data": self._graphql(request["query"], request.get("variables") or {})}
        return {}

    def _stream(self, sent):
        for line in sent.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
            row = json.loads(line)
            self.history[row["_step"]] = row
        self.exit_code = sent.get("exitcode", self.exit_code)

    def _graphql(self, query, given):
        answers = {
            "Viewer": lambda: {"viewer": VIEWER},
            "GetDefaultEntity": lambda: {"viewer": VIEWER},
            "ServerFeaturesQuery": lambda: {"serverInfo": {"features": []}},
            "RunResumeStatus": lambda: {"model": None},
            "UpsertBucket": lambda: self._run(given),
            "CreateRunFiles": lambda: {
                "createRunFiles": {
                    "runID": "B1",
                    "uploadHeaders": [],
                    "files": [{"name": name, "uploadUrl": self._place("run", name)} for name in given["files"]],
                }
            },
            "ArtifactType": lambda: {"project": {"artifact": None}},
            "CreateArtifact": lambda: self._artifact(given["input"]),
            "CreateArtifactManifest": lambda: {
                "createArtifactManifest": {
                    "artifactManifest": {
                        "id": "M1",
                        "file": {"id": "F0", "uploadUrl": self._place("manifest", ""), "uploadHeaders": []},
                    }
                }
            },
            "CreateArtifactFiles": lambda: self._files(given["input"]["artifactFiles"]),
            "CommitArtifact": self._commit,
            "ArtifactByID": lambda: {"artifact": self._described()},
        }
        return answers.get(operation(query), dict)()

    def _run(self, given):
        self.runs.append(given["name"])
        bucket = {
            "id": "B1", "name": given["name"], "displayName": given["displayName"], "description": None,
            "config": "{}", "sweepName": None, "historyLineCount": 0, "project": PROJECT,
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": len(self.runs) == 1}}

    def _artifact(self, given):
        self.artifacts.append(given)
        artifact = {"id": "A1", "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": artifact}}

    def _files(self, files):
        step = self.artifacts[-1]["artifactCollectionName"][-6:]
        nodes = [
            {
                "storagePath": file["name"],
                "uploadUrl": self._place(step, file["name"]),
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": "A1"},
            }
            for file in files
        ]
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _commit(self):
        self.committed += 1
        return {"commitArtifact": {"artifact": {"id": "A1", "digest": ""}}}

    def _described(self):
        sequence = {
            "__typename": "ArtifactSequence",
            "name": self.artifacts[-1]["artifactCollectionName"],
            "project": PROJECT,
        }
        return {
            "__typename": "Artifact", "id": "A1", "artifactSequence": sequence, "versionIndex": 0,
            "artifactType": {"name": "model"}, "description": None, "metadata": None, "ttlDurationSeconds": -2,
            "ttlIsInherited": False, "tags": [], "historyStep": None, "state": "COMMITTED", "size": 1, "digest": "",
            "commitHash": "c", "fileCount": 1, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": None, "aliases": [],
        }  # fmt: skip

    def _place(self, group, name):
        return f"{self.url}/upload/{group}/{name}"


def operation(query):
    """Name of a GraphQL operation."""
    found = re.search(r"(?:query|mutation)\s+(\w+)", query)
    return found[1] if found else ""


class Handler(BaseHTTPRequestHandler):
    """Reads a request, lets the stand-in answer."""

    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def log_message(self, *_):
        """Say nothing."""

    def do_POST(self):
        """Answer."""
        body = self._body()
        name = operation(json.loads(body)["query"]) if self.path.startswith("/graphql") else self.path
        self.stand_in.requests.append(name)
        if any(part in name for part in self.stand_in.silent):
            self.stand_in.wake.wait(120)
        answer = None if any(part in name for part in self.stand_in.broken) else self.stand_in.answer(self.path, body)
        content = json.dumps({"errors": [{"message": "refused"}]} if answer is None else answer).encode()
        self.send_response(400 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body


class Server(ThreadingHTTPServer):
    """Says nothing about clients that hang up."""

    daemon_threads = True

    def handle_error(self, *_):
        """Say nothing."""


@contextmanager
def serve():
    """A running stand-in; its `url` is where."""
    stand_in = StandIn()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"stand_in": stand_in}))
    stand_in.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.wake.set()
        server.shutdown()
        server.server_close()
        thread.join(60)
