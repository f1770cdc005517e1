"""gRPC health probes: the workload's own answer while it can give one, else ours.

Bytes pass both ways unchanged, but frames of a call go to the kubelet only when its answer is
whole. So we can still answer ourselves when the seat is parked in the middle of a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar import http2
from sidecar.verdict import Verdict

if TYPE_CHECKING:
    from sidecar.turn import Socket, Turn

_PIECE = 65536


def serve(turn: Turn) -> None:
    """Serve one connection until the kubelet hangs up. Raises OSError, ProtocolError."""
    ours = http2.Server()
    greeted = False
    if turn.verdict() is Verdict.ASK:
        greeted = _through_workload(turn, ours)
    turn.client.settimeout(None)
    if not greeted:
        turn.client.sendall(ours.greeting())
    _ourselves(turn, ours)


def _ourselves(turn: Turn, ours: http2.Server) -> None:
    """Answer by the seat's state."""
    while True:
        verdict = turn.verdict()
        alive = verdict is Verdict.YES or (verdict is Verdict.ASK and turn.spared())
        turn.client.sendall(ours.reply(http2.SERVING if alive else http2.NOT_SERVING))
        if turn.client in turn.wait(turn.client, patient=True):
            data = turn.client.recv(_PIECE)
            if not data:
                return
            ours.feed(data)


def _through_workload(turn: Turn, ours: http2.Server) -> bool:
    """Pass bytes until the workload fails or the seat changes; whether it sent its settings."""
    try:
        upstream = turn.connect()
    except OSError as error:
        turn.failed(f"port {turn.probe.port} of the workload: {error.strerror or error}")
        return False
    with upstream:
        relay = _Relay(turn, ours, upstream)
        try:
            relay.run()
        except _HungUpError:
            turn.failed(f"port {turn.probe.port} hung up")
        return relay.greeted


class _HungUpError(Exception):
    """The workload has closed its connection."""


@dataclass(slots=True)
class _Call:
    """Frames of one call that are held back."""

    held: list[bytes] = field(default_factory=list)
    message: bytes = b""


class _Relay:
    """Both directions of one connection. `greeted`: the workload's settings went to the kubelet."""

    def __init__(self, turn: Turn, ours: http2.Server, upstream: Socket) -> None:
        self.greeted = False
        self._turn = turn
        self._ours = ours
        self._upstream = upstream
        self._frames = http2.Splitter()
        self._calls: dict[int, _Call] = {}

    def run(self) -> None:
        """Until the seat changes so that we answer. Raises _HungUpError, OSError, ProtocolError."""
        while True:
            ready = self._turn.wait(self._upstream, self._turn.client)
            if not ready:
                return
            if None in ready and self._turn.verdict() is not Verdict.ASK:
                return
            if self._turn.client in ready:
                self._from_kubelet()
            if self._upstream in ready:
                self._from_workload()

    def _from_kubelet(self) -> None:
        data = self._turn.client.recv(_PIECE)
        if not data:
            raise ConnectionResetError("the kubelet has hung up")
        self._ours.feed(data)
        try:
            self._upstream.sendall(data)
        except OSError as error:
            raise _HungUpError from error

    def _from_workload(self) -> None:
        try:
            data = self._upstream.recv(_PIECE)
        except OSError as error:
            raise _HungUpError from error
        if not data:
            raise _HungUpError
        for frame in self._frames.feed(data):
            if frame.stream == 0:
                self._control(frame)
            else:
                self._on_call(frame)

    def _control(self, frame: http2.Frame) -> None:
        if frame.kind == http2.SETTINGS:
            self.greeted = True
        if frame.kind in (http2.SETTINGS, http2.PING) and frame.flags & http2.ACK:
            self._ours.forget_acknowledgements()
        self._turn.client.sendall(frame.raw)

    def _on_call(self, frame: http2.Frame) -> None:
        call = self._calls.setdefault(frame.stream, _Call())
        call.held.append(frame.raw)
        if frame.kind == http2.DATA:
            call.message += frame.data
        if not frame.ends:
            return
        del self._calls[frame.stream]
        self._ours.answered(frame.stream)
        if http2.status_in(call.message) == http2.SERVING:
            self._turn.succeeded()
        else:
            self._turn.failed(f"port {self._turn.probe.port} says it does not serve")
            if self._turn.spared():
                call.held = [http2.answer(frame.stream, http2.SERVING)]
        self._turn.client.sendall(b"".join(call.held))
