"""What a node in an attacker's hands tries with all that it holds, at a real API server, registry
and agent, over real mutual TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.processes import free_port
from kybernate import keys
from kybernate.adapters.pki import AGENTS, Folder, Leaf, issue
from kybernate.adapters.pki.requests import CSRS, make_request
from kybernate.adapters.registry import wire
from kybernate.cli import main
from kybernate.errors import (
    ConflictError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.runtime.identity import Identity
from kybernate.runtime.revocations import Revocations
from kybernate.types import Tier
from nodeagent.api.guests import Guests
from tests.integration.hooks import until
from tests.integration.registry.identities import asks, certified, door, handover, services, tokens
from tests.kit.clients.kubectl import Kubectl
from tests.kit.howto import Page
from tests.kit.servers.registryserver import Server, certificates
from tests.unit.registry.replica import name_of, recording

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from kybernate.adapters.k8s import Api
    from kybernate.adapters.registry.client import Registry
    from tests.cluster.cluster import Cluster

__all__ = ["services", "tokens"]
pytestmark = pytest.mark.hostile

# Where our webhook isn't asked, which places no pod by hand.
NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WISH = wire.LeaseWish(seconds=30)
STORE = wire.Spot(place=Tier.OBJECT, store="s3://states")
STOPPED = wire.Stop(proof=wire.Proof.AGENT, why="ended")
A, B, C, D = "rogue-a", "rogue-b", "rogue-c", "rogue-d"
KUBELET = "n1"
"""The node whose kubelet's credential a test has."""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the cluster's own authority."""
    return certificates(tmp_path_factory.mktemp("tls"), [A, B, KUBELET])


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
        SIGNER_DIR=str(tls),
    )
    made.start()
    made.client().settle("new")
    yield made
    made.kill()
    assert "Traceback" not in made.log


@pytest.fixture
def place(control_plane: Cluster) -> Iterator[Callable[..., tuple[str, str]]]:
    """Has a managed pod placed on a node, as the extender does: its name and UID."""
    extender = control_plane.api("extender")
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
        spec = {"containers": [{"name": "c", "image": "x"}], "schedulerName": "nobody"}
        found = api.post(PODS, {"metadata": metadata, "spec": spec})
        made.append(name)
        stamp = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        binding = {"metadata": {"name": name, "annotations": stamp}}
        target = {"kind": "Node", "name": node}
        extender.post(f"{PODS}/{name}/binding", {**binding, "target": target})
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
    # Two policies forbid it, and either may be the one that is told.
    with pytest.raises(RefusedError, match=r"change nothing of a pod|may not restore it"):
        control_plane.api("agent").patch(f"{PODS}/{mine[0]}", change)
    assert claim(other, B, true[1]).successor == true[1]


def test_it_ends_no_claim_of_a_pod_on_another_node(
    registry: Server, place: Callable[..., tuple[str, str]]
) -> None:
    """Nor where its own pod's state was claimed: the successor may have continued since."""
    mine, elsewhere = place(A), place(B)
    rogue, other = registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    for pod, agent, node in ((mine, rogue, A), (elsewhere, other, B)):
        artifact, uid = saved(agent, node, pod), pod[1]
        agent.stopped(NAMESPACE, uid, STOPPED)
        successor = place(B, restore_from=f"pod/{uid}")[1]
        wanted = wire.Claim(artifact=artifact, successor=successor, node=B)
        other.claim(NAMESPACE, uid, wanted)
        for told in (False, True):
            if told:
                other.stopped(NAMESPACE, successor, STOPPED)
            with pytest.raises(RefusedError):
                rogue.release(NAMESPACE, uid, successor)
        assert other.pod(NAMESPACE, uid).successor == successor


