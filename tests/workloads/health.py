"""A gRPC health service in a few frames, for workloads whose image has no gRPC."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PREFACE = 24
_DATA, _HEADERS, _SETTINGS, _PING = 0, 1, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FIRST = b"\x88\x5f\x10application/grpc"
"""":status 200" by the static table's index 8, "content-type" by its index 31."""
_LAST = b"\x00\x0bgrpc-status\x010"


def serve(host: str, port: int, healthy: Callable[[], bool]) -> None:
    """Answer every call on the port with SERVING or NOT_SERVING, from threads of its own."""
    server = socket.create_server((host, port), backlog=16)
    threading.Thread(target=_accept, args=(server, healthy), daemon=True).start()


def _accept(server: socket.socket, healthy: Callable[[], bool]) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_one, args=(client, healthy), daemon=True).start()


def _one(client: socket.socket, healthy: Callable[[], bool]) -> None:
    with client, client.makefile("rb") as stream:
        stream.read(_PREFACE)
        client.sendall(_frame(_SETTINGS, 0, 0))
        while len(head := stream.read(9)) == 9:
            payload = stream.read(int.from_bytes(head[:3], "big"))
            kind, flags, number = struct.unpack_from(">BBI", head, 3)
            if kind == _SETTINGS and not flags & _ACK:
                client.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                client.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                client.sendall(_answer(number, 1 if healthy() else 2))


def _answer(number: int, status: int) -> bytes:
    message = bytes((0, 0, 0, 0, 2, 8, status))
    return b"".join(
        (
            _frame(_HEADERS, _END_HEADERS, number, _FIRST),
            _frame(_DATA, 0, number, message),
            _frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _LAST),
        )
    )


def _frame(kind: int, flags: int, number: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, number) + payload
