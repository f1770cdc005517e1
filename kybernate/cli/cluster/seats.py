"""`kybernate seats` and `kybernate top`: who is in GPU memory, who is parked, and where."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.text import Text

from kybernate.cli.cluster import lines
from kybernate.cli.cluster.link import NODES, cluster_options, link_to, listed, may_list, watched
from kybernate.cli.cluster.lists import list_options, tell, until_stopped, watch_option
from kybernate.cli.output import live, put, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kybernate.api.gpunodes import Status
    from kybernate.cli.cluster.link import Link
    from kybernate.cli.output import Listing

    Json = dict[str, Any]


@click.command("seats")
@list_options
def seats(*, output: str, watch: bool, **options: Any) -> None:
    """List the seats of a namespace's pods: state, tier, wakes; and the pods that wait for one.

    Who may list pods but no GPUNodes sees a seat as `starting`, and as `wakeable` once it serves
    or would wake on a request.

    \b
    kubectl kyb seats -n shop
    kubectl kyb seats -A -o wide --watch
    """
    link = link_to(options)
    sources = [link.pods(), *([NODES] if may_list(link.api, NODES) else [])]

    def told(found: tuple[list[Json], ...]) -> Listing:
        nodes = nodes_of(found[1]) if len(found) > 1 else {}
        every = lines.seat_lines(nodes, found[0])
        return lines.seats_of(every, link.namespace, datetime.now(UTC))

    tell(link, sources, told, output, watch=watch)


@click.command("top")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "wide", "json", "yaml")),
    default="table",
    show_default=True,
    help="For people (wide: with more columns), or for programs.",
)
@watch_option
@cluster_options(namespaced=False)
def top(*, output: str, watch: bool, **options: Any) -> None:
    """Show the cluster: GPUs and who is on them, tiers and what lies there, seats and their wakes.

    \b
    kubectl kyb top
    kubectl kyb top --watch
    """
    link = link_to(options)
    may_list(link.api, NODES)
    if not watch:
        _show(nodes_of(listed(link.api, NODES)), output)
        return
    states = _nodes(link)
    if output in ("json", "yaml"):
        for nodes in states:
            document = document_of(nodes)
            click.echo(json.dumps(document) if output == "json" else text_of([document], output))
        return
    live(screen(nodes, output, datetime.now(UTC)) for nodes in states)


def _nodes(link: Link) -> Iterator[dict[str, Status]]:
    for found in until_stopped(watched(link.api, [NODES])):
        yield nodes_of(found[0])


def nodes_of(items: Iterable[Json]) -> dict[str, Status]:
    """GPUNodes by name; those that this version can't read are told on stderr."""
    found, problems = lines.statuses(items)
    for problem in problems:
        click.echo(problem, err=True)
    return found


def _listings(nodes: Mapping[str, Status], now: datetime) -> dict[str, Listing]:
    every = lines.seats_of(lines.seat_lines(nodes), None, now)
    return {"gpus": lines.gpus_of(nodes), "tiers": lines.tiers_of(nodes), "seats": every}


def _show(nodes: Mapping[str, Status], form: str) -> None:
    if form in ("json", "yaml"):
        click.echo(text_of(document_of(nodes), form), nl=False)
        return
    put(screen(nodes, form, datetime.now(UTC)))


def document_of(nodes: Mapping[str, Status]) -> Json:
    """All that `top` tells programs."""
    found = _listings(nodes, datetime.now(UTC))
    return {name: [row.document for row in listing.rows] for name, listing in found.items()}


def screen(nodes: Mapping[str, Status], form: str, now: datetime) -> Group:
    """All that `top` shows to people."""
    parts: list[Any] = []
    for listing in _told(nodes, now):
        parts += [Text(), listing.table(form)] if parts else [listing.table(form)]
    return Group(*parts)


def _told(nodes: Mapping[str, Status], now: datetime) -> list[Listing]:
    """Nodes that don't work come first."""
    unready = lines.unready(nodes)
    return [*([unready] if unready.rows else []), *_listings(nodes, now).values()]
