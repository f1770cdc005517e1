"""`kybernate pki`: the certificates between our services."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import yaml

from kybernate import keys
from kybernate.adapters.pki import AGENTS, AUTHORITY, Folder, Validity

_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="KYB_PKI_DIR",
    help="Folder of the certificates.  (env KYB_PKI_DIR)",
)
_renew_days = click.option(
    "--renew-days",
    type=click.IntRange(min=0),
    default=30,
    show_default=True,
    help="A certificate that ends within so many days is renewed.",
)


@click.group("pki")
def command() -> None:
    """Make and show the certificates between our services.

    One authority signs them all, and one more signs agents alone: the registry holds its key, and
    certifies the keys that nodes make (`secret --agents`). With --node an agent's key is made here
    instead, for clusters without a registry.

    The agent of node N is known as N.agent.kyb.ai; kyb-proxy may serve requests through it and
    kyb-controller may park, wake, evict and drain (docs/reference/node/api.md). The extender
    accepts calls from kyb-scheduler alone; the registry lets agents write, each for its own
    node, and the controller and the proxy read (docs/reference/registry.md).
    """


@command.command("init")
@_folder
@click.option("--node", "nodes", multiple=True, help="Node with an agent; may be repeated.")
@click.option("--ca-days", type=click.IntRange(min=1), default=3650, show_default=True)
@click.option("--leaf-days", type=click.IntRange(min=1), default=365, show_default=True)
@_renew_days
def init(
    folder: Path, nodes: tuple[str, ...], ca_days: int, leaf_days: int, renew_days: int
) -> None:
    """Make what is missing, renew what ends soon, keep the rest.

    May be run as often as you like, and again with another --node when a node comes.
    """
    validity = Validity(
        timedelta(days=ca_days), timedelta(days=leaf_days), timedelta(days=renew_days)
    )
    for made in Folder(folder).init(nodes, validity, datetime.now(UTC)):
        click.echo(f"{made.name}: {f'made ({made.reason})' if made.reason else 'kept'}")


@command.command("show")
@_folder
@_renew_days
def show(folder: Path, renew_days: int) -> None:
    """List the certificates: file, name, other names, last day, and what is wrong."""
    validity = Validity(renew_before=timedelta(days=renew_days))
    for entry in Folder(folder).show(validity, datetime.now(UTC)):
        names = " ".join(entry.names) or "-"
        state = entry.problem or "ok"
        click.echo(f"{entry.name}\t{entry.common_name}\t{names}\t{entry.ends:%Y-%m-%d}\t{state}")


@command.command("secret")
@_folder
@click.option("--namespace", default=keys.NAMESPACE, show_default=True)
@click.option("--agents", is_flag=True, help="The authority of agents: kyb-agents-ca.")
def secret(folder: Path, namespace: str, *, agents: bool) -> None:
    """Print the authority as the Secret kyb-ca, key included: pipe it into kubectl apply -f -.

    With --agents it is the one that may certify agents alone, for the registry to sign with.
    """
    name = AGENTS if agents else AUTHORITY
    authority = Folder(folder).authority(name)
    data = {f"{name}.crt": authority.certificate_pem, f"{name}.key": authority.key_pem}
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"kyb-{name}", "namespace": namespace},
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    click.echo(yaml.safe_dump(manifest, sort_keys=False), nl=False)
