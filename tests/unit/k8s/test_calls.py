"""Calls over kept connections, against servers that say what a test has them say."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.adapters.k8s.calls import BrokenError, Calls, made_for
from kybernate.adapters.pki import Leaf, issue, make_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT_S = 5.0
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Says the next of `script` for each request; an empty one ends the connection."""

    def __init__(self, script: list[bytes], wrap: Callable[[socket.socket], Any]) -> None:
        self.asked: list[bytes] = []
        self.connections = 0
        self._script = script
        self._wrap = wrap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(plain,), daemon=True).start()

    def _talk(self, plain: socket.socket) -> None:
        with suppress(OSError), self._wrap(plain) as sock:
            self.connections += 1
            while data := sock.recv(65536):
                self.asked.append(data)
                said = self._script.pop(0)
                for part in said.split(b"|"):
                    sock.sendall(part)
                    time.sleep(0.01)
                if not said or said.endswith(b"|"):
                    return


def settings(port: int, **others: Any) -> Any:
    names = ("proxy", "assert_hostname", "tls_server_name", "ssl_ca_cert", "cert_file", "key_file")
    known = {**dict.fromkeys(names), "verify_ssl": True, "host": f"http://127.0.0.1:{port}"}
    return SimpleNamespace(**{**known, **others})


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[Server, Calls]]]:
    made: list[Server] = []

    def start(*script: bytes) -> tuple[Server, Calls]:
        made.append(Server(list(script), lambda plain: plain))
        return made[-1], Calls(settings(made[-1].port))

    yield start
    for server in made:
        server.close()


def get(calls: Calls, limit: float = LIMIT_S) -> tuple[int, bytes]:
    return calls.request("GET", "/x?a=1", {"accept": "json"}, None, limit)


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 2|00 OK\r\ncontent-length:  |4\r\n\r\nab|cd", b"abcd"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (
            CHUNKED + b"3;x=y\r\nabc\r\n|1|\r\nd\r\n0\r\nSum: 1\r\n\r\n",
            b"abcd",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_answers_of_all_kinds_are_read_and_the_connection_is_kept(
    serve: Any, said: bytes, body: bytes
) -> None:
    server, calls = serve(said, OK)
    assert get(calls) == (204 if not body else 200, body)
    assert get(calls) == (200, b"ok")
    assert server.connections == 1


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok|",
    ],
)
def test_a_connection_that_ends_with_its_answer_is_not_kept(serve: Any, said: bytes) -> None:
    server, calls = serve(said, OK)
    assert get(calls) == get(calls) == (200, b"ok")
    assert server.connections == 2


def test_what_is_asked_is_what_was_meant(serve: Any) -> None:
    server, calls = serve(OK, OK, OK)
    calls.request("POST", "/api/v1/pods", {"content-type": "json"}, b"{}", LIMIT_S)
    calls.request("DELETE", "/a name\r\nEvil: 1", {}, None, LIMIT_S)
    first, second = server.asked
    assert first.startswith(b"POST /api/v1/pods HTTP/1.1\r\nhost: 127.0.0.1:")
    assert first.endswith(b"content-type: json\r\ncontent-length: 2\r\n\r\n{}")
    assert second.startswith(b"DELETE /a%20name%0D%0AEvil:%201 HTTP/1.1\r\n")
    with pytest.raises(ValueError, match="line break"):
        calls.request("GET", "/", {"x": "1\r\ny: 2"}, None, LIMIT_S)


def test_a_connection_that_ended_meanwhile_is_not_asked(serve: Any) -> None:
    server, calls = serve(OK + b"|", OK)
    get(calls)
    time.sleep(0.1)
    # Also what must not be asked twice can be asked now.
    assert calls.request("POST", "/", {}, b"{}", LIMIT_S) == (200, b"ok")
    assert server.connections == 2


def test_whether_a_call_may_be_repeated_is_told(serve: Any) -> None:
    _, calls = serve(OK, b"", b"")
    get(calls)
    with pytest.raises(BrokenError) as kept:
        get(calls)
    with pytest.raises(BrokenError) as new:
        get(calls)
    assert (kept.value.unasked, new.value.unasked) == (True, False)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok|",
        CHUNKED + b"zz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        CHUNKED + b"1" * 70_000,
    ],
)
def test_what_is_no_answer_is_an_error(serve: Any, said: bytes) -> None:
    _, calls = serve(said)
    with pytest.raises(BrokenError) as caught:
        get(calls)
    assert not caught.value.unasked


@pytest.mark.parametrize("said", [b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"])
def test_an_answer_that_does_not_end_is_given_up_in_time(serve: Any, said: bytes) -> None:
    _, calls = serve(said)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        get(calls, 0.3)
    assert time.monotonic() - began < 2


def test_many_call_at_once(serve: Any) -> None:
    server, calls = serve(*[OK] * 40)
    threads = [threading.Thread(target=get, args=(calls,)) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len(server.asked) == 40


def test_certificates_are_read_again_once_they_have_changed(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    bundle = tmp_path / "ca.crt"
    contexts = []
    for number in range(2):
        authority = make_authority("ca", timedelta(days=1), now)
        leaf = Leaf("x", dns=("api.example",), server=True)
        pair = issue(authority, leaf, timedelta(days=1), now)
        path = tmp_path / f"{number}.pem"
        path.write_bytes(pair.certificate_pem + pair.key_pem)
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        contexts[-1].load_cert_chain(path)
        bundle.write_bytes(authority.certificate_pem)
        os.utime(bundle, ns=(number, number))
        if number == 0:
            first = bundle.read_bytes()
    server = Server([OK, OK], lambda plain: contexts[0].wrap_socket(plain, server_side=True))
    secure = {"tls_server_name": "api.example", "ssl_ca_cert": str(bundle)}
    calls = Calls(settings(server.port, host=f"https://127.0.0.1:{server.port}", **secure))
    with pytest.raises(ssl.SSLCertVerificationError):
        get(calls)
    bundle.write_bytes(first)
    os.utime(bundle, ns=(5, 5))
    assert get(calls) == (200, b"ok")
    server.close()


@pytest.mark.parametrize(
    ("others", "enough"),
    [
        ({}, True),
        ({"assert_hostname": False}, True),
        ({"assert_hostname": "name"}, False),
        ({"proxy": "http://proxy"}, False),
        ({"host": "unix:///run/api"}, False),
    ],
)
def test_what_it_is_not_made_for_is_left_to_the_client(others: Any, enough: bool) -> None:
    assert made_for(settings(1, **others)) is enough