def mirror(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """What the kubelet of a node posts for a file in its folder of static pods."""
    api, name = cluster.api(), f"static-{time.monotonic_ns()}"
    with contextlib.suppress(ConflictError):
        api.post("/api/v1/nodes", {"metadata": {"name": KUBELET}})
    uid = api.get(f"/api/v1/nodes/{KUBELET}")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": KUBELET, "uid": uid, "controller": True}
    notes = {"kubernetes.io/config.mirror": "0", **more.pop("annotations", {})}
    metadata = {"name": name, "annotations": notes, "ownerReferences": [owner], **more}
    spec = {"containers": [{"name": "c", "image": "x"}], "nodeName": KUBELET}
    return {"metadata": metadata, "spec": spec}


def test_a_pod_that_its_kubelet_made_opens_no_namespace(
    registry: Server, place: Callable[..., tuple[str, str]], control_plane: Cluster
) -> None:
    """It names any namespace, and its own node: neither a lease nor a claim comes of it."""
    theirs = place(B)
    rogue, other = registry.client(f"agent-{KUBELET}"), registry.client(f"agent-{B}")
    artifact = saved(other, B, theirs)
    other.stopped(NAMESPACE, theirs[1], STOPPED)
    kubelet, admin = control_plane.api(f"node-{KUBELET}"), control_plane.api()
    asking = {"annotations": {keys.RESTORE_FROM: f"pod/{theirs[1]}"}}
    plain = kubelet.post(PODS, mirror(control_plane))["metadata"]
    # As it was before the policy kyb-kubelet-accounts, or where that is not installed.
    labels = {keys.MANAGED_LABEL: "true"}
    before = admin.post(PODS, mirror(control_plane, labels=labels, **asking))["metadata"]
    try:
        for uid in (plain["uid"], before["uid"]):
            for runs in (True, False):
                with pytest.raises(RefusedError, match="the extender has not placed"):
                    rogue.lease((NAMESPACE, uid), wire.LeaseWish(seconds=5, runs=runs))
            wanted = wire.Claim(artifact=artifact, successor=uid, node=KUBELET)
            with pytest.raises(RefusedError, match="the extender has not placed"):
                rogue.claim(NAMESPACE, theirs[1], wanted)
    finally:
        for one in (plain, before):
            admin.delete(f"{PODS}/{one['name']}", {"gracePeriodSeconds": 0})


def test_its_kubelet_makes_no_pod_with_anything_of_ours(control_plane: Cluster) -> None:
    kubelet = control_plane.api(f"node-{KUBELET}")
    group = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
    for more, why in (
        ({"labels": {keys.MANAGED_LABEL: "true"}}, "may not write the label"),
        # Two policies forbid it, and either may be the one that is told.
        ({"annotations": {keys.RESTORE_FROM: "pod/x"}}, "may not (write the ann|restore it)"),
        ({"annotations": {keys.MODEL: "theirs"}}, "may not write the annotations"),
        ({"annotations": group}, "by the Kybernate extender"),
    ):
        with pytest.raises(RefusedError, match=why):
            kubelet.post(PODS, mirror(control_plane, **more))


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
        with pytest.raises(DeadlineError, match="isn't known yet"):
            server.client(f"agent-{B}").lease((NAMESPACE, theirs[1]), WISH, 2.0)
    finally:
        server.kill()


def _there(cluster: Cluster, name: str) -> bool:
    with contextlib.suppress(NotFoundError):
        return bool(cluster.api().get(f"{PODS}/{name}"))
    return False


# --- keys of each node's own --------------------------------------------------------------------


def client(registry: Server, identity: Identity) -> Registry:
    """The registry as the agent with this identity calls it."""
    made = registry.client("controller")
    made.show(*identity.files())
    return made


def requested(api: Api, wanted: dict[str, Any]) -> dict[str, Any]:
    """What became of a CertificateSigningRequest."""
    api.post(CSRS, wanted)
    found: dict[str, Any] = {}

    def answered() -> bool:
        found.update(api.get(f"{CSRS}/{wanted['metadata']['name']}").get("status") or {})
        return bool(found)

    until(answered, "nobody answered the request")
    return found


def test_a_node_gets_a_certificate_for_its_own_key(
    registry: Server,
    tokens: Callable[[str], Api],
    services: Path,
    tmp_path: Path,
    place: Callable[..., tuple[str, str]],
) -> None:
    own, theirs = place(A), place(B)
    with certified(A, services, tmp_path / "identity", tokens(A)) as identity:
        assert stat.S_IMODE((tmp_path / "identity").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "identity" / "agent.pem").stat().st_mode) == 0o600
        agent = client(registry, identity)
        assert agent.lease((NAMESPACE, own[1]), WISH).holder == A
        with pytest.raises(RefusedError, match=f"which is on node {B}"):
            agent.lease((NAMESPACE, theirs[1]), WISH)


def rewritten(node: str, *names: str, common: str = "") -> dict[str, Any]:
    """A request of this node's key that asks for other names."""
    key = ec.generate_private_key(ec.SECP256R1())
    wanted = make_request(node, key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common or names[0])])
    alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = builder.add_extension(alternative, critical=False).sign(key, hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM)
    wanted["spec"]["request"] = base64.b64encode(pem).decode()
    return wanted


