"""`config/below-ram` on a test cluster, put together as docs/how-to/install/offload.md has it put
together."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from images import criu
from images.recipes import CRIU
from kybernate import keys
from tests.cluster.layout import REPOSITORY
from tests.cluster.spec import OVERLAY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cluster.layout import Progress

COMPONENT = REPOSITORY / "config" / "below-ram"
_LIMITS = "SYS_RESOURCE"


@dataclass(frozen=True, slots=True)
class BelowRam:
    """The folder of an overlay that `made` has filled: keys, and where states lie."""

    folder: Path

    @property
    def keys(self) -> Path:
        """The keys of saved states."""
        return self.folder / "keys"

    @property
    def nvme(self) -> Path:
        """What the agents have for NVMe."""
        return self.folder / "nvme"

    @property
    def overlay(self) -> Path:
        """The folder to apply."""
        return self.folder / "overlay"


def made(folder: Path, store: Mapping[str, str], progress: Progress) -> BelowRam:
    """An overlay with Secrets for the keys and for `store`, the object store's settings.

    A machine that may not grant SYS_RESOURCE gets the CRIU that does without. Raises
    KybernateError if there is no CRIU.
    """
    found = BelowRam(folder)
    for path in (found.keys, found.nvme, found.overlay):
        path.mkdir(parents=True)
    (found.overlay / "keys.yaml").write_text(key_secret(found.keys))
    (found.overlay / "store.yaml").write_text(store_secret(store))
    patches = [_pointed_to(found.nvme), *_without_limits(criu.for_this_machine(progress))]
    text = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(OVERLAY, found.overlay), "keys.yaml", "store.yaml"],
        "components": [os.path.relpath(COMPONENT, found.overlay)],
        "patches": [{"patch": yaml.safe_dump(_agent(**patch))} for patch in patches],
    }
    (found.overlay / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return found


def key_secret(folder: Path) -> str:
    """The keys, made in the folder, as the Secret that agents mount.

    Shared ones: in these clusters no registry hands out the keys of namespaces.
    """
    words = [sys.executable, "-m", "kybernate.cli", "artifacts", "keys", "--secret", "--shared"]
    words.append("--dir")
    done = subprocess.run(
        [*words, str(folder)], check=True, cwd=REPOSITORY, timeout=60, capture_output=True
    )
    return done.stdout.decode()


def store_secret(store: Mapping[str, str]) -> str:
    """The object store's settings as the Secret that agents read."""
    metadata = {"name": "kyb-object-store", "namespace": keys.NAMESPACE}
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    return yaml.safe_dump({**head, "stringData": dict(store)})


def _pointed_to(nvme: Path) -> dict[str, Any]:
    volume = {"name": "nvme", "hostPath": {"path": str(nvme)}}
    # No node of a test cluster has the registry's name.
    variable = {"name": "KYB_AGENT_REGISTRY_URL", "value": ""}
    # Nodes of a test cluster share the machine's disk; each has a folder of its own.
    own = {"subPathExpr": "$(KYB_AGENT_NODE)"}
    mount = {"name": "nvme", "mountPath": "/var/lib/kyb-nvme", **own}
    return {"volumes": [volume], "container": {"env": [variable], "volumeMounts": [mount]}}


def _without_limits(program: Path) -> list[dict[str, Any]]:
    if program == criu.ensure(print).product:
        return []
    patch = yaml.safe_load((COMPONENT / "agent.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    rights = container["securityContext"]["capabilities"]
    rights["add"].remove(_LIMITS)
    volume = {"name": "criu", "hostPath": {"path": str(program), "type": "File"}}
    mount = {"name": "criu", "mountPath": f"/{CRIU}", "readOnly": True}
    own = {"securityContext": {"capabilities": rights}, "volumeMounts": [mount]}
    return [{"volumes": [volume], "container": own}]


def _agent(volumes: list[dict[str, Any]], container: dict[str, Any]) -> dict[str, Any]:
    """A patch of the agent's DaemonSet."""
    pod = {"containers": [{"name": "agent", **container}], "volumes": volumes}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kyb-agent", "namespace": keys.NAMESPACE},
        "spec": {"template": {"spec": pod}},
    }
