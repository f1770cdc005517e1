"""A rogue node, with all that a node holds, at the object store.

The registry, its TLS and the S3 server are real. Node `a` is the attacker's and runs a pod of
namespace `lair`; `victim` has pods on node `b` alone.
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import pytest
import urllib3

from kybernate.adapters.keys.nodesignatures import NodeSignatures
from kybernate.adapters.registry import wire
from kybernate.adapters.registry.describe import describe, digest
from kybernate.adapters.registry.objects import RegistryObjects
from kybernate.adapters.registry.storewire import Packing, Putting, Reading
from kybernate.adapters.registry.witness import Witness
from kybernate.checkpoint import vault
from kybernate.checkpoint.packs import pack
from kybernate.checkpoint.packs.blocks import raw_sources
from kybernate.checkpoint.packs.fetch import fetch
from kybernate.checkpoint.places import open_place, place_of, read_manifest
from kybernate.checkpoint.raw import seal
from kybernate.core.artifacts import keyobjects, layout
from kybernate.core.artifacts import manifest as manifests
from kybernate.core.artifacts.into import Into
from kybernate.core.artifacts.keyobjects import KeyObject, NamespaceKey
from kybernate.core.artifacts.manifest import facts_of
from kybernate.errors import (
    ConflictError,
    CorruptError,
    LeaveError,
    NotFoundError,
    RefusedError,
)
from kybernate.lib.deadline import Deadline
from kybernate.runtime.identity import Identity
from kybernate.types import ArtifactId, PodUid, Tier
from tests.kit.servers import s3
from tests.kit.servers.registryserver import Server, certificates
from tests.unit.registry.saved import FACTS, KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kybernate.adapters.registry.client import Registry
    from kybernate.checkpoint.places import Place
    from kybernate.core.artifacts.manifest import Manifest

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(bool(s3.why_not()), reason=s3.why_not() or "-"),
]

ENDED = wire.Stop(proof=wire.Proof.AGENT, why="ended")
LEAVE_S = 120
MIB = 1 << 20
_NUMBERS = count(31)


class Node:
    """A node's agent, as far as the registry and the store see it."""

    def __init__(self, name: str, server: Server, folder: Path, url: str) -> None:
        self.name, self.url = name, url
        self.registry: Registry = server.client(f"agent-{name}")
        self.objects = RegistryObjects(lambda: self.registry)
        self.store = place_of(self.objects, "object store")
        self.nvme = open_place(str(folder / name))
        self.folder = folder
        witness = Witness(lambda: self.registry).see_believed
        # No key that nodes share signs, or is believed.
        own = NodeSignatures(Identity(name, server.tls))
        self.keys = replace(KEYS, signer=None, trusted={}, nodes=own, witness=witness)
        self.places = {Tier.NVME: self.nvme, Tier.OBJECT: self.store}
        self.vault = vault.Vault(self.places, Tier.NVME, self.keys)

    def lease(self, namespace: str, uid: str) -> int:
        return self.registry.lease((namespace, uid), wire.LeaseWish(seconds=60)).token

    def seal(self, namespace: str, uid: str, number: int = 1, pod: str = "model-0") -> Manifest:
        """A dump of 1 MiB of bytes of its own."""
        now = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(seconds=number)
        facts = facts_of({**FACTS, "namespace": namespace, "pod": pod, "pod_uid": uid})
        images = self.folder / f"dump-{self.name}-{namespace}-{uid}-{number}"
        images.mkdir(mode=0o700, parents=True)
        blocks = (f"{uid} {number} {block} ".encode().ljust(4096, b"x") for block in range(256))
        (images / "pages-1.img").write_bytes(b"".join(blocks))
        made = layout.make_id(namespace, pod, now, number)
        return seal.seal(self.nvme, images, seal.draft(made, facts, now), self.keys, Deadline(60))

    def record(self, manifest: Manifest, token: int) -> None:
        held = wire.Copy(place=Tier.NVME, node=self.name, state=wire.CopyState.VERIFIED)
        said = wire.Recording(artifact=describe(manifest), held=held, token=token)
        self.registry.record(manifest.id, said)

    def pack(self, manifest: Manifest, place: Place | None = None) -> Manifest:
        sources = raw_sources(
            seal.images_of(self.nvme, manifest), seal.pieces_of(self.nvme, manifest)
        )
        return pack.pack(sources, manifest, place or self.store, self.keys, Deadline(60))

    def save(self, namespace: str, uid: str, number: int = 1, pod: str = "model-0") -> Manifest:
        """All of it, as an agent does it."""
        token, manifest = self.lease(namespace, uid), self.seal(namespace, uid, number, pod)
        self.record(manifest, token)
        packed = self.pack(manifest)
        held = wire.Copy(place=Tier.OBJECT, store=self.url, state=wire.CopyState.VERIFIED)
        self.registry.report(manifest.id, wire.CopyReport(digest=digest(manifest), held=held))
        return packed


