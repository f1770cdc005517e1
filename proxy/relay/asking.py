"""What a request asks for: which model, and what its seat shall get."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from kybernate.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping


class Shape(Protocol):
    """Gives a seat's answer another shape. One for each request."""

    content_type: str

    def more(self, chunk: bytes) -> bytes:
        """What the client gets for this piece of the answer; may be nothing yet."""

    def end(self) -> bytes:
        """What the client gets when the answer is complete."""

    def refused(self, body: bytes) -> bytes:
        """The seat's error, as JSON. `body`: the begin of what it said."""


@dataclass(slots=True)
class Asking:
    """A request as it was read. `path` is written as a seat gets it, with its query.

    `model`: whose seat it is for. `named`: what the body calls the model if the seat's own name has
    to stand there; empty if the body is right. `method`: empty for the request's own. `headers`:
    what the seat gets in place of the request's. `begin_limit`: seconds until its answer must
    begin. `shape`: how its answer is changed. `socket`: a websocket, whose messages pass through.
    `counts`: its seat is not drained before it is over; else it ends with the seat's connections.
    """

    model: str
    path: str
    body: bytearray = field(default_factory=bytearray)
    named: str = ""
    method: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    begin_limit: float | None = None
    shape: Shape | None = None
    socket: bool = False
    counts: bool = True
