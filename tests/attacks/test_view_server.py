"""The viewer's server against strangers: other hosts' names, no token, paths out of the dataset, hostile bodies."""

import http.client
import json
import socket

import pytest

from mimetic.report.view.library import Library
from mimetic.report.view.marks import Marks
from mimetic.report.view.server import MOST_BODY, Viewing, ViewServer, byte_range, serving
from mimetic.testing.datasets import build_dataset

CAMERAS = {"top": (48, 64)}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = build_dataset(tmp_path_factory.mktemp("data") / "set", lengths=(6, 5), cameras=CAMERAS)
    (root.parent / "secret.txt").write_text("secret")
    viewing = Viewing(Library(root), Marks(), root.parent / "plans" / "plan.json")
    with serving(ViewServer(viewing)) as running:
        yield running


def ask(server, path, *, method="GET", body=None, host=None, token=None, **headers):
    """Status, headers and body of one request; `path` stands behind the token."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    token = server.token if token is None else token
    named = {"Host": f"127.0.0.1:{server.server_port}" if host is None else host}
    connection.request(
        method, f"/{token}/{path}", body, {**named, **{k.replace("_", "-"): v for k, v in headers.items()}}
    )
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), data


def test_the_page_and_its_data_are_served_to_who_knows_the_token(server):
    status, headers, data = ask(server, "")
    assert status == 200
    assert b"<title>" in data
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
    assert json.loads(ask(server, "dataset")[2])["episodes"] == 2
    assert ask(server, "frame/0/1/4")[1]["Content-Type"] == "image/jpeg"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 32


@pytest.mark.parametrize("token", ["", "x", "%C3%A9", "%00", ".."])
def test_without_the_token_nothing_is_said(server, token):
    for path in ("", "dataset", "video/0/0"):
        status, _, data = ask(server, path, token=token)
        assert status == 403
        assert b"set" not in data.replace(b"dataset view", b"")


def test_the_beginning_of_the_token_is_not_enough(server):
    assert ask(server, "dataset", token=server.token[:-1])[0] == 403
    assert ask(server, "dataset", token=server.token + "a")[0] == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1.evil.example"]
)
def test_other_host_names_are_refused_even_with_the_token(server, host):
    assert ask(server, "dataset", host=host)[0] == 403


def test_this_machines_name_is_accepted(server):
    assert ask(server, "dataset", host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "video/0/../../secret.txt", "video/../../secret.txt",
        "video/0/..%2f..%2fsecret.txt", "frame/..%2f/0/0", "assets/view.js", "view.html", "/etc/passwd", "//etc/passwd",
        "video/0/0/../../../secret.txt", "episode/-1", "episode/1e3", "episode/99999999999999999999", "frame/0/0/0/0",
        "frame/7/0/0", "frame/0/9/0", "frame/0/0/99", "video/0/9", "frame/0/0/%D9%A2",
    ],
)  # fmt: skip
def test_no_path_of_a_request_becomes_the_path_of_a_file(server, path):
    status, headers, data = ask(server, path)
    assert status in (400, 404)
    assert headers["Content-Type"].startswith("application/json")
    assert data.strip() != b"secret"
    assert "error" in json.loads(data)


def test_a_template_that_leaves_the_folder_is_not_followed(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(4,), cameras=CAMERAS)
    (tmp_path / "chunk-000").mkdir()
    (tmp_path / "chunk-000" / "file-000.mp4").write_bytes(b"secret")
    info = json.loads((root / "meta" / "info.json").read_text())
    info["video_path"] = "../chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    (root / "meta" / "info.json").write_text(json.dumps(info))
    with serving(ViewServer(Viewing(Library(root), Marks(), tmp_path / "plan.json"))) as server:
        status, _, data = ask(server, "video/0/0")
    assert status == 404
    assert b"secret" not in data


def test_a_link_out_of_the_dataset_is_not_followed(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(4,), cameras=CAMERAS)
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    video = next(root.rglob("*.mp4"))
    video.unlink()
    video.symlink_to(tmp_path / "secret.mp4")
    with serving(ViewServer(Viewing(Library(root), Marks(), tmp_path / "plan.json"))) as server:
        assert ask(server, "video/0/0")[0] == 404
        assert ask(server, "frame/0/0/0")[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_do_not_exist(server, method):
    assert ask(server, "plan", method=method, body=b"{}")[0] == 501


def post(server, body, **headers):
    return ask(server, "plan", method="POST", body=body, **{"Content_Type": "application/json", **headers})


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"nonsense", b'{"delete": "1"}', b'{"delete": [true]}', b'{"delete": [7]}', b'{"relabel": {"0": ""}}',
        b'{"relabel": {"x": "y"}}', b'{"relabel": {"0": 3}}', b'{"relabel": ["a"]}', b"[" * 100_000, b'{"notes": {"9": "x"}}',
    ],
)  # fmt: skip
def test_bodies_that_are_no_plan_are_refused_and_nothing_is_written(server, body):
    assert post(server, body)[0] == 400
    assert not server.viewing.plan_path.exists()


def test_pages_elsewhere_cannot_post(server):
    body = b'{"delete": [1]}'
    assert post(server, body, Origin="http://evil.example")[0] == 403
    assert post(server, body, Origin="null")[0] == 403
    assert post(server, body, Content_Type="text/plain")[0] == 415
    assert post(server, body, host="evil.example")[0] == 403
    assert ask(server, "dataset", method="POST", body=body, Content_Type="application/json")[0] == 404
    assert not server.viewing.plan_path.exists()


def test_a_body_that_claims_to_be_huge_is_not_read(server):
    assert post(server, b"{}", Content_Length=str(MOST_BODY + 1))[0] == 413
    assert post(server, b"{}", Content_Length="-1")[0] == 400


def test_what_follows_a_refused_body_is_no_request(server):
    """The rest of a body that was not read must not be answered as a second request."""
    hidden = f"GET /{server.token}/dataset HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
    request = (
        f"POST /wrong/plan HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(hidden)}\r\n\r\n{hidden}"
    )
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request.encode())
        received = b""
        while part := connection.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1") == 1
    assert received.startswith(b"HTTP/1.1 403")


def test_videos_come_in_the_parts_that_are_asked_for(server):
    status, headers, whole = ask(server, "video/0/0")
    assert status == 200
    assert headers["Accept-Ranges"] == "bytes"
    assert whole[4:8] == b"ftyp"
    status, headers, part = ask(server, "video/0/0", Range="bytes=4-7")
    assert (status, part) == (206, b"ftyp")
    assert headers["Content-Range"] == f"bytes 4-7/{len(whole)}"
    assert ask(server, "video/0/0", Range=f"bytes={len(whole) - 5}-")[2] == whole[-5:]
    assert ask(server, "video/0/0", Range="bytes=-9")[2] == whole[-9:]
    status, headers, _ = ask(server, "video/0/0", Range=f"bytes={len(whole)}-")
    assert status == 416
    assert headers["Content-Range"] == f"bytes */{len(whole)}"
    assert ask(server, "video/0/0", method="HEAD")[2] == b""


def test_an_address_of_version_6_and_a_port_that_is_free_again(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(4,))
    viewing = Viewing(Library(root), Marks(), tmp_path / "plan.json")
    if socket.has_ipv6:
        try:
            running = ViewServer(viewing, host="::1")
        except OSError:
            running = None  # the machine has no address of version 6
        if running is not None:
            with serving(running):
                assert running.url.startswith("http://[::1]:")
                assert f"[::1]:{running.server_port}" in running.hosts
    with serving(ViewServer(viewing)) as first:
        port = first.server_port
        assert ask(first, "dataset")[0] == 200
    with serving(ViewServer(viewing, port=port)) as again:
        assert ask(again, "dataset")[0] == 200


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, (0, 99)), ("bytes=0-", (0, 99)), ("bytes=0-0", (0, 0)), ("bytes=90-1000", (90, 99)), ("bytes=-1", (99, 99)),
        ("bytes=-1000", (0, 99)), ("bytes=-0", None), ("bytes=100-", None), ("bytes=5-4", None), ("bytes=-", None),
        ("bytes=0-1,3-4", None), ("items=0-1", None), ("bytes=a-b", None), ("bytes=" + "9" * 80 + "-", None),
    ],
)  # fmt: skip
def test_byte_ranges(header, span):
    assert byte_range(header, 100) == span


def test_the_token_is_not_logged(server, caplog):
    import logging

    with caplog.at_level(logging.DEBUG, logger="mimetic.report.view.server"):
        ask(server, "dataset")
    assert server.token not in caplog.text


def raw(server, request):
    """Status line and body of a request that no client would make."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer.partition(b"\r\n")[0].decode(), answer


@pytest.mark.parametrize("target", ["//[/", "http://[/", "/?" + "&".join(f"a{n}=1" for n in range(50))])
def test_addresses_that_cannot_be_read_are_answered_and_not_logged_as_failures(server, caplog, target):
    status, _ = raw(
        server, f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nConnection: close\r\n\r\n"
    )
    assert status in ("HTTP/1.1 400 Bad Request", "HTTP/1.1 403 Forbidden")  # Python may shorten `//` first
    assert caplog.records == []


def test_an_origin_that_cannot_be_read_is_another_page(server, caplog):
    status = ask(server, "plan", method="POST", body="{}", Origin="http://[", Content_Type="application/json")[0]
    assert status == 403
    assert caplog.records == []


def test_a_failure_that_nobody_foresaw_is_answered_without_its_details(server, monkeypatch, caplog):
    def fail(*arguments, **named):
        raise KeyError("secret place")

    monkeypatch.setattr(server.viewing.library, "frame", fail)
    status, _, data = ask(server, "frame/0/0/0")
    assert status == 500
    assert b"secret place" not in data
    assert "secret place" in caplog.text
    assert ask(server, "dataset")[0] == 200