def restored(node: Node, artifact: str, uid: str) -> Manifest:
    """As an agent does before anything of it is used, for a pod of this UID on the node."""
    into = Into(layout.parse_id(artifact).namespace, PodUid(uid))
    return asyncio.run(node.vault.admit(ArtifactId(artifact), into, 20))


def forged(scene: Scene, manifest: Manifest, **changes: str) -> None:
    """What node `a` signs lies in the store: however it got there."""
    made = replace(manifest, **{"node": "a", **changes})  # type: ignore[arg-type]
    signed = scene.a.keys.sign(manifests.encode(made))
    scene.owner.objects.put(layout.manifest_key(manifest.id), signed)


class Scene:
    """The attacker's node `a`, its victim's node `b`, and the store as its owner sees it."""

    def __init__(self, server: Server, folder: Path, url: str) -> None:
        self.server = server
        self.a, self.b = (Node(name, server, folder, url) for name in ("a", "b"))
        self.owner = open_place(url)
        self.saved = self.b.save("victim", "u-victim")
        self.own = self.a.save("lair", "u-lair")

    def keys(self, kind: str) -> list[str]:
        """The victim's objects of this kind."""
        return [info.key for info in self.owner.objects.scan(f"{kind}victim/")]

    @property
    def all(self) -> list[str]:
        kinds = (layout.ARTIFACTS, layout.PACKS, layout.INDEX, layout.KEYS)
        return [key for kind in kinds for key in self.keys(kind)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("rogue")
    with s3.server(folder / "s3") as store, pytest.MonkeyPatch.context() as patched:
        for name, value in store.environment.items():
            patched.setenv(name, value)
        (folder / "wrap").mkdir()
        (folder / "wrap" / "wrap-1.key").write_text(KEYS.kms.keys[-1].hex())
        server = Server(
            certificates(folder / "tls", ("a", "b")),
            folder / "registry.log",
            f"sqlite:///{folder}/registry.db",
            OBJECT_STORE=store.url,
            OBJECT_LEAVE_S=str(LEAVE_S),
            WRAP_KEYS=str(folder / "wrap"),
        )
        server.start()
        server.client().settle("new")
        try:
            yield Scene(server, folder, store.url)
        finally:
            server.stop()


def test_a_nodes_own_states_go_there_and_back(scene: Scene, tmp_path: Path) -> None:
    """What the claims below would hold of a store that nobody can use, too."""
    node = scene.b
    manifest = read_manifest(node.store, scene.saved.id, node.keys)
    fetch(node.store, manifest, tmp_path / "back", node.keys, Deadline(60))
    raw = seal.images_of(node.nvme, read_manifest(node.nvme, manifest.id, node.keys))
    assert (tmp_path / "back" / "pages-1.img").read_bytes() == (raw / "pages-1.img").read_bytes()
    again = node.save("victim", "u-victim", 2)
    # As it is done: the registry forgets it first, and nobody else can have it removed then either.
    for spot in (
        wire.Spot(place=Tier.OBJECT, store=node.url),
        wire.Spot(place=Tier.NVME, node=node.name),
    ):
        node.registry.drop(again.id, spot, "a test")
    with pytest.raises(LeaveError):
        scene.a.objects.delete([layout.manifest_key(again.id)])
    vault.drop(node.store, read_manifest(node.store, again.id, node.keys))
    with pytest.raises(NotFoundError):
        read_manifest(scene.owner, again.id, node.keys)


def test_another_namespaces_objects_can_not_be_read(scene: Scene) -> None:
    assert len(scene.all) >= 4
    for key in scene.all:
        with pytest.raises(LeaveError, match="namespace victim"):
            scene.a.objects.get(key)
        with pytest.raises(LeaveError, match="namespace victim"):
            scene.a.objects.head(key)


def test_one_key_of_its_own_among_many_opens_no_others(scene: Scene) -> None:
    mine = layout.manifest_key(scene.own.id)
    wanted = Reading(keys=[mine, *scene.keys(layout.PACKS)], of=scene.saved.id)
    with pytest.raises(RefusedError, match="namespace victim"):
        scene.a.registry.read_objects(wanted)


def test_another_namespaces_objects_are_not_listed(scene: Scene) -> None:
    for kind in (layout.PACKS, layout.INDEX, layout.LEASES, layout.KEYS):
        with pytest.raises(LeaveError):
            list(scene.a.objects.scan(f"{kind}victim/"))
        with pytest.raises(LeaveError):
            list(scene.a.objects.scan(kind))
    assert list(scene.a.objects.scan(f"{layout.ARTIFACTS}victim/")) == []
    found = {info.key.split("/")[1] for info in scene.a.objects.scan(layout.ARTIFACTS)}
    assert found == {"lair"}


def test_nothing_is_put_in_another_namespace(scene: Scene) -> None:
    with pytest.raises(RefusedError, match="namespace victim"):
        scene.a.registry.new_packs(Packing(namespace="victim", packs=1))
    wrong = (
        f"{layout.KEYS}victim/7",
        f"{layout.LEASES}victim/0123456789abcdef",
        layout.manifest_key("victim/model-0@20260131T120000Z-00000007"),
        f"{layout.CONDEMNED}victim/{'0' * 32}",
        f"{layout.CONDEMNED}lair/{'0' * 32}",
        f"{layout.PACKS}victim/{'0' * 32}",
    )
    for key in wrong:
        with pytest.raises(RefusedError):
            scene.a.registry.put_object(Putting(key=key, data="eA=="))


def test_no_data_key_that_nobody_opens_is_put(scene: Scene) -> None:
    """A hundred of them would keep the namespace from being packed in this place."""
    at = f"{layout.KEYS}lair/7"
    by, wrapped = KEYS.kms.wrap(b"k" * 32, "lair")
    spoilt = (
        b"x",
        keyobjects.encode(KeyObject(7, by, "00" * 60)),
        keyobjects.encode(KeyObject(7, "0" * 16, "00" * 60)),
        keyobjects.encode(KeyObject(7, *KEYS.kms.wrap(b"k" * 32, "victim"))),
        keyobjects.encode(KeyObject(8, by, wrapped)),
        keyobjects.encode(KeyObject(7, by, wrapped, NamespaceKey("0" * 16, "", 1, by, wrapped))),
    )

    def put(data: bytes) -> None:
        scene.a.registry.put_object(Putting(key=at, data=base64.b64encode(data).decode()))

    for data in spoilt:
        with pytest.raises(RefusedError, match="no data key of namespace lair"):
            put(data)
    put(keyobjects.encode(KeyObject(7, by, wrapped)))
    scene.owner.objects.delete([at])


def test_nothing_that_is_there_is_overwritten(scene: Scene) -> None:
    """Not even its own manifest, and of others' packs it gets no name."""
    before = {key: bytes(scene.owner.objects.get(key)) for key in scene.all}
    for key in scene.all:
        with pytest.raises((RefusedError, ConflictError)):
            scene.a.registry.put_object(Putting(key=key, data="eA=="))
    own = layout.manifest_key(scene.own.id)
    signed = bytes(scene.owner.objects.get(own))
    with pytest.raises(ConflictError):
        scene.a.objects.put(own, signed)
    assert {key: bytes(scene.owner.objects.get(key)) for key in scene.all} == before


def test_nothing_of_others_is_removed(scene: Scene) -> None:
    for key in scene.all:
        with pytest.raises(LeaveError):
            scene.a.objects.delete([key])
    packs = [info.key for info in scene.owner.objects.scan(f"{layout.PACKS}lair/")]
    with pytest.raises(LeaveError, match="no agent removes"):
        scene.a.objects.delete(packs)


def test_a_former_node_removes_nothing_that_was_handed_on(scene: Scene) -> None:
    """It has run the pod, so the state was its own until the claim."""
    mine = scene.a.save("relay", "u-moved", 8)
    older = scene.a.save("relay", "u-moved", 7)
    scene.a.registry.stopped("relay", "u-moved", wire.Stop(proof=wire.Proof.AGENT, why="ended"))
    scene.b.lease("relay", "u-next")
    wanted = wire.Claim(artifact=mine.id, successor="u-next", node="b")
    scene.b.registry.claim("relay", "u-moved", wanted)
    key, spot = layout.manifest_key(mine.id), wire.Spot(place=Tier.OBJECT, store=scene.a.url)
    # Its own disk is its own, and so is a state that nobody took.
    own = wire.Spot(place=Tier.NVME, node="a")
    scene.a.registry.drop(mine.id, own, "a test")
    scene.a.registry.drop(older.id, spot, "a test")
    scene.a.objects.delete([layout.manifest_key(older.id)])
    missing = wire.Copy(place=Tier.OBJECT, store=scene.a.url, state=wire.CopyState.MISSING)
    told = wire.CopyReport(digest=digest(mine), held=missing)
    for attack in (
        lambda: scene.a.registry.drop(mine.id, spot, "a test"),
        lambda: scene.a.registry.report(mine.id, told),
        lambda: scene.a.objects.delete([key]),
    ):
        with pytest.raises((RefusedError, LeaveError), match="continues with"):
            attack()
    assert scene.b.registry.get(mine.id).copies[0].place is Tier.OBJECT
    assert restored(scene.b, mine.id, "u-moved").id == mine.id
    # Its successor lets it go, and then each of them may tidy up.
    scene.b.registry.drop(mine.id, spot, "a test")
    scene.a.objects.delete([key])


def kept_and_claimed(scene: Scene, number: int) -> tuple[Manifest, wire.Recording]:
    """A state of node `a`'s that people keep, which a pod of `b`'s continues from; and how `a` said
    that it is kept."""
    uid = f"u-kept-{number}"
    kept = scene.a.save("relay", uid, number)
    place = wire.Copy(place=Tier.OBJECT, store=scene.a.url, state=wire.CopyState.VERIFIED)
    token = scene.a.lease("relay", uid)
    said = wire.Recording(artifact=describe(kept, Tier.OBJECT), held=place, token=token)
    with pytest.raises(ConflictError):
        scene.b.registry.record(kept.id, said)
    scene.a.registry.record(kept.id, said)
    scene.a.registry.stopped("relay", uid, ENDED)
    scene.b.lease("relay", f"{uid}-after")
    wanted = wire.Claim(artifact=kept.id, successor=f"{uid}-after", node="b")
    scene.b.registry.claim("relay", uid, wanted)
    return kept, said


def test_a_successors_node_removes_nothing_that_people_keep(scene: Scene) -> None:
    """It says that it needs that no more, as ever; nor does anybody keep what is another's."""
    kept, said = kept_and_claimed(scene, 9)
    key, spot = layout.manifest_key(kept.id), wire.Spot(place=Tier.OBJECT, store=scene.a.url)
    for _ in range(2):
        assert not scene.b.registry.drop(kept.id, spot, "it has continued").dropped
        with pytest.raises(LeaveError, match="not node b's"):
            scene.b.objects.delete([key])
    assert restored(scene.a, kept.id, "u-kept-9").id == kept.id
    with pytest.raises(ConflictError, match="u-kept-9-after continues"):
        scene.a.registry.record(kept.id, said)
    # Its own node lets go of it for its people.
    assert scene.a.registry.drop(kept.id, spot, "nobody wants it").dropped
    scene.a.objects.delete([key])


@pytest.mark.parametrize("first", ["delete", "missing", "put"])
def test_a_successors_node_that_needs_it_removes_nothing_that_people_keep_either(
    scene: Scene, first: str
) -> None:
    """It says nothing of its need, so the claim still opens the state to it."""
    number = next(_NUMBERS)
    kept, _ = kept_and_claimed(scene, number)
    key, uid = layout.manifest_key(kept.id), f"u-kept-{number}"
    before = bytes(scene.owner.objects.get(key))
    missing = wire.Copy(place=Tier.OBJECT, store=scene.b.url, state=wire.CopyState.MISSING)
    told = wire.CopyReport(digest=digest(kept), held=missing)
    attacks = {
        "delete": lambda: scene.b.objects.delete([key]),
        "missing": lambda: scene.b.registry.report(kept.id, told),
        "put": lambda: scene.b.objects.put(key, scene.b.keys.sign(manifests.encode(kept))),
    }
    for attack in (attacks.pop(first), *attacks.values()):
        with pytest.raises((RefusedError, LeaveError, ConflictError)):
            attack()
    assert bytes(scene.owner.objects.get(key)) == before
    (there,) = (one for one in scene.a.registry.get(kept.id).copies if one.place is Tier.OBJECT)
    assert there.state is wire.CopyState.VERIFIED
    # Who continues from it reads it, and then needs it no more.
    assert restored(scene.b, kept.id, uid).id == kept.id
    spot = wire.Spot(place=Tier.OBJECT, store=scene.b.url)
    assert not scene.b.registry.drop(kept.id, spot, "it has continued").dropped
    assert not scene.a.registry.pod("relay", uid).artifact


def test_what_its_people_let_go_its_successors_node_removes(scene: Scene) -> None:
    number = next(_NUMBERS)
    kept, _ = kept_and_claimed(scene, number)
    key, spot = layout.manifest_key(kept.id), wire.Spot(place=Tier.OBJECT, store=scene.a.url)
    with pytest.raises(LeaveError, match="people keep"):
        scene.b.objects.delete([key])
    with pytest.raises(RefusedError, match="continues with"):
        scene.a.registry.drop(kept.id, spot, "nobody wants it")
    scene.b.registry.drop(kept.id, spot, "it has continued")
    scene.b.objects.delete([key])
    with pytest.raises(NotFoundError):
        scene.owner.objects.get(key)


def test_a_manifest_is_put_of_a_recorded_state_of_ones_own_pod_alone(scene: Scene) -> None:
    """Also where it has a pod in the victim's namespace: that pod is not the victim."""
    scene.a.lease("victim", "u-beside")
    try:
        saved = scene.a.seal("victim", "u-beside", 3)
        with pytest.raises(ConflictError, match="record it first"):
            scene.a.objects.put(
                layout.manifest_key(saved.id),
                bytes(scene.a.nvme.objects.get(layout.manifest_key(saved.id))),
            )
        theirs = scene.b.seal("victim", "u-victim", 4)
        scene.b.record(theirs, scene.b.lease("victim", "u-victim"))
        signed = bytes(scene.b.nvme.objects.get(layout.manifest_key(theirs.id)))
        with pytest.raises(LeaveError, match="not node a's"):
            scene.a.objects.put(layout.manifest_key(theirs.id), signed)
        with pytest.raises(LeaveError, match="not node a's"):
            scene.a.objects.delete([layout.manifest_key(scene.saved.id)])
    finally:
        told = wire.Stop(proof=wire.Proof.AGENT, why="ended")
        scene.a.registry.stopped("victim", "u-beside", told)
    time.sleep(2.5)  # what the registry remembers of leases
    with pytest.raises(LeaveError):
        scene.a.objects.get(scene.keys(layout.PACKS)[0])


def test_what_is_signed_is_good_for_one_key_and_one_method(scene: Scene) -> None:
    http = urllib3.PoolManager(retries=False)
    mine = next(info.key for info in scene.owner.objects.scan(f"{layout.PACKS}lair/"))
    theirs = scene.keys(layout.PACKS)[0]
    (url,) = scene.a.registry.read_objects(Reading(keys=[mine])).urls
    assert http.request("GET", url).status == 200
    assert http.request("GET", url.replace(mine, theirs)).status == 403
    for method in ("PUT", "DELETE", "POST"):
        assert http.request(method, url, body=b"x").status >= 400
    (made,) = scene.a.registry.new_packs(Packing(namespace="lair", packs=1)).packs
    for method in ("GET", "DELETE"):
        assert http.request(method, made.pack).status >= 400
    assert http.request("PUT", made.pack.replace(f"lair/{made.id}", theirs[6:])).status == 403
    # By a header that nobody signed the store would copy what the node can't read.
    source = {"x-amz-copy-source": f"/{s3.BUCKET}/kyb/{theirs}"}
    http.request("PUT", made.pack, headers=source)
    content = bytes(scene.owner.objects.get(theirs))
    (there,) = scene.a.registry.read_objects(Reading(keys=[f"{layout.PACKS}lair/{made.id}"])).urls
    assert http.request("GET", there).data != content
    scene.owner.objects.delete([f"{layout.PACKS}lair/{made.id}"])


def test_what_is_signed_ends(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's answer says when, and the store holds it to that."""
    mine = layout.manifest_key(scene.own.id)
    found = scene.a.registry.read_objects(Reading(keys=[mine]))
    assert found.seconds == LEAVE_S
    assert f"X-Amz-Expires={LEAVE_S}" in found.urls[0]
    longer = found.urls[0].replace(f"Expires={LEAVE_S}", "Expires=9999")
    http = urllib3.PoolManager(retries=False)
    assert http.request("GET", longer).status == 403
    (short,) = scene.owner.objects.signed("GET", [mine], timedelta(seconds=1))
    assert http.request("GET", short).status == 200
    time.sleep(2.2)
    assert http.request("GET", short).status == 403


@pytest.fixture
def kept(scene: Scene) -> Iterator[Manifest]:
    """The victim's state, put back as it was afterwards."""
    key = layout.manifest_key(scene.saved.id)
    signed = bytes(scene.owner.objects.get(key))
    yield scene.saved
    scene.owner.objects.put(key, signed)


def test_what_its_own_node_wrote_is_restored_there_and_elsewhere(
    scene: Scene, kept: Manifest
) -> None:
    assert kept.node == "b"
    assert restored(scene.b, kept.id, "u-victim").node == "b"
    # Another node, which has to ask.
    moved = scene.b.save("elsewhere", "u-first")
    scene.b.registry.stopped("elsewhere", "u-first", ENDED)
    scene.a.lease("elsewhere", "u-second")
    with pytest.raises(LeaveError, match="nothing to do with"):
        restored(scene.a, moved.id, "u-first")
    wanted = wire.Claim(artifact=moved.id, successor="u-second", node="a")
    scene.a.registry.claim("elsewhere", "u-first", wanted)
    assert restored(scene.a, moved.id, "u-first").node == "b"


def test_what_it_signs_for_a_pod_that_it_never_ran_is_refused(scene: Scene, kept: Manifest) -> None:
    """In place of what the pod's own node wrote, and under a name that nobody has recorded."""
    scene.b.nvme.objects.delete([layout.manifest_key(kept.id)])
    forged(scene, kept)
    with pytest.raises(RefusedError, match=r"signed by node a, .* written by b: that node had no"):
        restored(scene.b, kept.id, "u-victim")
    made = replace(kept, id="victim/model-0@20270131T120000Z-0000dead")
    forged(scene, made)
    try:
        with pytest.raises(RefusedError, match=r"signed by node a, .* knows of no such state"):
            restored(scene.b, made.id, "u-victim")
    finally:
        scene.owner.objects.delete([layout.manifest_key(made.id)])


def test_what_it_signs_with_another_nodes_name_is_refused(scene: Scene, kept: Manifest) -> None:
    scene.b.nvme.objects.delete([layout.manifest_key(kept.id)])
    forged(scene, kept, node="b")
    with pytest.raises(RefusedError, match="is signed by node a, and says that it is by node b"):
        restored(scene.b, kept.id, "u-victim")
    forged(scene, kept, node="")
    with pytest.raises(RefusedError, match="says that it is by a shared key"):
        restored(scene.b, kept.id, "u-victim")


def test_what_it_changes_of_anothers_state_is_refused(scene: Scene, kept: Manifest) -> None:
    scene.b.nvme.objects.delete([layout.manifest_key(kept.id)])
    key = layout.manifest_key(kept.id)
    line, _, body = bytes(scene.owner.objects.get(key)).partition(b"\n")
    changed = body.replace(b'"highest_pid":312', b'"highest_pid":313')
    assert changed != body
    scene.owner.objects.put(key, line + b"\n" + changed)
    with pytest.raises(RefusedError, match="was changed after node b signed it"):
        restored(scene.b, kept.id, "u-victim")


@pytest.fixture
def handed(scene: Scene) -> Iterator[Manifest]:
    """A state of node `b`'s that a pod of `a`'s goes on with, which `a` has packed as it should."""
    number, ended = next(_NUMBERS), wire.Proof.AGENT
    uid, after = f"u-{number}", f"u-{number}-after"
    saved = scene.b.save("handed", uid, number)
    scene.b.registry.stopped("handed", uid, wire.Stop(proof=ended, why="ended"))
    scene.a.lease("handed", after)
    wanted = wire.Claim(artifact=saved.id, successor=after, node="a")
    scene.a.registry.claim("handed", uid, wanted)
    held = wire.Copy(place=Tier.OBJECT, store=scene.a.url, state=wire.CopyState.VERIFIED)
    scene.a.registry.report(saved.id, wire.CopyReport(digest=digest(saved), held=held))
    scene.b.nvme.objects.delete([layout.manifest_key(saved.id)])  # the store alone has it
    forged(scene, saved)
    scene.b.lease("handed", f"{after}-asks")
    yield saved
    scene.a.registry.stopped("handed", after, wire.Stop(proof=ended, why="ended"))


def brought(node: Node, saved: Manifest, to: Path) -> bytes:
    into = Into(saved.facts.namespace, PodUid(saved.facts.pod_uid))
    asyncio.run(node.vault.fetch(ArtifactId(saved.id), to, 20, into))
    return (to / "pages-1.img").read_bytes()


def test_what_a_successor_packed_of_it_is_restored(
    scene: Scene, handed: Manifest, tmp_path: Path
) -> None:
    block = f"{handed.facts.pod_uid} ".encode()
    assert brought(scene.b, handed, tmp_path / "back").startswith(block)


@pytest.mark.parametrize("told", ["own", "recorded", "none"])
def test_a_successor_puts_nothing_else_in_its_place(
    scene: Scene, handed: Manifest, told: str, tmp_path: Path
) -> None:
    """Whatever its manifest tells of the files: what is in them, what was, or as 0.2.0 nothing."""
    other = scene.a.seal("handed", handed.facts.pod_uid, next(_NUMBERS))
    packed = scene.a.pack(other, scene.owner)
    scene.owner.objects.delete([layout.manifest_key(other.id)])
    pieces = {"own": other.files[0].pieces, "recorded": handed.files[0].pieces}.get(told, "")
    files = tuple(replace(file, pieces=pieces) for file in packed.files)
    forged(scene, replace(packed, id=handed.id, created=handed.created, files=files))
    with pytest.raises((RefusedError, CorruptError), match="recorded when it was saved"):
        brought(scene.b, handed, tmp_path / "back")


def test_what_it_signs_at_an_old_token_is_refused(scene: Scene) -> None:
    """It had the lease, and another writer has begun since; what it saved before stays believed."""
    server, pod = scene.server, ("shared", "u-moved")
    old = scene.a.registry.lease(pod, wire.LeaseWish(seconds=1, runs=False)).token
    before, after = (scene.a.seal(*pod, number) for number in (11, 12))
    scene.a.record(before, old)
    time.sleep(1.2)
    newer = scene.b.registry.lease(pod, wire.LeaseWish(seconds=60, runs=False)).token
    assert newer > old
    with pytest.raises(ConflictError, match="another writer has begun"):
        scene.a.record(after, old)
    for made in (before, after):
        forged(scene, made)
    assert restored(scene.b, before.id, "u-moved").node == "a"
    with pytest.raises(RefusedError, match=r"signed by node a, .* knows of no such state"):
        restored(scene.b, after.id, "u-moved")
    theirs = scene.b.seal(*pod, 13)
    scene.b.record(theirs, newer)
    with pytest.raises(ConflictError):
        scene.a.record(theirs, old)
    assert server.client().signers(theirs.id).nodes == ["b"]


def test_an_older_state_takes_nobodys_place(scene: Scene) -> None:
    """Node `a` has a pod that is to succeed one of `b`'s: it gets the newest state, or none."""
    older, newest = (scene.b.save("shared", "u-line", number) for number in (21, 22))
    told = wire.Stop(proof=wire.Proof.AGENT, why="ended")
    scene.b.registry.stopped("shared", "u-line", told)
    claim = wire.Claim(artifact=older.id, successor="u-next", node="a")
    with pytest.raises(ConflictError, match="is not the newest artifact"):
        scene.a.registry.claim("shared", "u-line", claim)
    with pytest.raises(RefusedError, match="older: the agent of node a can't say that"):
        scene.a.registry.claim("shared", "u-line", claim.model_copy(update={"older": True}))
    # Nor can it have the newest one forgotten.
    spot = wire.Spot(place=Tier.OBJECT, store=scene.b.url)
    with pytest.raises(RefusedError, match="is not node a's"):
        scene.a.registry.drop(newest.id, spot, "to roll back")
    gone = wire.Copy(place=Tier.OBJECT, store=scene.b.url, state=wire.CopyState.MISSING)
    with pytest.raises(RefusedError, match="is not node a's"):
        scene.a.registry.report(newest.id, wire.CopyReport(digest=digest(newest), held=gone))
    taken = scene.a.registry.claim(
        "shared", "u-line", claim.model_copy(update={"artifact": newest.id})
    )
    assert (taken.successor, taken.artifact) == ("u-next", newest.id)
