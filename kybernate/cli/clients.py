"""`kybernate clients`: who may ask the proxy, and for whose models."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.adapters.clientstore import Folder, Secret
from kybernate.cli.cluster.link import kubeconfig
from kybernate.cli.options import dry_run, kubeconfig_option, together
from kybernate.core import clients
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from kybernate.adapters.clientstore import Store

_WITHIN = "A proxy in the cluster knows within two minutes, one with --dir within two seconds."


_stored = together(
    click.option(
        "--dir",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder instead of the Secret: the clients_dir of a proxy outside a cluster.",
    ),
    kubeconfig_option("Of an account that may get, create and patch Secrets there."),
    click.option(
        "--namespace",
        "home",
        default=keys.NAMESPACE,
        show_default=True,
        help="The proxy's own namespace.",
    ),
)
"""The options that say where the records lie."""


@click.group("clients")
def command() -> None:
    """Say who may ask the proxy, and for whose models.

    \b
    A proxy with auth=keys wants a key from each client, as OpenAI's clients send theirs:
      kybernate clients add shop-frontend --of shop          prints the key, once
      curl -H "Authorization: Bearer kyb-..." http://kyb-proxy.kyb-system/v1/models
    With auth=certificates it wants a certificate of your own authority; its common name is the
    client's:
      kybernate clients add shop-frontend --of shop --certificate

    A client sees and reaches the models of its namespaces and no others; a plain name of a model
    means one of them. Records lie in the Secret kyb-proxy-clients of the proxy's namespace, a key
    as its SHA-256 alone: who loses a key gets a new one by `add --replace`.
    """


@command.command("add")
@click.argument("name")
@click.option("--of", "namespaces", multiple=True, metavar="NAMESPACE",
              help="Whose models it may ask; may be repeated.")  # fmt: skip
@click.option("--of-all", is_flag=True, help="It may ask every model, and read /metrics.")
@click.option("--certificate", is_flag=True, help="It shows a certificate with CN=NAME, no key.")
@click.option("--replace", is_flag=True, help="Take the place of a client that has this name.")
@dry_run
@_stored
def add(name: str, **options: Any) -> None:
    """Let a client in, and print its key.

    The key is printed once and can't be had again. With --replace the old key, or the old
    namespaces, stop counting; there is no way back to them.
    """
    every, names = options["of_all"], frozenset(options["namespaces"])
    if every is bool(names):
        raise click.UsageError("say whose models it may ask: --of NAMESPACE, or --of-all")
    key = None if options["certificate"] else clients.key_of(os.urandom(clients.KEY_BYTES))
    digest = None if key is None else clients.digest_of(key)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    made = clients.record(name, None if every else names, digest, today)
    store = _store(options)
    known = name in store.read()
    if known and not options["replace"]:
        raise click.ClickException(f"{name} is a client already: --replace takes its place")
    if options["dry_run"]:
        click.echo(f"would {'replace' if known else 'add'} {_line(made)}")
        return
    store.write(name, made.text())
    click.echo(f"{'replaced' if known else 'added'} {_line(made)}. {_WITHIN}", err=True)
    if key is not None:
        click.echo(key)


@command.command("list")
@_stored
def listed(**options: Any) -> None:
    """List the clients: name, key or certificate, namespaces, since when, and what is wrong."""
    for name, text in sorted(_store(options).read().items()):
        try:
            click.echo(_line(clients.read(name, text)))
        except ConfigError as error:
            click.echo(f"{name}\tnot let in: {error.problem}")


@command.command("revoke")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@dry_run
@_stored
def revoke(names: tuple[str, ...], **options: Any) -> None:
    """Let clients in no more. What they have under way ends as it would have.

    There is no way back to an old key: `add` makes a new one.
    """
    store = _store(options)
    known = store.read()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.ClickException(f"no client is named {', '.join(unknown)}: see clients list")
    for name in names:
        if not options["dry_run"]:
            store.write(name, None)
        click.echo(f"{'would revoke' if options['dry_run'] else 'revoked'} {name}")
    if not options["dry_run"]:
        click.echo(_WITHIN, err=True)


def _store(options: dict[str, Any]) -> Store:
    if options["folder"] is not None:
        return Folder(options["folder"])
    from kybernate.adapters.k8s import Api  # noqa: PLC0415 - slow, and a folder needs none

    return Secret(Api(kubeconfig(options["kubeconfig"]), "kyb-clients"), options["home"])


def _line(one: clients.ClientRecord) -> str:
    whose = "all namespaces" if one.namespaces is None else " ".join(sorted(one.namespaces))
    by = "certificate" if one.key_sha256 is None else "key"
    return f"{one.name}\t{by}\t{whose}\t{one.made or '-'}"
