"""Who gets leave to what lies in the object store. Requests are signed here, and sent nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kybernate.core.artifacts.grants import Grant
from kybernate.errors import ConfigError
from registry.http.callers import ForbiddenError
from registry.store.routes import store_routes
from registry.store.store import Store
from tests.unit.registry.replica import Clock, Replica, name_of, pod

if TYPE_CHECKING:
    from collections.abc import Callable

PACK = "packs/ns/" + "0" * 32
ONE = name_of(1)
MANIFEST = f"artifacts/ns/{ONE.replace('@', '/')}/manifest"


@pytest.fixture
def make(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr("registry.store.store._REMEMBERED_S", 0.0)
    monkeypatch.setattr(Store, "_uid_of", lambda _store, _artifact: "")  # nothing lies there
    return lambda **more: Store("s3://bucket/x", replica.database, 600.0, **more)


def opens(store: Store, node: str, key: str = PACK, of: str | None = None) -> bool:
    try:
        (url,) = store.readable(node, [key], of)
    except ForbiddenError:
        return False
    assert url.partition("?")[0].endswith(f"/bucket/x/{key}")
    return True


def test_a_pod_of_the_node_opens_its_namespace(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store = make()
    assert not opens(store, "n1")
    replica.token("n1", "u1")
    assert (opens(store, "n1"), opens(store, "n2")) == (True, False)
    assert not opens(store, "n1", "packs/other/" + "0" * 32)
    assert len(store.packable("n1", "ns", 3)) == 3
    with pytest.raises(ForbiddenError, match="n2 has no lease or claim"):
        store.packable("n2", "ns", 1)


def test_a_lease_opens_as_long_as_it_lasts(
    replica: Replica, clock: Clock, make: Callable[..., Store]
) -> None:
    store = make()
    replica.token("n2", "u1", runs=False)
    assert opens(store, "n2")
    clock.now += 31_000
    assert not opens(store, "n2")


def test_a_pod_that_stopped_or_is_gone_opens_nothing(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store, gone = make(), make(gone=lambda namespace, uid: (namespace, uid) == ("ns", "u1"))
    replica.token("n1", "u1")
    assert (opens(store, "n1"), opens(gone, "n1")) == (True, False)
    replica.stop("n1", "u1")
    assert not opens(store, "n1")


def test_a_claim_opens_until_its_successor_stopped(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store = make()
    replica.record("n1", ONE, replica.token("n1", "u1"))
    replica.stop("n1", "u1")
    replica.claim("n2", "u1", ONE, "u2")
    assert (opens(store, "n1"), opens(store, "n2")) == (False, True)
    replica.token("n2", "u2")
    replica.stop("n2", "u2")
    assert not opens(store, "n2")


def test_what_its_pod_saved_a_node_may_read_afterwards_and_no_more(
    replica: Replica, make: Callable[..., Store]
) -> None:
    store = make()
    token = replica.token("n1", "u1")
    replica.record("n1", ONE, token)
    replica.token("n2", "u3")
    replica.record("n2", name_of(2), replica.token("n2", "u3"), pod_uid="u3")
    replica.stop("n1", "u1")
    other = MANIFEST.replace("00000001/", "00000002/")
    assert (opens(store, "n1", MANIFEST), opens(store, "n1", other)) == (True, False)
    assert not opens(store, "n1", PACK)


def test_a_grant_opens_what_it_names_for_whom_it_names(
    replica: Replica, make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = [Grant("ns", ("team-b",), ("model",))]
    store = make(grants=lambda: granted)
    monkeypatch.setattr(store, "_packs", lambda _artifact: {"0" * 32})
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
    replica: Replica, make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last copy is dropped from the registry before its bytes go, and its pod may be gone."""
    store, removed = make(), []
    monkeypatch.setattr(store, "_uid_of", lambda _artifact: "u1")
    monkeypatch.setattr(store._objects, "delete", removed.extend)
    replica.record("n1", ONE, replica.token("n1", "u1"))
    replica.token("n2", "u3")
    replica.stop("n1", "u1")
    replica.drop("n1", ONE, forget="nobody needs it")
    assert opens(store, "n1", MANIFEST)
    store.delete("n1", [MANIFEST])
    assert removed == [MANIFEST]
    with pytest.raises(ForbiddenError, match="not node n2's"):
        store.delete("n2", [MANIFEST])


def test_of_a_pod_of_which_nothing_is_known_nobody_removes_anything(
    replica: Replica, make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a rebuild: it names no node."""
    store = make()
    monkeypatch.setattr(store, "_uid_of", lambda _artifact: "u1")
    assert replica.controller("POST", f"{pod('u1')}/settle", {"why": "known"}).status == 200
    with pytest.raises(ForbiddenError, match="not node n2's"):
        store.delete("n2", [MANIFEST])
    assert not opens(store, "n2", MANIFEST)


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


def test_a_folder_is_no_store(replica: Replica) -> None:
    for url in ("/tmp/x", "memory://x"):
        with pytest.raises(ConfigError, match="must begin with s3://"):
            Store(url, replica.database, 600.0)


def test_without_a_store_it_says_what_to_set(replica: Replica) -> None:
    (read, *_) = store_routes(None)
    with pytest.raises(ConfigError, match="KYB_REGISTRY_OBJECT_STORE"):
        read.serve(None)  # type: ignore[arg-type]
