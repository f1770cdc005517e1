"""The workloads on the simulated driver, parked and woken."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.local.simgpu import layout

from .conftest import DEADLINE, MIB, REPOSITORY, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Worker

COMPLETIONS = "/v1/chat/completions"


class Server:
    """A running toy model server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request(method, path, raw if method == "POST" else None)
        response = self.connection.getresponse()
        return response.status, response.read()

    def get(self, path: str) -> Any:
        status, raw = self.request("GET", path)
        assert status == 200
        return json.loads(raw)

    def get_elsewhere(self, path: str) -> Any:
        """The same on a connection of its own."""
        other = http.client.HTTPConnection(
            self.connection.host, self.connection.port, timeout=DEADLINE
        )
        other.request("GET", path)
        answer = json.loads(other.getresponse().read())
        other.close()
        return answer

    def complete(self, **request: Any) -> dict[str, Any]:
        """A plain answer, whose state must be intact."""
        status, raw = self.request("POST", COMPLETIONS, request)
        assert status == 200, raw
        answer: dict[str, Any] = json.loads(raw)
        check(answer["kyb"])
        return answer


def check(state: dict[str, Any]) -> None:
    assert state["checksum"] == state["expected"]
    assert set(state["device"]) <= {state["counter"]}


def command(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tests.workloads.{program}", *arguments]


@contextmanager
def serving(node: Node, *arguments: str, **environment: str) -> Iterator[Server]:
    process = subprocess.Popen(
        command("toy_server", "--host=127.0.0.1", "--port=0", "--model=toy", *arguments),
        cwd=REPOSITORY,
        env=node.environment([0, 1]) | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            server = Server(process)
            yield server
            server.connection.close()
        finally:
            process.kill()


def park_and_wake(caller: Worker, pid: int) -> None:
    caller.ask("lock", pid)
    caller.ask("cuCheckpointProcessCheckpoint", pid, None)
    caller.ask("restore", pid)
    caller.ask("cuCheckpointProcessUnlock", pid, None)


def test_answers_keep_counting_over_parking(node: Node) -> None:
    caller = node.watcher()
    with serving(node, "--bytes=8GiB", "--fill=3MiB") as server:
        for expected in range(1, 5):
            answer = server.complete(max_tokens=3)
            assert answer["kyb"]["counter"] == expected
            assert answer["kyb"]["device"] == [expected, expected]
            assert len(answer["choices"][0]["message"]["content"].split()) == 3
            assert answer["usage"]["completion_tokens"] == 3
            park_and_wake(caller, server.process.pid)


def test_memory_that_is_unlike_repeats_nothing(node: Node) -> None:
    pages = 3 * MIB // 4096
    with serving(node, "--bytes=8GiB", "--fill=3MiB", "--unlike") as server:
        park_and_wake(node.watcher(), server.process.pid)
        assert server.complete()["kyb"]["counter"] == 1
        held = (node.root / layout.memory_file(0)).read_bytes()
    found = {held[at : at + 4096] for at in range(0, len(held), 4096)} - {bytes(4096)}
    assert len(found) >= pages


def test_a_request_waits_while_parked(node: Node) -> None:
    caller = node.watcher()
    with serving(node, "--bytes=1GiB", "--fill=1MiB") as server:
        pid = server.process.pid
        caller.ask("lock", pid)
        caller.ask("cuCheckpointProcessCheckpoint", pid, None)
        server.connection.request("POST", COMPLETIONS, b"{}")
        assert server.get_elsewhere("/health") == {"status": "ok"}
        caller.ask("restore", pid)
        caller.ask("cuCheckpointProcessUnlock", pid, None)
        response = server.connection.getresponse()
        check(json.loads(response.read())["kyb"])


def test_streams(node: Node) -> None:
    with serving(node, "--bytes=0") as server:
        request = {"stream": True, "max_tokens": 4, "model": "toy"}
        status, raw = server.request("POST", COMPLETIONS, request)
        assert status == 200
        events = [line[6:] for line in raw.decode().splitlines() if line]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        words = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
        assert [word is None for word in words] == [False] * 4 + [True]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        check(chunks[-1]["kyb"])
        # The connection is kept, so the next request on it is answered too.
        assert server.complete()["kyb"]["counter"] == 2


def test_the_other_pages(node: Node) -> None:
    first, second = (gpu.uuid for gpu in node.spec.gpus[:2])
    environment = {"KYB_GPU_GROUP": "G01", "CUDA_VISIBLE_DEVICES": second}
    with serving(node, "--bytes=0", **environment) as server:
        assert server.get("/health") == {"status": "ok"}
        assert [entry["id"] for entry in server.get("/v1/models")["data"]] == ["toy"]
        told = server.get("/debug/gpus")
        assert told["gpus"] == [second]
        assert told["given"] == [first, second]
        assert told["env"] == {"KYB_GPU_GROUP": "G01"}
        assert told["pid"] == server.process.pid


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (COMPLETIONS, b"{", 400),
        (COMPLETIONS, b"[]", 400),
        (COMPLETIONS, {"max_tokens": 0}, 400),
        (COMPLETIONS, {"token_delay": "long"}, 400),
        (COMPLETIONS, {"model": "other"}, 404),
        ("/v1/other", {}, 404),
    ],
)
def test_bad_requests(node: Node, path: str, body: object, status: int) -> None:
    with serving(node, "--bytes=0") as server:
        answered, raw = server.request("POST", path, body)
        assert answered == status
        assert json.loads(raw)["error"]["type"] == "invalid_request_error"


def test_lost_state_shows(node: Node) -> None:
    """Zeroed device memory makes a wrong checksum and a wrong counter."""
    with serving(node, "--bytes=1GiB", "--fill=1MiB") as server:
        server.complete()
        with (node.root / "memory-0").open("r+b") as memory:
            memory.write(bytes(2 * MIB))
        _, raw = server.request("POST", COMPLETIONS, {})
        state = json.loads(raw)["kyb"]
        assert state["checksum"] != state["expected"]
        assert state["device"][0] != state["counter"]


def test_sigterm_ends_it_in_order(node: Node) -> None:
    with serving(node, "--bytes=1GiB", "--fill=1MiB") as server:
        server.complete()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(DEADLINE) == 0
    assert node.log()[-1].why == "exit"


def test_too_much_memory_is_told(node: Node) -> None:
    done = subprocess.run(
        command("toy_server", "--bytes=17GiB", "--fill=1MiB"),
        cwd=REPOSITORY,
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 1
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr


def test_the_counter_goes_on_after_parking(node: Node) -> None:
    caller = node.watcher()
    process = subprocess.Popen(
        command("counter", "--interval=0.01", "--steps=40"),
        cwd=REPOSITORY,
        env=node.environment([0]),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert "holding 2147483648 bytes" in process.stdout.readline()
        counters = []
        for number, line in enumerate(process.stdout, 1):
            counters.append(int(line.split()[0].removeprefix("counter=")))
            if number in {5, 10, 15}:
                park_and_wake(caller, process.pid)
        assert process.wait(DEADLINE) == 0
    assert counters == list(range(1, 41))
