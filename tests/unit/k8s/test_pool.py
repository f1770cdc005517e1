"""How requests get to the API server."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from kybernate.adapters.k8s import Api
from kybernate.adapters.k8s.pool import Pool
from kybernate.errors import KybernateError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 10.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b"%s %d %s" % (self.path.encode(), self.client_address[1], body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def ask(pool: Pool, body: bytes = b"{}") -> list[bytes]:
    """The target, the client's port, and the body, as the server saw them."""
    response = pool.request("POST", "/api?limit=1", body, {"accept": "*/*"}, SECONDS)
    answer: bytes = response.read()
    response.release_conn()
    return answer.split(b" ", 2)


def test_a_url_may_have_a_path_and_connections_are_kept(url: str) -> None:
    pool = Pool(urllib3.PoolManager(), url + "/clusters/one/")
    first, second = ask(pool), ask(pool, b"x" * 100_000)
    assert first[0] == b"/clusters/one/api?limit=1"
    assert second[1:] == [first[1], b"x" * 100_000]


def test_what_is_dropped_is_made_anew(url: str) -> None:
    pool = Pool(urllib3.PoolManager(), url)
    before = ask(pool)
    pool.clear()
    assert ask(pool)[1] != before[1]


def test_head_and_body_are_written_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    send = http.client.HTTPConnection.send

    def noted(self: http.client.HTTPConnection, data: bytes) -> None:
        written.append(bytes(data))
        send(self, data)

    monkeypatch.setattr(http.client.HTTPConnection, "send", noted)
    ask(Pool(urllib3.PoolManager(), url), b"all of it")
    assert len(written) == 1
    assert written[0].startswith(b"POST /api?limit=1 HTTP/1.1\r\n")
    assert written[0].endswith(b"\r\n\r\nall of it")


def test_a_server_that_is_away_is_an_error_of_the_library() -> None:
    pool = Pool(urllib3.PoolManager(), "http://127.0.0.1:1")
    with pytest.raises(urllib3.exceptions.HTTPError):
        ask(pool)


def test_that_nobody_is_behind_a_quiet_connection_is_noticed_in_half_a_minute(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is sent the kernel asks; else a watch would wait for its own time-out."""
    kubeconfig, found = tmp_path / "kubeconfig", []
    told = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": {"server": url}}],
        "users": [{"name": "one", "user": {}}],
    }
    kubeconfig.write_text(json.dumps(told))
    send = http.client.HTTPConnection.send

    def noted(self: http.client.HTTPConnection, data: bytes) -> None:
        send(self, data)
        found.append([self.sock.getsockopt(*option) for option in OPTIONS])

    monkeypatch.setattr(http.client.HTTPConnection, "send", noted)
    with suppress(KybernateError):
        Api(kubeconfig, "test").post("/api", {})
    asks, idle, every, times, whole = found[0]
    assert asks
    assert idle + every * times <= 30
    assert whole, "no request waits for an answer to its first half"


OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
]
