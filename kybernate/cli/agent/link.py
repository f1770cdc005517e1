"""The connection of `kybernate agent` to the agent of this node, and its errors as sentences."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click
import grpc

from kybernate.gen import agent_pb2 as pb
from kybernate.lib import rpc

if TYPE_CHECKING:
    from collections.abc import Iterator

CALL_LIMIT = 10.0
"""Seconds that a call which isn't a stream may take."""

_NEXT = {
    grpc.StatusCode.UNAVAILABLE: (
        "no agent answers at {socket}. This command talks to the agent of the node it runs on: is "
        "kyb-agent running here (kubectl -n kyb-system get pods -o wide), and is this the node "
        "itself, not a container on it? --socket names another place"
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        "the agent at {socket} takes too long: its log says what it is doing"
    ),
    grpc.StatusCode.UNIMPLEMENTED: "the agent at {socket} is older than this command: update it",
}


@contextlib.contextmanager
def connected(socket: str, elsewhere: str = "") -> Iterator[Any]:
    """The agent's stub; gRPC's errors inside become one line and exit status 1. `elsewhere`: whom
    else the command may ask where no agent answers."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        try:
            yield rpc.Stub(channel, pb.DESCRIPTOR, "NodeAgent")
        except grpc.RpcError as error:
            raise click.ClickException(_sentence(error, socket, elsewhere)) from error


def _sentence(error: Any, socket: str, elsewhere: str) -> str:
    details = error.details() or error.code().name
    known = _NEXT.get(error.code())
    if known is None:
        return str(details)
    text = known.format(socket=socket)
    if error.code() is not grpc.StatusCode.UNAVAILABLE or "connect" not in details:
        return f"{details}; {text}"
    return f"{text}; {elsewhere}" if elsewhere else text


def find_seat(status: pb.NodeStatus, wanted: str) -> pb.Seat:
    """The seat that a person means: a pod's name, namespace/name or UID, or the seat's name.

    Raises ClickException if there is none, or more than one.
    """
    found: list[pb.Seat] = [
        seat
        for seat in status.seats
        if wanted in (seat.uid, seat.name, seat.pod, f"{seat.namespace}/{seat.pod}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{seat.namespace}/{seat.pod}" for seat in found)
        raise click.ClickException(f"{wanted} may be {names}: name one of these")
    here = ", ".join(sorted(f"{seat.namespace}/{seat.pod}" for seat in status.seats))
    raise click.ClickException(
        f"no seat of {wanted} is on node {status.node}; "
        + (f"there are: {here}" if here else "no pod holds a seat here")
    )


def as_dict(message: Any) -> dict[str, Any]:
    """A message as JSON has it, with every field of it, under its name in the proto."""
    answer: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            answer[field.name] = dict(value)
        elif field.message_type is not None and field.is_repeated:
            answer[field.name] = [as_dict(one) for one in value]
        elif field.message_type is not None:
            answer[field.name] = as_dict(value) if message.HasField(field.name) else None
        else:
            answer[field.name] = list(value) if field.is_repeated else value
    return answer
