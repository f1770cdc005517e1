"""The sidecar as a process, on its own ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sidecar.http2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame
from sidecar.options import Probe
from sidecar.server import Listeners
from tests.unit.sidecar.conftest import LIMIT, Process1, until
from tests.unit.sidecar.test_http import get

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def start():
    started = []

    def begin(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "sidecar", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def listening(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_it_answers_on_the_probes_ports_and_strangers_do_not_make_it_grow(start):
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder, ExitStack() as strangers:
        first = Process1(Path(folder) / "init.sock")
        start(f"--socket={first.path}", "--liveness=http:1", "--readiness=tcp:1")
        until(lambda: listening(15480) and listening(15481), "it does not listen")
        first.tell("parked")
        # Liveness may pass before it has heard from process 1: only readiness tells that it has.
        until(lambda: get(15481)[0] == 200, "it does not answer")
        assert get(15480)[0] == 200
        for _ in range(40):
            strangers.enter_context(socket.create_connection(("127.0.0.1", 15480), timeout=1))
        # All places are taken by strangers: whoever comes gets the place of the first of them.
        for _ in range(20):
            assert get(15480)[0] == 200
        first.hang_up()


def test_strangers_that_do_not_read_lose_their_places_too(start):
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder, ExitStack() as strangers:
        first = Process1(Path(folder) / "init.sock")
        start(f"--socket={first.path}", "--liveness=grpc:1", "--readiness=tcp:1")
        until(lambda: listening(15480) and listening(15481), "it does not listen")
        first.tell("parked")
        until(lambda: get(15481)[0] == 200, "it does not answer")
        calls = b"".join(frame(HEADERS, END_HEADERS | END_STREAM, n) for n in range(1, 6001, 2))
        for _ in range(32):
            one = strangers.enter_context(socket.create_connection(("127.0.0.1", 15480), timeout=1))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            with suppress(OSError):
                one.sendall(PREFACE + frame(SETTINGS, 0, 0) + calls)
        for _ in range(20):
            assert get(15481)[0] == 200
        first.hang_up()


def test_a_probe_for_which_no_thread_can_start_is_hung_up_on(world, monkeypatch):
    world.state("parked")
    stack = threading.stack_size()
    listeners = Listeners([], world.link)

    def full(_):
        raise RuntimeError("can't start new thread")

    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as clients:

        def knock():
            address = server.getsockname()
            one = clients.enter_context(socket.create_connection(address, timeout=LIMIT))
            listeners._accept(server, Probe("liveness", "http", 1))
            return one

        with monkeypatch.context() as limit:
            limit.setattr(threading.Thread, "start", full)
            # More of them than there are places.
            assert [knock().recv(1) for _ in range(40)] == [b""] * 40
        last = knock()
        last.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert last.recv(64).startswith(b"HTTP/1.1 200")
    threading.stack_size(stack)


def test_a_wrong_argument_is_said_and_ends_it(start):
    process = start("--liveness=exec:1")
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 2
    assert said.startswith("kyb-sidecar: --liveness=exec:1: the kind is one of")


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_sigterm_ends_it_also_as_process_1(start):
    process = start("--socket=/nowhere/x", "--startup=tcp:1", before=("unshare", "--pid", "--fork"))
    until(lambda: listening(15482), "it does not listen")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert process.wait(LIMIT) == 0
