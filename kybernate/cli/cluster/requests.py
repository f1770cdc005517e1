"""`kybernate park`, `wake`, `snapshot` and `drain`: a request is an object, and its status says how
far it is."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from kybernate import keys
from kybernate.api.gpunodes import read_status
from kybernate.api.requests import ask_for, read_request
from kybernate.cli.cluster.link import Source, cluster_options, link_to, watched
from kybernate.cli.completing import pod_names
from kybernate.cli.output import human, plain, text_of
from kybernate.core.quantity import parse_duration
from kybernate.core.requests.checkpoint import Mode
from kybernate.core.requests.reasons import Reason, Standing
from kybernate.errors import ConfigError, NotFoundError, RefusedError
from kybernate.types import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kybernate.api.gpunodes import SeatRow
    from kybernate.cli.cluster.link import Link
    from kybernate.core.requests.checkpoint import Request

    Json = dict[str, Any]

REFUSED, TIMED_OUT, INTERRUPTED = 1, 3, 130
"""Exit statuses. What click says of the words of a command line is 2."""

_KEPT_S = 86_400
"""Seconds for which a request stays once it has ended, so that somebody may look at it."""
_LATE_S = 15.0
"""Seconds after a request's deadline at which nobody answers any more."""
_LONGEST_S = 86_400
_PLURAL = keys.CHECKPOINT_REQUESTS_PATH.rpartition("/")[2]
_RESOURCE = f"{keys.CHECKPOINT_REQUEST_KIND.lower()}.{keys.GROUP}"
_TIERS = {"ram": "in RAM", "nvme": "on NVMe", "object": "in the object store"}


def _options(command: Any) -> Any:
    for option in (
        cluster_options(),
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json", "yaml", "name")),
            default="text",
            show_default=True,
            help="A sentence, or the request as it is at the end.",
        ),
        click.option("--no-wait", is_flag=True, help="Return once it is asked for."),
        click.option(
            "--timeout",
            default="10m",
            show_default=True,
            help="How long it may take; then it is cancelled.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Only say whether it may be asked for, and ask nothing."
        ),
        click.argument("pod", shell_complete=pod_names),
    ):
        command = option(command)
    return command


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

    Requests in flight end first. This makes a CheckpointRequest and follows it; the right to patch
    the pod is enough. Exit status: 0 done, 1 refused or failed, 2 usage, 3 timed out.

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
@click.argument("node")
@click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=None,
    help="Where their states go. Those in RAM do not outlive their pods.",
)
@click.option("--timeout", default="10m", show_default=True, help="How long each seat may take.")
@click.option("--dry-run", is_flag=True, help="Say which seats would be parked, and do nothing.")
@cluster_options(namespaced=False)
def drain(node: str, *, tier: str | None, timeout: str, dry_run: bool, **options: Any) -> None:
    """Cordon NODE, park all of its seats, and keep them parked: their pods may go.

    Makes a CheckpointRequest of mode Evict for each, and follows them. Nothing is deleted: `kubectl
    drain` does that afterwards, and `kubectl uncordon` and `kubectl kyb wake` take it back. Exit
    status: 0 all are parked, 1 some are not, 2 usage, 3 some not in time.

    \b
    kubectl kyb drain gpu-7 --dry-run
    kubectl kyb drain gpu-7 --tier nvme
    """
    limit, link = limit_of(timeout), link_to(options)
    _, status = read_status(link.api.get(f"{keys.GPU_NODES_PATH}/{node}"))
    seats = [seat for seat in status.seats if seat.state != "gone"]
    if dry_run:
        click.echo(f"would cordon node {node}, and park: {_names(seats) or 'nothing'}")
        return
    link.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    click.echo(f"node {node} is cordoned: no new pod comes to it")
    asked, ends = [], [0]
    for seat in seats:
        there = replace(link, namespace=seat.namespace)
        body = ask_for(Mode.EVICT, seat.pod, Tier(tier) if tier else None, limit, _KEPT_S)
        try:
            asked.append((there, there.api.post(there.of(_PLURAL), body)))
        except (NotFoundError, RefusedError) as error:
            # Such as by a quota of its namespace, which is to hold up no other.
            click.echo(
                f"evict of {seat.namespace}/{seat.pod} failed: {plain(str(error))}", err=True
            )
            ends.append(REFUSED)
    ends += [_end(there, made, limit + _LATE_S) for there, made in asked]
    sys.exit(max(ends))


def _end(link: Link, made: Json, within: float) -> int:
    """Follow one of several, of which any may be deleted by its namespace's own people."""
    try:
        return _outcome(read_request(_followed(link, made, within)), quiet=False)
    except click.ClickException as error:
        click.echo(error.message, err=True)
        return REFUSED


