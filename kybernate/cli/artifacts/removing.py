"""`kybernate artifacts rm --all`: what it tells before it deletes, and who keeps it from that."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from kybernate.checkpoint import catalogue, gc
from kybernate.cli.output import age, console, human, plain_table
from kybernate.errors import ConfigError, ConflictError, DeadlineError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys
    from kybernate.adapters.registry import wire
    from kybernate.checkpoint.catalogue import Found
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest

    Pods = Callable[[str, str], wire.Pod]
    """What the registry knows of the pod in a namespace, by its UID."""


def rm_all(where: Place, own: ArtifactKeys, flags: Mapping[str, Any]) -> None:
    """Delete all that is there, with `yes`; without, say how much. Raises ConflictError while a pod
    may need any of it, DeadlineError if the `registry` doesn't answer; with `force` neither."""
    if where.root is not None and not os.access(where.root, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError("PLACE", f"{where.root} is no folder that you may change; see its path")
    found = list(catalogue.manifests(where, own))
    needs = dict(_asked(found, flags)) if flags["registry"] and not flags["force"] else {}
    done = flags["yes"] and not needs
    if done:
        gc.clear(where)
    if flags["as_json"]:
        gone = [(each.id, each.manifest.stored if each.manifest else 0) for each in found]
        tell(gone, done=done)
    else:
        console().print(_table(found, datetime.now(UTC)))
    for name, why in needs.items():
        click.echo(f"{name}: {why}", err=True)
    if needs and flags["yes"]:
        raise ConflictError(
            f"pods may need what is in {where.name} ({len(needs)}); nothing was deleted. Delete "
            "them first, or say --force to lose their states"
        )
    if done and not flags["as_json"]:
        click.echo(f"All of it is deleted, and all that was in {where.name} besides.")
    elif not flags["as_json"]:
        click.echo(f"It would be deleted for good, and all that is in {where.name} besides.")
        click.echo("Nothing was changed; say --yes to do it.")


def tell(those: Sequence[tuple[str, int]], *, done: bool) -> None:
    """The artifacts with their bytes, and whether they are deleted, as JSON."""
    told = [{"id": id_, "stored": stored, "deleted": done} for id_, stored in those]
    click.echo(json.dumps(told, indent=2))


def _table(found: Iterable[Found], now: datetime) -> Table:
    """A line for each namespace."""
    namespaces: dict[str, list[Found]] = {}
    for each in found:
        namespaces.setdefault(each.id.partition("/")[0], []).append(each)
    made = plain_table("NAMESPACE", "ARTIFACTS", "STORED", "NEWEST", "UNREADABLE")
    for name, those in sorted(namespaces.items()):
        read = [each.manifest for each in those if each.manifest]
        newest = age(max(one.created for one in read), now) if read else "-"
        stored, unread = human(sum(one.stored for one in read)), len(those) - len(read)
        made.add_row(Text(name), str(len(those)), stored, newest, str(unread or "-"))
    return made


def _asked(found: Sequence[Found], flags: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who may need what was found, and what nobody can say that of, each with a sentence."""
    from kybernate.adapters.registry.client import Registry  # noqa: PLC0415 - slow

    for each in found:
        if each.manifest is None:
            # The registry is asked for pods, and who trusts other keys reads whose state it is.
            why = "so nobody can say whose state it is; give the --keys that it is trusted by"
            yield each.id, f"it isn't believed ({each.problem}), {why}"
    client = Registry(flags["registry"], flags["tls"], "controller")
    try:
        yield from _needed([each.manifest for each in found if each.manifest], client.pod)
    except DeadlineError as error:
        raise DeadlineError(
            f"nobody says who needs them, so nothing was deleted: {error}. If that registry is "
            "gone, say --force"
        ) from error


def _needed(manifests: Iterable[Manifest], pod: Pods) -> Iterator[tuple[str, str]]:
    """Who may need them: each pod once as `pod namespace/uid`, and why, as a sentence."""
    from kybernate.adapters.registry import wire  # noqa: PLC0415 - slow

    known: dict[tuple[str, str], wire.Pod] = {}

    def of(namespace: str, uid: str) -> wire.Pod:
        if (namespace, uid) not in known:
            try:
                known[namespace, uid] = pod(namespace, uid)
            except NotFoundError:
                known[namespace, uid] = wire.Pod(namespace=namespace, uid=uid)
        return known[namespace, uid]

    told = set()
    for manifest in manifests:
        for uid, why in _needs(manifest, of):
            name = f"pod {manifest.facts.namespace}/{uid}"
            if name not in told:
                told.add(name)
                yield name, why


def _needs(manifest: Manifest, of: Pods) -> Iterator[tuple[str, str]]:
    namespace, uid = manifest.facts.namespace, manifest.facts.pod_uid
    one = of(namespace, uid)
    if one.node and not one.stopped:
        yield uid, f"it has a seat on node {one.node}, and nobody has said that it has stopped"
    elif one.successor == uid:
        yield uid, f"it continues from its own state on node {one.successor_node}"
    elif one.successor and one.artifact == manifest.id:
        if not of(namespace, one.successor).stopped:
            yield one.successor, f"it continues from {manifest.id} on node {one.successor_node}"
    elif not one.settled:
        yield uid, "who continues from it isn't known since the registry lost its database"
