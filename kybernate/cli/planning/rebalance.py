"""`kybernate rebalance`: what must change so that pods that wait have a place, and doing it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click
import orjson
from click.core import ParameterSource
from rich.console import Console

from kybernate.cli.cluster.rebalances import ask as request
from kybernate.cli.cluster.rebalances import plan_options
from kybernate.cli.options import Number
from kybernate.cli.planning.extender_link import ask, extender_options
from kybernate.core.defrag import Budget, Cluster, Pending, Seated, document, plan
from kybernate.core.ledger.ledger import Ledger
from kybernate.core.tiers.tiers import rebalance_seconds
from kybernate.core.views.dump import decode
from kybernate.errors import NotFoundError

if TYPE_CHECKING:
    from typing import BinaryIO

    from kybernate.core.ledger.ledger import Claim, NodeView
    from kybernate.core.placement import Demand
    from kybernate.core.views.dump import Dump

    Json = dict[str, Any]

LIMIT_S = 60.0
"""Seconds that a plan may take."""

_HELP = """Move pods so that a pod that waits fits, or, without NAME, all that wait.

Makes a RebalanceRequest and shows its plan; with --approve it is carried out, else `kubectl kyb
approve` has it carried out. In namespace kyb-system pods of all namespaces may be moved, elsewhere
those of the namespace. Exit status: 0 done or planned, 1 none, refused or failed, 2 usage, 3 timed
out.

The plan is the cheapest one that there is, by bytes and the time that they take, in an order in
which no step on the way gives more seats or memory than there are. Where there is none within the
budget, it says so and why. It looks at GPUs only: whether a node
has the CPU and memory that a pod asks for, and whether it tolerates the node's taints, the
scheduler says.

\b
  kubectl kyb rebalance llama -n shop
  kubectl kyb rebalance --empty gpu-7 -n kyb-system --approve
  kubectl kyb rebalance --dry-run llama -n shop
  kubectl kyb rebalance --dry-run --empty gpu-7 -n kyb-system --json | jq .status.plan.steps
  kybernate rebalance --dry-run --moves 3 --seconds 120 --tls-dir pki

