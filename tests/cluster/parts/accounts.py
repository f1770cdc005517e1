"""Objects of ours in the API server: config/ is applied, and accounts get tokens."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from kybernate import keys
from kybernate.errors import KybernateError, NotFoundError, RetryableError
from tests.cluster.layout import REPOSITORY
from tests.cluster.parts import manifests, pki

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from tests.cluster.layout import Layout
    from tests.cluster.spec import ClusterSpec, Ports

TOKEN_SECONDS = 30 * 24 * 3600
"""Tokens outlive a cluster that is left up."""

APPLY_LIMIT = 60.0
"""Seconds that one kubectl call may take."""


def render(kubectl: Path, spec: ClusterSpec, layout: Layout, ports: Ports) -> str:
    """The objects of the spec's kustomize folder, fitted to this cluster."""
    rendered = _kubectl(kubectl, "kustomize", str(spec.overlay))
    return manifests.fitted(rendered, spec, layout, ports)


def apply(kubectl: Path, layout: Layout, objects: str) -> None:
    """Applies objects. Raises KybernateError with what kubectl said."""
    arguments = ("apply", "--server-side", "--field-manager=one-machine", "-f", "-")
    access = (f"--kubeconfig={layout.kubeconfig('admin')}", f"--cache-dir={layout.kubectl_cache}")
    _kubectl(kubectl, *arguments, *access, text=objects)


def mutual_tls(layout: Layout, nodes: Sequence[str], tree: Path = REPOSITORY) -> None:
    """The certificates between our services, by the product's own command."""
    argv = [sys.executable, "-m", "kybernate.cli", "pki", "init", "--dir", str(layout.tls)]
    for node in nodes:
        argv += ["--node", node]
    run = subprocess.run(
        argv, cwd=tree, capture_output=True, text=True, timeout=APPLY_LIMIT, check=False
    )
    if run.returncode:
        raise KybernateError(f"`kybernate pki init` failed: {run.stderr.strip()}")


def write_kubeconfigs(
    api: Api, accounts: Sequence[str], layout: Layout, server: str, limit: float = 15.0
) -> None:
    """A kubeconfig with a token for each service account kyb-<name>."""
    for account in accounts:
        user = {"token": token(api, account, limit)}
        text = pki.kubeconfig(server, layout.pki / "ca.crt", user)
        write_secret(layout.kubeconfig(account), text)


def write_secret(path: Path, text: str) -> None:
    """A file that only root reads."""
    path.touch(mode=0o600)
    path.write_text(text)


def token(api: Api, account: str, limit: float = 15.0) -> str:
    """A token of service account kyb-<account>, waiting up to `limit` seconds until it exists."""
    path = f"/api/v1/namespaces/{keys.NAMESPACE}/serviceaccounts/kyb-{account}/token"
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    }
    deadline = time.monotonic() + limit
    while True:
        try:
            issued: str = api.post(path, request)["status"]["token"]
        except (NotFoundError, RetryableError) as error:
            if time.monotonic() > deadline:
                raise KybernateError(
                    f"service account kyb-{account} has no token: {error}"
                ) from error
            time.sleep(0.1)
        else:
            return issued


def _kubectl(kubectl: Path, *arguments: str, text: str | None = None) -> str:
    run = subprocess.run(
        [str(kubectl), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=APPLY_LIMIT,
        check=False,
    )
    if run.returncode:
        shown = " ".join(arguments[:2])
        raise KybernateError(f"kubectl {shown} failed: {run.stderr.strip()}")
    return run.stdout
