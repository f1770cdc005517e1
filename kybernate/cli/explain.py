"""`kybernate explain`: why a pod waits for a seat."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
from rich.console import Console
from rich.table import Table

from kybernate.cli.extender_link import ask, extender_options

if TYPE_CHECKING:
    Json = dict[str, Any]

_HELP = """Say why a pod waits: a sentence for all nodes, one for each group of GPUs, and what would
help.

The extender is asked, over mutual TLS. In its own container nothing needs to be said:

\b
  kubectl -n kyb-system exec deploy/kyb-scheduler -c extender -- kybernate explain pod NAME -n NS

From elsewhere, forward its port and name a folder with certificates of `kybernate pki`. The same
sentence is told as an event on the pod, for those who may only read their own namespace.
"""


@click.group("explain")
def command() -> None:
    """Say why something is as it is."""


@command.command("pod", help=_HELP)
@click.argument("name")
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="The pod's namespace."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@extender_options
def pod(name: str, namespace: str, *, as_json: bool, **where: Any) -> None:
    """See _HELP."""
    path = f"/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
    found = ask(where["extender"], where["tls_dir"], path)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(found)


def show(found: Json, console: Console | None = None) -> None:
    """Print what the extender says of a pod."""
    console = console or Console()
    console.print(f"{found['pod']}: {found['summary']}", markup=False, highlight=False)
    if found.get("groups"):
        console.print(_table(found["groups"]))
    if found.get("scheduler"):
        text = f"The kube-scheduler says: {found['scheduler']}"
        console.print(text, markup=False, highlight=False)


def _table(groups: list[Json]) -> Table:
    table = Table("nodes", "group", "", "such as")
    for line in groups:
        more = ", …" if line["nodes"] > len(line["examples"]) else ""
        table.add_row(
            *(str(line["nodes"]), line["group"] or "-", line["sentence"]),
            ", ".join(line["examples"]) + more,
        )
    return table
