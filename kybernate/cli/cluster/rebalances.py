"""`kybernate move`, `approve` and `rebalance`: pods go elsewhere, by a plan that is approved."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.rebalances.reading import read_rebalance, to_rebalance
from kybernate.cli.cluster.link import Source, cluster_options, link_to, watched
from kybernate.cli.cluster.requests import INTERRUPTED, REFUSED, TIMED_OUT, limit_of
from kybernate.cli.completing import pod_names
from kybernate.cli.output import human, plain, text_of
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.reasons import Standing
from kybernate.core.requests.rebalance import RebalanceReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.cli.cluster.link import Link
    from kybernate.core.requests.rebalance import Plan, Request, Step

    Json = dict[str, Any]

_PLURAL = keys.REBALANCE_REQUESTS_PATH.rpartition("/")[2]
_GROUP = re.compile(r"G[0-9]+")
_WAITS = (RebalanceReason.AWAITING_APPROVAL, RebalanceReason.PLAN_CHANGED)


def plan_options(command: Any) -> Any:
    """The options of commands that make a RebalanceRequest."""
    for option in (
        cluster_options(),
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json", "yaml", "name")),
            default="text",
            show_default=True,
            help="Sentences, or the request as it is at the end.",
        ),
        click.option("--approve", is_flag=True, help="Have the plan carried out, and follow it."),
        click.option(
            "--timeout",
            default="1h",
            show_default=True,
            help="How long after its approval steps begin, and how long it is followed.",
        ),
    ):
        command = option(command)
    return command


@click.command("move")
@click.option("--to", required=True, help="GROUP of its own node, NODE, or NODE/GROUP.")
@click.option("--dry-run", is_flag=True, help="Only say whether it may be asked for.")
@plan_options
@click.argument("pod", shell_complete=pod_names)
def move(pod: str, *, to: str, dry_run: bool, **options: Any) -> None:
    """Have POD continue elsewhere: on another group of its node, or on another node.

    Makes a RebalanceRequest and shows its plan. With --approve it is carried out: the state of the
    pod goes into the object store, the pod is evicted, and the one that its Deployment, StatefulSet
    or Job makes in its place continues there, under another name. Requests wait at the proxy
    meanwhile. Exit status: 0 done or planned, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb move llama-7d9f-x2x7k --to G23 -n shop
    kubectl kyb move llama-7d9f-x2x7k --to gpu-7 -n shop --approve
    """
    node, _, group = to.rpartition("/") if "/" in to else ("", "", to)
    if not node and not _GROUP.fullmatch(group):
        node, group = group, ""
    place = {"node": node, "group": group}
    wanted = {"pod": pod.removeprefix("pod/"), "to": {k: v for k, v in place.items() if v}}
    ask("move", {"move": wanted}, options, dry_run=dry_run)


@click.command("approve")
@click.argument("name")
@click.option("--timeout", default="1h", show_default=True, help="How long it is followed.")
@cluster_options()
def approve(name: str, timeout: str, **options: Any) -> None:
    """Have the plan of the RebalanceRequest NAME carried out as it stands, and follow it.

    That takes the verb `approve` for rebalancerequests.kyb.ai. Exit status as of `move`.

    \b
    kubectl kyb approve move-llama-x7k2p -n shop
    """
    link, until = link_to(options), time.monotonic() + limit_of(timeout)
    item = link.api.get(f"{link.of(_PLURAL)}/{name}")
    _show(item)
    sys.exit(_outcome(_followed(link, _approved(link, item), until, approves=True)))


def ask(what: str, spec: Json, options: dict[str, Any], *, dry_run: bool = False) -> None:
    """Make a RebalanceRequest, show its plan, and have it carried out if that is asked for."""
    limit, link, form = limit_of(options["timeout"]), link_to(options), options["output"]
    body, path = to_rebalance(what, spec, limit), link.of(_PLURAL)
    if dry_run:
        made = link.api.post(path, body, {"dryRun": "All"})
        click.echo("it may be asked for; nothing was") if form == "text" else _tell(made, form)
        return
    made, until = link.api.post(path, body), time.monotonic() + limit
    planned = _followed(link, made, until, approves=False)
    if read_rebalance(planned).ended:
        sys.exit(_outcome(planned, form))
    if form == "text":
        _show(planned)
    if not options["approve"]:
        name = planned["metadata"]["name"]
        if form == "text":
            click.echo(f"Approve it: kubectl kyb approve {name} -n {link.namespace}")
        else:
            _tell(planned, form)
        return
    sys.exit(_outcome(_followed(link, _approved(link, planned), until, approves=True), form))


def _approved(link: Link, item: Json) -> Json:
    plan = read_rebalance(item).status.plan
    if plan is None:
        raise click.ClickException("there is no plan yet")
    body = {"spec": {"approvedPlan": plan.hash}}
    found: Json = link.api.patch(f"{link.of(_PLURAL)}/{item['metadata']['name']}", body)
    return found


def _followed(link: Link, made: Json, until: float, *, approves: bool) -> Json:
    """The request as it is once it has ended, or else waits for an approval that is not this one's,
    or when the time is over."""
    name, last, told = made["metadata"]["name"], made, ""
    try:
        for item in _states(link, name, until):
            last, request = item, read_rebalance(item)
            if (text := _progress(request)) != told:
                click.echo(text, err=True)
                told = text
            if request.ended or _waits(request, approves=approves):
                break
    except KeyboardInterrupt:
        click.echo(
            f"\nit continues; kubectl -n {link.namespace} delete rebalancerequest {name} has no "
            "more steps begin",
            err=True,
        )
        sys.exit(INTERRUPTED)
    return last


def _waits(request: Request, *, approves: bool) -> bool:
    plan = request.status.plan
    if request.status.reason not in _WAITS or plan is None:
        return False
    return not approves or plan.hash != request.approved


def _states(link: Link, name: str, until: float) -> Iterator[Json]:
    source = Source(link.of(_PLURAL), {"fieldSelector": f"metadata.name={name}"})
    for (found,) in watched(link.api, [source], until):
        if not found:
            raise click.ClickException(f"somebody has deleted RebalanceRequest {name}")
        yield found[0]


def _progress(request: Request) -> str:
    status, left = request.status, request.status.ready_at - time.time()
    text = plain(status.message or "nobody answers yet")
    return f"{text}, about {left:.0f} s left" if status.ready_at and left > 0 else text


def _show(item: Json) -> None:
    plan = read_rebalance(item).status.plan
    for line in _lines(plan) if plan else ():
        click.echo(line)


def _lines(plan: Plan) -> Iterator[str]:
    yield plain(plan.told)
    for number, step in enumerate(plan.steps, 1):
        yield f"  {number}. {plain(_SENTENCES[step.kind](step))}"


def _moves(step: Step) -> str:
    cost = f"{human(step.size)}, {step.seconds:.0f} s"
    return f"Move {step.told} ({cost}) from {_place(step.source)} to {_place(step.target)}."


def _place(place: Any) -> str:
    return f"group {place.group} of {place.node}" if place else "nowhere"


_SENTENCES: dict[Kind, Callable[[Step], str]] = {
    Kind.MOVE: _moves,
    Kind.PLACE: lambda step: f"Now {step.told} fits {_place(step.target)}.",
    Kind.SUSPEND: lambda step: f"Suspend {step.told}.",
    Kind.DELETE: lambda step: f"Delete {step.told}.",
    Kind.RESUME: lambda step: f"Resume {step.told} at {_place(step.target)}.",
}


def _tell(item: Json, form: str) -> None:
    if form == "name":
        click.echo(f"rebalancerequest.{keys.GROUP}/{item['metadata']['name']}")
    else:
        click.echo(text_of(item, form), nl=False)


def _outcome(item: Json, form: str = "text") -> int:
    """Tell it, and answer with the exit status."""
    if form != "text":
        _tell(item, form)
    request = read_rebalance(item)
    reason, message = request.status.reason, plain(request.status.message)
    if not request.ended:
        changed = reason is RebalanceReason.PLAN_CHANGED
        click.echo(message or "no controller answers: is kyb-controller running?", err=True)
        return REFUSED if changed else TIMED_OUT
    if reason is not None and reason.standing is Standing.SUCCESS:
        if form == "text":
            click.echo(message)
        return 0
    click.echo(f"it failed ({reason}): {message}", err=True)
    return TIMED_OUT if reason is RebalanceReason.DEADLINE_EXCEEDED else REFUSED
