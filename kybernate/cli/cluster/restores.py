"""`kybernate restore` and `clone`: a pod that continues from an artifact, by a RestoreRequest."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from kybernate import keys
from kybernate.api.restoring.requests import ask_to_restore, read_restore
from kybernate.cli.cluster.link import Source, cluster_options, link_to, watched
from kybernate.cli.cluster.requests import (
    INTERRUPTED,
    REFUSED,
    TIMED_OUT,
    limit_of,
    status_line,
)
from kybernate.cli.completing import pod_names
from kybernate.cli.output import plain, text_of
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.requests.reasons import Standing
from kybernate.core.requests.restore import RestoreReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.cli.cluster.link import Link
    from kybernate.core.requests.restore import RestoreRequest

    Json = dict[str, Any]

_LATE_S = 15.0
"""Seconds after a request's deadline at which nobody answers any more."""
_KEPT_S = 86_400
_PLURAL = keys.RESTORE_REQUESTS_PATH.rpartition("/")[2]
_RESOURCE = f"{keys.RESTORE_REQUEST_KIND.lower()}.{keys.GROUP}"
_HOSTNAME = "kubernetes.io/hostname"


def _options(command: Any) -> Any:
    for option in (
        cluster_options(),
        click.option(
            "-o",
            "--output",
            type=click.Choice(("text", "json", "yaml", "name")),
            default="text",
            show_default=True,
            help="A sentence, or the request as it is at the end; name: the pod that is made.",
        ),
        click.option("--no-wait", is_flag=True, help="Return once it is asked for."),
        click.option(
            "--timeout", default="10m", show_default=True, help="How long it may take at most."
        ),
        click.option(
            "--dry-run", is_flag=True, help="Only say whether it may be asked for, and ask nothing."
        ),
        click.option("--artifact", default=None, help="An Artifact by its name, instead of POD."),
        click.option("--from-namespace", default=None, help="The artifact's, if another one."),
        click.option("--name", default=None, help="The new pod's; else one is made up."),
        click.option("--node", default=None, help="Where it is to be."),
        click.option(
            "-f",
            "--template",
            "file",
            type=click.Path(dir_okay=False, path_type=Path),
            default=None,
            help="A pod's manifest to make it of; needed once the artifact's pod is gone.",
        ),
        click.argument("pod", required=False, shell_complete=pod_names),
    ):
        command = option(command)
    return command


@click.command("restore")
@click.option(
    "--as",
    "kind",
    type=click.Choice([RestoreAs.SUCCESSOR.value, RestoreAs.TEMPLATE.value]),
    default=RestoreAs.TEMPLATE.value,
    show_default=True,
    help="template: a copy. successor: in that pod's place, once it has stopped.",
)
@_options
def restore(pod: str | None, *, kind: str, **options: Any) -> None:
    """Start a pod that continues from the newest artifact of POD.

    Makes a RestoreRequest and follows it. The new pod stays when the request goes. Exit status: 0
    done, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb restore llama -n shop
    kubectl kyb restore training -n shop --as successor -f pod.yaml --node gpu-2
    kubectl kyb restore --artifact llama-0.20260131t120000z-00c0ffee -n shop
    """
    _ask(pod, RestoreAs(kind), None, options)


@click.command("clone")
@click.option("--stopped", is_flag=True, help="Not one instruction of it is executed.")
@_options
def clone(pod: str | None, *, stopped: bool, **options: Any) -> None:
    """Start a copy of POD to look at, from its newest artifact, without network.

    The clone ends with its RestoreRequest, a day later at the latest. Of another namespace it takes
    an ArtifactGrant there. Exit status: 0 done, 1 refused or failed, 2 usage, 3 timed out.

    \b
    kubectl kyb clone llama -n shop --stopped
    kubectl kyb clone llama -n dev --from-namespace shop
    """
    _ask(pod, RestoreAs.CLONE, True if stopped else None, options)


def _ask(pod: str | None, kind: RestoreAs, stopped: bool | None, options: dict[str, Any]) -> None:
    if (pod is None) == (options["artifact"] is None):
        raise click.UsageError("name either POD or --artifact")
    limit, link, form = limit_of(options["timeout"]), link_to(options), options["output"]
    source = {
        "pod": pod and pod.removeprefix("pod/"),
        "artifact": options["artifact"],
        "namespace": options["from_namespace"],
    }
    body = ask_to_restore(
        source,
        kind,
        limit,
        stopped=stopped,
        podName=options["name"],
        nodeSelector={_HOSTNAME: options["node"]} if options["node"] else None,
        template=_template(options["file"]),
        ttlSecondsAfterFinished=_KEPT_S,
    )
    if options["dry_run"]:
        _tell(link.api.post(link.of(_PLURAL), body, {"dryRun": "All"}), form, "may be asked for")
        return
    made = link.api.post(link.of(_PLURAL), body)
    if options["no_wait"]:
        _tell(made, form, "is asked for")
        return
    ended = _followed(link, made, limit + _LATE_S)
    if form != "text":
        _tell(ended, form, "")
    sys.exit(_outcome(read_restore(ended), quiet=form != "text"))


def _template(file: Path | None) -> Json | None:
    if file is None:
        return None
    try:
        found = yaml.safe_load(file.read_text())
        return {name: found[name] for name in ("metadata", "spec") if name in found}
    except (OSError, yaml.YAMLError, TypeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"is no manifest of a pod: {error}", param_hint="-f") from error


def _tell(item: Json, form: str, what: str) -> None:
    request = read_restore(item) if "uid" in item["metadata"] else None
    name = item["metadata"].get("name", "")
    if form == "name":
        click.echo(f"pod/{request.pod_name if request else name}")
    elif form == "text":
        click.echo(f"{item['spec']['as']} {what} ({_RESOURCE}/{name})")
    else:
        click.echo(text_of(item, form), nl=False)


def _followed(link: Link, made: Json, seconds: float) -> Json:
    """The request as it is once it has ended, or else when the time is over."""
    name, last, told = made["metadata"]["name"], made, ""
    with status_line() as say:
        try:
            for item in _states(link, name, time.monotonic() + seconds):
                last, request = item, read_restore(item)
                if request.status.message != told:
                    told = request.status.message
                    say(plain(f"{request.kind}: {told}"))
                if request.ended:
                    break
        except KeyboardInterrupt:
            click.echo(
                f"\nit continues: kubectl -n {link.namespace} get {_RESOURCE} {name} says how far "
                "it is",
                err=True,
            )
            sys.exit(INTERRUPTED)
    return last


def _states(link: Link, name: str, until: float) -> Iterator[Json]:
    source = Source(link.of(_PLURAL), {"fieldSelector": f"metadata.name={name}"})
    for (found,) in watched(link.api, [source], until):
        if not found:
            raise click.ClickException(f"somebody has deleted {_RESOURCE}/{name}")
        yield found[0]


def _outcome(request: RestoreRequest, *, quiet: bool) -> int:
    """Tell it, and answer with the exit status."""
    status, message = request.status, plain(request.status.message)
    if not request.ended:
        why = message or "no controller answers: is kyb-controller running?"
        click.echo(f"{request.kind} is not done in time: {why}", err=True)
        return TIMED_OUT
    if status.reason is not None and status.reason.standing is Standing.SUCCESS:
        if not quiet:
            click.echo(f"{message}\npod/{status.pod}")
        return 0
    reason = status.reason or "a reason that only a newer kybernate knows"
    click.echo(f"{request.kind} failed ({reason}): {message}", err=True)
    return TIMED_OUT if status.reason is RestoreReason.DEADLINE_EXCEEDED else REFUSED
