"""`kybernate artifacts`: artifacts where they lie."""

from __future__ import annotations

import json
import secrets
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from kybernate import keys as keys_of_objects
from kybernate.adapters.keys import artifactkeys
from kybernate.adapters.objects.tar import TarReader, TarWriter
from kybernate.checkpoint import catalogue, gc
from kybernate.checkpoint.delivery import transfer
from kybernate.checkpoint.places import Place, open_place, read_manifest
from kybernate.checkpoint.vault import drop
from kybernate.checkpoint.verify import verify
from kybernate.cli.artifacts import removing
from kybernate.cli.artifacts import view as artifacts_view
from kybernate.cli.artifacts.keys import (
    as_json_option,
    keys,
    opening,
    registry_option,
    shred,
    tls_option,
)
from kybernate.cli.cluster.lines import artifact_lines, artifacts_of, statuses
from kybernate.cli.cluster.link import NODES, cluster_options, link_to, listed, may_list
from kybernate.cli.cluster.lists import tell, watch_option
from kybernate.cli.options import Number
from kybernate.cli.output import FORMS, console
from kybernate.core.quantity import parse_quantity
from kybernate.errors import ConfigError, KybernateError
from kybernate.lib.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.cli.cluster.link import Link
    from kybernate.cli.output import Listing
    from kybernate.core.artifacts.manifest import Manifest

_HELP = """Artifacts: list them, look at them, read them back, sweep, carry them elsewhere.

PLACE is where they lie: a folder of this node, or s3://bucket/path, gs://bucket/path,
az://container/path. Credentials and endpoints come from the environment, by the names that each
store's own tools use (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, GOOGLE_APPLICATION_CREDENTIALS, ...).

\b
  kybernate artifacts keys --dir /etc/kyb-artifacts          once per cluster
  export KYB_ARTIFACT_KEYS=/etc/kyb-artifacts
  kubectl kyb artifacts ls                                   what the registry knows
  kybernate artifacts ls s3://states/kyb                     what is there, how large, of when
  kybernate artifacts show s3://states/kyb ID                where it can be restored
  kybernate artifacts verify s3://states/kyb ID...           read it back, byte by byte
  kybernate artifacts rm s3://states/kyb ID... --yes         delete snapshots
  kybernate artifacts rm s3://states/kyb --all --yes         delete all, after an uninstallation
  kybernate artifacts gc s3://states/kyb                     what a sweep would delete
  kybernate artifacts export s3://states/kyb ID llama.tar    to another cluster
  kybernate artifacts shred team-a --why "they left"         destroy a namespace's keys

An artifact is named <namespace>/<name>@<time>-<digits>. What is in a place, and how it is kept
from others, is written in docs/reference/artifact-layout.md.
"""

_KEYS: dict[str, Any] = {
    "type": click.Path(file_okay=False, path_type=Path),
    "envvar": "KYB_ARTIFACT_KEYS",
    "required": True,
    "help": "Folder of the keys: sign.key, trust-*.pub, wrap-*.key, and to read what nodes signed "
    "ca.crt and agents-ca.crt.  (env KYB_ARTIFACT_KEYS)",
}
_keys = click.option("--keys", "folder", **_KEYS)
_rate = click.option("--rate", default="", help="Bytes per second at most, such as 200M.")
_limit = click.option(
    "--timeout", type=float, default=3600.0, show_default=True, help="Seconds for all of it."
)
_transport = click.option(
    "--transport-key",
    "transport",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="File of the key that opens the export; it goes to the other cluster another way.",
)


@click.group("artifacts", help=_HELP)
def command() -> None:
    """See _HELP."""


command.add_command(keys)
command.add_command(shred)


