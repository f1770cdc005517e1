"""Callers who begin a request and don't end it, against a real socket."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.pki import Leaf, issue, make_authority
from kybernate.runtime.deadlines import limit_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LIMIT_S = 0.3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    now = datetime.now(UTC)
    pair = issue(
        make_authority("ca", timedelta(days=1), now),
        Leaf("x", dns=("localhost",), server=True),
        timedelta(days=1),
        now,
    )
    path: Path = tmp_path_factory.mktemp("tls") / "leaf.pem"
    path.write_bytes(pair.certificate_pem + pair.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    limit_requests(context, LIMIT_S)
    return context


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's and the caller's end of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        mine, _ = listener.accept()
        with mine, caller:
            yield mine, caller


def shake_hands(caller: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(caller)


def serve(
    context: ssl.SSLContext, end: socket.socket, then: Callable[[ssl.SSLSocket], None]
) -> tuple[float, OSError]:
    """As gunicorn does: take the connection up, shake hands, read. How long, and what ended it."""
    started = time.monotonic()
    try:
        with context.wrap_socket(end, server_side=True, do_handshake_on_connect=False) as wrapped:
            wrapped.do_handshake()
            then(wrapped)
    except OSError as error:
        return time.monotonic() - started, error
    raise AssertionError("nothing ended it")


def read_for_ever(end: ssl.SSLSocket) -> None:
    while end.recv(16):
        pass


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01"])
def test_a_handshake_that_does_not_end_is_given_up(
    server: ssl.SSLContext, ends: tuple[socket.socket, socket.socket], first: bytes
) -> None:
    mine, caller = ends
    caller.sendall(first)
    took, error = serve(server, mine, read_for_ever)
    assert error.errno == errno.ECONNRESET
    assert took >= LIMIT_S * 0.9


def test_a_body_that_drips_is_given_up_as_a_whole(
    server: ssl.SSLContext, ends: tuple[socket.socket, socket.socket]
) -> None:
    mine, caller = ends
    done = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError), shake_hands(caller) as client:
            while not done.wait(LIMIT_S / 10):
                client.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    _, error = serve(server, mine, read_for_ever)
    done.set()
    thread.join()
    assert error.errno == errno.ECONNRESET


def test_the_next_request_has_its_own_time(
    server: ssl.SSLContext, ends: tuple[socket.socket, socket.socket]
) -> None:
    mine, caller = ends
    heard: list[bytes] = []

    def call() -> None:
        with contextlib.suppress(OSError), shake_hands(caller) as client:
            client.sendall(b"onetwo")
            client.recv(2)

    def answer(end: ssl.SSLSocket) -> None:
        for _ in range(2):
            heard.append(end.recv(3))
            end.sendall(b".")
            time.sleep(LIMIT_S * 1.1)
            # So does gunicorn, between requests and as it takes up the next.
            end.setblocking(False)
            end.setblocking(True)
        read_for_ever(end)
        raise ConnectionResetError(errno.ECONNRESET, "the caller has gone")

    thread = threading.Thread(target=call)
    thread.start()
    serve(server, mine, answer)
    thread.join()
    assert heard == [b"one", b"two"]
