"""`kybernate artifacts keys` and `shred`; and how the other commands get at namespaces' keys."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from pydantic import ValidationError

from kybernate import keys as keys_of
from kybernate.adapters.keys import artifactkeys
from kybernate.cli.artifacts import view as artifacts_view
from kybernate.cli.options import Number
from kybernate.cli.output import console
from kybernate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kybernate.adapters.keys.artifactkeys import ArtifactKeys

registry_option = click.option(
    "--registry",
    default="",
    envvar="KYB_REGISTRY_URL",
    help="The registry, which has the keys of namespaces, such as https://host:9446; without it "
    "only wrap-N.key of --keys opens what is packed.  (env KYB_REGISTRY_URL)",
)
tls_option = click.option(
    "--tls",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="KYB_TLS_DIR",
    default=Path("pki"),
    show_default=True,
    help="Folder with ca.crt, controller.crt and controller.key.  (env KYB_TLS_DIR)",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.command("keys")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.option("--name", default="cluster", show_default=True, help="This cluster's own name.")
@click.option("--secret", is_flag=True, help="Print them as Secrets for kubectl apply -f -.")
@click.option(
    "--shared",
    is_flag=True,
    help="With sign.key and wrap-N.key for the agents, too: every node signs and opens for all "
    "then. For agents that have no registry, or are of a release before they had keys by node.",
)
def keys(folder: Path, name: str, *, secret: bool, shared: bool) -> None:
    """Make the keys that are missing in a folder, keep the rest.

    sign.key signs what is imported, and stays with you: nodes sign by keys of their own.
    trust-NAME.pub says whose signature is believed besides: agents mount it. wrap-N.key opens what
    is stored, and only the registry mounts it: whoever loses it has lost the states.
    """
    made = artifactkeys.make_folder(folder, name)
    for file in made:
        # Into a pipe go the Secrets alone; who mistyped the folder sees that these are new.
        click.echo(f"{file}: made", err=secret)
    if secret:
        click.echo(yaml.safe_dump_all(_secrets(folder, shared=shared), sort_keys=False), nl=False)
    elif not made:
        click.echo("nothing was missing")


@click.command("shred")
@click.argument("namespace")
@registry_option
@tls_option
@click.option("--why", default="", help="Why; it is kept.")
@click.option("--after", type=Number(min=0), help="Hours until it is done; the registry's setting.")
@click.option("--uid", default="", help="Only of the namespace of this name with this UID.")
@click.option("--keep", is_flag=True, help="Take it back, where it isn't done yet.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@as_json_option
def shred(namespace: str, registry: str, tls: Path, **options: Any) -> None:
    """Destroy the keys of NAMESPACE: nobody opens again what was packed of it, wherever it lies.

    The registry does so by itself some time after a namespace was deleted. What lies raw on nodes
    goes with its pods; what releases before 0.2.0 packed is not covered, use rm for that.
    """
    from kybernate.adapters.registry.client import Registry  # noqa: PLC0415 - slow
    from kybernate.adapters.registry.keywire import ShredWish  # noqa: PLC0415 - slow

    if not registry:
        raise ConfigError("--registry", "name the registry, such as https://host:9446")
    if not (options["why"] or options["keep"] or options["dry_run"]):
        raise ConfigError("--why", "say why; it is kept beside what is left of the keys")
    hours = options["after"]
    try:
        wish = ShredWish(
            why=options["why"] or "asked by a person",
            uid=options["uid"] or None,
            seconds=None if hours is None else hours * 3600,
            cancel=options["keep"],
            dry_run=options["dry_run"],
        )
    except ValidationError as error:
        (first, *_) = error.errors()
        option = {"seconds": "--after"}.get(str(first["loc"][0]), f"--{first['loc'][0]}")
        raise ConfigError(option, first["msg"]) from error
    found = Registry(registry, tls, "controller").shred(namespace, wish)
    if options["as_json"]:
        click.echo(found.model_dump_json(indent=2))
        return
    console().print(artifacts_view.keys(found, datetime.now(UTC)))
    if options["dry_run"]:
        click.echo("Nothing was changed; leave --dry-run out to do it.")


def opening(folder: Path, options: Mapping[str, Any]) -> ArtifactKeys:
    """The keys of the folder, and those of namespaces by the registry, if it is named. Raises
    ConfigError."""
    own = artifactkeys.read_folder(folder)
    if not options["registry"]:
        return own
    from kybernate.adapters.registry.client import Registry  # noqa: PLC0415 - slow
    from kybernate.adapters.registry.nodekeys import Asker, NodeKeys  # noqa: PLC0415 - slow

    client = Registry(options["registry"], options["tls"], "controller")
    files = own.kms if isinstance(own.kms, artifactkeys.WrapKeys) and own.kms.newest else None
    given = NodeKeys(
        lambda: client, lambda _: (Asker("", ""),), lambda key: artifactkeys.WrapKeys((key,)), files
    )
    return replace(own, kms=given)


def _secrets(folder: Path, *, shared: bool) -> list[dict[str, Any]]:
    """What agents mount, and what the registry alone mounts."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".key", ".pub"))
    public = [path for path in files if path.suffix == ".pub"]
    authorities = sorted(folder.glob("*.crt"))
    named = {
        "kyb-artifact-keys": files if shared else public,
        "kyb-artifact-trust": [*public, *authorities],
        "kyb-wrap-keys": [path for path in files if path.name.startswith("wrap-")],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": keys_of.NAMESPACE},
            "type": "Opaque",
            "data": {path.name: base64.b64encode(path.read_bytes()).decode() for path in some},
        }
        for name, some in named.items()
    ]
