"""Has the workload's engine do its part of a park or a wake, by plain HTTP on the pod's network.

Whatever fails is told to the agent, which continues without.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.link import Link

PARK, WAKE = "park", "wake"
_ANSWER_LIMIT = 65536
_WAKE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is POSTed."""

    path: str
    body: str = ""


_KV_CACHE = '{"tags": ["kv_cache"]}'
REQUESTS = {
    # Level 1: weights to host memory, KV cache dropped.
    "vllm": {PARK: Request("/sleep?level=1"), WAKE: Request("/wake_up")},
    # Weights would be lost unless the server backs them up: the driver keeps them for us.
    "sglang": {
        PARK: Request("/release_memory_occupation", _KV_CACHE),
        WAKE: Request("/resume_memory_occupation", _KV_CACHE),
    },
    "http": {PARK: Request("/kyb/park", "{}"), WAKE: Request("/kyb/wake", "{}")},
}


class Engine:
    """The workload's engine at `port`. A later question makes an earlier one void, and waits for
    what is under way: the engine would carry out a call that was given up, in any order."""

    def __init__(self, kind: str, port: int) -> None:
        self._requests = REQUESTS[kind]
        self._port = port
        self._lock = threading.Lock()
        self._calling = threading.Lock()
        self._turn = 0
        self._asleep = False
        self._link: Link | None = None

    def serve(self, link: Link) -> None:
        """Answer through this link from now on."""
        self._link = link
        threading.Thread(target=self._mind_state, name="engine", daemon=True).start()

    def on_cooperate(self, phase: str, seconds: float) -> None:
        """The agent's question; answered from a thread of its own."""
        turn = self._begin()
        asking = threading.Thread(
            target=self._do, args=(turn, phase, seconds), name=f"engine-{phase}", daemon=True
        )
        try:
            asking.start()
        except RuntimeError as error:  # the pod is at its limit of processes or memory
            self._tell(phase, str(error), done=False)

    def _begin(self) -> int:
        with self._lock:
            self._turn += 1
            return self._turn

    def _do(self, turn: int, phase: str, seconds: float) -> None:
        try:
            said, done = self._post(turn, phase, seconds), True
        except Exception as error:  # noqa: BLE001 - it is told, and the state is minded further
            said, done = f"port {self._port}: {error}", False
        if turn != self._turn:
            return
        if done and phase == WAKE:
            self._asleep = False
        self._tell(phase, said, done=done)

    def _tell(self, phase: str, said: str, *, done: bool) -> None:
        sys.stderr.write(f"kyb-sidecar: {phase}: {said}\n")
        if self._link is not None:
            self._link.cooperated(phase, said, done=done)

    def _mind_state(self) -> None:
        """An engine put to sleep for a park that was given up is woken when its seat is active."""
        if self._link is None:
            return
        with self._link.changes() as changed:
            while True:
                _read_event(changed)
                if self._asleep and self._link.view().state == "active":
                    self._do(self._begin(), WAKE, _WAKE_SECONDS)

    def _post(self, turn: int, phase: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        request = self._requests.get(phase)
        if request is None:
            raise OSError(f"{phase} is not known here")
        if not self._calling.acquire(timeout=seconds):
            raise TimeoutError("what it was asked before is not answered yet")
        try:
            if turn != self._turn:
                raise OSError("asked for something else meanwhile")
            return self._call(request, phase, deadline)
        finally:
            self._calling.release()

    def _call(self, request: Request, phase: str, deadline: float) -> str:
        seconds = max(deadline - time.monotonic(), 0.001)
        with connect(self._port, seconds) as connection:
            self._asleep = self._asleep or phase == PARK
            connection.sendall(_head(request, self._port, seconds))
            answer = _answer(connection, deadline)
        words = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if len(words) < 2 or not words[1].startswith("2"):
            raise OSError(f"POST {request.path} is answered by {' '.join(words[1:]) or 'nothing'}")
        return f"POST {request.path}: {words[1]}"


def connect(port: int, seconds: float) -> socket.socket:
    """A connection to the workload, which may listen on loopback or on the pod's address only.
    Raises OSError."""
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=seconds)
    except ConnectionRefusedError:
        return socket.create_connection((socket.gethostname(), port), timeout=seconds)


def _head(request: Request, port: int, seconds: float) -> bytes:
    lines = (
        f"POST {request.path} HTTP/1.1",
        f"Host: localhost:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(request.body)}",
        f"Kyb-Deadline-Ms: {int(seconds * 1000)}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", request.body)).encode()


def _answer(connection: socket.socket, deadline: float) -> bytes:
    """The first line of the answer at least. Raises OSError at the deadline."""
    answer = b""
    while b"\r\n" not in answer and len(answer) < _ANSWER_LIMIT:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left)
        part = connection.recv(4096)
        if not part:
            break
        answer += part
    return answer


def _read_event(event: int) -> None:
    select.select([event], [], [])
    os.eventfd_read(event)