def _names(seats: Iterable[SeatRow]) -> str:
    return ", ".join(f"{seat.namespace}/{seat.pod}" for seat in seats)


def _ask(mode: Mode, pod: str, tier: Tier | None, options: dict[str, Any]) -> None:
    limit = limit_of(options["timeout"])
    link, form = link_to(options), options["output"]
    body = ask_for(mode, pod.removeprefix("pod/"), tier, limit, _KEPT_S)
    path = link.of(_PLURAL)
    if options["dry_run"]:
        _tell(link.api.post(path, body, {"dryRun": "All"}), form, "may be asked for; nothing was")
        return
    made = link.api.post(path, body)
    if options["no_wait"]:
        _tell(made, form, "is asked for")
        return
    ended = _followed(link, made, limit + _LATE_S)
    if form != "text":
        _tell(ended, form, "")
    sys.exit(_outcome(read_request(ended), quiet=form != "text"))


def limit_of(timeout: str) -> int:
    """Whole seconds of a --timeout. Raises click.BadParameter."""
    try:
        seconds = ceil(parse_duration(timeout))
    except ConfigError as error:
        raise click.BadParameter(error.problem, param_hint="--timeout") from error
    if not 1 <= seconds <= _LONGEST_S:
        raise click.BadParameter("write 1s to 24h", param_hint="--timeout")
    return seconds


def _tell(item: Json, form: str, what: str) -> None:
    name = item["metadata"].get("name", "")
    if form == "name":
        click.echo(f"{_RESOURCE}/{name}")
    elif form == "text":
        spec = item["spec"]
        click.echo(f"{spec['mode'].lower()} of {spec['pod']} {what} ({_RESOURCE}/{name})")
    else:
        click.echo(text_of(item, form), nl=False)


def _followed(link: Link, made: Json, seconds: float) -> Json:
    """The request as it is once it has ended, or else when the time is over."""
    name, until = made["metadata"]["name"], time.monotonic() + seconds
    last, told = made, ""
    with status_line() as say:
        try:
            for item in _states(link, name, until):
                last, request = item, read_request(item)
                if (text := progress(request, time.time())) != told:
                    say(text)
                    told = text
                if request.ended:
                    break
        except KeyboardInterrupt:
            click.echo(
                f"\nit continues: kubectl -n {link.namespace} get {_RESOURCE} {name} says how far "
                f"it is, and kubectl -n {link.namespace} delete {_RESOURCE} {name} cancels it",
                err=True,
            )
            sys.exit(INTERRUPTED)
    return last


def _states(link: Link, name: str, until: float) -> Iterator[Json]:
    """The request each time that it changes. Raises click.ClickException if it is deleted."""
    source = Source(link.of(_PLURAL), {"fieldSelector": f"metadata.name={name}"})
    for (found,) in watched(link.api, [source], until):
        if not found:
            raise click.ClickException(f"somebody has deleted {_RESOURCE}/{name}: it is cancelled")
        yield found[0]


@contextlib.contextmanager
def status_line() -> Iterator[Any]:
    """What tells people how far it is: one line that changes, or a line for each change."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    with console.status("asked for") as shown:
        yield lambda text: shown.update(Text(text))


def progress(request: Request, now: float) -> str:
    """How far a request is, in a line. `now`: seconds since 1970."""
    status = request.status
    said = status.message or "nobody answers yet"
    text = plain(f"{request.mode.lower()} of {request.pod}: {said}")
    if (copied := status.copied) is None or request.ended:
        return text
    text += f"; {human(copied.done)} of {human(copied.total)}"
    left = copied.ready_at - now
    return f"{text}, about {left:.0f} s left" if copied.ready_at and left > 0 else text


def _outcome(request: Request, *, quiet: bool) -> int:
    """Tell it, and answer with the exit status."""
    status, of = request.status, f"{request.mode.lower()} of {request.pod}"
    message = plain(status.message)
    if not request.ended:
        why = message or "no controller answers: is kyb-controller running?"
        click.echo(f"{of} is not done in time: {why}", err=True)
        return TIMED_OUT
    if status.reason is not None and status.reason.standing is Standing.SUCCESS:
        if not quiet:
            click.echo(f"{of}: {message}")
            if (made := status.outcome) and made.artifact:
                click.echo(f"{made.artifact}  {human(made.size)} {_TIERS.get(made.tier, '')}")
        return 0
    reason = status.reason or "a reason that only a newer kybernate knows"
    click.echo(f"{of} failed ({reason}): {message}", err=True)
    return TIMED_OUT if status.reason is Reason.DEADLINE_EXCEEDED else REFUSED
