"""Probes are answered whatever other callers of the port do, against real sockets."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from kybernate.runtime import serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real_time


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[serve.ProbeServer]:
    monkeypatch.setattr(serve, "PROBE_S", 0.3)
    made = serve.ProbeServer("127.0.0.1", 0, lambda: "not yet")
    made.start()
    yield made
    made.stop()


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    told = answer.status, answer.read()
    connection.close()
    return told


def test_what_probes_are_told(probes: serve.ProbeServer) -> None:
    assert ask(probes.port, "/healthz") == (200, b"ok\n")
    assert ask(probes.port, "/readyz") == (503, b"not yet\n")
    assert ask(probes.port, "/other")[0] == 404
    assert b"python_info" in ask(probes.port, "/metrics")[1]


def test_who_says_nothing_keeps_nobody_out(probes: serve.ProbeServer) -> None:
    with socket.create_connection(("127.0.0.1", probes.port)) as silent:
        silent.sendall(b"GET /hea")
        assert ask(probes.port, "/healthz") == (200, b"ok\n")


def test_callers_who_say_nothing_have_so_many_threads_and_no_more(
    probes: serve.ProbeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PROBE_S", 30.0)
    monkeypatch.setattr(serve, "MOST_PROBES", 8)
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection(("127.0.0.1", probes.port)))
        assert ask(probes.port, "/healthz") == (200, b"ok\n")
        until = time.monotonic() + 5
        while threading.active_count() > before + 8 and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before + 8


def test_a_probe_finds_its_place_among_many_who_come_at_once() -> None:
    """While the thread that accepts has no time yet."""
    made = serve.ProbeServer("127.0.0.1", 0, lambda: None)
    with ExitStack() as stack:
        for _ in range(30):
            address = "127.0.0.1", made.port
            stack.enter_context(socket.create_connection(address, timeout=0.5))
        made.start()
        stack.callback(made.stop)
        assert ask(made.port, "/readyz") == (200, b"ok\n")


def test_who_drips_is_cut_off(probes: serve.ProbeServer, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", probes.port)) as slow,
        pytest.raises((ConnectionResetError, BrokenPipeError)),
    ):
        drip(slow)
    assert time.monotonic() - began < 3
    assert "Traceback" not in capfd.readouterr().err


def drip(connection: socket.socket) -> None:
    """Send a letter after the other, for as long as that can be done."""
    for _ in range(100):
        connection.sendall(b"G")
        time.sleep(0.05)
