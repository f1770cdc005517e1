"""A rogue node that has a pod in its victim's own namespace, and so that namespace's key, at the
object store. API server, registry, TLS and S3 server are real.

Node `a` is the attacker's, `b` runs the victim. Pods are placed as the extender does it.
"""

from __future__ import annotations

import base64
import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.registry.storewire import Packing, Putting, Reading
from kybernate.checkpoint.packs import known
from kybernate.checkpoint.packs.fetch import fetch
from kybernate.checkpoint.places import cipher_of, open_place, read_manifest
from kybernate.core.artifacts import layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.manifest import Pack
from kybernate.errors import (
    ConflictError,
    LeaveError,
    NotFoundError,
    RefusedError,
)
from kybernate.lib.deadline import Deadline
from tests.hostile.rogue.test_rogue_node import place
from tests.hostile.rogue.test_rogue_store import KEYS, Node
from tests.integration.hooks import until
from tests.kit.servers import s3
from tests.kit.servers.registryserver import Server, certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kybernate.core.artifacts.manifest import Manifest
    from tests.cluster.cluster import Cluster

    Place = Callable[..., tuple[str, str]]

__all__ = ["place"]
pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-"),
]
NAMESPACE = "kube-system"
"""As in `test_rogue_node`: where our webhook isn't asked."""
KINDS = (layout.PACKS, layout.INDEX)


class Scene:
    """The two nodes, and the store as its owner sees it."""

    def __init__(self, server: Server, folder: Path, url: str) -> None:
        self.a, self.b = (Node(name, server, folder, url) for name in ("a", "b"))
        self.owner = open_place(url)

    def keys(self, kind: str, manifest: Manifest) -> list[str]:
        return [f"{kind}{NAMESPACE}/{pack.id}" for pack in manifest.packs]


