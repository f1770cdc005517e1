"""What is done beside serving: with the database, and with the keys that wrap others."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError

from kybernate.adapters.keys.artifactkeys import read_folder
from kybernate.adapters.registry.wire import Spot
from kybernate.checkpoint.catalogue import manifests
from kybernate.checkpoint.places import open_place
from kybernate.errors import KybernateError
from kybernate.runtime.load import load
from kybernate.settings.registry import RegistrySettings
from kybernate.types import Tier
from registry.database import open_database
from registry.keys.kms import open_kms, tried
from registry.keys.places import rewrap, take_in
from registry.pods import Pods
from registry.rebuild import rebuild

if TYPE_CHECKING:
    from registry.database import Database
    from registry.rebuild import Outcome

_MOST_TOLD = 20


@click.command("rebuild")
@click.option(
    "--place",
    "places",
    multiple=True,
    required=True,
    metavar="TIER=URL",
    help="A place to read, such as object=s3://bucket/path or nvme=/var/lib/kyb-nvme; may "
    "be repeated.",
)
@click.option("--node", default="", help="The node whose ram and nvme places these are.")
@click.option(
    "--keys",
    default=Path("/etc/kyb/keys"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the keys of artifacts; trust-NAME.pub, ca.crt and agents-ca.crt are enough.",
)
def rebuild_command(places: tuple[str, ...], node: str, keys: Path) -> None:
    """Rebuild the database from the manifests in the places.

    The database is the one of KYB_REGISTRY_DATABASE. A second call continues where an earlier one
    was cut short; what is there stays. Afterwards nobody gets a claim on a pod of before until
    claims were told again and `settle` says so.
    """
    wanted = [_spot(text, node) for text in places]
    try:
        database, trusted = _database(), read_folder(keys)
        for spot, url in wanted:
            catalogue = partial(manifests, open_place(url), trusted, "")
            _tell(url, rebuild(database, spot, catalogue, partial(_progress, url)))
            keys_found = take_in(database, open_kms(_settings()), open_place(url))
            click.echo(f"{url}: {keys_found} keys of namespaces taken in")
        database.analyse()
    except (KybernateError, OSError) as error:
        raise click.ClickException(f"{error}; run it again to continue from here") from error


@click.command("rewrap")
@click.option("--place", "places", multiple=True, metavar="URL", help="Also there; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def rewrap_command(places: tuple[str, ...], *, dry_run: bool) -> None:
    """Wrap namespaces' keys by the newest key, in the database and the places, such as s3://….

    After `kms --new-key`, or once a file wrap-N.key was added. May run beside the registry, be
    ended, and be run again. When it finds nothing more to do, older keys wrap nothing any more but
    what releases before 0.2.0 saved.
    """
    try:
        settings = _settings()
        kms = open_kms(settings)
        tried(kms)
        there = [open_place(url) for url in places]
        done = rewrap(_database(), kms, there, partial(click.echo, err=True), dry_run=dry_run)
    except (KybernateError, OSError) as error:
        raise click.ClickException(f"{error}; run it again to continue from here") from error
    click.echo(f"{done} {'would be' if dry_run else 'were'} wrapped again by {kms.newest}")


@click.command("settle")
@click.option("--why", required=True, help="How you know that no claim is missing.")
def settle_command(why: str) -> None:
    """Say that every claim is in the database: of a new one, or of one that was rebuilt.

    Of a rebuilt one only after all agents told their claims again, or all pods were looked at.
    """
    try:
        count = Pods(_database(), 1.0).settle_all()
    except KybernateError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} pods are claimable again ({why})")


@click.command("unsettle")
def unsettle_command() -> None:
    """Say that claims may be missing: after an older backup was restored, before it is served.

    Nobody gets a claim then until claims were told again and `settle` says so.
    """
    try:
        count = Pods(_database(), 1.0).unsettle_all()
    except KybernateError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} pods can't be claimed until `kyb-registry settle`")


@click.command("kms")
@click.option("--new-key", is_flag=True, help="Make a key that wraps from now on; others stay.")
def kms_command(new_key: bool) -> None:
    """Say which key wraps the namespaces' keys, once it has wrapped and opened something.

    By the settings KYB_REGISTRY_KMS, _WRAP_KEYS and _PKCS11_*. A token's keys are made here, the
    first one too, and never leave it.
    """
    try:
        kms = open_kms(_settings())
        if new_key:
            click.echo(f"made key {kms.renew()}")
        click.echo(f"key {tried(kms)} wraps, and opens what it has wrapped")
    except KybernateError as error:
        raise click.ClickException(str(error)) from error


_ALL = (rebuild_command, settle_command, unsettle_command, kms_command, rewrap_command)
COMMANDS = {one.name: one for one in _ALL}


def _settings() -> RegistrySettings:
    return load(RegistrySettings, "KYB_REGISTRY", {}, os.environ, None)


def _database() -> Database:
    database = open_database(_settings())
    database.prepare()
    return database


def _spot(text: str, node: str) -> tuple[Spot, str]:
    tier, _, url = text.partition("=")
    try:
        place = Tier(tier)
        local = place is not Tier.OBJECT
        spot = Spot(place=place, node=node if local else "", store="" if local else url)
    except (ValidationError, ValueError) as error:
        raise click.UsageError(
            f"--place {text!r}: write TIER=URL with ram, nvme or object, and --node for the "
            "first two"
        ) from error
    return spot, url


def _progress(url: str, done: Outcome) -> None:
    click.echo(f"{url}: {done.new} artifacts, {done.per_second:.0f}/s", err=True)


def _tell(url: str, done: Outcome) -> None:
    for problem in done.problems[:_MOST_TOLD]:
        click.echo(f"left out: {problem}", err=True)
    click.echo(
        f"{url}: {done.new} artifacts taken in, {done.there} were there, {len(done.problems)} left "
        f"out; {done.seconds:.1f} s, {done.per_second:.0f}/s"
    )