def test_no_node_gets_a_certificate_for_another_or_for_more(
    registry: Server, tokens: Callable[[str], Api]
) -> None:
    api, own, other = tokens(A), keys.agent_server_name(A), keys.agent_server_name(B)
    more = make_request(A, ec.generate_private_key(ec.SECP256R1()))
    more["spec"]["usages"] = [*more["spec"]["usages"], "cert sign"]
    for wanted in (
        make_request(B, ec.generate_private_key(ec.SECP256R1())),
        rewritten(A, other),
        rewritten(A, own, other),
        rewritten(A, own, common=other),
        rewritten(A, own, common=keys.CN_CONTROLLER),
        rewritten(A, keys.CN_PROXY),
        more,
    ):
        found = requested(api, wanted)
        (condition,) = found["conditions"]
        assert (condition["type"], "certificate" in found) == ("Denied", False), wanted
        assert "gets rogue-a.agent.kyb.ai alone" in condition["message"] or wanted is more


def test_the_agents_authority_makes_no_other_role(
    registry: Server, tls: Path, tmp_path: Path
) -> None:
    """Whoever gets its key passes for agents, and not for a controller or a proxy."""
    authority, now = Folder(tls).authority(AGENTS), datetime.now(UTC)
    for common in (keys.CN_CONTROLLER, keys.CN_PROXY):
        pair = issue(authority, Leaf(common, client=True), timedelta(hours=1), now)
        for kind, content in (("crt", pair.certificate_pem), ("key", pair.key_pem)):
            (tmp_path / f"{common}.{kind}").write_bytes(content)
        forged = registry.client()
        forged.show(tls / "ca.crt", tmp_path / f"{common}.crt", tmp_path / f"{common}.key")
        with pytest.raises(RefusedError, match="only agents"):
            forged.page(wire.Filter())


def test_it_passes_for_no_other_node_to_those_who_call_it(
    registry: Server, tokens: Callable[[str], Api], services: Path, tmp_path: Path
) -> None:
    """An agent's name is checked by whoever dials, also behind a right certificate of another."""
    mine = certified(A, services, tmp_path / "a", tokens(A))
    with mine as rogue, certified(B, services, tmp_path / "b", tokens(B)) as other:

        async def run() -> None:
            free = Guests(None, time.time, shared=False)
            async with door(rogue, free) as (port, _):
                await asks(other, A, port).expect(handover(A), 5.0)
                with pytest.raises((RetryableError, DeadlineError)):
                    await asks(other, B, port).expect(handover(B), 2.0)

        asyncio.run(run())


def test_a_revoked_node_is_cut_off_within_five_seconds(
    control_plane: Cluster,
    registry: Server,
    tls: Path,
    tokens: Callable[[str], Api],
    services: Path,
    tmp_path: Path,
) -> None:
    """At the registry, at its peers and at the proxy, by one command."""
    access, peer = str(control_plane.layout.kubeconfig("admin")), Revocations()
    peer.start(tokens(B))
    guests = Guests(peer, time.time, shared=False)

    async def cut_off(rogue: Identity, other: Identity, agent: Registry) -> None:
        async with (
            door(other, guests) as (there, _),
            door(rogue, Guests(None, time.time)) as (here, met),
        ):
            proxy, calls = Proxied(control_plane, tls, C, here, tmp_path), asks(rogue, B, there)
            try:
                await calls.expect(handover(B), 5.0)
                await _until(lambda: met.proxies == 1)
                words = access, "revoke", C, "--why", "stolen"
                _, *took = await asyncio.gather(
                    asyncio.to_thread(_kybernate, *words),
                    _refused(lambda: asyncio.to_thread(agent.page, wire.Filter())),
                    _refused(lambda: calls.expect(handover(B), 5.0)),
                    _until(lambda: met.proxies == 0),
                )
                print(dict(zip(("registry", "peer", "proxy"), took, strict=True)))
                assert max(took) < 5.0
                await asyncio.sleep(1.0)
                assert met.proxies == 0, "nor does it come back"
                with pytest.raises(RefusedError, match="is revoked"):
                    await asks(other, C, here, guests.revoked).expect(handover(C), 5.0)
            finally:
                proxy.stop()

    mine = certified(C, services, tmp_path / "c", tokens(C))
    with mine as rogue, certified(B, services, tmp_path / "b", tokens(B)) as other:
        agent = client(registry, rogue)
        agent.page(wire.Filter())
        asyncio.run(cut_off(rogue, other, agent))
    peer.stop()


