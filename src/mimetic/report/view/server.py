"""A local web page to look at a dataset: the standard library's server, for the person who started it only.

Every address begins with a random token, without which nothing is answered. Requests under another host name are
refused, so that a page elsewhere cannot reach in by giving its own name this machine's address. Only GET, HEAD and the
POST of an edit plan exist, and no path of a request ever becomes a path of a file.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import re
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from mimetic.errors import ConfigError, MimeticError
from mimetic.report.view.library import Library
from mimetic.report.view.marks import Marks
from mimetic.report.view.plan import EditPlan, parse_plan, save_plan

logger = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_BODY = 1 << 20
_CHUNK = 1 << 18
_WIDEST = 8192
_TIMEOUT_S = 30
_ASSETS = {
    "": ("view.html", "text/html"),
    "view.css": ("view.css", "text/css"),
    "view.js": ("view.js", "text/javascript"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")


@dataclass
class Viewing:
    """What the server shows and keeps.

    Args:
        library: the dataset.
        marks: findings on it.
        plan_path: where edit plans are saved.
        first: episode shown at first.
        on_saved: told of every plan that was saved.
        plan: the last one.
    """

    library: Library
    marks: Marks
    plan_path: Path
    first: int = 0
    on_saved: Callable[[EditPlan], None] = lambda plan: None
    plan: EditPlan = field(default_factory=EditPlan)


class ViewServer(ThreadingHTTPServer):
    """Serves one dataset.

    Args:
        viewing: what is shown.
        host: address to listen at; the caller has made sure that others than the loopback are meant.
        port: port, 0 for a free one.
        token: first part of every address; random when absent.
    """

    daemon_threads = True
    # A fixed port is free again at once after a restart; on Windows the option would let others take it away.
    allow_reuse_address = os.name == "posix"

    def __init__(self, viewing: Viewing, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        self.viewing = viewing
        self.token = token or secrets.token_urlsafe(24)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.hosts = {f"{_bracketed(name)}:{self.server_port}" for name in (*LOOPBACK, host.lower())}

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, as the standard library would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        host = str(self.server_address[0])
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else _bracketed(host)
        return f"http://{shown}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of a video is no error; anything else is logged."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            logger.warning("the viewer failed to answer %s", client_address, exc_info=True)


class _Refused(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: for people.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version = "mimetic"
    sys_version = ""
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        """Answer with the page, its parts, data, frames and videos."""
        self._guarded(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Take an edit plan."""
        self._guarded(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are told at the level debug, without the token."""
        logger.debug("%s", (format % args).replace(self.server.token, "..."))

    def _guarded(self, answer: Callable[[str, Mapping[str, str]], None]) -> None:
        try:
            rest, query = self._admit()
            answer(rest, query)
        except _Refused as refusal:
            self._send_json({"error": str(refusal)}, refusal.status)
        except ConfigError as error:
            self._send_json({"error": error.message, "hint": error.hint}, HTTPStatus.BAD_REQUEST)
        except (MimeticError, OSError) as error:
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise
            message = error.message if isinstance(error, MimeticError) else str(error)
            hint = error.hint if isinstance(error, MimeticError) else ""
            self._send_json({"error": message, "hint": hint}, HTTPStatus.NOT_FOUND)
        except Exception:  # a damaged dataset may fail in ways that nobody foresaw: the page says so, and goes on
            logger.warning("the viewer failed to answer a request", exc_info=True)
            message = "mimetic failed here; the terminal that started the viewer says where"
            self._send_json({"error": message}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _admit(self) -> tuple[str, Mapping[str, str]]:
        """The address behind the token, and its query.

        Raises:
            _Refused: another host's name, or no token; nothing about the dataset is said then.
        """
        # What the body of a refused request says must not be taken for the next request.
        self.close_connection = self.close_connection or self.command == "POST"
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers under its own address only")
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, "this is no address") from error
        token, slash, rest = parts.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "open the address that `mimetic dataset view` printed")
        if not slash:
            raise _Refused(HTTPStatus.NOT_FOUND, "the address ends with a slash")
        return rest, query

    def _get(self, rest: str, query: Mapping[str, str]) -> None:
        library = self.server.viewing.library
        if rest in _ASSETS:
            name, kind = _ASSETS[rest]
            self._send((files("mimetic.report") / "assets" / name).read_bytes(), f"{kind}; charset=utf-8")
            return
        head, _, tail = rest.partition("/")
        numbers = [unquote(part) for part in tail.split("/")] if tail else []
        match head, numbers:
            case "dataset", []:
                self._send_json({**library.describe(), **self._state()})
            case "episodes", []:
                self._send_json(self._episodes(query))
            case "marks", []:
                self._send_json(self._state())
            case "episode", [episode]:
                self._send_json(self._episode(_whole(episode)))
            case "frame", [camera, episode, frame]:
                width = min(_whole(query.get("width", "0")), _WIDEST)
                data = library.frame(self._camera(camera), _whole(episode), _whole(frame), width=width)
                self._send(data, "image/jpeg", cache=True)
            case "video", [camera, episode]:
                self._send_file(library.video(self._camera(camera), _whole(episode)), "video/mp4")
            case _:
                raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")

    def _post(self, rest: str, query: Mapping[str, str]) -> None:
        viewing = self.server.viewing
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower().removeprefix("http://") not in self.server.hosts:
            raise _Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an edit plan is sent as application/json")
        if rest != "plan":
            raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        size = _whole(self.headers.get("Content-Length", ""))
        if size > MOST_BODY:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the edit plan is too large")
        try:
            data = json.loads(self.rfile.read(size))
        except (ValueError, RecursionError) as error:
            raise ConfigError("the edit plan is not JSON") from error
        plan = parse_plan(data, viewing.library.episodes)
        save_plan(plan, viewing.library.root, viewing.plan_path)
        viewing.plan = plan
        viewing.on_saved(plan)
        self._send_json({"path": str(viewing.plan_path), "commands": plan.commands(viewing.library.root)})

    def _camera(self, number: str) -> str:
        cameras, place = self.server.viewing.library.cameras, _whole(number)
        if place >= len(cameras):
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such camera")
        return cameras[place]

    def _state(self) -> dict[str, Any]:
        viewing = self.server.viewing
        return {
            "check": {"state": viewing.marks.state, "note": viewing.marks.note},
            "flagged": {str(episode): claim for episode, claim in viewing.marks.episodes().items()},
            "whole": viewing.marks.of_dataset(),
            "plan": viewing.plan.document(viewing.library.root),
            "plan_path": str(viewing.plan_path),
            "first": viewing.first,
        }

    def _episodes(self, query: Mapping[str, str]) -> dict[str, Any]:
        only = None
        if query.get("flagged") == "1":
            only = sorted(self.server.viewing.marks.episodes())
        return self.server.viewing.library.list_episodes(
            offset=_whole(query.get("offset", "0")), words=query.get("words", "")[:200], only=only
        )

    def _episode(self, episode: int) -> dict[str, Any]:
        library = self.server.viewing.library
        found: dict[str, Any] = {
            "episode": episode,
            "length": library.length(episode),
            "tasks": library.tasks(episode),
            "previous": library.neighbour(episode, -1),
            "next": library.neighbour(episode, 1),
            "findings": self.server.viewing.marks.of(episode),
            "starts_s": [_start(library, camera, episode) for camera in library.cameras],
        }
        try:
            found |= library.curves(episode)
        except MimeticError as error:  # the pictures can be looked at all the same
            found |= {"frames": 0, "at": [], "curves": [], "left_out": 0, "problem": error.message}
        return found

    def _send_json(self, data: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._send(text.encode("utf-8", "replace"), "application/json; charset=utf-8", status)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, *, cache: bool = False) -> None:
        self.send_response(status)
        self._headers(kind, len(body), cache=cache)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _headers(self, kind: str, length: int, *, cache: bool = False, extra: Mapping[str, str] | None = None) -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Cache-Control": "private, max-age=600" if cache else "no-store",
            "Content-Security-Policy": _POLICY,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",  # the address holds the token
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            **(extra or {}),
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_file(self, path: Path, kind: str) -> None:
        """A file, or the part that the browser asks for: it seeks in videos that way."""
        with path.open("rb") as file:
            size = path.stat().st_size
            span = byte_range(self.headers.get("Range"), size)
            if span is None:
                self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                self._headers(kind, 0, extra={"Content-Range": f"bytes */{size}"})
                return
            first, last = span
            extra = {"Accept-Ranges": "bytes"}
            is_part = self.headers.get("Range") is not None
            if is_part:
                extra["Content-Range"] = f"bytes {first}-{last}/{size}"
            self.send_response(HTTPStatus.PARTIAL_CONTENT if is_part else HTTPStatus.OK)
            self._headers(kind, last - first + 1, extra=extra)
            if self.command == "HEAD":
                return
            file.seek(first)
            left = last - first + 1
            while left > 0:
                data = file.read(min(_CHUNK, left))
                if not data:  # the file became shorter: what was promised cannot be kept
                    self.close_connection = True
                    return
                self.wfile.write(data)
                left -= len(data)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a `Range` header asks for; None when there are none; all without such a header."""
    if header is None:
        return (0, size - 1) if size else (0, -1)
    match = _RANGE.match(header.strip())
    if match is None or match[1] == match[2] == "" or len(header) > 60:
        return None
    if match[1] == "":
        count = int(match[2])
        return (max(0, size - count), size - 1) if count and size else None
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    return (first, last) if first <= last else None


@contextlib.contextmanager
def serving(server: ViewServer) -> Any:
    """The server at work in a thread of its own; stopped and closed at the end."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        server.viewing.library.close()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _start(library: Library, camera: str, episode: int) -> float:
    """Where an episode begins in its video [s]; by frames, as everything in mimetic addresses them."""
    try:
        return library.footage(camera, episode).first / max(library.fps, 1)
    except MimeticError:
        return 0.0


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise _Refused(HTTPStatus.BAD_REQUEST, "a whole number was expected")
    return int(text)
