"""`kybernate park`, `wake`, `snapshot` and `drain`: a request is an object, and its status says how
far it is."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.gpunodes import read_status
from kybernate.api.requests import ask_for, read_request
from kybernate.cli.cluster.asking import (
    KEPT_S,
    LATE_S,
    REFUSED,
    Asking,
    because,
    limit_of,
    once_options,
    request_options,
    why_option,
)
from kybernate.cli.cluster.link import link_to
from kybernate.cli.completing import node_names, pod_names
from kybernate.cli.output import human, plain
from kybernate.core.requests.checkpoint import Mode, Request
from kybernate.errors import KybernateError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kybernate.cli.cluster.link import Link

    Json = dict[str, Any]

_TIERS = {"ram": "in RAM", "nvme": "on NVMe", "object": "in the object store"}


def _called(request: Request) -> str:
    return f"{request.mode.lower()} of {request.pod}"


def _lines(request: Request) -> list[str]:
    told = [f"{_called(request)}: {plain(request.status.message)}"]
    if (made := request.status.outcome) and made.artifact:
        told.append(f"{made.artifact}  {human(made.size)} {_TIERS.get(made.tier, '')}")
    return told


CHECKPOINTS = Asking(
    *(keys.CHECKPOINT_REQUESTS_PATH, keys.CHECKPOINT_REQUEST_KIND),
    deletion="cancels it",
    read=read_request,
    called=_called,
    lines=_lines,
)


def _options(command: Any) -> Any:
    command = once_options("How long it may take; then it is cancelled.")(command)
    return click.argument("pod", shell_complete=pod_names)(command)


@click.command("park")
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=None,
    help="Where its state goes, until it is next woken; without it RAM.",
)
@_options
def park(pod: str, *, tier: str | None, **options: Any) -> None:
    """Have the seat of POD leave GPU memory. Its next request wakes it again.

    Requests in flight end first. Exit status: 0 done, 1 refused or failed, 2 usage, 3 timed out;
    after Ctrl-C, 130, the request continues.

    \b
    kubectl kyb park llama -n shop
    kubectl kyb park llama -n shop --tier nvme --timeout 5m
    """
    _ask(Mode.PARK, pod, Tier(tier) if tier else None, options)


@click.command("wake")
@_options
def wake(pod: str, **options: Any) -> None:
    """Bring the seat of POD back into GPU memory as soon as its turn comes, without any request.

    Takes an eviction back, too. Exit status: 0 done, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb wake llama -n shop
    """
    _ask(Mode.WAKE, pod, None, options)


@click.command("snapshot")
@click.option(
    "--tier",
    type=click.Choice([Tier.NVME.value, Tier.OBJECT.value]),
    default=None,
    help="Where it is kept; without it the deepest tier that the node has and the pod lets it.",
)
@_options
def snapshot(pod: str, *, tier: str | None, **options: Any) -> None:
    """Keep an artifact of POD as it is now, and let the workload continue.

    It stays until somebody deletes it. The right to exec into the pod is needed: an artifact has
    all of its memory. Exit status: 0 done, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb snapshot llama -n shop
    """
    _ask(Mode.SNAPSHOT, pod, Tier(tier) if tier else None, options)


@click.command("drain")
@click.argument("node", shell_complete=node_names)
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=None,
    help="Where their states go. Those in RAM do not outlive their pods.",
)
@why_option
@request_options(
    "How long each seat may take.",
    tried="Say which seats would be parked, and do nothing.",
    told="Sentences, or the requests as they are at the end.",
    namespaced=False,
)
def drain(node: str, *, tier: str | None, why: str | None, dry_run: bool, **options: Any) -> None:
    """Cordon NODE, park all of its seats, and keep them parked: their pods may go.

    Makes a CheckpointRequest of mode Evict for each, and follows them. Nothing is deleted: `kubectl
    drain` does that afterwards, and `kubectl uncordon` and `kubectl kyb wake` take it back. Exit
    status: 0 all are parked, 1 some are not, 2 usage, 3 some not in time.

    \b
    kubectl kyb drain gpu-7 --dry-run
    kubectl kyb drain gpu-7 --tier nvme --why 'new driver'
    """
    limit, link, form = limit_of(options["timeout"]), link_to(options), options["output"]
    if dry_run:
        _would(node, _to_park(link, node, tier, why, limit), form)
        return
    # Whoever is told nothing of its seats cordons nothing.
    _to_park(link, node, tier, why, limit)
    link.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    # What programs read is the requests alone.
    click.echo(f"node {node} is cordoned: no new pod comes to it", err=form != "text")
    asked, ends = [], [0]
    # Asked once more, for a pod may have come just before.
    wanted = _to_park(link, node, tier, why, limit)
    for namespace, body in wanted:
        there = replace(link, namespace=namespace)
        try:
            asked.append((there, there.api.post(there.of(CHECKPOINTS.plural), body)))
        except KybernateError as error:
            # Such as by a quota of its namespace, which is to hold up no other.
            pod = f"{namespace}/{body['spec']['pod']}"
            click.echo(f"evict of {pod} failed: {plain(str(error))}", err=True)
            ends.append(REFUSED)
    found = [_end(*one, time.monotonic() + limit + LATE_S, form) for one in asked]
    CHECKPOINTS.tell_all([item for item, _ in found], form)
    sys.exit(max(ends + [end for _, end in found]))


def _to_park(
    link: Link, node: str, tier: str | None, why: str | None, limit: int
) -> list[tuple[str, Json]]:
    """A request for each seat of the node, with its namespace."""
    _, status = read_status(link.api.get(f"{keys.GPU_NODES_PATH}/{node}"))
    below = Tier(tier) if tier else None
    return [
        (seat.namespace, because(ask_for(Mode.EVICT, seat.pod, below, limit, KEPT_S), why))
        for seat in status.seats
        if seat.state != "gone"
    ]


def _would(node: str, wanted: Iterable[tuple[str, Json]], form: str) -> None:
    """What a drain would ask for."""
    pods = ", ".join(f"{namespace}/{body['spec']['pod']}" for namespace, body in wanted)
    told = f"would cordon node {node}, and park: {pods or 'nothing'}"
    click.echo(told, err=form != "text")
    for namespace, body in wanted:
        body["metadata"]["namespace"] = namespace
    CHECKPOINTS.tell_all([body for _, body in wanted], form)


def _end(link: Link, made: Json, until: float, form: str) -> tuple[Json, int]:
    """Follow one of several, of which any may be deleted by its namespace's own people."""
    try:
        ended = CHECKPOINTS.followed(link, made, until)
        return ended, CHECKPOINTS.outcome(CHECKPOINTS.read(ended), quiet=form != "text")
    except click.ClickException as error:
        click.echo(error.message, err=True)
        return made, REFUSED


def _ask(mode: Mode, pod: str, tier: Tier | None, options: dict[str, Any]) -> None:
    limit = limit_of(options["timeout"])
    CHECKPOINTS.ask(ask_for(mode, pod.removeprefix("pod/"), tier, limit, KEPT_S), options)
