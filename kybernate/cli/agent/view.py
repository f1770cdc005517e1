"""What `kybernate agent` shows: the node, its GPUs and seats, and operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from kybernate.gen import agent_pb2 as pb

_GIB = 1 << 30
_TIERS = {"ram": "in RAM", "nvme": "on NVMe", "object": "in the object store"}
_COLOURS = {
    "active": "green",
    "parked": "blue",
    "waiting": "yellow",
    "failed": "red",
    "succeeded": "green",
    "cancelled": "yellow",
}


def screen(status: pb.NodeStatus, operations: Iterable[pb.Operation], now: float) -> RenderableType:
    """The whole node. `now` in seconds since 1970."""
    parts: list[RenderableType] = [_headline(status), _gpus(status)]
    parts.append(_seats(status, now) if status.seats else Text("No pod holds a seat here."))
    live = [one for one in operations if not one.ended_at]
    if live:
        parts.append(operations_table(live, now))
    return Stack(*parts)


def _headline(status: pb.NodeStatus) -> Text:
    text = Text.assemble(("node ", "dim"), (status.node, "bold"))
    text.append(f"   parked {_gib(status.parked_bytes)} of {_gib(status.park_budget_bytes)}")
    active = sum(seat.state == "active" for seat in status.seats)
    text.append(f"   {active} of {len(status.seats)} seats active")
    if status.draining:
        text.append(f"\nnothing starts or wakes here: {status.draining}", "bold yellow")
        text.append("; kybernate agent undrain ends that", "yellow")
    return text


def _gpus(status: pb.NodeStatus) -> Table:
    table = _table("GPU", "product", "memory in use", "health", "active seats", title="GPUs")
    groups = {group.name: set(group.gpus) for group in status.groups}
    for gpu in sorted(status.gpus, key=lambda gpu: gpu.index):
        used = status.used_bytes.get(gpu.uuid)
        users = [
            seat.pod
            for seat in status.seats
            if seat.state in ("active", "draining") and gpu.uuid in groups.get(seat.group, ())
        ]
        table.add_row(
            str(gpu.index),
            gpu.product,
            f"{_gib(used)} of {_gib(gpu.memory_bytes)}" if used is not None else "NVML is silent",
            Text("healthy", "green") if gpu.healthy else Text("lost", "bold red"),
            ", ".join(users) or "-",
        )
    return table


def _seats(status: pb.NodeStatus, now: float) -> RenderableType:
    table = _table("pod", "seat", "state", "since", "requests", "wakes", "kept", title="Seats")
    table.columns[0].overflow = "fold"
    seats = sorted(status.seats, key=lambda seat: (seat.group, seat.name))
    for seat in seats:
        table.add_row(
            f"{seat.namespace}/{seat.pod}",
            seat.name,
            _state(seat.state),
            _age(now - seat.since),
            _requests(seat),
            f"{seat.wakes}, last {seat.last_wake_ms:.0f} ms" if seat.wakes else "-",
            _state_at(seat),
        )
    told = [_told(seat) for seat in seats]
    return Stack(table, *(line for line in told if line is not None))


def _state_at(seat: pb.Seat) -> str:
    """How much of a parked seat is where."""
    if not seat.tier:
        return "-"
    return f"{_gib(seat.saved_bytes or seat.held_bytes)} {_TIERS.get(seat.tier, seat.tier)}"


def _requests(seat: pb.Seat) -> str:
    text = str(seat.requests)
    if seat.in_flight or seat.waiting:
        text += f", {seat.in_flight} now, {seat.waiting} wait"
    return text


def _told(seat: pb.Seat) -> Text | None:
    """What there is to know of a seat beyond its state; None if there is nothing."""
    colour = "dim"
    if seat.movable:
        why, colour = seat.movable_reason, "red"
    elif seat.refused:
        why, colour = f"can't have its turn: {seat.refused}", "yellow"
    elif seat.unparkable and seat.state in ("active", "draining"):
        why, colour = f"can't be parked: {seat.unparkable}", "yellow"
    elif seat.state == "parked" and seat.undumpable:
        why, colour = f"can't leave RAM: {seat.undumpable}", "yellow"
    elif seat.state in ("active", "parked"):
        why = seat.leave
    else:
        why = f"{seat.state}: {seat.reason}"
    return (
        Text.assemble((f"  {seat.namespace}/{seat.pod}: ", "bold"), (why, colour)) if why else None
    )


def operations_table(operations: Iterable[pb.Operation], now: float) -> Table:
    """Operations, one a line."""
    table = _table("operation", "of", "state", "age", "asked by", "what", title="Operations")
    for one in operations:
        table.add_row(
            one.name,
            f"{one.namespace}/{one.pod}" if one.pod else "node",
            _state(one.state),
            _age(now - one.created_at),
            one.by + (f": {one.why}" if one.why else ""),
            one.sentence,
        )
    return table


def progress(operation: pb.Operation) -> str:
    """One line on an operation that is under way."""
    seats = f" {operation.done} of {operation.total} seats:" if operation.total else ""
    return f"{operation.kind} {operation.pod or 'node'}:{seats} {operation.sentence}"


def outcome(operation: pb.Operation) -> Text:
    """How an operation ended, and how long its phases took."""
    of = f"{operation.namespace}/{operation.pod}" if operation.pod else "this node"
    text = Text.assemble(
        (operation.state, f"bold {_COLOURS.get(operation.state, '')}"),
        f" {operation.kind} of {of} after {operation.ended_at - operation.created_at:.2f} s: ",
        operation.sentence,
    )
    if operation.phases:
        phases = ", ".join(f"{one.name} {1000 * one.seconds:.1f} ms" for one in operation.phases)
        text.append(f"\n  {phases}", "dim")
    for line in operation.report:
        text.append(f"\n  {line}")
    return text


def _table(*columns: str, title: str) -> Table:
    return Table(
        *columns, title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )


def _state(state: str) -> Text:
    return Text(state, _COLOURS.get(state, "magenta"))


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
