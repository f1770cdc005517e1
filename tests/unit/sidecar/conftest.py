"""A process 1 that speaks frames written by hand, and the kubelet's side of probes."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar import grpc as sidecar_grpc
from sidecar import http as sidecar_http
from sidecar.http2 import ProtocolError
from sidecar.link import Link
from sidecar.turn import Turn

if TYPE_CHECKING:
    from sidecar.options import Probe
    from sidecar.verdict import View

LIMIT = 60.0


class Process1:
    """Listens where kyb-init would, and tells what the test tells it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[list[str]] = []
        self.serves = "0"
        self._connection: socket.socket | None = None
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._state = ["state", "waiting", "-", "0", ""]
        self._telling = threading.RLock()
        threading.Thread(target=self._run, daemon=True).start()

    def tell(self, state: str, age: str = "1000", sentence: str = "") -> None:
        with self._telling:
            self._state = ["state", state, age, self.serves, sentence]
            self.send(*self._state)

    def send(self, *fields: str) -> None:
        payload = "\0".join(fields).encode()
        if self._connection is not None:
            self._connection.sendall(struct.pack(">I", len(payload)) + payload)

    def alone(self) -> None:
        """Closes all, as kyb-init does for an image of its container."""
        self.path.unlink()
        self.hang_up()

    def hang_up(self) -> None:
        """Dies: its socket's file stays, and nobody listens."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
            self._connection = None

    def verbs(self, verb: str) -> list[list[str]]:
        return [fields for fields in self.heard if fields[0] == verb]

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(OSError):
                    with self._telling:
                        self._connection = connection
                        self.send(*self._state)
                    self._read(connection)

    def _read(self, connection: socket.socket) -> None:
        data = b""
        while part := connection.recv(4096):
            data += part
            while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">I", data)[0]:
                end = 4 + struct.unpack_from(">I", data)[0]
                self.heard.append(data[4:end].decode().split("\0"))
                data = data[end:]
                with self._telling:
                    if self.heard[-1] == ["serves"] and self.serves == "0":
                        self.serves = "1"
                        self.tell(self._state[1], self._state[2])


def until(true, otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)


class Told(Link):
    """Keeps each state that it has told its watchers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: list[str] = []

    def _set(self, view: View) -> None:
        self.told.append(view.state)
        super()._set(view)


class World:
    """One sidecar's parts, without its fixed ports."""

    def __init__(self, folder: Path) -> None:
        self.first = Process1(folder / "init.sock")
        self.asked: list[tuple[str, float]] = []
        self.link = Told(str(self.first.path), "none", lambda *asked: self.asked.append(asked))
        self.link.start()
        until(lambda: self.link.view().state == "waiting", "the link does not connect")
        self._sockets: list[socket.socket] = []

    def state(self, state: str, age: str = "1000", sentence: str = "") -> None:
        self.first.tell(state, age, sentence)
        until(lambda: self.link.view().state == state, f"the link never heard {state}")

    def port(self, probe: Probe) -> int:
        """A port that answers this probe."""
        server = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(server)
        threading.Thread(target=self._accept, args=(server, probe), daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    def _accept(self, server: socket.socket, probe: Probe) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=self._serve, args=(client, probe), daemon=True).start()

    def _serve(self, client: socket.socket, probe: Probe) -> None:
        serve = sidecar_grpc.serve if probe.kind == "grpc" else sidecar_http.serve
        with suppress(OSError, ProtocolError), client, self.link.changes() as changed:
            serve(Turn(client, probe, self.link, changed))

    def listen(self) -> socket.socket:
        """A workload's listening socket, which nobody accepts from: a frozen one."""
        server = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(server)
        return server

    def end(self) -> None:
        self.first.hang_up()
        for one in self._sockets:
            one.close()


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory(prefix="kyb-") as folder:
        made = World(Path(folder))
        yield made
        made.end()
