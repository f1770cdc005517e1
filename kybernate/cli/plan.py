"""`kybernate plan`: what would have to change so that pods that wait have a place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click
from rich.console import Console

from kybernate.cli.extender_link import ask, extender_options

if TYPE_CHECKING:
    Json = dict[str, Any]

LIMIT_S = 60.0
"""Seconds that a plan may take."""

_HELP = """Say which pods to move so that a pod that waits fits, or, without NAME, all that wait.

The plan is the cheapest one that there is, by bytes and the time that they take, in an order in
which no step on the way gives more seats or memory than there are. Where there is none within the
budget, it says so and why. Nothing is moved: it is a plan. It looks at GPUs only: whether a node
has the CPU and memory that a pod asks for, and whether it tolerates the node's taints, the
scheduler says.

\b
  kybernate plan defrag llama -n shop
  kybernate plan defrag --moves 3 --seconds 120
  kybernate plan defrag --json | jq .steps

The extender is asked, over mutual TLS, as by kybernate explain.
"""


@click.group("plan")
def command() -> None:
    """Say what would make room for pods that wait."""


@command.command("defrag", help=_HELP)
@click.argument("name", required=False)
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="The namespace of NAME."
)
@click.option(
    "--moves",
    type=click.IntRange(0, 100),
    default=10,
    show_default=True,
    help="How many pods may be moved.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    help="How long all moves together may take; any time without it.",
)
@click.option(
    "--effort",
    type=click.IntRange(1, 20_000),
    default=1000,
    show_default=True,
    help="States to search before the best plan so far is told. More takes longer.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@extender_options
def defrag(name: str | None, namespace: str, *, as_json: bool, **options: Any) -> None:
    """See _HELP."""
    pod = f"{quote(namespace, safe='')}/{quote(name, safe='')}" if name else "*/*"
    limits = {key: options[key] for key in ("moves", "seconds", "effort")}
    query = urlencode({key: value for key, value in limits.items() if value is not None})
    found = ask(options["extender"], options["tls_dir"], f"/defrag/{pod}?{query}", LIMIT_S)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(found)
    if not found["room"]:
        raise SystemExit(1)


def show(found: Json, console: Console | None = None) -> None:
    """Print a plan, one numbered sentence for each step."""
    console = console or Console()
    summary, *steps = found["sentences"]
    console.print(summary, markup=False, highlight=False)
    for number, step in enumerate(steps, 1):
        console.print(f"  {number}. {step}", markup=False, highlight=False)
    if found["fixed"]:
        console.print("Not moved:", markup=False, highlight=False)
    for why, count in sorted(found["fixed"].items()):
        text = f"  {count} pod{'s' * (count != 1)}: {why}"
        console.print(text, markup=False, highlight=False)
