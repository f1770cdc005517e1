"""All of a scheduler's calls on one connection of HTTP/2, as Go's client makes them."""

from __future__ import annotations

import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.clients.http2 import (
    END_HEADERS,
    GOAWAY,
    GREETING,
    HEADERS,
    PING,
    PUSH,
    Answer,
    Frame,
    answers,
    call,
    frame,
    frames,
    head,
)
from tests.kit.servers.extenderserver import LIMIT_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration


class Caller:
    """One connection."""

    def __init__(self, extender: Extender) -> None:
        context = ssl.create_default_context(cafile=str(extender.tls / "ca.crt"))
        context.load_cert_chain(extender.tls / "scheduler.crt", extender.tls / "scheduler.key")
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", extender.port), LIMIT_S)
        self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.got = b""
        self.send(GREETING)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frames(self) -> list[Frame]:
        whole, at = 0, self.got
        while len(at) >= 9 and len(at) >= 9 + int.from_bytes(at[:3], "big"):
            size = 9 + int.from_bytes(at[:3], "big")
            whole, at = whole + size, at[size:]
        return frames(self.got[:whole])

    def wait(self, *streams: int) -> list[Answer]:
        deadline = time.monotonic() + LIMIT_S
        while not set(streams) <= answers(self.frames()).keys():
            assert time.monotonic() < deadline
            data = self.socket.recv(65536)
            assert data, self.frames()
            self.got += data
        found = answers(self.frames())
        return [found[stream] for stream in streams]

    def rest(self) -> list[Frame]:
        """All up to the connection's end."""
        try:
            while data := self.socket.recv(65536):
                self.got += data
        except (ConnectionResetError, ssl.SSLEOFError):
            pass
        return self.frames()


@pytest.fixture
def caller(extender: Extender) -> Iterator[Caller]:
    made = Caller(extender)
    yield made
    made.socket.close()
    assert "Traceback" not in extender.log


def ask(stream: int, verb: str, body: Any) -> bytes:
    return call(stream, f"/v1/{verb}", json.dumps(body).encode())


def test_calls_overlap_on_one_connection(caller: Caller, extender: Extender, world: World) -> None:
    node, pods = world.node(), [world.pod() for _ in range(4)]
    until(lambda: extender.filter(pods[0], node)["NodeNames"], "the GPUNode is seen")
    binds, filters = range(1, 16, 4), range(3, 16, 4)
    for stream, pod in zip(binds, pods, strict=True):
        meta = pod["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        caller.send(ask(stream, "bind", {**body, "Node": node}))
        caller.send(ask(stream + 2, "filter", {"Pod": pod, "NodeNames": [node]}))
    for answer in caller.wait(*binds):
        assert (answer.status, json.loads(answer.body)["Error"]) == (200, "")
    for answer in caller.wait(*filters):
        assert json.loads(answer.body)["NodeNames"] in ([node], [])
    assert all(world.group(pod) for pod in pods)
    # It is still there after more than the time that a thread waits on it.
    time.sleep(0.2)
    caller.send(frame(PING, 0, 0, b"12345678") + call(21, "/healthz", method="GET"))
    assert caller.wait(21)[0].body == b"ok\n"
    assert [one.load for one in caller.frames() if one.kind == PING] == [b"12345678"]


def test_what_is_wrong_is_told_in_json(caller: Caller) -> None:
    caller.send(call(1, "/v1/bind", b"{") + call(3, "/nowhere", b"{}"))
    caller.send(frame(HEADERS, END_HEADERS, 5, _head(b"268435456")))
    for answer, status in zip(caller.wait(1, 3, 5), (400, 404, 413), strict=True):
        assert (answer.status, answer.headers[b"content-type"]) == (status, b"application/json")
        assert json.loads(answer.body)["Error"]


def test_large_bodies_come_whole(caller: Caller, world: World) -> None:
    names = [f"node-{number:09}" for number in range(20_000)]
    body = {"Pod": world.pod(), "NodeNames": names}
    caller.send(call(1, "/v1/filter", json.dumps(body).encode()))
    caller.send(frame(8, 0, 0, (1 << 30).to_bytes(4, "big")))
    caller.send(frame(8, 0, 1, (1 << 30).to_bytes(4, "big")))
    (answer,) = caller.wait(1)
    assert len(json.loads(answer.body)["FailedNodes"]) == len(names)


def test_who_speaks_nonsense_is_left(caller: Caller) -> None:
    caller.send(frame(PUSH, 0, 1))
    assert caller.rest()[-1].kind == GOAWAY


def _head(length: bytes) -> bytes:
    pairs = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/v1/filter")]
    pairs.append((b":authority", b"localhost"))
    return head([*pairs, (b"content-length", length)])
