"""A stretch of network before the API server, which can be cut or made one-way."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 16


class Relay:
    """Passes on TCP connections to a port of this machine, byte by byte."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        """Listens on a free port of the address."""
        self._target = target
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._cut = False
        self._answers = threading.Event()
        self._answers.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Where the API server seems to be."""
        return f"https://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections and accept no new one."""
        self._cut = True
        for one in self._sockets():
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def lead_to(self, target: int) -> None:
        """New connections go to another port, as those to a Service with another endpoint."""
        self._target = target
        self.heal()

    def mute(self) -> None:
        """What is sent arrives; what is answered stays on the way until `heal`."""
        self._answers.clear()

    def heal(self) -> None:
        """All is well again."""
        self._cut = False
        self._answers.set()

    def close(self) -> None:
        """End everything."""
        self.heal()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _sockets(self) -> Iterator[socket.socket]:
        while self._open:
            yield self._open.pop()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open += [near, far]
            for pair, held in (((near, far), False), ((far, near), True)):
                threading.Thread(target=self._pump, args=(*pair, held), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, held: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if held:
                    self._answers.wait()
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
