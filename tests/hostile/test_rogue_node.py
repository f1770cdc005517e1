"""What a node in an attacker's hands tries with all that it holds, at a real API server, registry
and agent, over real mutual TLS."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.registry import wire
from kybernate.errors import ConflictError, DeadlineError, NotFoundError, RefusedError
from kybernate.types import Tier
from tests.integration.webhook.conftest import until
from tests.kit.registryserver import Server, certificates
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.registry.client import Registry
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.hostile

# Where our webhook isn't asked, which places no pod by hand.
NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WISH = wire.LeaseWish(seconds=30)
STORE = wire.Spot(place=Tier.OBJECT, store="s3://states")
STOPPED = wire.Stop(proof=wire.Proof.AGENT, why="ended")
A, B = "rogue-a", "rogue-b"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the cluster's own authority."""
    return certificates(tmp_path_factory.mktemp("tls"), [A, B])


@pytest.fixture(scope="module")
def registry(
    control_plane: Cluster, tls: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A registry that holds what agents say against the API server."""
    folder = tmp_path_factory.mktemp("registry")
    access = str(control_plane.layout.kubeconfig("registry"))
    made = Server(
        tls,
        folder / "registry.log",
        f"sqlite:///{folder}/registry.db",
        CLUSTER="kubernetes",
        KUBECONFIG=access,
    )
    made.start()
    made.client().settle("new")
    yield made
    made.kill()
    assert "Traceback" not in made.log


@pytest.fixture
def place(control_plane: Cluster) -> Iterator[Callable[..., tuple[str, str]]]:
    """Makes a managed pod on a node: its name and UID."""
    api, made = control_plane.api(), list[str]()
    with contextlib.suppress(ConflictError):
        api.post(PODS.replace("pods", "serviceaccounts"), {"metadata": {"name": "default"}})

    def create(node: str, **notes: str) -> tuple[str, str]:
        with contextlib.suppress(ConflictError):
            api.post("/api/v1/nodes", {"metadata": {"name": node}})
        name = f"rogue-{time.monotonic_ns()}"
        metadata: dict[str, Any] = {"name": name, "labels": {keys.MANAGED_LABEL: "true"}}
        metadata["annotations"] = {
            f"kyb.ai/{key.replace('_', '-')}": note for key, note in notes.items()
        }
        spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": node}
        found = api.post(PODS, {"metadata": metadata, "spec": spec})
        made.append(name)
        return name, found["metadata"]["uid"]

    yield create
    for name in made:
        with contextlib.suppress(NotFoundError):
            api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def body(node: str, token: int, pod: tuple[str, str], /, **held: Any) -> wire.Recording:
    said = recording(node, token, pod=pod[0], pod_uid=pod[1], held=held)
    return wire.Recording.model_validate_json(json.dumps(said))


def saved(agent: Registry, node: str, pod: tuple[str, str]) -> str:
    """The pod's agent has saved a state in the object store."""
    held = agent.lease((NAMESPACE, pod[1]), WISH)
    artifact = f"{NAMESPACE}/{name_of(1, pod[0])}"
    agent.record(artifact, body(node, held.token, pod, **wire.as_json(STORE)))
    return artifact


def test_it_takes_no_lease_and_stops_nothing_of_another_nodes(
    registry: Server, place: Callable[..., tuple[str, str]]
) -> None:
    theirs, rogue, other = place(B), registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    # Also of one that the watch has not seen yet, and of one that nobody has.
    for uid in (theirs[1], "00000000-aaaa-bbbb-cccc-000000000000"):
        for runs in (True, False):
            with pytest.raises(RefusedError, match=f"agent of node {A} can't speak for pod"):
                rogue.lease((NAMESPACE, uid), wire.LeaseWish(seconds=5, runs=runs))
    with pytest.raises(RefusedError, match=f"which is on node {B}"):
        rogue.stopped(NAMESPACE, theirs[1], STOPPED)
    assert other.lease((NAMESPACE, theirs[1]), WISH).holder == B
    with pytest.raises(RefusedError, match=f"which is on node {B}"):
        rogue.stopped(NAMESPACE, theirs[1], STOPPED)
    assert other.stopped(NAMESPACE, theirs[1], STOPPED).stopped_by == B


def test_it_records_reports_and_drops_nothing_of_another_nodes(
    registry: Server, place: Callable[..., tuple[str, str]]
) -> None:
    theirs, own = place(B), place(A)
    rogue, other = registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    artifact = saved(other, B, theirs)
    token = other.lease((NAMESPACE, theirs[1]), WISH).token
    made = f"{NAMESPACE}/{name_of(2, theirs[0])}"
    with pytest.raises(RefusedError, match="can't speak for pod"):
        rogue.record(made, body(A, token, theirs))
    # Nor as a state of its own pod that calls itself the other.
    mine = rogue.lease((NAMESPACE, own[1]), WISH).token
    with pytest.raises(RefusedError, match="is called"):
        rogue.record(made, body(A, mine, (theirs[0], own[1])))
    digest = other.get(artifact).digest
    for spot in (STORE, wire.Spot(place=Tier.NVME, node=A)):
        copy = wire.Copy(**spot.model_dump(), state=wire.CopyState.VERIFIED)
        with pytest.raises(RefusedError, match="can't speak for pod"):
            rogue.report(artifact, wire.CopyReport(digest=digest, held=copy))
    with pytest.raises(RefusedError, match="can't speak for pod"):
        rogue.drop(artifact, STORE, "nobody needs it")
    assert [copy.place for copy in other.get(artifact).copies] == [Tier.OBJECT]


def test_it_claims_only_for_a_pod_of_its_own_that_asks_for_that_state(
    registry: Server, place: Callable[..., tuple[str, str]], control_plane: Cluster
) -> None:
    theirs = place(B)
    rogue, other = registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    artifact = saved(other, B, theirs)
    other.stopped(NAMESPACE, theirs[1], STOPPED)

    def claim(agent: Registry, node: str, successor: str) -> wire.Pod:
        wanted = wire.Claim(artifact=artifact, successor=successor, node=node)
        return agent.claim(NAMESPACE, theirs[1], wanted)

    true = place(B, restore_from=f"pod/{theirs[1]}")
    with pytest.raises(RefusedError, match=f"which is on node {B}"):
        claim(rogue, A, true[1])
    with pytest.raises(RefusedError, match="does not ask for the state"):
        claim(rogue, A, place(A)[1])
    # Nor can its account make a pod ask.
    mine = place(A)
    change = {"metadata": {"annotations": {keys.RESTORE_FROM: f"pod/{theirs[1]}"}}}
    with pytest.raises(RefusedError, match="change nothing of a pod"):
        control_plane.api("agent").patch(f"{PODS}/{mine[0]}", change)
    assert claim(other, B, true[1]).successor == true[1]


def test_a_pod_that_was_deleted_stays_its_nodes(
    registry: Server, place: Callable[..., tuple[str, str]], control_plane: Cluster
) -> None:
    theirs = place(B)
    rogue, other = registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    other.lease((NAMESPACE, theirs[1]), WISH)
    control_plane.api().delete(f"{PODS}/{theirs[0]}", {"gracePeriodSeconds": 0})
    until(lambda: not _there(control_plane, theirs[0]), "the pod is there still")
    with pytest.raises(RefusedError, match="can't speak for pod"):
        rogue.lease((NAMESPACE, theirs[1]), WISH)
    assert other.stopped(NAMESPACE, theirs[1], STOPPED).stopped_by == B


def test_a_registry_that_can_not_ask_refuses_nobody_for_good(
    control_plane: Cluster,
    tls: Path,
    tmp_path: Path,
    place: Callable[..., tuple[str, str]],
) -> None:
    theirs, path = place(B), tmp_path / "kubeconfig"
    text = control_plane.layout.kubeconfig("registry").read_text()
    path.write_text(text.replace(control_plane.server, "https://127.0.0.1:1"))
    database = f"sqlite:///{tmp_path}/registry.db"
    settings = {"CLUSTER": "kubernetes", "KUBECONFIG": str(path)}
    server = Server(tls, tmp_path / "registry.log", database, **settings)
    server.start()
    try:
        with pytest.raises(DeadlineError, match="API server can't be asked now"):
            server.client(f"agent-{B}").lease((NAMESPACE, theirs[1]), WISH, 2.0)
    finally:
        server.kill()


def _there(cluster: Cluster, name: str) -> bool:
    with contextlib.suppress(NotFoundError):
        return bool(cluster.api().get(f"{PODS}/{name}"))
    return False
