"""The sidecar's ports: one per probe, a thread per connection, and only so many of them."""

from __future__ import annotations

import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from sidecar import grpc, http
from sidecar.http2 import ProtocolError
from sidecar.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.link import Link
    from sidecar.options import Probe

_AT_ONCE = 16
"""The kubelet makes three probes at a time; strangers shall not make us grow, nor keep it out:
beyond this, the connection that is there for longest is hung up."""
_THREADS = 2 * _AT_ONCE
"""With those that are still on their way out."""
_STACK = 256 * 1024
_BACKLOG = 128


class Listeners:
    """Listens at once: the container counts as started before it serves. Raises OSError."""

    def __init__(self, probes: Sequence[Probe], link: Link) -> None:
        threading.stack_size(_STACK)
        self._link = link
        self._places = threading.BoundedSemaphore(_THREADS)
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, None] = {}
        self._by_number: dict[int, tuple[socket.socket, Probe]] = {}
        for probe in probes:
            listener = _listen(probe.listen)
            self._by_number[listener.fileno()] = (listener, probe)

    def serve(self) -> None:
        """Accept connections, for ever."""
        while not self._by_number:
            signal.pause()
        poll = select.poll()
        for number in self._by_number:
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                self._accept(*self._by_number[number])

    def _accept(self, listener: socket.socket, probe: Probe) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        if not self._places.acquire(blocking=False):
            client.close()
            return
        with self._lock:
            self._clients[client] = None
            if len(self._clients) > _AT_ONCE:
                self._hang_up(next(iter(self._clients)))
        try:
            threading.Thread(target=self._serve, args=(client, probe), daemon=True).start()
        except RuntimeError:  # the pod is at its limit of processes or memory
            client.close()
            self._leave(client)

    def _hang_up(self, client: socket.socket) -> None:
        """Its thread sees the end of the connection, whatever it waits for."""
        del self._clients[client]
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket, probe: Probe) -> None:
        try:
            with client, self._link.changes() as changed:
                turn = Turn(client, probe, self._link, changed)
                (grpc if probe.kind == "grpc" else http).serve(turn)
        except (OSError, ProtocolError):
            return  # the kubelet has hung up, or never was one
        except Exception as error:  # noqa: BLE001 - one probe must not end the others
            sys.stderr.write(f"kyb-sidecar: a {probe.role} probe failed: {error!r}\n")
        finally:
            self._leave(client)

    def _leave(self, client: socket.socket) -> None:
        with self._lock:
            self._clients.pop(client, None)
        self._places.release()


def _listen(port: int) -> socket.socket:
    """A socket for both families where there are two."""
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    except OSError:
        return socket.create_server(("", port), backlog=_BACKLOG)
