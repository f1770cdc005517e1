"""Threads wait for a connection's next call, but never for long and never all of them."""

from __future__ import annotations

import os
import queue
import socket
import ssl
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from extender.http.worker import LingeringWorker
from kybernate.runtime.deadlines import Worker
from kybernate.runtime.http2 import Connection
from kybernate.runtime.tls import Contexts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker that reads a byte per call, and keeps the connection unless that is "x"."""

    def handle(_self: object, conn: Any) -> bool:
        return conn.sock.recv(1) != b"x"

    monkeypatch.setattr(Worker, "handle", handle)
    made = LingeringWorker.__new__(LingeringWorker)
    made.alive = True
    made.tpool = SimpleNamespace(_work_queue=queue.SimpleQueue())
    made._places = threading.BoundedSemaphore(1)
    return made


def test_calls_that_follow_each_other_stay_on_one_thread(worker: Any, ends: Any) -> None:
    ours, theirs = ends
    theirs.sendall(b"aax")
    assert worker.handle(SimpleNamespace(sock=ours)) is False
    theirs.sendall(b"aa")
    assert worker.handle(SimpleNamespace(sock=ours)) is True


def test_what_tls_has_read_counts(worker: Any, ends: Any) -> None:
    ours, theirs = ends
    theirs.sendall(b"a")
    left = [1, 0]
    sock = SimpleNamespace(recv=ours.recv, fileno=ours.fileno, pending=lambda: left.pop(0))
    reader = threading.Timer(0.05, lambda: theirs.sendall(b"x"))
    reader.start()
    assert worker.handle(SimpleNamespace(sock=sock)) is False


@pytest.mark.parametrize("why", ["stopping", "others wait", "no place"])
def test_nobody_waits_where_threads_are_wanted(worker: Any, ends: Any, why: str) -> None:
    ours, theirs = ends
    theirs.sendall(b"ax")
    if why == "stopping":
        worker.alive = False
    elif why == "others wait":
        worker.tpool._work_queue.put(None)
    else:
        worker._places.acquire()
    assert worker.handle(SimpleNamespace(sock=ours)) is True
    assert ours.recv(1) == b"x"


class Peer(Connection):
    """A connection of HTTP/2 on which these requests come, some at a time."""

    def __init__(self, *comes: list[str]) -> None:
        self.comes = list(comes)
        self.answered: list[str] = []
        self.left = self.ended = False

    def read(self) -> Any:
        if not self.comes:
            raise ConnectionResetError("gone")
        return [SimpleNamespace(path=path) for path in self.comes.pop(0)]

    def serve(self, request: Any, app: Any) -> None:
        self.answered.append(request.path)

    def is_over(self) -> bool:
        return self.left

    def leave(self) -> None:
        self.left = True

    def end(self) -> None:
        self.ended = True


def test_what_waits_for_nothing_is_answered_by_the_thread_that_reads(
    worker: Any, ends: Any
) -> None:
    ours, _ = ends
    peer = Peer(["/v1/filter", "/v1/bind", "/prioritize"], ["/filter"], [])
    pooled: list[str] = []
    worker.tpool.submit = lambda _serve, request, _app: pooled.append(request.path)
    worker.wsgi = None
    # Something comes twice, and then nothing: it goes back to be polled.
    waits = [True, True, False]
    worker._waits_for = lambda _sock: waits.pop(0)
    assert worker.handle(SimpleNamespace(sock=ours, parser=peer)) is True
    assert peer.answered == ["/v1/filter", "/prioritize", "/filter"]
    assert pooled == ["/v1/bind"]
    assert not peer.left


def test_a_connection_of_http2_ends_with_its_peer_or_with_the_worker(
    worker: Any, ends: Any
) -> None:
    ours, _ = ends
    worker.wsgi, worker.log = None, SimpleNamespace(debug=lambda *_: None)
    gone = Peer()
    assert worker.handle(SimpleNamespace(sock=ours, parser=gone)) is False
    assert gone.ended
    worker.alive = False
    last = Peer(["/filter"])
    assert worker.handle(SimpleNamespace(sock=ours, parser=last)) is False
    assert (last.answered, last.left) == (["/filter"], True)


def test_certificates_are_read_again_once_they_have_changed(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("certfile", "keyfile", "ca_certs")}
    for file in files.values():
        file.touch()
    config = SimpleNamespace(**{name: str(file) for name, file in files.items()})
    contexts = Contexts(10.0, ("h2", "http/1.1"))

    def made() -> ssl.SSLContext:
        return contexts(config, lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    first = made()
    assert first.minimum_version == ssl.TLSVersion.TLSv1_2
    assert made() is first
    os.utime(files["keyfile"], ns=(1, 1))
    assert made() is not first