@command.command("ls")
@click.argument("place", required=False)
@click.option("-n", "--namespace", default="", help="Only of this namespace.")
@click.option("--keys", "folder", **{**_KEYS, "required": False})
@click.option("-A", "--all-namespaces", is_flag=True, help="Without PLACE: of all namespaces.")
@click.option("-o", "--output", type=click.Choice(FORMS), default="table", help="Without PLACE.")
@watch_option
@cluster_options(namespaced=False)
@as_json_option
def ls(
    place: str | None,
    folder: Path | None,
    namespace: str,
    output: str,
    *,
    watch: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """List the artifacts of PLACE: age, bytes, what was stored for each, GPUs, and the UID of the
    namespace whose key opens it, which tells a namespace from an earlier one of the same name.

    One whose manifest isn't signed by a key of ours is listed with the reason. Without PLACE the
    Artifacts of a namespace are listed, from anywhere and without keys: what the registry knows.
    Where there are none, those that the cluster's nodes tell of in their GPUNodes.
    """
    if place is None:
        link = link_to({**options, "namespace": namespace})
        _tell(link, "json" if as_json else output, watch=watch)
        return
    if watch:
        raise click.UsageError("--watch is of the cluster's Artifacts; leave PLACE or --watch out")
    if folder is None:
        raise click.MissingParameter(param_type="option", param_hint="'--keys'")
    where, own = open_place(place), artifactkeys.read_folder(folder)
    found = list(catalogue.manifests(where, own, namespace))
    uids = catalogue.namespace_uids(where, namespace)
    if as_json:
        click.echo(json.dumps([_entry(each, uids) for each in found], indent=2))
        return
    console().print(artifacts_view.listing(found, uids, datetime.now(UTC)))


@command.command("show")
@click.argument("place")
@click.argument("artifact")
@_keys
@as_json_option
def show_command(place: str, artifact: str, folder: Path, *, as_json: bool) -> None:
    """Say all that the manifest of ARTIFACT says: what a restore must match, and its files."""
    manifest = read_manifest(open_place(place), artifact, artifactkeys.read_folder(folder))
    if as_json:
        click.echo(json.dumps(asdict(manifest), indent=2))
        return
    printed = console()
    for table in artifacts_view.details(manifest):
        printed.print(table)


@command.command("verify")
@click.argument("place")
@click.argument("artifacts", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All artifacts of the place.")
@_keys
@registry_option
@tls_option
@_rate
@_limit
@as_json_option
def verify_command(
    place: str, artifacts: tuple[str, ...], folder: Path, rate: str, timeout: float, **flags: Any
) -> None:
    """Read ARTIFACTs back, every byte of them, and say which are whole.

    Exits with status 1 if one isn't. Nothing is changed, except that packs which turn out to be
    damaged are not built upon any more.
    """
    where, own = open_place(place, rate=_bytes(rate)), opening(folder, flags)
    if flags["everything"]:
        artifacts = tuple(each.id for each in catalogue.manifests(where, own))
    if not artifacts:
        raise ConfigError("ARTIFACTS", "names none; name some, or say --all")
    deadline = Deadline(timeout)
    problems = {each: _verified(where, each, own, deadline) for each in artifacts}
    if flags["as_json"]:
        click.echo(json.dumps(problems, indent=2))
    else:
        for each, problem in problems.items():
            click.echo(f"{each}: {problem or 'whole'}")
    if any(problems.values()):
        sys.exit(1)


@command.command("rm")
@click.argument("place")
@click.argument("artifacts", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that is in PLACE, whatever needs it.")
@click.option("--yes", is_flag=True, help="Do it. Without this, only say what would go.")
@click.option(
    "--registry",
    default="",
    envvar="KYB_REGISTRY_URL",
    help="With --all: ask this one, such as https://host:9446, who may need any of it, and delete "
    "nothing while somebody does.  (env KYB_REGISTRY_URL)",
)
@click.option("--force", is_flag=True, help="With --all: delete it, whatever the registry says.")
@_keys
@tls_option
@as_json_option
def rm(place: str, artifacts: tuple[str, ...], folder: Path, **flags: Any) -> None:
    """Delete ARTIFACTs from PLACE, snapshots above all.

    Copies in other places stay. Do not delete the state of a seat that is parked now: its agent
    drops it by itself once nobody needs it. What it shared with others goes with a later gc.

    With --all nothing of ours stays in PLACE, neither what can't be read nor the packs and
    wrapped keys. It is for after an uninstallation: seats whose state is there are lost.
    """
    if bool(artifacts) == flags["everything"]:
        raise click.UsageError("name ARTIFACTs, or say --all")
    if flags["force"] and not flags["everything"]:
        raise click.UsageError("--force is of --all")
    where, own = open_place(place), artifactkeys.read_folder(folder)
    if flags["everything"]:
        removing.rm_all(where, own, flags)
        return
    # All of them are read before the first is deleted: a name that is wrong deletes nothing.
    found = [read_manifest(where, each, own) for each in artifacts]
    for manifest in found:
        if flags["yes"]:
            drop(where, manifest)
        if not flags["as_json"]:
            click.echo(f"{manifest.id}: {'deleted' if flags['yes'] else 'would be deleted'}")
    if flags["as_json"]:
        removing.tell([(each.id, each.stored) for each in found], done=flags["yes"])
        return
    if not flags["yes"]:
        click.echo("Nothing was changed; say --yes to do it.")


@command.command("gc")
@click.argument("place")
@click.option("--delete", is_flag=True, help="Do it. Without this, only say what would be done.")
@click.option(
    "--grace-hours",
    type=Number(min=0),
    default=gc.GRACE / 3600,
    show_default=True,
    help="How long what nobody needs is left alone first; longer than any upload takes.",
)
@_keys
@as_json_option
def gc_command(place: str, folder: Path, grace_hours: float, **flags: bool) -> None:
    """Sweep PLACE: packs that no artifact needs, and what crashes left behind.

    A pack goes in two sweeps: the first condemns it, so that nobody builds upon it any more; one
    that comes --grace-hours later deletes it, if still nobody needs it. May run at any time beside
    agents that save states. A namespace with a manifest that can't be believed is left alone.
    """
    swept = gc.sweep(
        open_place(place),
        artifactkeys.read_folder(folder),
        dry_run=not flags["delete"],
        grace=grace_hours * 3600,
    )
    if flags["as_json"]:
        click.echo(json.dumps({**asdict(swept), "done": flags["delete"]}, indent=2, default=str))
        return
    printed = console()
    printed.print(artifacts_view.sweep(swept))
    if not flags["delete"]:
        printed.print("Nothing was changed; say --delete to do it.", highlight=False)


@command.command("export")
@click.argument("place")
@click.argument("artifact")
@click.argument("out")
@_keys
@registry_option
@tls_option
@_transport
@_rate
@_limit
def export(
    place: str, artifact: str, out: str, folder: Path, transport: Path, **options: Any
) -> None:
    """Write ARTIFACT to OUT: a tar archive, a folder (if it ends with /), or - for stdout.

    It is signed by this cluster and encrypted for this one export by the transport key, which is
    made if its file isn't there. The other cluster needs the export, that key, and our
    trust-NAME.pub; bring it the key and the trust by a way of their own.
    """
    source = open_place(place, rate=_bytes(options["rate"])), opening(folder, options)
    manifest = read_manifest(source[0], artifact, source[1])
    key = _transport_key(transport)
    deadline = Deadline(options["timeout"])
    with _target(out) as target, _progress("export", manifest.total) as tell:
        made = transfer.exported(artifact, source, target, key, deadline, tell)
    click.echo(f"{made.id}: {made.total} bytes, exported as {made.stored}", err=True)


@command.command("import")
@click.argument("export_path", metavar="EXPORT", type=click.Path(exists=True, path_type=Path))
@click.argument("place")
@_keys
@registry_option
@tls_option
@click.option(
    "--trust",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    multiple=True,
    help="Public key of a cluster to believe (its trust-NAME.pub); may be repeated.",
)
@_transport
@click.option("-n", "--namespace", default="", help="Namespace to put it into; its own if unset.")
@_rate
@_limit
def import_command(
    export_path: Path, place: str, folder: Path, trust: tuple[Path, ...], **options: Any
) -> None:
    """Take the artifact of EXPORT, a tar archive or a folder, into PLACE.

    Believed is only who is named by --trust. The artifact gets a new ID, is signed by this cluster,
    and encrypted again under the key of the namespace that it goes into; what it must match for a
    restore stays as it was.
    """
    own = opening(folder, options)
    believed = [artifactkeys.read_public(path) for path in trust]
    transport = artifactkeys.WrapKeys((artifactkeys.read_wrapping(options["transport"]),))
    theirs = replace(
        own,
        signer=None,
        trusted={artifactkeys.key_id(key): key for key in believed},
        kms=transport,
    )
    archive = Place(export_path.name, TarReader(export_path)) if export_path.is_file() else None
    source = archive or open_place(str(export_path.resolve()))
    naming = transfer.Naming(datetime.now(UTC), secrets.randbits(32), options["namespace"])
    target = open_place(place, rate=_bytes(options["rate"])), own
    with _progress("import", None) as tell:
        made = transfer.imported(
            (source, theirs), target, naming, Deadline(options["timeout"]), tell
        )
    click.echo(made.id)


def _tell(link: Link, output: str, *, watch: bool) -> None:
    sources = [link.all_of(keys_of_objects.ARTIFACTS_PATH)]
    nodes = not listed(link.api, sources[0]) and may_list(link.api, NODES)
    sources += [NODES] if nodes else []
    placements = link.all_of(keys_of_objects.TIER_PLACEMENTS_PATH)
    with suppress(KybernateError):  # of an older release there are none
        listed(link.api, placements)
        sources.append(placements)

    def told(found: tuple[list[dict[str, Any]], ...]) -> Listing:
        if found[0] or not nodes:
            placed = found[-1] if sources[-1] is placements else ()
            return artifact_lines(found[0], datetime.now(UTC), placed)
        return artifacts_of(statuses(found[1])[0], link.namespace)

    tell(link, sources, told, output, watch=watch)


def _verified(place: Place, artifact: str, own: ArtifactKeys, deadline: Deadline) -> str:
    """What is wrong with it, as a sentence; empty if it is whole."""
    try:
        manifest = read_manifest(place, artifact, own)
        with _progress(manifest.id, manifest.total) as tell:
            verify(place, manifest, own, deadline, tell)
    except (KybernateError, OSError) as error:
        return str(error)
    return ""


def _entry(found: catalogue.Found, uids: Mapping[str, str]) -> dict[str, Any]:
    manifest: Manifest | None = found.manifest
    about: dict[str, Any] = {"id": found.id, "problem": found.problem}
    if manifest:
        names = ("created", "form", "total", "stored", "origin")
        about |= {name: getattr(manifest, name) for name in names}
        about["facts"] = asdict(manifest.facts)
        about["namespace_uid"] = uids.get(manifest.key.by) or manifest.facts.namespace_uid
    return about


def _bytes(rate: str) -> float:
    return float(parse_quantity(rate, "--rate")) if rate else 0.0


def _transport_key(path: Path) -> bytes:
    if not path.exists():
        artifactkeys.write_wrapping(path)
        click.echo(f"{path}: made", err=True)
    return artifactkeys.read_wrapping(path)


@contextmanager
def _target(out: str) -> Iterator[Place]:
    if out.endswith("/"):
        yield open_place(str(Path(out).resolve()))
        return
    if out == "-":
        yield from _archive(sys.stdout.buffer)
        return
    part = Path(out + ".part")
    try:
        with part.open("wb") as file:
            yield from _archive(file)
        part.rename(out)
    except OSError as error:
        raise ConfigError("OUT", f"{out} can't be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _archive(stream: Any) -> Iterator[Place]:
    writer = TarWriter(stream)
    yield Place("the archive", writer, read_back=False)
    writer.close()
    stream.flush()


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}"),
        *(BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, completed=done)
