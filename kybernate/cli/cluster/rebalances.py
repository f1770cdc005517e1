"""`kybernate move`, `approve` and `rebalance`: pods go elsewhere, by a plan that is approved."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.rebalances.reading import read_rebalance, to_rebalance
from kybernate.cli.cluster.asking import (
    REFUSED,
    Asking,
    because,
    limit_of,
    request_options,
    why_option,
)
from kybernate.cli.cluster.link import link_to
from kybernate.cli.completing import pod_names
from kybernate.cli.output import human, plain
from kybernate.core.plans.steps import Kind
from kybernate.core.requests.rebalance import RebalanceReason, Request
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.cli.cluster.link import Link
    from kybernate.core.requests.rebalance import Plan, Step

    Json = dict[str, Any]

_GROUP = re.compile(r"G[0-9]+")
_WAITS = (RebalanceReason.AWAITING_APPROVAL, RebalanceReason.PLAN_CHANGED)


REBALANCES: Asking[Request] = Asking(
    *(keys.REBALANCE_REQUESTS_PATH, keys.REBALANCE_REQUEST_KIND),
    deletion="has no more steps begin",
    read=read_rebalance,
    called=lambda _: "it",
    brief=True,
)


def plan_options(tried: str) -> Callable[[Any], Any]:
    """The options of commands that make a RebalanceRequest; `tried` is the help of --dry-run."""
    how_long = "How long after its approval steps begin, and how long it is followed."
    told = "Have the plan carried out, and follow it."

    def add(command: Any) -> Any:
        command = why_option(request_options(how_long, "1h", tried=tried)(command))
        return click.option("--approve", is_flag=True, help=told)(command)

    return add


@click.command("move")
@click.option("--to", required=True, help="GROUP of its own node, NODE, or NODE/GROUP.")
@plan_options("Only say whether it may be asked for.")
@click.option("--model", default=None, help="All pods of this model, instead of POD.")
@click.argument("pod", required=False, shell_complete=pod_names)
def move(pod: str | None, *, to: str, model: str | None, dry_run: bool, **options: Any) -> None:
    """Have POD continue elsewhere: on another group of its node, or on another node.

    Makes a RebalanceRequest and shows its plan. With --approve it is carried out: the state of the
    pod goes into the object store, the pod is evicted, and the one that its Deployment, StatefulSet
    or Job makes in its place continues there, under another name. Requests wait at the proxy
    meanwhile. Exit status: 0 done or planned, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb move llama-7d9f-x2x7k --to G23 -n shop
    kubectl kyb move llama-7d9f-x2x7k --to gpu-7 -n shop --approve
    kubectl kyb move --model llama --to gpu-7 -n shop
    """
    if (pod is None) == (model is None):
        raise click.UsageError("name either POD or --model")
    node, _, group = to.rpartition("/") if "/" in to else ("", "", to)
    if not node and not _GROUP.fullmatch(group):
        node, group = group, ""
    place = {"node": node, "group": group}
    if model and not node:
        raise click.BadParameter("a model goes to NODE or NODE/GROUP", param_hint="--to")
    who = {"model": model} if pod is None else {"pod": pod.removeprefix("pod/")}
    wanted = {**who, "to": {k: v for k, v in place.items() if v}}
    ask("move", {"move": wanted}, options, dry_run=dry_run)


@click.command("approve")
@click.argument("name")
@request_options(
    "How long it is followed.",
    "1h",
    tried="Show the plan with its cost and its hash, and approve nothing.",
)
def approve(name: str, *, dry_run: bool, **options: Any) -> None:
    """Have the plan of the RebalanceRequest NAME carried out as it stands, and follow it.

    Exit status as of `move`.

    \b
    kubectl kyb approve move-llama-x7k2p -n shop --dry-run
    kubectl kyb approve move-llama-x7k2p -n shop
    """
    link, form = link_to(options), options["output"]
    until = time.monotonic() + limit_of(options["timeout"])
    item = link.api.get(f"{link.of(REBALANCES.plural)}/{name.rpartition('/')[2]}")
    if form == "text":
        _show(item)
    if dry_run:
        REBALANCES.tell(item, form, _would(item))
        return
    sys.exit(_end(_carried_out(link, item, until), form))


def _would(item: Json) -> str:
    """What an approval would have carried out. Raises click.ClickException if nothing."""
    request, plan = read_rebalance(item), _plan(item)
    if request.ended:
        raise click.ClickException(f"it has ended: {plain(request.status.message)}")
    moves = f"{plan.moves} move{'s' * (plan.moves != 1)}"
    cost = f"{moves}, {human(plan.size)}, about {plan.seconds:.0f} s"
    if request.approved == plan.hash:
        return f"plan {plan.hash} ({cost}) is approved already"
    return f"would approve plan {plan.hash}: {cost}"


def ask(
    what: str,
    spec: Json,
    options: dict[str, Any],
    *,
    dry_run: bool = False,
    plan_only: bool = False,
) -> None:
    """Make a RebalanceRequest, show its plan, and have it carried out if that is asked for.
    `dry_run`: make none, and say whether it may be made; `plan_only`: delete it once its plan is
    shown."""
    limit, link, form = limit_of(options["timeout"]), link_to(options), options["output"]
    body = because(to_rebalance(what, spec, limit), options["why"])
    path = link.of(REBALANCES.plural)
    if dry_run:
        made = link.api.post(path, body, {"dryRun": "All"})
        REBALANCES.tell(made, form, "it may be asked for; nothing was")
        return
    made, until = link.api.post(path, body), time.monotonic() + limit
    if plan_only:
        sys.exit(_looked_at(link, made, until, form))
    planned = REBALANCES.followed(link, made, until, _planned)
    if not _planned(read_rebalance(planned)):
        sys.exit(_end(planned, form))
    if form == "text":
        _show(planned)
    if options["approve"]:
        sys.exit(_end(_carried_out(link, planned, until), form))
    name = planned["metadata"]["name"]
    told = f"Approve it: kubectl kyb approve {name} -n {link.namespace}"
    REBALANCES.tell(planned, form, told)


def _looked_at(link: Link, made: Json, until: float, form: str) -> int:
    """Show its plan, delete it, and return the exit status."""
    try:
        planned = REBALANCES.followed(link, made, until, _planned)
    finally:
        with contextlib.suppress(NotFoundError):
            link.api.delete(f"{link.of(REBALANCES.plural)}/{made['metadata']['name']}")
    request = read_rebalance(planned)
    if form != "text":
        REBALANCES.tell(planned, form, "")
    elif request.status.plan is not None:
        _show(planned)
    return 0 if _planned(request) else REBALANCES.outcome(request, quiet=form != "text")


def _end(item: Json, form: str = "text") -> int:
    """Tell how it ended, and return the exit status: another plan than the approved one is none."""
    if form != "text":
        REBALANCES.tell(item, form, "")
    request = read_rebalance(item)
    status = REBALANCES.outcome(request, quiet=form != "text")
    return REFUSED if request.status.reason is RebalanceReason.PLAN_CHANGED else status


def _planned(request: Request) -> bool:
    return request.status.plan is not None and request.status.reason in _WAITS


def _carried_out(link: Link, item: Json, until: float) -> Json:
    """Have its plan carried out, until it has ended or another plan waits for an approval."""

    def another(request: Request) -> bool:
        plan = request.status.plan
        return _planned(request) and plan is not None and plan.hash != request.approved

    return REBALANCES.followed(link, _approved(link, item), until, another)


def _approved(link: Link, item: Json) -> Json:
    body = {"spec": {"approvedPlan": _plan(item).hash}}
    found: Json = link.api.patch(f"{link.of(REBALANCES.plural)}/{item['metadata']['name']}", body)
    return found


def _plan(item: Json) -> Plan:
    plan = read_rebalance(item).status.plan
    if plan is None:
        raise click.ClickException("there is no plan yet")
    return plan


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
