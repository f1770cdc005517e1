"""`kybernate agent`: the agent of this node, over its Unix socket."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from kybernate import keys
from kybernate.cli.agent import view
from kybernate.cli.agent.link import CALL_LIMIT, as_dict, connected, find_seat
from kybernate.cli.options import Number, together
from kybernate.cli.output import console
from kybernate.gen import agent_pb2 as pb
from kybernate.types import Tier

_ENDED = ("succeeded", "failed", "cancelled")

_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, nothing else.")
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Say what would happen, in order, and do nothing."
)
_why = click.option("--why", default="", help="A few words for events and those who look later.")
_name = click.option(
    "--name", default="", help="Name of the operation: the same name again does nothing twice."
)
_no_wait = click.option("--no-wait", is_flag=True, help="Return once it is begun and journalled.")
_seat = click.argument("seat")
_tier = click.option(
    "--tier",
    type=click.Choice([tier.value for tier in Tier]),
    default=None,
    help="Where its state goes, until it is next woken; without it the agent decides.",
)


@click.group("agent")
@click.option(
    "--socket",
    default=keys.AGENT_SOCKET,
    show_default=True,
    envvar="KYB_AGENT_SOCKET",
    help="The agent's Unix socket.  (env KYB_AGENT_SOCKET)",
)
@click.pass_context
def command(ctx: click.Context, socket: str) -> None:
    """See and steer the seats of this node's GPUs. Run it on the node, as root.

    A SEAT is a pod's name, namespace/name or UID, or the seat's own name such as G0-seat-1.

    \b
    kybernate agent status                        who is active, who is parked, and why
    kybernate agent watch                         the same, live, until Ctrl-C
    kybernate agent park shop/llama --dry-run     what would happen
    kybernate agent park shop/llama               do it, and show how far it is
    kybernate agent wake shop/llama
    kybernate agent save shop/llama               keep its state, and let it continue
    kybernate agent drain --why "new driver"      park all, let nothing wake
    kybernate agent undrain
    kybernate agent move shop/llama --to llama-2  continue in another pod, with all its state
    kybernate agent evacuate --within 30          save what can be saved till then
    kybernate agent operations --all              what was asked for, and what came of it
    """
    ctx.obj = socket


@command.command("status")
@_json
@click.pass_obj
def status(socket: str, /, *, as_json: bool) -> None:
    """Show this node: GPUs, seats with their state and its reason, operations under way.

    \b
    kybernate agent status
    kybernate agent status --json | jq '.seats[] | select(.state == "parked") | .pod'
    """
    with connected(socket) as agent:
        now = agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT)
        listed = agent.ListOperations(pb.ListOperationsRequest(), timeout=CALL_LIMIT)
    if as_json:
        whole = {**as_dict(now), "operations": [as_dict(one) for one in listed.operations]}
        click.echo(json.dumps(whole, indent=2))
        return
    console().print(view.screen(now, listed.operations, time.time()))


@command.command("watch")
@_json
@click.pass_obj
def watch(socket: str, /, *, as_json: bool) -> None:
    """Show this node live, until Ctrl-C. With --json: one line whenever something changes.

    \b
    kybernate agent watch
    kybernate agent watch --json | jq -c '[.seats[] | [.pod, .state]]'
    """
    with connected(socket) as agent:
        stream = agent.WatchStatus(pb.GetStatusRequest())
        try:
            _show(agent, stream, as_json=as_json)
        except KeyboardInterrupt:
            stream.cancel()


def _show(agent: Any, stream: Any, *, as_json: bool) -> None:
    if as_json:
        for now in stream:
            click.echo(json.dumps(as_dict(now)))
        return
    with Live(console=Console(), auto_refresh=False, screen=False) as live:
        for now in stream:
            listed = agent.ListOperations(pb.ListOperationsRequest(), timeout=CALL_LIMIT)
            live.update(view.screen(now, listed.operations, time.time()), refresh=True)


@command.command("park")
@_seat
@_tier
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def park(socket: str, /, seat: str, *, tier: str | None, **options: Any) -> None:
    """Move a seat's GPU memory into the host's RAM and freeze its processes.

    Requests in flight end first. The next request wakes it again. With --tier nvme or object its
    RAM is given back, too: its processes are saved and ended, its container continues without them.

    \b
    kybernate agent park llama --dry-run
    kybernate agent park shop/llama --why "room for a test"
    kybernate agent park shop/llama --tier nvme
    """
    _of_seat(socket, seat, "Park", pb.ParkRequest, options, {"tier": tier or ""})


@command.command("wake")
@_seat
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def wake(socket: str, /, seat: str, **options: Any) -> None:
    """Bring a seat back into GPU memory as soon as its turn comes, without any request.

    Who is active on its GPUs keeps its minimum residency. A wake also takes an eviction back.

    \b
    kybernate agent wake shop/llama
    """
    _of_seat(socket, seat, "Wake", pb.WakeRequest, options)


@command.command("evict")
@_seat
@_tier
@click.option(
    "--deadline",
    type=Number(min=0.1, max=86_400),
    default=None,
    help="Seconds after which it has failed and the seat continues as before.",
)
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def evict(
    socket: str, /, seat: str, *, tier: str | None, deadline: float | None, **options: Any
) -> None:
    """Park a seat and keep it parked: its pod is about to be deleted.

    Says which artifact is where. A state in RAM does not outlive the pod; one in another tier does,
    for the agent's keep_left_s. `wake` takes it back.

    \b
    kybernate agent evict shop/llama --deadline 60
    kybernate agent evict shop/llama --tier object
    """
    asked = {"tier": tier or "", "deadline_seconds": deadline or 0.0}
    _of_seat(socket, seat, "Evict", pb.EvictRequest, options, asked)


@command.command("save")
@_seat
@click.option(
    "--tier",
    type=click.Choice([Tier.NVME.value, Tier.OBJECT.value]),
    default=None,
    help="Where it is kept; without it in the object store, or on NVMe where there is none.",
)
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def save(socket: str, /, seat: str, *, tier: str | None, **options: Any) -> None:
    """Keep a seat's state as it is now, and let the workload continue.

    Requests in flight end first; those that come meanwhile wait. It stands still only while its
    memory is written to NVMe. The artifact outlives the pod: `kybernate artifacts rm` deletes it.

    \b
    kybernate agent save shop/llama --name before-upgrade
    kybernate agent save shop/llama --dry-run
    """
    _of_seat(socket, seat, "Save", pb.SaveRequest, options, {"tier": tier or ""})


@command.command("move")
@_seat
@click.option("--to", "successor", required=True, help="Pod of the same namespace that continues.")
@click.option(
    "--deadline",
    type=Number(min=0.1, max=86_400),
    default=None,
    help="Seconds after which it has failed, unless the successor was told to continue by then.",
)
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def move(
    socket: str, /, seat: str, *, successor: str, deadline: float | None, **options: Any
) -> None:
    """Let a seat's workload continue in another pod, on any node, with its state as it is.

    The successor is there already and waits: it has the annotation kyb.ai/restore-from: pod/UID.
    What goes wrong before it continues leaves the workload here. Save first for a shorter pause.

    \b
    kybernate agent save shop/llama --tier nvme
    kybernate agent move shop/llama --to llama-2 --dry-run
    kybernate agent move shop/llama --to llama-2
    """
    more = {"successor": successor, "deadline_seconds": deadline or 0.0}
    _of_seat(socket, seat, "Move", pb.MoveRequest, options, more)


@command.command("evacuate")
@click.option(
    "--within",
    type=Number(min=1, max=86_400),
    required=True,
    help="Seconds until the node is gone.",
)
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def evacuate(socket: str, /, *, within: float, **options: Any) -> None:
    """Save what can be saved before this node is gone, the most valuable first.

    Drains the node; states go to the object store. Says which seats can't be saved, and why.

    \b
    kybernate agent evacuate --within 30 --dry-run
    kybernate agent evacuate --within 30 --why "spot instance reclaimed"
    """
    with connected(socket) as agent:
        _carry_out(agent, agent.Evacuate, pb.EvacuateRequest, {"seconds": within}, options)


@command.command("drain")
@together(_dry_run, _why, _name, _no_wait, _json)
@click.pass_obj
def drain(socket: str, /, **options: Any) -> None:
    """Park every seat of this node; nothing starts or wakes here until `undrain`.

    No pod is deleted: models wait, parked. What is in RAM is lost if the machine is switched off.

    \b
    kybernate agent drain --dry-run
    kybernate agent drain --why "driver 580 -> 585"
    """
    with connected(socket) as agent:
        _carry_out(agent, agent.DrainNode, pb.DrainNodeRequest, {}, options)


@command.command("undrain")
@together(_why, _name, _no_wait, _json)
@click.pass_obj
def undrain(socket: str, /, **options: Any) -> None:
    """Let seats start and wake on this node again.

    \b
    kybernate agent undrain
    """
    with connected(socket) as agent:
        _carry_out(agent, agent.UndrainNode, pb.UndrainNodeRequest, {}, options)


@command.command("operations")
@click.option("--all", "all_", is_flag=True, help="Also those that have ended.")
@_json
@click.pass_obj
def operations(socket: str, /, *, all_: bool, as_json: bool) -> None:
    """List what was asked of this node: parks, wakes, evictions, drains.

    \b
    kybernate agent operations --all
    kybernate agent cancel park-3f2a9c81d0
    """
    with connected(socket) as agent:
        request = pb.ListOperationsRequest(ended_too=all_)
        listed = agent.ListOperations(request, timeout=CALL_LIMIT).operations
    if as_json:
        click.echo(json.dumps([as_dict(one) for one in listed], indent=2))
    elif listed:
        console().print(view.operations_table(listed, time.time()))
    else:
        click.echo("No operation is under way." if not all_ else "Nothing was asked for yet.")


@command.command("cancel")
@click.argument("operation")
@_json
@click.pass_obj
def cancel(socket: str, /, operation: str, *, as_json: bool) -> None:
    """Take an operation back. A park that has begun still ends; the seat then wakes on demand.

    \b
    kybernate agent operations
    kybernate agent cancel drain-node-3f2a9c81d0
    """
    with connected(socket) as agent:
        ended = agent.CancelOperation(pb.CancelOperationRequest(name=operation), timeout=CALL_LIMIT)
    if as_json:
        click.echo(json.dumps(as_dict(ended)))
        return
    console().print(view.outcome(ended))


def _of_seat(
    socket: str,
    wanted: str,
    method: str,
    make: Any,
    options: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> None:
    with connected(socket) as agent:
        seat = find_seat(agent.GetStatus(pb.GetStatusRequest(), timeout=CALL_LIMIT), wanted)
        _carry_out(agent, getattr(agent, method), make, {"uid": seat.uid, **(more or {})}, options)


def _carry_out(
    agent: Any, call: Any, make: Any, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    if options.get("dry_run"):
        fields["dry_run"] = True
    request = make(name=options["name"], why=options["why"], **fields)
    operation = call(request, timeout=CALL_LIMIT)
    as_json = options["as_json"]
    if operation.dry_run:
        _tell_plan(operation, as_json=as_json)
        return
    if not options["no_wait"]:
        operation = _follow(agent, operation, quiet=as_json)
    if as_json:
        click.echo(json.dumps(as_dict(operation)))
    elif operation.state in _ENDED:
        console().print(view.outcome(operation))
    else:
        click.echo(f"{operation.name} is begun: kybernate agent operations shows how far it is")
    if operation.state in ("failed", "cancelled"):
        raise SystemExit(1)


def _tell_plan(operation: pb.Operation, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(as_dict(operation)))
        return
    click.echo("Nothing was done. This would happen:")
    for number, step in enumerate(operation.plan, 1):
        click.echo(f"  {number}. {step}")


def _follow(agent: Any, operation: pb.Operation, *, quiet: bool) -> pb.Operation:
    """Show how far it is, until it has ended."""
    console = Console(stderr=True, quiet=quiet)
    stream = agent.WatchOperation(pb.GetOperationRequest(name=operation.name))
    try:
        with console.status(view.progress(operation)) as shown:
            for operation in stream:  # noqa: PLR1704 - the newest one is what counts
                shown.update(view.progress(operation))
    except KeyboardInterrupt:
        stream.cancel()
        click.echo(
            f"\n{operation.name} continues: kybernate agent operations shows how far it is, "
            f"kybernate agent cancel {operation.name} takes it back",
            err=True,
        )
        raise SystemExit(130) from None
    return operation
