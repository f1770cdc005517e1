"""`kybernate explain node` and `explain seat`: what a GPUNode says of them, and why."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.gpunodes import read_status
from kybernate.cli.cluster.link import cluster_options, link_to
from kybernate.cli.cluster.seats import document_of, screen
from kybernate.cli.completing import node_names
from kybernate.cli.output import age, document_option, human, plain, put, text_of
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.api.gpunodes import GroupRow, SeatRow, Status

    Json = dict[str, Any]


@click.command("node")
@click.argument("name", shell_complete=node_names)
@document_option
@cluster_options(namespaced=False)
def node(name: str, *, output: str, **options: Any) -> None:
    """Say whether seats start and wake on node NAME, and if not, why; which seats are free, and who
    is on its GPUs and in its tiers.

    Read from its GPUNode alone.

    \b
    kubectl kyb explain node gpu-7
    """
    name, status = _read(name, options)
    if output != "table":
        click.echo(text_of(node_document(name, status), output), nl=False)
        return
    for line in node_lines(name, status):
        click.echo(plain(line))
    click.echo()
    put(screen({name: status}, output, datetime.now(UTC)))


@click.command("seat")
@click.argument("name", metavar="NODE/SEAT")
@document_option
@cluster_options(namespaced=False)
def seat(name: str, *, output: str, **options: Any) -> None:
    """Say who has a seat of a node, what it does and why, what it holds, and how often it wakes.

    Read from the GPUNode alone. `kubectl kyb seats -o wide` shows the names of nodes and seats.

    \b
    kubectl kyb explain seat gpu-7/G0-seat-1
    """
    of, _, wanted = name.rpartition("/")
    if not of:
        raise click.BadParameter("write NODE/SEAT, such as gpu-7/G0-seat-1", param_hint="NODE/SEAT")
    of, status = _read(of, options)
    row = next((one for one in status.seats if one.name == wanted), None)
    if row is None:
        raise NotFoundError(_nobody(of, status, wanted))
    if output != "table":
        click.echo(text_of({"node": of, **asdict(row)}, output), nl=False)
        return
    for line in seat_lines(of, row, datetime.now(UTC)):
        click.echo(plain(line))


def node_lines(name: str, status: Status) -> Iterator[str]:
    """A node in sentences. Pure."""
    why = _unready(status)
    yield f"node {name}: " + (f"nothing starts or wakes: {why}" if why else "seats start and wake")
    if status.agent:
        yield f"agent: {status.agent.version or 'of no known version'}"
    if status.driver:
        yield f"driver: {status.driver.version}"
    for group in status.groups:
        row = _group(status, group)
        yield (
            f"group {group.name} ({group.resource}): {row['seats']} seats, "
            f"{row['active']} of {row['activeSlots']} active, {row['free']} free"
        )


def node_document(name: str, status: Status) -> Json:
    """The same for programs. Pure."""
    why = _unready(status)
    groups = [_group(status, group) for group in status.groups]
    about = {"node": name, "ready": not why, "why": why, "groups": groups}
    return about | document_of({name: status})


def seat_lines(node: str, row: SeatRow, now: datetime) -> Iterator[str]:
    """A seat in sentences. Pure."""
    since = f", for {age(row.since, now)}" if row.since else ""
    tier = f" ({row.tier})" if row.tier else ""
    why = f": {row.reason}" if row.reason else ""
    yield f"seat {node}/{row.name}: pod {row.namespace}/{row.pod} is {row.state}{tier}{since}{why}"
    if row.operation:
        yield f"under way: {row.operation}"
    if row.movable or row.movable_reason:
        yield f"it can continue elsewhere: {row.movable_reason or 'its GPU is lost'}"
    if row.model:
        yield f"model: {row.model}"
    if row.held_bytes is not None:
        yield f"GPU memory: {human(row.held_bytes)}"
    if row.saved_bytes is not None:
        yield f"artifact: {human(row.saved_bytes)}"
    last = f", the last one in {row.last_wake_ms:.0f} ms" if row.wakes else ""
    yield f"{row.requests} requests, {row.active_seconds:.0f} s active, {row.wakes} wakes{last}"


def _group(status: Status, group: GroupRow) -> Json:
    here = [one for one in status.seats if one.group == group.name and one.state != "gone"]
    return {
        "group": group.name,
        "resource": group.resource,
        "seats": group.seats,
        "activeSlots": group.active_slots,
        "active": sum(one.state in ("active", "draining") for one in here),
        "free": max(0, group.seats - len(here)),
    }


def _unready(status: Status) -> str:
    ready = next((one for one in status.conditions if one.type == "Ready"), None)
    if ready is None:
        return "its agent has not reported yet"
    return "" if ready.status == "True" else ready.message or ready.reason


def _nobody(node: str, status: Status, wanted: str) -> str:
    taken = ", ".join(one.name for one in status.seats)
    return f"nobody has seat {wanted} of {node}; taken are: {taken or 'none'}"


def _read(name: str, options: Json) -> tuple[str, Status]:
    return read_status(link_to(options).api.get(f"{keys.GPU_NODES_PATH}/{name}"))
