"""Who gets leave to what lies in the object store. Requests are signed here, and sent nowhere."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.layout import ObjectInfo
from kybernate.errors import ConfigError, NotFoundError, RefusedError, RetryableError
from kybernate.types import ArtifactId
from registry.http.app import create_app
from registry.http.callers import ForbiddenError
from registry.schema import MARKS, PACK_NAMES
from registry.store.named import Named, read_named
from registry.store.reach import read
from registry.store.routes import store_routes
from registry.store.store import LARGEST, Store
from tests.unit.registry.replica import (
    MAX_BODY,
    STORE,
    Clock,
    Replica,
    agent_certificate,
    name_of,
    pod,
)
from tests.unit.registry.test_standing import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PACK = "packs/ns/" + "0" * 32
ONE, TWO = name_of(1), name_of(2)


def manifest(name: str, namespace: str = "ns") -> str:
    return f"artifacts/{namespace}/{name.replace('@', '/')}/manifest"


MANIFEST, OTHER = manifest(ONE), manifest(TWO)


@dataclass
class Lies:
    """What lies in the store."""

    of: dict[str, bytes] = field(default_factory=dict)

    def put(self, key: str, data: bytes, *, create: bool = False) -> None:
        self.of[key] = data

    def get(self, key: str, _start: int = 0, _length: int | None = None) -> bytes:
        if key not in self.of:
            raise NotFoundError(f"{key} is not there")
        return self.of[key]

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, len(self.get(key)), 1.0)

    def page(self, prefix: str, after: str, _most: int) -> list[ObjectInfo]:
        return [self.head(key) for key in sorted(self.of) if key.startswith(prefix) and key > after]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.of.pop(key, None)

    def artifact(self, name: str, *packs: str, uid: str = "u1", namespace: str = "ns") -> None:
        """A manifest, and its packs of ten bytes."""
        self.of[manifest(name, namespace)] = signed(name, *packs, uid=uid, namespace=namespace)
        for pack in packs:
            self.of[f"packs/{namespace}/{pack}"] = b"0123456789"
            self.of[f"index/{namespace}/{pack}"] = b"index"


def signed(name: str, *packs: str, uid: str = "u1", namespace: str = "ns") -> bytes:
    named = [{"id": pack, "size": 10} for pack in packs]
    said = {"id": f"{namespace}/{name}", "facts": {"pod_uid": uid}, "packs": named}
    return b"signature\n" + orjson.dumps(said)


@pytest.fixture
def lies() -> Lies:
    return Lies()


@pytest.fixture
def make(replica: Replica, lies: Lies, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("registry.store.reach._REMEMBERED_S", 0.0)
    monkeypatch.setattr("registry.store.reach._AGAIN_S", 0.0)

    def made(**more: Any) -> Store:
        store = Store("s3://bucket/x", replica.database, 600.0, **more)
        for name in ("put", "get", "head", "page", "delete"):
            monkeypatch.setattr(store._objects, name, getattr(lies, name))
        return store

    return made


def opens(store: Store, node: str, key: str = PACK, of: str | None = None) -> bool:
    try:
        (url,) = store.readable(node, [key], of)
    except ForbiddenError:
        return False
    assert url.partition("?")[0].endswith(f"/bucket/x/{key}")
    return True


def lists(store: Store, node: str, prefix: str) -> list[str]:
    return [info.key for info in store.page(node, prefix, "")[0]]


def put(store: Store, node: str, key: str, data: bytes) -> None:
    store.put(node, key, b64encode(data).decode(), create=False)


def saved(replica: Replica, lies: Lies, node: str, uid: str, name: str, *packs: str) -> None:
    """The pod runs on the node, and its artifact lies in the store."""
    token = replica.token(node, uid)
    assert replica.record(node, name, token, pod_uid=uid, pod=name.partition("@")[0]).status == 201
    lies.artifact(name, *packs, uid=uid)


def test_a_pod_of_the_node_opens_what_its_node_may_use_of_the_namespace(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store = make()
    data_key = "keys/ns/1"
    assert not opens(store, "n1", data_key)
    replica.token("n1", "u1")
    assert (opens(store, "n1", data_key), opens(store, "n2", data_key)) == (True, False)
    assert not opens(store, "n1", "keys/other/1")
    assert len(store.packable("n1", "ns", 3)) == 3
    with pytest.raises(ForbiddenError, match="n2 has no lease or claim"):
        store.packable("n2", "ns", 1)


def test_a_node_reads_nothing_of_pods_that_never_ran_on_it(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store, mine, theirs = make(), "a" * 32, "b" * 32
    saved(replica, lies, "n1", "u1", ONE, mine)
    saved(replica, lies, "n2", "u2", TWO, theirs)
    for kind in ("packs", "index"):
        assert lists(store, "n1", f"{kind}/ns/") == [f"{kind}/ns/{mine}"]
        assert opens(store, "n1", f"{kind}/ns/{mine}")
        for of in (None, f"ns/{ONE}", f"ns/{TWO}"):
            assert not opens(store, "n1", f"{kind}/ns/{theirs}", of)
        with pytest.raises(ForbiddenError, match=f"nothing to do with pack {theirs}"):
            store.head("n1", f"{kind}/ns/{theirs}")
    assert lists(store, "n1", "artifacts/ns/") == lists(store, "n1", "artifacts/") == [MANIFEST]
    assert not opens(store, "n1", OTHER)
    with pytest.raises(ForbiddenError, match="nothing to do with ns/"):
        store.readable("n1", [MANIFEST, OTHER], None)


def test_by_naming_others_packs_a_node_does_not_get_to_read_them(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store, mine, theirs = make(), "a" * 32, "b" * 32
    saved(replica, lies, "n1", "u1", ONE, mine)
    saved(replica, lies, "n2", "u2", TWO, theirs)
    more = name_of(3)
    replica.record("n1", more, replica.token("n1", "u1"))
    with pytest.raises(ForbiddenError, match=f"nothing to do with pack {theirs}"):
        put(store, "n1", manifest(more), signed(more, mine, theirs))
    (new, *_), (others, *_) = store.packable("n1", "ns", 1)[0], store.packable("n2", "ns", 1)[0]
    with pytest.raises(ForbiddenError, match=f"nothing to do with pack {others}"):
        put(store, "n1", manifest(more), signed(more, mine, others))
    put(store, "n1", manifest(more), signed(more, mine, new))
    assert opens(store, "n1", f"packs/ns/{new}")


def test_what_a_node_writes_it_reads_before_any_manifest_names_it(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store = make()
    replica.token("n1", "u1")
    replica.token("n2", "u2")
    ((pack, *_),) = store.packable("n1", "ns", 1)
    lies.of[f"packs/ns/{pack}"] = b"0123456789"
    assert store.head("n1", f"packs/ns/{pack}").size == 10
    assert lists(store, "n1", "packs/ns/") == [f"packs/ns/{pack}"]
    assert opens(make(), "n1", f"packs/ns/{pack}"), "another replica, or after a restart"
    assert lists(store, "n2", "packs/ns/") == []
    assert not opens(store, "n2", f"packs/ns/{pack}")
    replica.token("n1", "u3")
    assert not opens(store, "n1", f"packs/other/{pack}")


def test_what_0_2_0_has_named_counts_for_a_while_after_an_upgrade(
    replica: Replica, lies: Lies, make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packs' names prove nothing, and they may be half-written."""
    store = make()
    replica.token("n1", "u1")
    assert not opens(store, "n1"), "a new installation has none of these"
    with replica.database.write() as connection:
        connection.execute(MARKS.delete().where(MARKS.c.name == PACK_NAMES))
    replica.database.prepare()
    assert opens(store, "n1"), "the database knew pods before it knew the secret"
    assert not opens(store, "n2")
    lies.artifact(ONE, PACK[-32:])
    assert lists(store, "n1", "packs/ns/") == [], "though none are shown"
    monkeypatch.setattr("registry.store.reach.time.time", lambda: 1e10)
    assert not opens(store, "n1")