@pytest.fixture(scope="module")
def scene(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("rogue-namespace")
    with s3.server(folder / "s3") as store, pytest.MonkeyPatch.context() as patched:
        for name, value in store.environment.items():
            patched.setenv(name, value)
        (folder / "wrap").mkdir()
        (folder / "wrap" / "wrap-1.key").write_text(KEYS.kms.keys[-1].hex())
        server = Server(
            certificates(folder / "tls", ("a", "b")),
            folder / "registry.log",
            f"sqlite:///{folder}/registry.db",
            CLUSTER="kubernetes",
            KUBECONFIG=str(control_plane.layout.kubeconfig("registry")),
            OBJECT_STORE=store.url,
            WRAP_KEYS=str(folder / "wrap"),
        )
        server.start()
        server.client().settle("new")
        try:
            yield Scene(server, folder, store.url)
        finally:
            server.stop()
        assert "Traceback" not in server.log


@pytest.fixture
def victim(scene: Scene, place: Place) -> Manifest:
    """What a pod of `b`'s has saved; a pod of the same namespace is on `a`."""
    theirs, mine = place("b"), place("a")
    scene.a.lease(NAMESPACE, mine[1])
    return scene.b.save(NAMESPACE, theirs[1], 1, theirs[0])


def opened(node: Node, artifact: str, to: Path) -> bytes:
    """What the node gets of an artifact: its memory, decrypted."""
    manifest = read_manifest(node.store, artifact, node.keys)
    fetch(node.store, manifest, to, node.keys, Deadline(60))
    return (to / "pages-1.img").read_bytes()


def reads(node: Node, artifact: str) -> bool:
    with contextlib.suppress(RefusedError):
        node.registry.read_objects(Reading(keys=[layout.manifest_key(artifact)]))
        return True
    return False


def test_in_one_namespace_it_reads_nothing_of_pods_that_never_ran_there(
    scene: Scene, victim: Manifest, tmp_path: Path
) -> None:
    block = f"{victim.facts.pod_uid} ".encode()
    assert opened(scene.b, victim.id, tmp_path / "b").startswith(block), "by its own node"
    with pytest.raises(LeaveError, match="nothing to do with"):
        opened(scene.a, victim.id, tmp_path / "a")
    for kind in KINDS:
        for key in scene.keys(kind, victim):
            for attack in (scene.a.objects.get, scene.a.objects.head):
                with pytest.raises(LeaveError, match="nothing to do with pack"):
                    attack(key)
            with pytest.raises(RefusedError, match="nothing to do with"):
                scene.a.registry.read_objects(Reading(keys=[key], of=victim.id))


def test_in_one_namespace_it_lists_nothing_of_pods_that_never_ran_there(
    scene: Scene, victim: Manifest, place: Place
) -> None:
    name, uid = place("a")
    own = scene.a.save(NAMESPACE, uid, 1, name)
    for kind in KINDS:
        shown = {info.key for info in scene.a.objects.scan(f"{kind}{NAMESPACE}/")}
        assert set(scene.keys(kind, own)) <= shown
        assert not set(scene.keys(kind, victim)) & shown
    for prefix in (layout.ARTIFACTS, f"{layout.ARTIFACTS}{NAMESPACE}/"):
        shown = {info.key for info in scene.a.objects.scan(prefix)}
        assert layout.manifest_key(own.id) in shown
        assert layout.manifest_key(victim.id) not in shown
    # So nothing is built upon what it may not read.
    deadline, cipher = Deadline(30), cipher_of(own, scene.a.keys)
    built = known.load(scene.a.store, NAMESPACE, cipher, deadline)
    assert {pack.id for pack in own.packs} <= {pack.id for pack in built.packs}
    assert not {pack.id for pack in victim.packs} & {pack.id for pack in built.packs}


def test_a_manifest_that_names_others_packs_does_not_open_them(
    scene: Scene, victim: Manifest, place: Place
) -> None:
    """The names of packs are no secret that anything rests on."""
    name, uid = place("a")
    token = scene.a.lease(NAMESPACE, uid)
    sealed = scene.a.seal(NAMESPACE, uid, 2, name)
    scene.a.record(sealed, token)
    ((given,),) = [scene.b.registry.new_packs(Packing(namespace=NAMESPACE, packs=1)).packs]
    for pack in (victim.packs[0].id, given.id, "0" * 32):
        made = manifests.encode(replace(sealed, node="a", packs=(Pack(pack, 9),)))
        body = base64.b64encode(scene.a.keys.sign(made)).decode()
        with pytest.raises(RefusedError, match=f"nothing to do with pack {pack}"):
            scene.a.registry.put_object(Putting(key=layout.manifest_key(sealed.id), data=body))
    assert scene.a.pack(sealed).packs, "its own it packs all the same"


def test_it_removes_no_index_and_no_question_of_others(scene: Scene, victim: Manifest) -> None:
    """Without its index a pack is not built upon: each pod's state would be stored again."""
    for key in scene.keys(layout.INDEX, victim):
        with pytest.raises(LeaveError, match="nothing to do with pack"):
            scene.a.objects.delete([key])
        assert scene.owner.objects.head(key).size
    clock = f"{layout.CLOCKS}{os.urandom(8).hex()}"
    scene.b.objects.put(clock, b"1")
    with pytest.raises(LeaveError, match="another node's"):
        scene.a.objects.delete([clock])
    with pytest.raises(ConflictError):
        scene.a.objects.put(clock, b"1")
    scene.b.objects.delete([clock])
    with pytest.raises(NotFoundError):
        scene.owner.objects.head(clock)


def test_what_a_pod_placed_there_names_is_opened_and_nothing_beside_it(
    scene: Scene, victim: Manifest, place: Place, control_plane: Cluster, tmp_path: Path
) -> None:
    """By its pod, as an artifact, or as a successor's predecessor: before any claim."""
    theirs = place("b")
    other = scene.b.save(NAMESPACE, theirs[1], 3, theirs[0])
    for number, source in enumerate((f"pod/{victim.facts.pod_uid}", victim.id)):
        name, uid = place("a", restore_from=source, restore_as="template")
        scene.a.lease(NAMESPACE, uid)
        block = f"{victim.facts.pod_uid} ".encode()
        assert opened(scene.a, victim.id, tmp_path / f"{number}").startswith(block)
        listed = {info.key for info in scene.a.objects.scan(layout.ARTIFACTS)}
        assert layout.manifest_key(victim.id) in listed
        with pytest.raises(LeaveError, match="nothing to do with"):
            opened(scene.a, other.id, tmp_path / "other")
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        control_plane.api().delete(path, {"gracePeriodSeconds": 0})
        until(lambda: not reads(scene.a, victim.id), "its pod is gone, and it reads on")