With --dry-run the request is deleted once its plan is shown. With --extender or --tls-dir, too, the
extender itself is asked, over mutual TLS, as by kybernate explain, and no request is made.
"""


@click.command("rebalance", help=_HELP)
@click.argument("name", required=False)
@click.option(
    "--moves",
    type=click.IntRange(0, 100),
    default=10,
    show_default=True,
    help="How many pods may be moved.",
)
@click.option(
    "--seconds",
    type=Number(min=0),
    help="How long all moves together may take; any time without it.",
)
@click.option(
    "--effort",
    type=click.IntRange(1, 20_000),
    default=1000,
    show_default=True,
    help="States to search before the best plan so far is told: of --extender or --dump.",
)
@click.option("--empty", help="Have all pods leave this node, instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option(
    "--dump",
    "file",
    type=click.File("rb"),
    help="Plan for the ledger in this file, which kybernate dump wrote, and ask nobody.",
)
@extender_options
@plan_options("Only show the plan: nothing can be approved.")
def command(
    name: str | None, namespace: str | None, *, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """See _HELP."""
    if not dry_run:
        _request(name, namespace, options)
        return
    if not (options["file"] or _directly()):
        options["output"] = "json" if as_json else options["output"]
        _request(name, namespace, options, dry_run=True)
        return
    if options["empty"]:
        raise click.UsageError("--empty takes a request; leave --dump, --extender, --tls-dir out")
    namespace = namespace or "default"
    if options["file"]:
        budget = Budget(
            inf if options["seconds"] is None else options["seconds"],
            options["moves"],
            options["effort"],
        )
        found = plan_for(_read(options["file"]), name and f"{namespace}/{name}", budget)
    else:
        found = _asked(name, namespace, options)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(found)
    if not found["room"]:
        raise SystemExit(1)


def _directly() -> bool:
    """Whether the user has said where the extender is, or how to ask it."""
    source = click.get_current_context().get_parameter_source
    return any(source(one) is ParameterSource.COMMANDLINE for one in ("extender", "tls_dir"))


def _request(
    name: str | None, namespace: str | None, options: dict[str, Any], *, dry_run: bool = False
) -> None:
    if options["approve"] and dry_run:
        raise click.UsageError("--approve or --dry-run")
    if options["file"]:
        raise click.UsageError("a dump can only be planned for: say --dry-run")
    if name and options["empty"]:
        raise click.UsageError("name a pod that waits, or --empty a node")
    if not options["moves"]:
        raise click.UsageError("--moves 0 is of plans by --dump and --extender; name one at least")
    budget: Json = {"moves": options["moves"]}
    if options["seconds"] is not None:
        budget["seconds"] = int(options["seconds"])
    wanted: Json = {"emptyNode": options["empty"]} if options["empty"] else {"defragment": {}}
    if name:
        wanted["defragment"]["pod"] = name
    options = {**options, "namespace": namespace}
    request("rebalance", {**wanted, "budget": budget}, options, plan_only=dry_run)


def plan_for(dump: Dump, name: str | None, budget: Budget) -> Json:
    """The plan for one pod of the dump, or for all that wait there."""
    wanted = [
        Pending(one.pod, one.demand)
        for one in dump.pending
        if one.demand is not None and name in (None, str(one.pod))
    ]
    if not wanted:
        raise NotFoundError(f"no pod {name or ''} waits for a seat in the dump".replace("  ", " "))
    ledger = Ledger()
    for seats in dump.nodes:
        ledger.upsert_node(seats)
    for claim in dump.claims:
        ledger.upsert_claim(claim)
    views = {node: view for node in ledger.nodes() if (view := ledger.node(node)) is not None}
    asks = {one.pod.uid: one.demand for one in dump.movable if one.demand is not None}
    seated = {
        claim.pod.uid: _seated(view, claim, asks[claim.pod.uid])
        for view in views.values()
        for claim in view.claims
        if claim.pod.uid in asks
    }
    found = plan(Cluster(views, seated), wanted, budget)
    stay = sum(len(view.claims) for view in views.values()) - len(seated)
    return document(found, wanted, {"the dump says nothing of where else they could go": stay})


def _seated(view: NodeView, claim: Claim, demand: Demand) -> Seated:
    group = next((one for one in view.seats.groups if one.name == claim.group), None)
    if group is None:
        return Seated(claim, demand, None)
    seconds = rebalance_seconds(view.state_size(claim))
    return Seated(claim, replace(demand, prefer_group=None), seconds)


def _read(file: BinaryIO) -> Dump:
    try:
        return decode(orjson.loads(file.read()))
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from error


def _asked(name: str | None, namespace: str, options: dict[str, Any]) -> Json:
    pod = f"{quote(namespace, safe='')}/{quote(name, safe='')}" if name else "*/*"
    limits = {key: options[key] for key in ("moves", "seconds", "effort")}
    query = urlencode({key: value for key, value in limits.items() if value is not None})
    return ask(options["extender"], options["tls_dir"], f"/defrag/{pod}?{query}", LIMIT_S)


def show(found: Json, console: Console | None = None) -> None:
    """Print a plan, one numbered sentence for each step."""
    console = console or Console()
    summary, *steps = found["sentences"]
    console.print(summary, markup=False, highlight=False)
    for number, step in enumerate(steps, 1):
        console.print(f"  {number}. {step}", markup=False, highlight=False)
    fixed = {why: count for why, count in sorted(found["fixed"].items()) if count}
    if fixed:
        console.print("Not moved:", markup=False, highlight=False)
    for why, count in fixed.items():
        text = f"  {count} pod{'s' * (count != 1)}: {why}"
        console.print(text, markup=False, highlight=False)
