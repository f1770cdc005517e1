"""What a node in an attacker's hands gets of namespaces' keys with all that it holds: at a real API
server and a real registry, over real mutual TLS."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import WrapKeys, make_folder, read_folder
from kybernate.adapters.registry import nodekeys, wire
from kybernate.adapters.registry.keywire import GivenKey, KeyWish, ShredWish
from kybernate.adapters.registry.nodekeys import Asker, NodeKeys
from kybernate.checkpoint.places import cipher_of, open_place
from kybernate.errors import ConflictError, KybernateError, NotFoundError, RefusedError
from tests.integration.hooks import until
from tests.kit.servers.registryserver import Server, certificates
from tests.unit.checkpoint.kit import make_dump, pack_dump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.adapters.registry.client import Registry
    from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.hostile

A, B = "keys-a", "keys-b"
LEASE = wire.LeaseWish(seconds=60)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"), [A, B])


@pytest.fixture(scope="module")
def registry(
    control_plane: Cluster, tls: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A registry that alone has what wraps keys."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "wrap-keys").mkdir()
    (folder / "wrap-keys" / "wrap-1.key").write_text(os.urandom(32).hex())
    made = Server(
        tls,
        folder / "registry.log",
        f"sqlite:///{folder}/registry.db",
        CLUSTER="kubernetes",
        KUBECONFIG=str(control_plane.layout.kubeconfig("registry")),
        WRAP_KEYS=str(folder / "wrap-keys"),
    )
    made.start()
    made.client().settle("new")
    yield made
    made.kill()
    assert "Traceback" not in made.log


class Namespaces:
    """Namespaces and pods of a test."""

    def __init__(self, cluster: Cluster) -> None:
        self._api, self._extender = cluster.api(), cluster.api("extender")
        self._made: list[str] = []

    def make(self, name: str) -> str:
        """Its UID."""
        found = self._api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self._made.append(name)
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        with contextlib.suppress(ConflictError):
            self._api.post(accounts, {"metadata": {"name": "default"}})
        return str(found["metadata"]["uid"])

    def pod(self, namespace: str, node: str) -> str:
        """The UID of a pod that the extender has placed."""
        with contextlib.suppress(ConflictError):
            self._api.post("/api/v1/nodes", {"metadata": {"name": node}})
        name = f"p-{time.monotonic_ns()}"
        labels, annotations = {keys.MANAGED_LABEL: "true"}, {keys.VRAM: "1Gi"}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        limits = {keys.seat_resource(1): "1", "memory": "1Gi"}
        container = {"name": "c", "image": "x", "args": ["a"], "resources": {"limits": limits}}
        spec = {"containers": [container]}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        found = self._api.post(pods, {"metadata": metadata, "spec": spec})
        stamp = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        binding = {"metadata": {"name": name, "annotations": stamp}}
        target = {"kind": "Node", "name": node}
        self._extender.post(f"{pods}/{name}/binding", {**binding, "target": target})
        return str(found["metadata"]["uid"])

    def remove(self, name: str) -> None:
        """As its controller would: pods first, then what keeps it."""
        pods = f"/api/v1/namespaces/{name}/pods"
        for item in self._api.get(pods).get("items") or ():
            self._api.delete(f"{pods}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
        path = f"/api/v1/namespaces/{name}"
        with contextlib.suppress(NotFoundError, ConflictError):
            self._api.delete(path, {})
        with contextlib.suppress(NotFoundError):
            found: dict[str, Any] = self._api.get(path)
            found["spec"]["finalizers"] = []
            self._api.put(f"{path}/finalize", found)
        until(lambda: not self._there(path), f"namespace {name} is there still")

    def clear(self) -> None:
        for name in set(self._made):
            self.remove(name)

    def _there(self, path: str) -> bool:
        with contextlib.suppress(NotFoundError):
            return bool(self._api.get(path))
        return False


@pytest.fixture
def namespaces(control_plane: Cluster, webhook: object) -> Iterator[Namespaces]:
    made = Namespaces(control_plane)
    yield made
    made.clear()


def given(agent: Registry, namespace: str, pod: str, **more: Any) -> GivenKey:
    return agent.namespace_key(namespace, KeyWish(pod=pod, **more))


def test_a_node_gets_no_key_where_no_pod_of_its_own_is(
    registry: Server, namespaces: Namespaces
) -> None:
    """Not by the other node's pod, nor by its own in another namespace, nor by one of nobody's."""
    namespaces.make("keys-victim")
    namespaces.make("keys-rogue")
    theirs, own = namespaces.pod("keys-victim", B), namespaces.pod("keys-rogue", A)
    rogue, other = registry.client(f"agent-{A}"), registry.client(f"agent-{B}")
    other.lease(("keys-victim", theirs), LEASE)
    rogue.lease(("keys-rogue", own), LEASE)
    key = given(other, "keys-victim", theirs)
    assert given(rogue, "keys-rogue", own).key != key.key
    assert key.sealed is not None
    for pod in (theirs, own, "00000000-aaaa-bbbb-cccc-000000000000"):
        for more in ({}, {"id": key.sealed.id}, {"pod_namespace": "keys-rogue"}):
            with pytest.raises(KybernateError) as caught:
                given(rogue, "keys-victim", pod, **more)
            assert key.key not in str(caught.value)
        with pytest.raises(RefusedError, match="can't speak for pod"):
            rogue.lease(("keys-victim", pod), LEASE)
    with pytest.raises(RefusedError, match="name the pod"):
        rogue.namespace_key("keys-victim", KeyWish())
    # Nor does its word take another's away.
    for call in (rogue.keys, lambda ns: rogue.shred(ns, ShredWish(why="x", seconds=0))):
        with pytest.raises(RefusedError, match="may not do that"):
            call("keys-victim")
    assert given(other, "keys-victim", theirs).key == key.key


def test_a_node_gets_no_key_once_its_lease_has_ended(
    registry: Server, namespaces: Namespaces
) -> None:
    namespaces.make("keys-ended")
    pod = namespaces.pod("keys-ended", A)
    agent = registry.client(f"agent-{A}")
    agent.lease(("keys-ended", pod), wire.LeaseWish(seconds=1))
    assert given(agent, "keys-ended", pod).uid
    time.sleep(1.1)
    with pytest.raises(ConflictError, match="take one first"):
        given(agent, "keys-ended", pod)
    agent.lease(("keys-ended", pod), LEASE)
    agent.stopped("keys-ended", pod, wire.Stop(proof=wire.Proof.AGENT, why="ended"))
    with pytest.raises(ConflictError, match="take one first"):
        given(agent, "keys-ended", pod)


def test_a_namespace_made_anew_gets_no_key_of_the_one_before(
    registry: Server, namespaces: Namespaces
) -> None:
    agent = registry.client(f"agent-{A}")
    first = namespaces.make("keys-anew")
    pod = namespaces.pod("keys-anew", A)
    agent.lease(("keys-anew", pod), LEASE)
    before = given(agent, "keys-anew", pod)
    assert before.uid == first
    assert before.sealed is not None
    namespaces.remove("keys-anew")
    with pytest.raises(ConflictError):
        given(agent, "keys-anew", pod)
    second = namespaces.make("keys-anew")
    pod = namespaces.pod("keys-anew", A)
    agent.lease(("keys-anew", pod), LEASE)
    after = given(agent, "keys-anew", pod)
    assert (after.uid, after.key != before.key) == (second, True)
    with pytest.raises(RefusedError, match="was deleted"):
        given(agent, "keys-anew", pod, id=before.sealed.id)


def test_what_lies_on_a_node_after_a_namespaces_last_pod_opens_nothing_packed_of_it(
    registry: Server, namespaces: Namespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it holds then: its folder of keys, its certificate, and the object store."""
    monkeypatch.setattr(nodekeys, "SWEEP_S", 0.05)
    namespaces.make("team-a")
    here = [Asker("team-a", namespaces.pod("team-a", A))]
    make_folder(tmp_path / "keys", "here")
    (tmp_path / "keys" / "wrap-1.key").unlink()
    agent = registry.client(f"agent-{A}")
    own = NodeKeys(lambda: agent, lambda _: here, lambda key: WrapKeys((key,)))
    node = replace(read_folder(tmp_path / "keys"), kms=own)
    store = open_place(str(tmp_path / "store"))
    manifest = pack_dump(make_dump(tmp_path / "dump"), store, keys=node, namespace="team-a")
    assert cipher_of(manifest, node)
    agent.stopped("team-a", here[0].uid, wire.Stop(proof=wire.Proof.AGENT, why="ended"))
    gone = here.pop()
    until(lambda: not own._own and not own._sweeping, "the key is in memory still")
    files = read_folder(tmp_path / "keys")
    for left in (node, files):
        with pytest.raises(KybernateError):
            cipher_of(manifest, left)
    # Nor does the registry give it again, though the pod is named, and lies in the store what may.
    here.append(gone)
    with pytest.raises(KybernateError):
        cipher_of(manifest, node)


def test_the_secret_with_the_wrapping_keys_is_read_by_no_account_of_ours(
    control_plane: Cluster,
) -> None:
    path = f"/api/v1/namespaces/{keys.NAMESPACE}/secrets/kyb-wrap-keys"
    for account in ("agent", "extender", "proxy", "registry", "webhook"):
        with pytest.raises(RefusedError, match="forbidden"):
            control_plane.api(account).get(path)
