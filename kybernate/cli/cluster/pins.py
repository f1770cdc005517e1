"""`kybernate pin` and `unpin`: artifacts are kept by a TierPlacement, and let go again."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from kybernate import keys
from kybernate.api.events import stamp
from kybernate.api.placements.model import selecting, to_pin
from kybernate.api.restoring.artifacts import read_artifact
from kybernate.cli.cluster.asking import because, making_options, why_option
from kybernate.cli.cluster.link import link_to
from kybernate.cli.completing import pin_names, pod_names
from kybernate.cli.output import human, text_of
from kybernate.core.artifacts.layout import parse_id
from kybernate.core.quantity import parse_duration
from kybernate.core.requests.placement import MOST_ARTIFACTS
from kybernate.errors import ConfigError, ConflictError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.cli.cluster.link import Link

    Json = dict[str, Any]

_PREFIX = "pin-"
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESOURCE = f"tierplacement.{keys.GROUP}"


def _options(tried: str) -> Callable[[Any], Any]:
    made = making_options(tried, "A sentence, or the TierPlacement.")
    of = click.option("--model", default=None, help="All artifacts of a model, instead of POD.")
    one = click.option("--artifact", default=None, help="One artifact by its name, instead of POD.")
    return lambda command: one(of(made(command)))


@click.command("pin")
@click.option(
    "--newest",
    type=click.IntRange(1, MOST_ARTIFACTS),
    default=1,
    show_default=True,
    help="Keep so many of its artifacts, the newest.",
)
@click.option("--for", "lasts", default=None, help="For so long, such as 720h; else until unpin.")
@why_option
@_options("Only say whether it may be asked for, and what would be kept.")
@click.argument("pod", required=False, shell_complete=pod_names)
def pin(  # noqa: PLR0913 - the words of its command line
    pod: str | None,
    *,
    model: str | None,
    artifact: str | None,
    newest: int,
    lasts: str | None,
    why: str | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Keep the newest artifact of POD, whatever becomes of the pod, with a copy in the object
    store.

    Makes the TierPlacement pin-POD, or changes the one that an earlier pin has made: an older
    artifact is let go once a newer one comes. Exit status: 0 done, 1 refused, 2 usage.

    \b
    kubectl kyb pin training-0 -n shop --for 720h
    kubectl kyb pin --model birch --newest 3 -n shop --dry-run
    kubectl kyb pin --artifact shop/training-0@20260130T120000Z-00c0ffee -n shop
    """
    label, value, name = _named(pod, model, artifact)
    until = _until(lasts)
    link = link_to(options)
    body = because(to_pin(name, label, value, newest, until), why)
    made = _written(link, body, dry_run=dry_run)
    if output != "text":
        _tell(made, output)
        return
    click.echo("\n".join(_told_of(link, label, value, newest)))
    done = "would be kept, by" if dry_run else "is kept, by"
    click.echo(f"the newest {done} {_RESOURCE}/{name}{f', until {until}' if until else ''}")


@click.command("unpin")
@_options("Only say whether it may be deleted.")
@click.argument("pod", required=False, shell_complete=pin_names)
def unpin(
    pod: str | None,
    *,
    model: str | None,
    artifact: str | None,
    dry_run: bool,
    output: str,
    **options: Any,
) -> None:
    """Let go what `pin POD` keeps; tpl/NAME names another TierPlacement.

    Deletes the TierPlacement. What nothing else needs is dropped a minute later. Exit status: 0
    done, 1 refused or not there, 2 usage.

    \b
    kubectl kyb unpin training-0 -n shop
    kubectl kyb unpin tpl/birch -n shop --dry-run
    """
    by_name = pod is not None and pod.startswith("tpl/")
    label, value, name = ("", "", (pod or "")[4:]) if by_name else _named(pod, model, artifact)
    link = link_to(options)
    path = f"{_path(link)}/{name}"
    found = link.api.get(path)
    if not by_name and found["spec"].get("selector") != selecting(label, value):
        raise RefusedError(
            f"{_RESOURCE}/{name} keeps other artifacts; to delete it, write unpin tpl/{name}"
        )
    link.api.delete(path, {"dryRun": ["All"]} if dry_run else None)
    if output != "text":
        _tell(found, output)
        return
    click.echo(f"{_RESOURCE}/{name} {'may be deleted; nothing was' if dry_run else 'is deleted'}")


def _named(pod: str | None, model: str | None, artifact: str | None) -> tuple[str, str, str]:
    """The label of the artifacts, its value, and the TierPlacement's name. Raises UsageError."""
    if sum(one is not None for one in (pod, model, artifact)) != 1:
        raise click.UsageError("name one of POD, --model and --artifact")
    if artifact is not None:
        moment = _moment(artifact)
        return keys.MOMENT_LABEL, moment, f"{_PREFIX}artifact-{moment.lower()}"
    label = keys.OF_POD_LABEL if model is None else keys.MODEL
    value = model or (pod or "").removeprefix("pod/")
    if not _LABEL.fullmatch(value):
        raise click.UsageError(
            f"no label can have {value[:100]!r} as its value, so no TierPlacement selects its "
            "artifacts"
        )
    made = value if model is None else f"model-{value}"
    return label, value, _PREFIX + re.sub("[^a-z0-9.-]", "-", made.lower())


def _moment(artifact: str) -> str:
    """The end of its name, by which its Artifact is selected."""
    try:
        return parse_id(artifact).moment
    except RefusedError as error:
        raise click.BadParameter(str(error), param_hint="--artifact") from error


def _until(lasts: str | None) -> str | None:
    if lasts is None:
        return None
    try:
        seconds = parse_duration(lasts)
    except ConfigError as error:
        raise click.BadParameter(error.problem, param_hint="--for") from error
    return stamp(time.time() + seconds)


def _path(link: Link) -> str:
    return link.of(keys.TIER_PLACEMENTS_PATH.rpartition("/")[2])


def _written(link: Link, body: Json, *, dry_run: bool) -> Json:
    """The object as it is, or would be, once it is there. Raises RefusedError if one of its name
    selects something else."""
    tried = {"dryRun": "All"} if dry_run else None
    try:
        made: Json = link.api.post(_path(link), body, tried)
    except ConflictError:
        path = f"{_path(link)}/{body['metadata']['name']}"
        spec, name = body["spec"], body["metadata"]["name"]
        if link.api.get(path)["spec"].get("selector") != spec["selector"]:
            raise RefusedError(
                f"{_RESOURCE}/{name} keeps other artifacts; write a TierPlacement of another name"
            ) from None
        # What an earlier one said of the time is over.
        body = {**body, "spec": {"pinnedUntil": None, **spec}}
        made = link.api.patch(path, body, params=tried)
    return made


def _told_of(link: Link, label: str, value: str, newest: int) -> list[str]:
    """The artifacts that are kept as things are, in words."""
    source = link.all_of(keys.ARTIFACTS_PATH)
    items = link.api.get(source.path, {"labelSelector": f"{label}={value}"}).get("items") or ()
    found = [one for one in map(read_artifact, items) if one is not None]
    found.sort(key=lambda one: one.created_ms, reverse=True)
    lines = [f"{one.artifact}  {human(one.size)}" for one in found[:newest]]
    return lines or ["there is no artifact of it yet"]


def _tell(item: Json, form: str) -> None:
    if form == "name":
        click.echo(f"{_RESOURCE}/{item['metadata']['name']}")
    else:
        click.echo(text_of(item, form), nl=False)
