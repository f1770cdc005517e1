"""The controller as a process beside a real API server, and a node's agent that a test leads."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.k8s import Api
from kybernate.errors import ConflictError, NotFoundError, RetryableError
from tests.cluster.parts import accounts, pki
from tests.cluster.start import readiness
from tests.kit.pods import take_away
from tests.kit.servers.agentdoor import Door, serve
from tests.kit.servers.controllerserver import Controller
from tests.kit.servers.registryserver import Server
from tests.kit.servers.webhookserver import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster

NAMESPACE = "requests"
NODE = "n1"
REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/checkpointrequests"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LIMIT_S = 30.0


# The controller acts on all of them in all namespaces, and tests name theirs alike.
ACTED_ON = (
    keys.CHECKPOINT_REQUESTS_PATH,
    keys.RESTORE_REQUESTS_PATH,
    keys.REBALANCE_REQUESTS_PATH,
    keys.CHECKPOINT_POLICIES_PATH,
    keys.SNAPSHOT_TEMPLATES_PATH,
    keys.SHARES_PATH,
    keys.TIER_PLACEMENTS_PATH,
    keys.ARTIFACTS_PATH,
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/events",
)


@pytest.fixture(autouse=True)
def alone(control_plane: Cluster) -> None:
    """Takes away what tests of other folders left on this control plane."""
    api = control_plane.api()

    def served(path: str) -> bool:
        # Who has just renewed the CRDs has the API server make their storage anew.
        with contextlib.suppress(RetryableError):
            return bool(api.get(path))
        return False

    for path in ACTED_ON:
        until(partial(served, path), f"{path} is not served", LIMIT_S)
        take_away(api, path)


@pytest.fixture(scope="session")
def namespace(control_plane: Cluster) -> str:
    """With the account that pods get; no controller is there to make it."""
    api = control_plane.api()
    for path, name in (("", NAMESPACE), (f"/{NAMESPACE}/serviceaccounts", "default")):
        with contextlib.suppress(ConflictError):
            api.post(f"/api/v1/namespaces{path}", {"metadata": {"name": name}})
    return NAMESPACE


@pytest.fixture
def door(control_plane: Cluster) -> Iterator[Door]:
    """The agent of n1, which its GPUNode leads to."""
    found = Door()
    server, port = serve(found, control_plane.layout.tls, NODE)
    api, path = control_plane.api("agent"), f"{keys.GPU_NODES_PATH}/{NODE}"
    body = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
    with contextlib.suppress(ConflictError):
        api.post(keys.GPU_NODES_PATH, {**body, "metadata": {"name": NODE}})
    agent = {"address": f"127.0.0.1:{port}", "version": "0"}
    api.patch(f"{path}/status", {"status": {"observedGeneration": 1, "agent": agent}})
    yield found
    server.stop(None).wait()
    control_plane.api().delete(path)


@pytest.fixture
def controllers(
    control_plane: Cluster, tmp_path: Path, namespace: str, webhook: object
) -> Iterator[Callable[..., Controller]]:
    """Makes replicas, each with a port of its own."""
    made: list[Controller] = []

    def make(lease: str = "") -> Controller:
        port = control_plane.ports.controller if not made else control_plane.ports.proxy
        made.append(Controller(control_plane, tmp_path, port, lease))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def controller(controllers: Callable[..., Controller], door: Door) -> Controller:
    """One that runs."""
    return controllers().start()


@pytest.fixture
def seated(control_plane: Cluster, namespace: str, door: Door) -> Iterator[Callable[[str], str]]:
    """Makes pods with a seat on n1; the answer is the UID."""
    api, names = control_plane.api(), []

    def make(name: str = "a") -> str:
        made = pod(name, {keys.seat_resource(1): "1", "memory": "1Gi"})
        made["metadata"]["labels"] = {keys.MANAGED_LABEL: "true"}
        made["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
        made["spec"]["containers"][0]["args"] = ["serve"]
        uid: str = api.post(PODS, made)["metadata"]["uid"]
        names.append(name)
        notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        target = {"kind": "Node", "name": NODE}
        bound = {"metadata": {"name": name, "annotations": notes}, "target": target}
        control_plane.api("extender").post(f"{PODS}/{name}/binding", bound)
        door.seats.add(uid)
        return uid

    yield make
    for name in names:
        with contextlib.suppress(NotFoundError):
            api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def pod(name: str, limits: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod that no scheduler looks at: none runs here."""
    container = {"name": "c", "image": "x", "resources": {"limits": limits or {}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def request(name: str, mode: str = "Snapshot", of: str = "a", **spec: Any) -> dict[str, Any]:
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.CHECKPOINT_REQUEST_KIND}
    return {**kind, "metadata": {"name": name}, "spec": {"pod": of, "mode": mode, **spec}}


def complete(item: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of its condition."""
    found = (item.get("status") or {}).get("conditions") or [{"status": "", "reason": ""}]
    return found[0]["status"], found[0]["reason"]


@pytest.fixture
def users(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> Iterator[Callable[[str, list[dict[str, Any]]], Api]]:
    """Makes users of the namespace, with these rules, for one test."""
    admin, rbac = control_plane.api(), "/apis/rbac.authorization.k8s.io/v1/namespaces"
    known: list[str] = []

    def make(name: str, rules: list[dict[str, Any]]) -> Api:
        known.append(name)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        made = admin.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}}
        )
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{made['metadata']['name']}/token"
        token = admin.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        meta = {"name": name}
        admin.post(f"{rbac}/{namespace}/roles", {"metadata": meta, "rules": rules})
        binding = {"metadata": meta, "subjects": [subject], "roleRef": reference}
        admin.post(f"{rbac}/{namespace}/rolebindings", binding)
        readiness.rights(admin, f"system:serviceaccount:{namespace}:{name}", rules, namespace)
        file = tmp_path / f"{name}.conf"
        authority = control_plane.layout.pki / "ca.crt"
        accounts.write_secret(
            file, pki.kubeconfig(control_plane.server, authority, {"token": token})
        )
        return Api(file, name)

    yield make
    for name in known:
        admin.delete(f"{rbac}/{namespace}/rolebindings/{name}")
        admin.delete(f"{rbac}/{namespace}/roles/{name}")
        admin.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")


@pytest.fixture
def server(control_plane: Cluster, tmp_path: Path) -> Iterator[Server]:
    found = Server(
        control_plane.layout.tls, tmp_path / "registry.log", f"sqlite:///{tmp_path}/registry.db"
    )
    found.start()
    yield found
    found.stop()


@pytest.fixture
def projecting(
    control_plane: Cluster, tmp_path: Path, namespace: str, webhook: object, server: Server
) -> Iterator[Controller]:
    made = Controller(
        control_plane,
        tmp_path,
        control_plane.ports.controller,
        registry_url=server.url,
        artifacts_s="1",
        artifacts_shown="5",
    )
    yield made.start()
    made.kill()
