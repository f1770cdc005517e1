"""`kybernate node`: which nodes' agents are believed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import click

from kybernate import keys
from kybernate.adapters.pki import agent_leaf
from kybernate.cli.cluster.link import kubeconfig
from kybernate.cli.options import dry_run, kubeconfig_option
from kybernate.core.nodeaccess import LONGEST_WHY, Access
from kybernate.runtime.revocations import List

_WITHIN = (
    "Registry, proxies and other nodes' agents know within 5 seconds, if they reach the API server."
)
_kubeconfig = kubeconfig_option(
    f"Of an account that may get, create and patch ConfigMaps in {keys.NAMESPACE}."
)
_why = click.option("--why", default="", help="What people read later.")


@click.group("node")
def command() -> None:
    """Say which nodes' agents are believed.

    \b
    A node that somebody has broken into is cut off by one command:
      kybernate node revoke gpu-7 --why "stolen disk"
    Nothing that its agent says is answered then, nobody connects to it, and it gets no new
    certificate. Once the node was set up again:
      kybernate node admit gpu-7

    What runs on the node continues there: delete its pods, or the node. Its certificates from
    before count no more, also after `admit`.
    """


@command.command("revoke")
@click.argument("node", metavar="NAME")
@_why
@dry_run
@_kubeconfig
def revoke(node: str, why: str, **options: Any) -> None:
    """Believe the agent of this node no more, and give it no certificate."""
    _decide(node, why, options, revoked=True)


@command.command("admit")
@click.argument("node", metavar="NAME")
@_why
@dry_run
@_kubeconfig
def admit(node: str, why: str, **options: Any) -> None:
    """Let a node that was revoked in again, with a new certificate."""
    _decide(node, why, options, revoked=False)


@command.command("ls")
@_kubeconfig
def ls(**options: Any) -> None:
    """List what was decided: node, state, when, and why."""
    for node, access in sorted(_list(options).read().items()):
        click.echo(_line(node, access))


def _decide(node: str, why: str, options: dict[str, Any], *, revoked: bool) -> None:
    agent_leaf(node)
    if len(why) > LONGEST_WHY or not why.isprintable():
        problem = f"write at most {LONGEST_WHY} printable characters"
        raise click.BadParameter(problem, param_hint="--why")
    every = _list(options)
    known = every.read().get(node)
    if known is None and not revoked:
        raise click.ClickException(f"node {node} was never revoked: see node ls")
    if known is not None and known.revoked == revoked:
        click.echo(f"nothing to do: {_line(node, known)}")
        return
    access = Access(revoked, int(time.time() * 1000), why)
    if options["dry_run"]:
        click.echo(f"would write: {_line(node, access)}")
        return
    every.write(node, access)
    click.echo(_line(node, access))
    click.echo(_WITHIN, err=True)


def _list(options: dict[str, Any]) -> List:
    from kybernate.adapters.k8s import Api  # noqa: PLC0415 - slow

    return List(Api(kubeconfig(options["kubeconfig"]), "kyb-node"))


def _line(node: str, access: Access) -> str:
    at = datetime.fromtimestamp(access.at_ms / 1000, UTC)
    state = "revoked" if access.revoked else "admitted"
    return f"{node}\t{state}\t{at:%Y-%m-%dT%H:%M:%SZ}\t{access.why or '-'}"
