"""gRPC health probes with grpcio on both sides, and the frames under them."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import http2
from sidecar.options import Probe
from tests.unit.sidecar.conftest import until

CHECK = "/grpc.health.v1.Health/Check"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Workload(grpc.GenericRpcHandler):
    """A health service of one's own making; messages are the wire's bytes."""

    def __init__(self) -> None:
        self.answer = SERVING
        self.calls = 0
        self.held = threading.Event()
        self.held.set()

    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self._check) if details.method == CHECK else None

    def _check(self, request, context):
        self.calls += 1
        self.held.wait(60)
        return self.answer


@pytest.fixture
def workload():
    handler = Workload()
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    handler.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler
    handler.held.set()
    server.stop(0).wait()


def check(port: int, service: bytes = b"", timeout: float = 30.0) -> bytes:
    """What a health client reads."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary(CHECK)
        return call(service, timeout=timeout)


def probe(workload, role="readiness", **more):
    return Probe(role, "grpc", workload.port, **more)


def test_while_active_the_workload_answers(world, workload):
    world.state("active")
    port = world.port(probe(workload))
    assert check(port) == SERVING
    workload.answer = NOT_SERVING
    assert check(port) == NOT_SERVING
    assert workload.calls == 2


def test_errors_of_the_workload_come_through(world, workload):
    world.state("active")
    port = world.port(probe(workload))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as e:
        channel.unary_unary("/grpc.health.v1.Health/Nope")(b"", timeout=10)
    assert e.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("state", "role", "answer"),
    [
        ("parked", "liveness", SERVING),
        ("parked", "readiness", SERVING),
        ("waiting", "liveness", SERVING),
        ("waiting", "readiness", NOT_SERVING),
        ("failed", "liveness", NOT_SERVING),
    ],
)
def test_a_workload_that_can_not_answer_is_answered_for(world, workload, state, role, answer):
    world.state(state)
    assert check(world.port(probe(workload, role)), b"\x0a\x03abc") == answer
    assert workload.calls == 0


def test_several_calls_on_one_connection(world, workload):
    world.state("parked")
    port = world.port(probe(workload))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(CHECK)
        assert [call(b"", timeout=10) for _ in range(20)] == [SERVING] * 20


def test_nobody_listening_is_not_serving(world):
    world.state("active")
    server = world.listen()
    gone = server.getsockname()[1]
    server.close()
    assert check(world.port(Probe("readiness", "grpc", gone))) == NOT_SERVING


def test_a_call_that_meets_the_park_half_way_is_answered_for_the_workload(world, workload):
    world.state("active")
    workload.held.clear()
    port = world.port(probe(workload, "liveness"))
    found = []
    asking = threading.Thread(target=lambda: found.append(check(port)))
    asking.start()
    until(lambda: workload.calls == 1, "the workload was not asked")
    world.state("parking")
    asking.join(30)
    assert found == [SERVING]


def test_a_call_to_a_workload_that_is_frozen_already_is_answered_when_it_is_told(world):
    world.state("active")
    server = world.listen()
    port = world.port(Probe("liveness", "grpc", server.getsockname()[1]))
    found = []
    asking = threading.Thread(target=lambda: found.append(check(port)))
    asking.start()
    frozen, _ = server.accept()
    world.state("parked")
    asking.join(30)
    frozen.close()
    assert found == [SERVING]


def test_in_its_start_up_time_a_workload_is_alive_whatever_it_says(world, workload):
    world.state("active")
    port = world.port(probe(workload, "liveness", grace=600.0, timeout=0.5))
    workload.answer = NOT_SERVING
    assert check(port) == SERVING
    workload.held.clear()
    assert check(port, timeout=30.0) == SERVING
    workload.held.set()
    workload.answer = SERVING
    assert check(port) == SERVING
    until(lambda: world.link.view().serves, "process 1 was not told")
    workload.answer = NOT_SERVING
    assert check(port) == NOT_SERVING


def test_something_else_than_http2_is_hung_up_on(world, workload):
    world.state("parked")
    port = world.port(probe(workload))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        read = b""
        while part := stranger.recv(100):
            read += part
    assert read == http2.Server().greeting()


# --- frames ----------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(1, 30))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(payloads, size):
    stream = b"".join(http2.frame(http2.DATA, 1, 3, payload) for payload in payloads)
    whole = http2.PREFACE + stream
    splitter, found = http2.Splitter(http2.PREFACE), []
    for start in range(0, len(whole), size):
        found += splitter.feed(whole[start : start + size])
    assert [one.payload for one in found] == payloads
    assert b"".join(one.raw for one in found) == stream
    assert all((one.kind, one.stream, one.ends) == (http2.DATA, 3, True) for one in found)


@given(st.binary(max_size=200))
def test_rubbish_is_a_protocol_error_or_needs_more(data):
    server = http2.Server()
    try:
        server.feed(http2.PREFACE + data)
        server.reply(http2.SERVING)
    except http2.ProtocolError:
        pass


def test_a_frame_above_the_limit_is_refused():
    with pytest.raises(http2.ProtocolError, match="16385"):
        http2.Splitter().feed((16385).to_bytes(3, "big") + b"\0" * 6)


def test_padding_is_taken_off():
    padded = http2.frame(http2.DATA, http2.PADDED, 1, b"\x03" + b"data" + b"\0\0\0")
    (one,) = http2.Splitter().feed(padded)
    assert one.data == b"data"


def test_pings_and_settings_are_acknowledged_once():
    server = http2.Server()
    server.feed(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
    server.feed(http2.frame(http2.PING, 0, 0, b"12345678"))
    out = http2.Splitter().feed(server.reply(http2.SERVING))
    assert [(one.kind, one.flags, one.payload) for one in out] == [
        (http2.SETTINGS, http2.ACK, b""),
        (http2.PING, http2.ACK, b"12345678"),
    ]
    assert server.reply(http2.SERVING) == b""


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"", None),
        (b"\0\0\0\0\x02\x08", None),
        (b"\0\0\0\0\x02\x08\x01", 1),
        (b"\0\0\0\0\x02\x08\x02", 2),
        (b"\0\0\0\0\0", 0),
        (b"\x01\0\0\0\x02\x08\x01", 0),
        (b"\0\0\0\0\x02\x10\x01", 0),
    ],
)
def test_the_status_in_a_message(message, status):
    assert http2.status_in(message) == status
