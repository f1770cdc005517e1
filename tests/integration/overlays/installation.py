"""An installation by the pages of docs/how-to, line by line, on a real API server with Kubernetes'
own controllers. A thread stands in for the kubelet: the pods themselves run in tests/e2e/rollout.
A conftest.py imports the fixtures; each file of tests has an installation of its own."""

from __future__ import annotations

import base64
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.rollouts import Rollouts
from tests.kit.servers.registryserver import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster

NODE = "gpu-1"
SYSTEM = f"/api/v1/namespaces/{keys.NAMESPACE}"
AGENT = "kyb-agent"
_HANGS_S = 60.0
"""Kubernetes' own cleanup of a definition of objects that is seconds old may miss what it wrote
itself, and looks again after five minutes, or once it is deleted again: apiextensions' finalizer
takes a conflict for news, and a change of its condition alone for none."""
LOOP = "for name in extender scheduler proxy registry controller"


@pytest.fixture(scope="module")
def reader(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """Somebody with a clone's config/ and a folder of the own overlay."""
    return Kubectl(bare.kubectl_path, tmp_path_factory.mktemp("reader"), bare.kubeconfig)


@contextmanager
def rolled(bare: Cluster) -> Iterator[None]:
    """On one node, whose kubelet is stood in for."""
    api = bare.api()
    nvidia = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    api.post("/apis/node.k8s.io/v1/runtimeclasses", nvidia)
    api.post("/api/v1/nodes", {"metadata": {"name": NODE}})
    with Rollouts(api, keys.NAMESPACE, NODE):
        yield
    api.delete(f"/api/v1/nodes/{NODE}")
    api.delete("/apis/node.k8s.io/v1/runtimeclasses/nvidia")


@pytest.fixture(scope="module")
def installed(bare: Cluster, reader: Kubectl) -> Iterator[None]:
    """As docs/how-to/install/install.md has it, and removed as remove.md has."""
    names = {"registry": "registry.example", "upstream": "upstream.example"}
    page = Page("install", reader, **names)
    (reader.folder / "OVERLAY").mkdir()
    overlay = page.manifest("apiVersion: kustomize")
    (reader.folder / "OVERLAY" / "kustomization.yaml").write_text(overlay)
    with rolled(bare), page:
        page("kubectl apply -f config/rbac/namespace.yaml")
        page("kybernate pki init")
        page("kubectl -n kyb-system create secret generic kyb-agent-tls")
        page(LOOP)
        page("kybernate pki secret --agents")
        page("kubectl apply --server-side -k OVERLAY")
        page("kubectl label node gpu-1")
        for name in ("scheduler", "webhook", "proxy"):
            page(f"kubectl -n kyb-system rollout status deploy/kyb-{name}")
        page("kubectl -n kyb-system rollout status ds/kyb-agent")
        page("kubectl -n kyb-system rollout status ds/kyb-device-plugin")
        page("kubectl get gpunodes")
        page("kubectl get node gpu-1")
        yield
        if left(bare):
            remove(bare, Page("remove", reader))


def remove(bare: Cluster, page: Page) -> None:
    """What the page has for the cluster; nothing may be there for that any more."""
    page("kubectl delete pods")
    page("kubectl label node --all")
    page("kubectl -n kyb-system wait --for=delete pod")
    assert agents(bare) == [], "they would see the objects go that say what is pinned"
    try:
        page("kubectl delete -k OVERLAY", limit=_HANGS_S)
    except TimeoutExpired:
        page("kubectl delete -k OVERLAY")
    assert left(bare) == []


def agents(bare: Cluster) -> list[str]:
    """Their pods, ended or not."""
    label = f"app.kubernetes.io/name={AGENT}"
    found = bare.kubectl("-n", keys.NAMESPACE, "get", "pods", "-l", label, "-o", "name")
    return found.split()


def left(bare: Cluster) -> list[str]:
    """What is still there of ours."""
    kinds = "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,priorityclass,namespace"
    hooks = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    said = bare.kubectl("get", f"{kinds},{hooks}", "-o", "name")
    return [one for one in said.split() if "kyb" in one]


def keyed(reader: Kubectl) -> None:
    """There are keys of artifacts, as docs/how-to/install/offload.md makes them."""
    page = Page("offload", reader)
    page("mkdir -p -m 700 keys")
    page("cp pki/ca.crt pki/agents-ca.crt")
    page("kybernate artifacts keys")


def laid(bare: Cluster, name: str, into: Path) -> None:
    """What a Secret has, as the kubelet lays it: each file whole."""
    secret = bare.api().get(f"{SYSTEM}/secrets/kyb-{name}")["data"]
    into.mkdir(exist_ok=True)
    for file, text in secret.items():
        beside = into / f".{file}"
        beside.write_bytes(base64.b64decode(text))
        beside.replace(into / file)


@contextmanager
def begun(bare: Cluster, folder: Path, **more: str) -> Iterator[Server]:
    """A registry by what the Secrets hold, which `folder` gets, the controller's too; its database
    lies beside that folder."""
    for name in ("registry-tls", "controller-tls"):
        laid(bare, name, folder)
    with suppress(NotFoundError):
        laid(bare, "wrap-keys", folder / "wrap-keys")
    wraps = str(folder / "wrap-keys")
    url = f"sqlite:///{folder.parent}/registry.db"
    server = Server(folder, folder / "log", url, WRAP_KEYS=wraps, **more)
    server.start()
    try:
        yield server
    finally:
        server.kill()