def test_a_lease_opens_as_long_as_it_lasts(
    replica: Replica, clock: Clock, make: Callable[..., Store]
) -> None:
    store = make()
    replica.token("n2", "u1", runs=False)
    assert opens(store, "n2", "keys/ns/1")
    clock.now += 31_000
    assert not opens(store, "n2", "keys/ns/1")


def test_a_pod_that_stopped_or_is_gone_opens_nothing_more(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store, gone = make(), make(gone=lambda namespace, uid: (namespace, uid) == ("ns", "u1"))
    replica.token("n1", "u1")
    key = "keys/ns/1"
    assert (opens(store, "n1", key), opens(gone, "n1", key)) == (True, False)
    replica.stop("n1", "u1")
    assert not opens(store, "n1", key)


def test_a_claim_opens_what_was_claimed(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store, older, newest = make(), "a" * 32, "b" * 32
    saved(replica, lies, "n1", "u1", ONE, older)
    later = {"created_ms": 2_000_000_000_000}
    replica.record("n1", TWO, replica.token("n1", "u1"), **later)
    lies.artifact(TWO, newest)
    replica.stop("n1", "u1")
    assert not opens(store, "n2", OTHER)
    assert replica.claim("n2", "u1", TWO, "u2").status == 200
    assert opens(store, "n2", OTHER)
    assert opens(store, "n2", f"packs/ns/{newest}", f"ns/{TWO}")
    assert not opens(store, "n2", MANIFEST)
    assert not opens(store, "n2", f"packs/ns/{older}", f"ns/{ONE}")
    assert opens(store, "n1", OTHER), "its pod was here"
    with pytest.raises(ForbiddenError, match="not node n2's"):
        store.delete("n2", [MANIFEST])
    with pytest.raises(ForbiddenError, match="not node n2's"):
        put(store, "n2", MANIFEST, signed(ONE, older))
    replica.token("n2", "u2")
    assert lists(store, "n2", "packs/ns/") == [f"packs/ns/{newest}"], "and built upon"
    replica.stop("n2", "u2")
    assert not opens(store, "n2", "keys/ns/1")


def test_what_people_keep_is_not_a_successors_to_remove(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    """Nor once it needs it no more; what its own people let go it removes."""
    store, spot = make(), {"place": "object", "node": "", "store": STORE}
    saved(replica, lies, "n1", "u1", ONE)
    kept, token = {"person_hold": "object"}, replica.token("n1", "u1")
    said = {"pod": "model", "facts": kept, "held": {**spot, "state": "verified"}}
    assert replica.record("n1", ONE, token, **said).status == 200
    replica.stop("n1", "u1")
    assert replica.claim("n2", "u1", ONE, "u2").status == 200
    assert opens(store, "n2", MANIFEST)
    with pytest.raises(ForbiddenError, match="people keep"):
        store.delete("n2", [MANIFEST])
    assert replica.drop("n1", ONE, **spot, forget="nobody wants it").status == 400
    store.delete("n2", [MANIFEST])
    assert MANIFEST not in lies.of


class Cluster:
    """Pods on n2, and what they name."""

    def __init__(self) -> None:
        self.facts, self.templates = Facts(), dict[str, str]()

    def artifact(self, _namespace: str, name: str) -> ArtifactId:
        if name not in self.templates:
            raise RetryableError("SnapshotTemplates aren't known yet")
        return ArtifactId(self.templates[name])

    def named(self, node: str, namespace: str) -> Named:
        return read_named(self.facts, self.artifact, node, namespace)


@pytest.mark.parametrize("source", ["pod/u1", f"ns/{ONE}", "template/warm"])
def test_what_a_pod_names_that_was_placed_there_is_opened_to_its_node(
    replica: Replica, lies: Lies, make: Callable[..., Store], source: str
) -> None:
    mine, theirs = "a" * 32, "b" * 32
    one = ONE if "template" not in source else name_of(1, "warm-1a2b3c-4")
    other = TWO if "template" not in source else name_of(2, "warm-1a2b3c")
    cluster = Cluster()
    store = make(named=cluster.named)
    saved(replica, lies, "n1", "u1", one, mine)
    saved(replica, lies, "n1", "u3", other, theirs)
    replica.token("n2", "u2")
    pack, key = f"packs/ns/{mine}", manifest(one)
    assert not opens(store, "n2", key)
    cluster.templates["warm"] = f"ns/{name_of(9, 'warm-1a2b3c-9')}"
    cluster.facts.add("u2", "n2", succeeds=source)
    assert opens(store, "n2", key)
    assert opens(store, "n2", pack, f"ns/{one}")
    assert lists(store, "n2", "artifacts/ns/") == [key]
    assert lists(store, "n2", "packs/ns/") == [pack]
    assert not opens(store, "n2", manifest(other)), "of another pod"
    assert not opens(store, "n2", f"packs/ns/{theirs}", f"ns/{other}")
    assert not opens(store, "n3", key), "from another node"
    cluster.facts.seen.clear()
    assert not opens(store, "n2", key), "the pod is gone"


def test_while_it_is_not_known_what_pods_name_nobody_is_refused_for_good(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    cluster = Cluster()
    store = make(named=cluster.named)
    saved(replica, lies, "n1", "u1", ONE, "a" * 32)
    saved(replica, lies, "n2", "u2", TWO, "b" * 32)
    cluster.facts.add("u2", "n2", succeeds="template/warm")
    with pytest.raises(RetryableError, match="aren't known yet"):
        store.readable("n2", [MANIFEST], None)
    assert opens(store, "n2", OTHER), "its own it reads all the same"


def test_what_its_pod_saved_a_node_may_read_afterwards_and_no_more(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store = make()
    saved(replica, lies, "n1", "u1", ONE, "a" * 32)
    saved(replica, lies, "n2", "u3", TWO, "b" * 32)
    replica.stop("n1", "u1")
    assert (opens(store, "n1", MANIFEST), opens(store, "n1", OTHER)) == (True, False)
    assert not opens(store, "n1", "keys/ns/1")


def test_a_node_reads_what_a_tierplacement_wants_there_and_no_more(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    """It may put nothing, remove nothing, and read nothing else of the namespace."""
    of = f"ns/{ONE}"
    wanted = {(of, "n2")}
    store = make(placed=lambda *copy: copy in wanted)
    saved(replica, lies, "n1", "u1", ONE, "0" * 32)
    saved(replica, lies, "n1", "u1", name_of(2), "1" * 32)
    assert opens(store, "n2", MANIFEST)
    assert opens(store, "n2", PACK, of), "a pack that its manifest names"
    assert not opens(store, "n2", PACK)
    assert not opens(store, "n2", PACK[:-1] + "1", of)
    assert not opens(store, "n2", MANIFEST.replace("00000001/", "00000002/"))
    assert not opens(store, "n3", MANIFEST)
    assert not opens(store, "n3", PACK, of)
    with pytest.raises(ForbiddenError):
        store.packable("n2", "ns", 1)
    with pytest.raises(ForbiddenError):
        store.page("n2", "packs/ns/", "")
    wanted.clear()
    assert not opens(store, "n2", MANIFEST)


def test_a_grant_opens_what_it_names_for_whom_it_names(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    granted = [Grant("ns", ("team-b",), ("model",))]
    store = make(grants=lambda: granted)
    saved(replica, lies, "n1", "u1", ONE, "0" * 32)
    replica.agent("n2", "POST", f"{pod('u9', 'team-b')}/lease", {"seconds": 30})
    replica.agent("n3", "POST", f"{pod('u8', 'team-c')}/lease", {"seconds": 30})
    of = f"ns/{ONE}"
    assert opens(store, "n2", MANIFEST)
    assert opens(store, "n2", PACK, of), "a pack that its manifest names"
    assert not opens(store, "n2", PACK), "for nothing that was granted"
    assert not opens(store, "n2", PACK[:-1] + "1", of)
    assert not opens(store, "n3", MANIFEST)
    assert not opens(store, "n2", MANIFEST.replace("/model/", "/other/"))
    granted.clear()
    assert not opens(store, "n2", MANIFEST)


def test_what_was_forgotten_is_still_its_own_nodes_to_remove(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    """The last copy is dropped from the registry before its bytes go, and its pod may be gone."""
    store = make()
    saved(replica, lies, "n1", "u1", ONE)
    replica.token("n2", "u3")
    replica.stop("n1", "u1")
    replica.drop("n1", ONE, forget="nobody needs it")
    assert opens(store, "n1", MANIFEST)
    with pytest.raises(ForbiddenError, match="not node n2's"):
        store.delete("n2", [MANIFEST])
    store.delete("n1", [MANIFEST])
    assert MANIFEST not in lies.of


@pytest.mark.parametrize("damaged", [b"signature\n{", b"signature\n[]", b"signature\n{}", b""])
def test_what_was_forgotten_and_does_not_tell_whose_it_is_is_nobodys(
    replica: Replica, lies: Lies, make: Callable[..., Store], damaged: bytes
) -> None:
    store = make()
    replica.token("n2", "u3")
    lies.of[MANIFEST] = damaged
    with pytest.raises(ForbiddenError, match="nobody knows whose it is"):
        store.delete("n2", [MANIFEST])
    assert not opens(store, "n2", MANIFEST)
    assert lies.of[MANIFEST] == damaged
    store.delete("n2", [OTHER])  # what is nowhere, as is told twice
    assert opens(store, "n2", OTHER)
    named = make(named=lambda _node, _namespace: Named(artifacts=frozenset({f"ns/{ONE}"})))
    assert opens(named, "n2", MANIFEST), "whoever is to continue from it sees what is wrong"


def test_of_a_pod_of_which_nothing_is_known_nobody_removes_anything(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    """As after a rebuild: it names no node."""
    store = make()
    lies.artifact(ONE)
    assert replica.controller("POST", f"{pod('u1')}/settle", {"why": "known"}).status == 200
    with pytest.raises(ForbiddenError, match="not node n2's"):
        store.delete("n2", [MANIFEST])
    assert not opens(store, "n2", MANIFEST)


def test_an_index_goes_by_who_wrote_the_pack_or_where_that_is_damaged(
    replica: Replica, lies: Lies, make: Callable[..., Store]
) -> None:
    store, shared, theirs = make(), "a" * 32, "b" * 32
    saved(replica, lies, "n1", "u1", ONE, shared)
    saved(replica, lies, "n2", "u2", TWO, theirs)
    ((own, *_),) = store.packable("n1", "ns", 1)
    lies.of[f"index/ns/{own}"] = b"index"
    store.delete("n1", [f"index/ns/{own}"])
    with pytest.raises(ForbiddenError, match="nothing to do with pack"):
        store.delete("n1", [f"index/ns/{theirs}"])
    with pytest.raises(ForbiddenError, match="is there and whole; its index stays"):
        store.delete("n1", [f"index/ns/{shared}"])
    assert {f"index/ns/{shared}", f"index/ns/{theirs}"} <= lies.of.keys()
    lies.of[f"packs/ns/{shared}"] = b"cut"
    store.delete("n1", [f"index/ns/{shared}"])
    assert lies.of.keys() & {f"index/ns/{own}", f"index/ns/{shared}"} == set()
    lies.of[f"index/ns/{shared}"] = b"index"
    del lies.of[f"packs/ns/{shared}"]
    store.delete("n1", [f"index/ns/{shared}"])


def test_a_question_for_the_time_is_removed_by_who_asked(
    lies: Lies, make: Callable[..., Store]
) -> None:
    store, key = make(), "clocks/0123456789abcdef"
    put(store, "n1", key, b"1")
    assert store.head("n1", key).key == key
    with pytest.raises(ForbiddenError, match="another node's"):
        store.delete("n2", [key])
    store.delete("n1", [key])
    assert not lies.of
    store.delete("n1", [key])


@pytest.mark.parametrize(
    "key",
    [
        "leases/ns/0123456789abcdef",
        f"condemned/ns/{'0' * 32}",
        "clocks/0123456789abcdef",
        f"artifacts/ns/{ONE.replace('@', '/')}/images/x",
        f"packs/ns/{'0' * 32}/x",
    ],
)
def test_what_no_restore_needs_is_not_read(
    replica: Replica, make: Callable[..., Store], key: str
) -> None:
    replica.token("n1", "u1")
    with pytest.raises(ForbiddenError, match="not read by agents"):
        make().readable("n1", [key], None)


def test_what_lies_on_nvme_alone_is_not_asked_for_at_each_list(
    replica: Replica, make: Callable[..., Store], lies: Lies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.store.reach._AGAIN_S", 60.0)
    saved(replica, lies, "node-a", "u1", ONE, "0" * 32)
    packed, store = lies.of.pop(MANIFEST), make()
    asked: list[str] = []
    monkeypatch.setattr(store._objects, "get", lambda key, *_: asked.append(key) or lies.get(key))
    assert lists(store, "node-a", "packs/ns/") == lists(store, "node-a", "packs/ns/") == []
    assert asked == [MANIFEST]
    lies.of[MANIFEST] = packed
    assert opens(store, "node-a"), "before anybody is refused it is looked for"
    assert lists(store, "node-a", "packs/ns/") == [PACK]


@pytest.mark.parametrize("spoilt", ["packs", "beside", "facts"])
def test_no_manifest_has_so_many_lists_that_to_read_it_would_take_all_memory(
    replica: Replica, lies: Lies, make: Callable[..., Store], spoilt: str
) -> None:
    """Neither one that is put, nor one that lies there; the largest real one is read."""
    store, many = make(), [[]] * 200_001
    replica.record("n1", ONE, replica.token("n1", "u1"))
    said = {"id": f"ns/{ONE}", "facts": {"pod_uid": "u1", "x": many}, "packs": []}
    if spoilt != "facts":
        said |= {"facts": {"pod_uid": "u1"}, spoilt: many}
    wrong = b"signature\n" + orjson.dumps(said)
    with pytest.raises(RefusedError, match="data: has more than 200000 lists and objects"):
        put(store, "n1", MANIFEST, wrong)
    lies.of[MANIFEST] = wrong
    assert lists(store, "n1", "packs/ns/") == []
    put(store, "n1", MANIFEST, largest())


def largest() -> bytes:
    """The manifest of a state of a terabyte, and of more files than a container has."""
    leaf = {"covers": 1 << 26, "name": "0" * 64, "offset": 0, "pack": 0, "size": 0, "stored": 0}
    file = {"leaves": [leaf] * 4, "name": "pages-1.img", "pieces": "0" * 64, "size": 1 << 28}
    said = {"id": f"ns/{ONE}", "facts": {"pod_uid": "u1"}, "files": [file] * 25_000}
    made = b"signature\n" + orjson.dumps(said)
    assert 0.9 < len(made) / LARGEST < 1
    return made


def test_one_manifest_after_the_other_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is read takes many times the bytes that came."""
    under_way: list[int] = []
    most: list[int] = []

    def loads(_: bytes) -> dict[str, Any]:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.01)
        under_way.pop()
        return {}

    monkeypatch.setattr("registry.store.reach.orjson.loads", loads)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(read, [b"signature\n{}"] * 8))) == 8
    assert max(most) == 1


def test_a_third_large_body_is_asked_for_later(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes several times its bytes until it is answered; small ones go on being taken."""
    store, statuses = make(), list[int]()
    app = create_app(store_routes(store), MAX_BODY, lambda _: agent_certificate("n1"))

    def call(size: int) -> Any:
        told = orjson.dumps({"key": "keys/ns/1", "data": "x" * size})
        return app.test_client().put("/v1/store/object", data=told)

    def served(_node: str, _key: str, data: str, **_: bool) -> None:
        if len(data) > MAX_BODY and len(statuses) < 3:
            statuses.append(0)
            small, large = call(9), call(2 * MAX_BODY)
            statuses.extend((small.status_code, large.status_code))
            if large.status_code == 503:
                assert large.headers["Retry-After"] == "1"

    monkeypatch.setattr(store, "put", served)
    assert call(2 * MAX_BODY).status_code == 200
    assert statuses == [0, 0, 200, 503, 200, 200]
    assert call(2 * MAX_BODY).status_code == 200, "there is room again"


def test_a_store_that_does_not_answer_keeps_so_many_calls_and_no_more(
    replica: Replica, make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases and claims need threads, too."""
    store, answers = make(at_once=2), threading.Event()
    replica.token("n1", "u1")
    entered = threading.Semaphore(0)

    def head(key: str) -> ObjectInfo:
        entered.release()
        answers.wait(5)
        return ObjectInfo(key, 1, 1.0)

    monkeypatch.setattr(store._objects, "head", head)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(store.head, "n1", "keys/ns/1") for _ in range(2)]
        assert all(entered.acquire(timeout=5) for _ in waiting)
        with pytest.raises(RetryableError, match="2 calls wait for the object store"):
            store.head("n1", "keys/ns/1")
        with pytest.raises(RetryableError, match="2 calls wait for the object store"):
            put(store, "n1", "leases/ns/0123456789abcdef", b"x")
        assert opens(store, "n1", "keys/ns/1"), "what asks no store goes on"
        answers.set()
        assert [one.result().size for one in waiting] == [1, 1]
    assert store.head("n1", "keys/ns/1").size == 1


def test_a_folder_is_no_store(replica: Replica) -> None:
    for url in ("/tmp/x", "memory://x"):
        with pytest.raises(ConfigError, match="must begin with s3://"):
            Store(url, replica.database, 600.0)


def test_without_a_store_it_says_what_to_set(replica: Replica) -> None:
    (read, *_) = store_routes(None)
    with pytest.raises(ConfigError, match="KYB_REGISTRY_OBJECT_STORE"):
        read.serve(None)  # type: ignore[arg-type]
