"""HTTP and TCP probes against real sockets: a workload that answers, fails, hangs, or is parked."""

from __future__ import annotations

import http.client
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sidecar.options import Probe
from sidecar.turn import HARD_LIMIT
from tests.unit.sidecar.conftest import Process1, until


class Workload(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        if self.path == "/slow":
            self.server.held.wait(HARD_LIMIT)
        code = int(self.path[1:]) if self.path[1:].isdigit() else 200
        body = b"x" * self.server.size
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def workload():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Workload)
    server.daemon_threads = True
    server.seen, server.held, server.size = [], threading.Event(), 10
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.held.set()
    server.shutdown()
    server.server_close()


def get(port: int, path: str = "/health", timeout: float = HARD_LIMIT / 2, **headers: str):
    """Status and body, as the kubelet sees them."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Connection": "close", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def http_probe(workload, role="readiness", **more):
    return Probe(role, "http", workload.server_address[1], **more)


def test_while_active_the_workload_answers_its_own_words(world, workload):
    world.state("active")
    port = world.port(http_probe(workload))
    assert get(port) == (200, "x" * 10)
    assert get(port, "/404") == (404, "x" * 10)
    assert get(port, "/301")[0] == 301
    workload.size = 1_000_000
    assert get(port) == (200, "x" * 1_000_000)


def test_the_workload_sees_the_kubelets_request_with_its_own_port(world, workload):
    world.state("active")
    port = world.port(http_probe(workload))
    get(port, "/health?deep=1", Host="10.0.0.1:15481", Authorization="Bearer x")
    path, headers = workload.seen[-1]
    assert path == "/health?deep=1"
    assert headers["Host"] == f"10.0.0.1:{workload.server_address[1]}"
    assert headers["Authorization"] == "Bearer x"
    get(port, Host="other.example")
    assert workload.seen[-1][1]["Host"] == "other.example"


@pytest.mark.parametrize("role", ["liveness", "readiness", "startup"])
def test_a_parked_workload_is_alive_and_not_asked(world, workload, role):
    world.state("parked", sentence="parked in RAM")
    assert get(world.port(http_probe(workload, role))) == (200, "parked: parked in RAM\n")
    assert workload.seen == []


def test_a_workload_at_the_gate_is_alive_but_not_ready(world, workload):
    assert get(world.port(http_probe(workload, "liveness")))[0] == 200
    assert get(world.port(http_probe(workload, "readiness")))[0] == 503


def test_nobody_listening_is_a_failure_in_words(world):
    world.state("active")
    server = world.listen()
    gone = server.getsockname()[1]
    server.close()
    status, body = get(world.port(Probe("readiness", "http", gone)))
    assert (status, body) == (503, f"port {gone} of the workload: Connection refused\n")


def test_a_seat_whose_process_1_has_gone_is_dead(world, workload):
    world.state("parked")
    world.first.hang_up()
    until(lambda: world.link.view().state == "lost", "the link did not notice")
    assert get(world.port(http_probe(workload, "liveness")))[0] == 503


def test_a_seat_whose_process_1_is_alone_for_an_image_is_as_it_said_last(world, workload):
    world.state("parked")
    world.first.alone()
    until(lambda: not world.link.turn("yield"), "the link did not notice")
    for role in ("liveness", "readiness", "startup"):
        assert get(world.port(http_probe(workload, role)))[0] == 200
    world.first = Process1(world.first.path)
    until(lambda: world.link.view().state == "waiting", "the link does not connect again")
    assert "lost" not in world.link.told


def test_a_failed_seat_is_dead(world, workload):
    world.state("failed", sentence="one of its processes has gone")
    found = get(world.port(http_probe(workload, "liveness")))
    assert found == (503, "failed: one of its processes has gone\n")


def test_a_probe_that_meets_the_park_half_way_is_answered_for_the_workload(world, workload):
    world.state("active")
    port = world.port(http_probe(workload, "liveness"))
    found = []
    asking = threading.Thread(target=lambda: found.append(get(port, "/slow")))
    asking.start()
    until(lambda: workload.seen, "the workload was not asked")
    world.state("parking", sentence="another seat's turn")
    asking.join(5)
    assert found == [(200, "parking: another seat's turn\n")]


def test_changes_that_change_nothing_keep_the_workload_asked(world, workload):
    world.state("active")
    port = world.port(http_probe(workload))
    found = []
    asking = threading.Thread(target=lambda: found.append(get(port, "/slow")))
    asking.start()
    until(lambda: workload.seen, "the workload was not asked")
    world.state("draining")
    workload.held.set()
    asking.join(5)
    assert found == [(200, "x" * 10)]


def test_a_workload_that_hangs_is_left_to_the_kubelets_patience(world, workload):
    world.state("active")
    world.first.serves = "1"
    world.state("draining")
    port = world.port(http_probe(workload, "liveness", grace=600.0))
    with pytest.raises(TimeoutError):
        get(port, "/slow", timeout=0.3)


def test_in_its_start_up_time_a_failing_workload_is_alive_and_then_no_more(world, workload):
    world.state("active", age="1000")
    port = world.port(http_probe(workload, "liveness", grace=600.0, timeout=0.5))
    assert get(port, "/503")[0] == 200
    assert get(port, "/slow")[0] == 200  # long before the workload would say so
    late = world.port(http_probe(workload, "liveness", grace=0.5))
    assert get(late, "/503")[0] == 503
    assert get(port, "/200")[0] == 200
    until(lambda: world.link.view().serves, "process 1 was not told")
    assert get(port, "/503")[0] == 503


def test_the_agent_hears_how_far_the_start_is(world, workload):
    world.state("starting")
    port = world.port(http_probe(workload, "startup"))
    for path in ("/503", "/503", "/200"):
        get(port, path)
    until(lambda: len(world.first.verbs("progress")) == 2, "progress was not reported")
    told = [fields[1] for fields in world.first.verbs("progress")]
    number = workload.server_address[1]
    assert told == [f"port {number} answers 503", "answers its startup probe"]


def test_a_scrape_gets_the_workloads_metrics_or_a_comment(world, workload):
    port = world.port(http_probe(workload, "scrape"))
    assert get(port, "/metrics") == (200, "# waiting: \n")
    world.state("active")
    assert get(port, "/metrics") == (200, "x" * 10)
    assert workload.seen[-1][1]["Connection"] == "close"
    world.state("parked", sentence="parked in RAM")
    assert get(port, "/metrics") == (200, "# parked: parked in RAM\n")
    assert world.first.verbs("serves") == []


def test_a_tcp_probe_succeeds_exactly_if_the_workload_listens(world):
    world.state("active")
    server = world.listen()
    port = world.port(Probe("liveness", "tcp", server.getsockname()[1]))
    assert get(port)[0] == 200
    server.close()
    assert get(port)[0] == 503
    world.state("parked")
    assert get(port)[0] == 200


def test_https_is_spoken_to_the_workload_without_looking_at_its_certificate(
    world, workload, tmp_path
):
    names = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", *names]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    workload.socket = context.wrap_socket(workload.socket, server_side=True)
    world.state("active")
    workload.size = 100_000
    port = world.port(Probe("readiness", "https", workload.server_address[1]))
    assert get(port) == (200, "x" * 100_000)


@pytest.mark.parametrize("rubbish", [b"", b"GET", b"\r\n\r\n", b"x" * 40_000])
def test_strangers_end_nothing(world, workload, rubbish):
    world.state("active")
    port = world.port(http_probe(workload))
    with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(OSError):
        stranger.sendall(rubbish)
        stranger.shutdown(socket.SHUT_WR)
        stranger.recv(10)
    assert get(port)[0] == 200


@pytest.mark.parametrize("odd", [("state", "active", "long", "0", ""), ("cooperate", "park", "x")])
def test_what_is_not_the_protocol_ends_the_connection_and_not_the_link(world, odd):
    world.state("parked")
    world.first.send(*odd)
    with suppress(OSError):  # the link may have hung up by now
        world.first.tell("active")
    until(lambda: world.link.view().state == "active", "the link never came back")
