"""What a workload says of its phases, and whoever else comes to that port."""

from __future__ import annotations

import http.client
import socket

import pytest

from sidecar import hints
from tests.unit.sidecar.conftest import until


@pytest.fixture
def port(world):
    listener = hints.start(world.link, 0)
    yield listener.getsockname()[1]
    listener.close()


def ask(port, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    said = answer.read().decode()
    connection.close()
    return answer.status, said


def test_both_hints_reach_process_1(world, port):
    assert ask(port, "POST", "/acquire") == (200, "acquire\n")
    assert ask(port, "POST", "/yield") == (200, "yield\n")
    until(lambda: len(world.first.verbs("turn")) == 2, "process 1 was not told")
    assert world.first.verbs("turn") == [["turn", "acquire"], ["turn", "yield"]]


def test_what_is_no_hint_is_answered_and_told_to_nobody(world, port):
    assert ask(port, "POST", "/kill") == (404, "POST /acquire or /yield\n")
    assert ask(port, "GET", "/yield") == (405, "POST /yield\n")
    assert world.first.verbs("turn") == []


def test_without_process_1_it_says_so(world, port):
    world.first.hang_up()
    until(lambda: world.link.view().state == "lost", "the link never noticed")
    assert ask(port, "POST", "/yield")[0] == 503


@pytest.mark.parametrize("data", [b"\r\n\r\n", b"x" * 10000, b"POST\r\n\r\n", b""])
def test_what_is_no_http_keeps_nobody_out(port, data):
    with socket.create_connection(("127.0.0.1", port)) as other:
        other.sendall(data)
    assert ask(port, "POST", "/yield")[0] == 200


def test_a_port_that_is_taken_leaves_probes_alone(world, port, capsys):
    assert hints.start(world.link, port) is None
    assert "no hints of turns" in capsys.readouterr().err
