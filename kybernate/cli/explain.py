"""`kybernate explain`: why a pod waits for a seat."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    Json = dict[str, Any]

_READERS = ("controller", "scheduler")
"""Whom the extender answers, by the name of their certificates."""

LIMIT_S = 10.0
"""Seconds that the extender gets to answer."""

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
@click.option(
    "--extender",
    default="https://127.0.0.1:9444",
    show_default=True,
    help="Where the extender listens.",
)
@click.option(
    "--tls-dir",
    default=Path("/etc/kyb/tls"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder with ca.crt, and the certificate of the controller or the scheduler.",
)
def pod(name: str, namespace: str, *, as_json: bool, **where: Any) -> None:
    """See _HELP."""
    path = f"/explain/{quote(namespace, safe='')}/{quote(name, safe='')}"
    found = _ask(where["extender"], _context(where["tls_dir"]), path)
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


def _context(folder: Path) -> ssl.SSLContext:
    name = next((one for one in _READERS if (folder / f"{one}.crt").exists()), _READERS[-1])
    try:
        context = ssl.create_default_context(cafile=folder / "ca.crt")
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    except (OSError, ssl.SSLError) as error:
        raise click.ClickException(
            f"{folder} must hold ca.crt, {name}.crt and {name}.key ({error}). Run this in the "
            "extender's pod, or name another folder with --tls-dir"
        ) from error
    return context


def _ask(url: str, context: ssl.SSLContext, path: str) -> Json:
    """The extender's answer. Raises ClickException with what went wrong and what to do."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise click.UsageError(f"--extender is {url!r}; write it as https://host:port")
    line = http.client.HTTPSConnection(
        parts.hostname, parts.port or 443, timeout=LIMIT_S, context=context
    )
    try:
        line.request("GET", path)
        answer = line.getresponse()
        found = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise click.ClickException(
            f"no extender answers at {url} ({error}). Run this in its pod, or forward its port: "
            "kubectl -n kyb-system port-forward deploy/kyb-scheduler 9444"
        ) from error
    finally:
        line.close()
    if answer.status != 200 or not isinstance(found, dict):
        text = found.get("Error") if isinstance(found, dict) else None
        raise click.ClickException(text or f"the extender answered with HTTP {answer.status}")
    return found
