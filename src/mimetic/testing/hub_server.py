"""A stand-in for the hub on this machine: the part of its HTTP API that pushing and downloading need.

`huggingface_hub` is the client, unchanged, so that a test shows what a user would see, without an account or a
network:

    with HubServer() as hub, as_the_hub(hub):
        huggingface_hub.create_repo("me/pick")

A command runs against it by `python -m mimetic.testing.hub_server COMMAND ...`; its repositories are gone afterwards.

What it leaves out: Xet (the client is told to use plain HTTP), pull requests, branches besides `main`, datasets'
viewer, rate limits of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from mimetic.testing.hub_api import Answer, Request
from mimetic.testing.hub_store import Account, HubStore, Refused, Repo


@dataclass
class Fault:
    """What goes wrong with the next requests that match.

    Args:
        path: regular expression that must be found in the path.
        method: HTTP method; empty matches all.
        times: how many requests it spoils.
        status: answer with this status; 0 does not.
        drop: "before" closes the connection unanswered, "after" does so when the request has been carried out.
        wait_s: answer only after this time [s].
        headers: further headers of the answer.
    """

    path: str = ""
    method: str = ""
    times: int = 1
    status: int = 0
    drop: str = ""
    wait_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


class HubServer:
    """The server, in threads of its own, on a free port of 127.0.0.1 between `start` and `stop`.

    Args:
        accounts: who holds which token; by default one user, `me`.
    """

    def __init__(self, accounts: Mapping[str, Account] | None = None) -> None:
        self.store = HubStore()
        self.accounts = dict(accounts or {f"hf_{secrets.token_hex(17)}": Account("me")})
        self.token = next(iter(self.accounts))
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and status of every request; status 0: the connection was dropped."""
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> HubServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> HubServer:
        """Begin to answer."""
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="hub", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port."""
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()
        self._http = self._thread = None

    @property
    def url(self) -> str:
        """Address without a slash at its end, for `HF_ENDPOINT`."""
        assert self._http is not None, "the server is not running"
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def environment(self, token: str | None = None) -> dict[str, str]:
        """Environment variables under which a process takes this server for the hub.

        Args:
            token: token of the user; the first account's without it, none when empty.
        """
        return {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.token if token is None else token,
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def fail(self, fault: Fault) -> None:
        """Spoil the next requests that match."""
        with self._lock:
            self._faults.append(fault)

    def repo(self, repo_id: str, repo_type: str = "model") -> Repo:
        """A repository, to look at what arrived."""
        return self.store.repo(repo_id, repo_type)

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The fault that spoils this request, counted down."""
        with self._lock:
            for fault in self._faults:
                if fault.times > 0 and fault.method in ("", method) and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def note(self, method: str, path: str, status: int) -> None:
        """Remember a request."""
        with self._lock:
            self.requests.append((method, path, status))

    @property
    def lock(self) -> threading.RLock:
        """Held while a request changes the repositories."""
        return self._lock


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: HubServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; requests are remembered instead."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            return super().handle_one_request()
        self.close_connection = True

    def do_GET(self) -> None:
        """Answer a request; so do the methods below."""
        self._answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        body = self._read_body()
        fault = hub.take_fault(self.command, path)
        if fault is not None and fault.wait_s:
            time.sleep(fault.wait_s)
        if fault is not None and fault.drop == "before":
            return self._drop(path)
        if fault is not None and fault.status:
            answer = Answer(fault.status, b'{"error": "injected"}', fault.headers)
        else:
            try:
                with hub.lock:
                    answer = Request(hub, self.command, urlsplit(self.path), body, dict(self.headers.items())).answer()
            except Refused as refused:
                headers = {"X-Error-Message": refused.message}
                if refused.code:
                    headers["X-Error-Code"] = refused.code
                answer = Answer(refused.status, json.dumps({"error": refused.message}).encode(), headers)
        if fault is not None and fault.drop == "after":
            return self._drop(path)
        hub.note(self.command, path, answer.status)
        self.send_response(answer.status)
        for name, value in {"Content-Type": answer.content_type, **answer.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        return None

    def _drop(self, path: str) -> None:
        self.server.hub.note(self.command, path, 0)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


@contextlib.contextmanager
def as_the_hub(hub: HubServer, *, token: str | None = None) -> Iterator[HubServer]:
    """Make huggingface_hub in this process take a server for the hub; undone at the end.

    Args:
        hub: a running server.
        token: token of the user; the first account's without it, none when empty.
    """
    import huggingface_hub
    from huggingface_hub import constants

    # The client reads its variables when it is imported, which may have happened.
    values = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }
    variables = hub.environment(token)
    old_values = {name: getattr(constants, name) for name in values}
    old_variables = {name: os.environ.get(name) for name in variables}
    huggingface_hub.close_session()
    try:
        for name, value in values.items():
            setattr(constants, name, value)
        os.environ.update(variables)
        with warnings.catch_warnings():
            # What the client tells itself when it sends files without Xet.
            warnings.filterwarnings("ignore", message="Use 'content=<...>'", category=DeprecationWarning)
            yield hub
    finally:
        huggingface_hub.close_session()
        for name, value in old_values.items():
            setattr(constants, name, value)
        for name, text in old_variables.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command that takes a new, empty stand-in for the hub, with the user `me` logged in.

    Args:
        argv: the command and its words; the process's own without it.

    Returns:
        The command's exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        sys.stderr.write("usage: python -m mimetic.testing.hub_server COMMAND ...\n")
        return 2
    with HubServer() as hub:
        code = subprocess.run(words, env={**os.environ, **hub.environment()}, check=False).returncode
        for (repo_type, repo_id), repo in hub.store.repos.items():
            sys.stdout.write(f"{repo_type} {repo_id}, tags: {', '.join(sorted(repo.tags)) or 'none'}\n")
            for path, blob in sorted(repo.files.items()):
                sys.stdout.write(f"  {path} ({len(blob.data)} bytes)\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