def test_a_revoked_node_gets_no_certificate_and_its_old_ones_never_count_again(
    control_plane: Cluster,
    registry: Server,
    tls: Path,
    tokens: Callable[[str], Api],
    services: Path,
    tmp_path: Path,
) -> None:
    """As docs/how-to/operate/revoke-a-node.md has it."""
    access, token = str(control_plane.layout.kubeconfig("admin")), tokens(D)
    reader = Kubectl(control_plane.kubectl_path, tmp_path, control_plane.kubeconfig)
    page = Page("revoke-a-node", reader)
    with certified(D, services, tmp_path / "d", token):
        (tmp_path / "old.pem").write_bytes((tmp_path / "d" / "agent.pem").read_bytes())
    old = registry.client()
    old.show(tls / "ca.crt", tmp_path / "old.pem", tmp_path / "old.pem")
    assert not _error(old)
    assert "would write" in _kybernate(access, "revoke", D, "--dry-run")
    assert not _error(old)
    page("kybernate node revoke")
    until(lambda: "is revoked" in _error(old), "it is not known that the node is revoked")
    assert "nothing to do" in _kybernate(access, "revoke", D)
    denied = requested(token, make_request(D, ec.generate_private_key(ec.SECP256R1())))
    assert "is revoked" in denied["conditions"][0]["message"]
    assert f"{D}\trevoked" in page("kybernate node ls")
    page("kybernate node admit")
    until(lambda: "was let in again" in _error(old), "it is not known that it was let in")
    with certified(D, services, tmp_path / "new", token) as anew:
        client(registry, anew).page(wire.Filter())
    assert "was let in again" in _error(old)
    with page:
        page("kubectl delete node")
    assert f"{D}\tadmitted" in _kybernate(access, "ls")


@pytest.mark.real_time
async def test_keys_that_others_may_hold_are_refused_once_they_are_not_wanted(
    control_plane: Cluster, tls: Path, tmp_path: Path, place: Callable[..., tuple[str, str]]
) -> None:
    own = place(A)
    access = str(control_plane.layout.kubeconfig("registry"))
    settings = {"CLUSTER": "kubernetes", "KUBECONFIG": access, "SHARED_AGENT_KEYS": "false"}
    database = f"sqlite:///{tmp_path}/registry.db"
    server = Server(tls, tmp_path / "registry.log", database, **settings)
    server.start()
    try:
        with pytest.raises(RefusedError, match="may be in other hands"):
            server.client(f"agent-{A}").lease((NAMESPACE, own[1]), WISH)
    finally:
        server.kill()

    old, guests = Identity(A, tls), Guests(None, time.time, shared=False)
    async with door(Identity(B, tls), guests) as (port, _):
        with pytest.raises(RefusedError, match="may be in other hands"):
            await asks(old, B, port).expect(handover(B), 5.0)


class Proxied:
    """A proxy as a process, that finds the agent of one node at a port."""

    def __init__(self, cluster: Cluster, tls: Path, node: str, port: int, folder: Path) -> None:
        self._cluster, self._node = cluster, node
        api = cluster.api()
        body = {"apiVersion": keys.API_VERSION, "kind": keys.GPU_NODE_KIND}
        with contextlib.suppress(ConflictError):
            api.post(keys.GPU_NODES_PATH, {**body, "metadata": {"name": node}})
        status = {"agent": {"address": f"127.0.0.1:{port}", "version": "0.1.0"}}
        api.patch(f"{keys.GPU_NODES_PATH}/{node}/status", {"status": status})
        self._port = free_port()
        environment = {
            **os.environ,
            "KYB_PROXY_LISTEN": f"127.0.0.1:{self._port}",
            "KYB_PROXY_KUBECONFIG": str(cluster.layout.kubeconfig("proxy")),
            "KYB_PROXY_TLS_DIR": str(tls),
            "KYB_PROXY_AUTH": "off",
            "KYB_PROXY_SHARED_AGENT_KEYS": "false",
        }
        self._log = (folder / "proxy.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proxy"], env=environment, stderr=self._log, stdout=self._log
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()
        self._cluster.api().delete(f"{keys.GPU_NODES_PATH}/{self._node}")


async def _until(true: Callable[[], bool]) -> float:
    """Seconds until that is so."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < 30
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def _refused(call: Callable[[], Awaitable[Any]]) -> float:
    """Seconds until that is refused since the node is revoked."""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        try:
            await call()
        except RefusedError as error:
            assert "is revoked" in str(error)  # noqa: PT017 - how long that takes is the result
            break
        await asyncio.sleep(0.02)
    return time.monotonic() - began


def _error(agent: Registry) -> str:
    try:
        agent.page(wire.Filter())
    except RefusedError as error:
        return str(error)
    return ""


def _kybernate(access: str, *words: str) -> str:
    found = CliRunner().invoke(main, ["node", *words, "--kubeconfig", access])
    assert found.exit_code == 0, found.output
    return found.output
