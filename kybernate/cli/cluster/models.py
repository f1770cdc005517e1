"""`kybernate models`: what may be asked for, how warm it is, and how long its last wake took."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kybernate.cli.cluster.lines import seat_lines
from kybernate.cli.cluster.link import NODES, link_to, may_list
from kybernate.cli.cluster.lists import list_options, tell
from kybernate.cli.cluster.seats import nodes_of
from kybernate.cli.output import Listing, Row, age
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.cli.cluster.lines import SeatLine

    Json = dict[str, Any]

COLUMNS = ("NAMESPACE", "MODEL", "STATE", "TIER", "SINCE", "SEATS", "ACTIVE", "LAST WAKE")
WIDE = (*COLUMNS, "REQUESTS", "WAKES", "NODES")
_WARMTH = ("active", "draining", "waking", "wakeable", "parking", "parked", "restoring", "starting")
"""States of seats, the one first that answers first."""
_TIERS = tuple(tier.value for tier in Tier)


@click.command("models")
@list_options
def models(*, output: str, watch: bool, **options: Any) -> None:
    """List the models of a namespace's pods: state and tier of each one's warmest seat, its seats,
    and how long its last wake took.

    Read from GPUNodes and pods. Who may read pods alone sees a model as `wakeable` once it serves,
    or would wake on a request.

    \b
    kubectl kyb models -n shop
    kubectl kyb models -A -o wide --watch
    """
    link = link_to(options)
    sources = [link.pods(), *([NODES] if may_list(link.api, NODES) else [])]

    def told(found: tuple[list[Json], ...]) -> Listing:
        every = seat_lines(nodes_of(found[1]) if len(found) > 1 else {}, found[0])
        return models_of(every, link.namespace, datetime.now(UTC))

    tell(link, sources, told, output, watch=watch)


def models_of(lines: Iterable[SeatLine], namespace: str | None, now: datetime) -> Listing:
    """The models of a namespace's seats, of all if it is None. Pure."""
    found = [one for one in lines if one.model and namespace in (None, one.namespace)]
    found.sort(key=lambda one: (one.namespace, one.model, _warmth(one), one.pod))
    groups = groupby(found, key=lambda one: (one.namespace, one.model))
    rows = tuple(_row(list(seats), now) for _, seats in groups)
    where = f"in namespace {namespace}" if namespace else "in this cluster"
    return Listing(WIDE, len(COLUMNS), rows, f"No pod with a seat names a model {where}.")


def _warmth(line: SeatLine) -> tuple[int, int]:
    """The smallest answers first."""
    state = _WARMTH.index(line.state) if line.state in _WARMTH else len(_WARMTH)
    return state, _TIERS.index(line.tier) if line.tier in _TIERS else -1


def _row(seats: list[SeatLine], now: datetime) -> Row:
    first = seats[0]
    document: Json = {
        "namespace": first.namespace,
        "model": first.model,
        "state": first.state,
        "tier": first.tier,
        "since": first.since,
        "seats": len(seats),
        "active": sum(one.state in ("active", "draining") for one in seats),
        "last_wake_ms": first.last_wake_ms,
        "requests": sum(one.requests for one in seats),
        "wakes": sum(one.wakes for one in seats),
        "nodes": sorted({one.node for one in seats if one.node}),
        "pods": [one.pod for one in seats],
    }
    cells = (
        *(first.namespace, first.model, first.state, first.tier or "-"),
        age(first.since, now) if first.since else "-",
        *(str(len(seats)), str(document["active"])),
        "-" if first.last_wake_ms is None else f"{first.last_wake_ms:.0f} ms",
        *(str(document["requests"]), str(document["wakes"])),
        ",".join(document["nodes"]) or "-",
    )
    return Row(f"{first.namespace}/{first.model}", document, cells)
