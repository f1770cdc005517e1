"""`kybernate explain`: why a pod waits for a seat."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import orjson
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kybernate import keys
from kybernate.api import pods
from kybernate.api.gpunodes import read_status
from kybernate.cli.cluster import explaining
from kybernate.cli.cluster.lines import explained, valued
from kybernate.cli.cluster.link import Source, cluster_options, link_to, listed
from kybernate.cli.completing import pod_names
from kybernate.cli.output import document_option, json_option, plain, text_of
from kybernate.cli.planning.extender_link import ask, extender_options
from kybernate.core.ledger.ledger import Ledger
from kybernate.core.views.dump import decode
from kybernate.core.views.explain import document, explain
from kybernate.errors import ConfigError, NotFoundError, RefusedError

if TYPE_CHECKING:
    from typing import BinaryIO

    from kybernate.cli.cluster.link import Link
    from kybernate.core.placement import Demand
    from kybernate.core.views.dump import Dump

    Json = dict[str, Any]

_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)

_HELP = """Say why a pod waits, or what its seat does and why.

Read from the pod, its events and, where that is allowed, its node's GPUNode: from anywhere, by who
may read the namespace.

\b
  kubectl kyb explain pod NAME -n NS

The extender knows more: a line for each group of GPUs. With --extender or --tls-dir it is asked,
over mutual TLS, with the certificates that `kybernate pki` made:

\b
  kubectl -n kyb-system port-forward deploy/kyb-scheduler 9444 &
  kybernate explain pod NAME -n NS --tls-dir DIR
"""


@click.group("explain")
def command() -> None:
    """Say why something is as it is."""


@command.command("pod", help=_HELP)
@click.argument("name", shell_complete=pod_names)
@cluster_options()
@document_option
@json_option
@click.option(
    "--dump",
    type=click.File("rb"),
    help="Ask no extender, but read what `kybernate dump` wrote.",
)
@extender_options
@click.pass_context
def pod(
    ctx: click.Context,
    /,
    name: str,
    *,
    output: str,
    as_json: bool,
    dump: BinaryIO | None,
    **where: Any,
) -> None:
    """See _HELP."""
    namespace = where["namespace"] or "default"
    if dump is not None:
        found = _read(dump, f"{namespace}/{name}")
    elif any(ctx.get_parameter_source(one) in _GIVEN for one in ("extender", "tls_dir")):
        path = f"/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
        found = ask(where["extender"], where["tls_dir"], path)
    else:
        found = _look(link_to(where), name.removeprefix("pod/"))
    form = "json" if as_json else output
    if form == "table":
        show(found)
    else:
        click.echo(text_of(json.loads(json.dumps(found)), form), nl=False)


command.add_command(explaining.node)
command.add_command(explaining.seat)


def show(found: Json, console: Console | None = None) -> None:
    """Print what the extender says of a pod."""
    console = console or Console()
    summary = plain(f"{found['pod']}: {found['summary']}")
    console.print(summary, markup=False, highlight=False)
    if found.get("groups"):
        console.print(_table(found["groups"]))
    if found.get("values"):
        console.print(_values(found["values"]))
    if found.get("scheduler"):
        text = plain(f"The kube-scheduler says: {found['scheduler']}")
        console.print(text, markup=False, highlight=False)


def _look(link: Link, name: str) -> Json:
    """What the API server has of it."""
    item = link.api.get(pods.path(str(link.namespace), name))
    uid = item["metadata"]["uid"]
    about = {"fieldSelector": f"involvedObject.uid={uid}"}
    told = link.api.get(f"/api/v1/namespaces/{link.namespace}/events", about).get("items") or []
    node = (item.get("spec") or {}).get("nodeName")
    nodes = {}
    if node:
        with contextlib.suppress(NotFoundError, RefusedError, ConfigError):
            nodes = dict([read_status(link.api.get(f"{keys.GPU_NODES_PATH}/{node}"))])
    return {**explained(item, told, nodes), **_counting(link, item)}


def _counting(link: Link, item: Json) -> Json:
    """What counts for the pod by its annotations and by CheckpointPolicies; nothing for who may not
    list those."""
    from kybernate.api.policies import read_policies  # noqa: PLC0415 - needs time zones
    from kybernate.core.policy.effective import effective  # noqa: PLC0415 - the same

    try:
        policies = read_policies(listed(link.api, Source(link.of("checkpointpolicies"), {})))
    except (NotFoundError, RefusedError):
        return {}
    pod = pods.read_pod(item)
    return valued(effective(pod.labels, pod.notes, policies, time.time()), pod.notes)


def _read(file: BinaryIO, pod: str) -> Json:
    """The same from a dump of the ledger, but for what the kube-scheduler says."""
    try:
        dump = decode(orjson.loads(file.read()))
    except orjson.JSONDecodeError as error:
        raise click.ClickException(f"{file.name} is not JSON: {error}") from error
    for claim in dump.claims:
        if str(claim.pod) == pod:
            return {"pod": pod, "summary": f"it is bound to {claim.node}, group {claim.group}"}
    for one in dump.pending:
        if str(one.pod) == pod:
            found = {"summary": one.problem} if one.demand is None else _explain(dump, one.demand)
            return {"pod": pod, **found}
    raise click.ClickException(f"no pod {pod} in {file.name} asks for a seat")


def _explain(dump: Dump, demand: Demand) -> Json:
    ledger = Ledger()
    for node in dump.nodes:
        ledger.upsert_node(node)
    for claim in dump.claims:
        ledger.upsert_claim(claim)
    return document(explain(demand, {name: ledger.node(name) for name in ledger.nodes()}))


def _values(values: list[Json]) -> Table:
    table = Table("annotation", "value", "from", "until")
    for one in values:
        cells = one["annotation"], one["value"] or "-", one["source"], one.get("until", "")
        # What tenants have written is no markup.
        table.add_row(*(Text(plain(cell)) for cell in cells))
    return table


def _table(groups: list[Json]) -> Table:
    table = Table("nodes", "group", "", "such as")
    for line in groups:
        more = ", …" if line["nodes"] > len(line["examples"]) else ""
        table.add_row(
            *(str(line["nodes"]), line["group"] or "-", line["sentence"]),
            ", ".join(line["examples"]) + more,
        )
    return table
