"""`kybernate restore` and `clone`: a pod that continues from an artifact, by a RestoreRequest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from kybernate import keys
from kybernate.api.restoring.requests import ask_to_restore, read_restore
from kybernate.cli.cluster.asking import KEPT_S, Asking, limit_of, once_options
from kybernate.cli.completing import pod_names
from kybernate.cli.options import together
from kybernate.cli.output import plain
from kybernate.core.artifacts.restores import RestoreAs

if TYPE_CHECKING:
    from kybernate.core.requests.restore import RestoreRequest

Json = dict[str, Any]

_HOSTNAME = "kubernetes.io/hostname"


def _lines(request: RestoreRequest) -> list[str]:
    return [plain(request.status.message), f"pod/{request.status.pod}"]


def _name(item: Json) -> str:
    """The pod that is made."""
    meta = item["metadata"]
    return f"pod/{read_restore(item).pod_name if 'uid' in meta else meta.get('name', '')}"


RESTORES = Asking(
    *(keys.RESTORE_REQUESTS_PATH, keys.RESTORE_REQUEST_KIND),
    deletion="ends what it has cloned",
    read=read_restore,
    called=lambda request: request.kind.value,
    lines=_lines,
    name=_name,
)


_options = together(
    click.argument("pod", required=False, shell_complete=pod_names),
    click.option(
        "-f",
        "--template",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=None,
        help="A pod's manifest to make it of; needed once the artifact's pod is gone, unless a "
        "SnapshotTemplate is named.",
    ),
    click.option("--node", default=None, help="Where it is to be."),
    click.option("--name", default=None, help="The new pod's; else one is made up."),
    click.option("--from-namespace", default=None, help="The artifact's, if another one."),
    click.option("--from-template", default=None, help="A SnapshotTemplate, instead of POD."),
    click.option("--artifact", default=None, help="An Artifact by its name, instead of POD."),
    once_options(
        "How long it may take at most.",
        told="A sentence, or the request as it is at the end; name: the pod that is made.",
    ),
)


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
    kubectl kyb restore --from-template birch -n shop
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
    named = pod, options["artifact"], options["from_template"]
    if sum(one is not None for one in named) != 1:
        raise click.UsageError("name one of POD, --artifact and --from-template")
    source = {
        "pod": pod and pod.removeprefix("pod/"),
        "artifact": options["artifact"],
        "template": options["from_template"],
        "namespace": options["from_namespace"],
    }
    body = ask_to_restore(
        source,
        kind,
        limit_of(options["timeout"]),
        stopped=stopped,
        podName=options["name"],
        nodeSelector={_HOSTNAME: options["node"]} if options["node"] else None,
        template=_template(options["file"]),
        ttlSecondsAfterFinished=KEPT_S,
    )
    RESTORES.ask(body, options)


def _template(file: Path | None) -> Json | None:
    if file is None:
        return None
    try:
        found = yaml.safe_load(file.read_text())
        return {name: found[name] for name in ("metadata", "spec") if name in found}
    except (OSError, yaml.YAMLError, TypeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"is no manifest of a pod: {error}", param_hint="-f") from error
