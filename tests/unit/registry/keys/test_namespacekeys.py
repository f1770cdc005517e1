"""Who is given which namespace's key, what becomes of keys, and what crashes leave of them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from kybernate import keys
from kybernate.adapters.keys.artifactkeys import WrapKeys
from kybernate.checkpoint.places import Place, data_key, read_key
from kybernate.core.artifacts import keyobjects
from kybernate.core.artifacts.grants import Grant
from kybernate.core.artifacts.keyobjects import NamespaceKey
from kybernate.errors import RefusedError, RetryableError
from registry.keys import places as keyplaces
from registry.schema import NAMESPACE_KEYS
from tests.unit.checkpoint.kit import KEYS, BreakingObjects, KilledError
from tests.unit.checkpoint.kit import place as local_place
from tests.unit.registry.replica import (
    Answer,
    Clock,
    Replica,
    name_of,
    named_certificate,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST, SECOND = "0a-first", "0b-second"


class Cluster:
    """What a cluster says of namespaces: `now`, where its watch is late."""

    def __init__(self) -> None:
        self.uids: dict[str, str | None] = {"ns": FIRST, "other": "uid-of-other"}
        self.now: dict[str, str | None] = {}
        self.away = self.now_away = False

    def namespace_uid(self, name: str, *, fresh: bool = False) -> str | None:
        if self.away or (fresh and self.now_away):
            raise RetryableError("the API server can't be asked now")
        return (self.uids | self.now if fresh else self.uids).get(name)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def store(tmp_path: Path) -> Place:
    return local_place(tmp_path / "store")


@pytest.fixture
def one(tmp_path: Path, clock: Clock, cluster: Cluster, store: Place) -> Iterator[Replica]:
    made = Replica(url_of(tmp_path), clock, namespaces=cluster, places=(store,))
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    yield made
    made.close()


def ask(one: Replica, node: str, uid: str = "u1", namespace: str = "ns", **more: Any) -> Answer:
    return one.agent(node, "POST", f"/v1/namespaces/{namespace}/key", {"pod": uid, **more})


def shred(one: Replica, **wish: Any) -> Answer:
    return one.controller("POST", "/v1/namespaces/ns/shred", {"why": "told to", **wish})


class Of:
    """`ports.Wraps` by what the registry gave."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._keys = WrapKeys((bytes.fromhex(given["key"]),))
        self._sealed = NamespaceKey(**given["sealed"])

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        return self._keys.wrap(secret, bound_to)

    def unwrap(self, by: str, wrapped: str, bound_to: str) -> bytes:
        return self._keys.unwrap(by, wrapped, bound_to)

    def own(self, by: str) -> NamespaceKey:
        return self._sealed if by == self._sealed.id else NamespaceKey()


def packs(given: dict[str, Any], place: Place) -> bytes:
    """The data key that a node would pack under with this key."""
    return data_key(place, "ns", replace(KEYS, kms=Of(given)))[1]


def test_who_has_a_lease_is_given_the_key_and_always_the_same(one: Replica) -> None:
    one.token("n1", "u1")
    first, again = ask(one, "n1").body, ask(one, "n1").body
    assert len(bytes.fromhex(first["key"])) == 32
    assert first == again
    assert first["uid"] == FIRST
    sealed = NamespaceKey(**first["sealed"])
    opened = one.kms.unwrap(sealed.by, sealed.wrapped, sealed.bound_to("ns"))
    assert opened.hex() == first["key"]


def test_without_a_lease_there_is_no_key(one: Replica, clock: Clock) -> None:
    assert ask(one, "n1").status == 409
    one.lease("n1", "u1", 30)
    assert ask(one, "n1").status == 200
    assert ask(one, "n2").status == 409
    assert ask(one, "n1", namespace="other").status == 409
    clock.now += 31_000
    refused = ask(one, "n1")
    assert refused.status == 409
    assert "take one first" in refused.error


def test_not_after_the_pod_stopped(one: Replica) -> None:
    one.token("n1", "u1")
    one.stop("n1", "u1")
    assert ask(one, "n1").status == 409


def test_who_goes_on_with_a_pods_state_is_given_the_key_until_it_stops(one: Replica) -> None:
    token = one.token("n1", "u1")
    one.record("n1", name_of(1), token)
    one.stop("n1", "u1")
    assert ask(one, "n2", "u2").status == 409
    assert one.claim("n2", "u1", name_of(1), "u2").status == 200
    assert ask(one, "n2", "u2").status == 200
    assert ask(one, "n1", "u2").status == 409
    assert ask(one, "n1", "u1").status == 409
    one.token("n2", "u2")
    one.stop("n2", "u2")
    assert ask(one, "n2", "u2").status == 409


def test_nobody_is_given_it_by_the_proxys_certificate(one: Replica) -> None:
    got = one.call(named_certificate(keys.CN_PROXY), "POST", "/v1/namespaces/ns/key", {"pod": "u1"})
    assert got.status == 403


def test_a_namespace_made_anew_has_another_key_and_gets_none_of_before(
    one: Replica, cluster: Cluster
) -> None:
    one.token("n1", "u1")
    old = ask(one, "n1").body
    cluster.uids["ns"] = SECOND
    one.token("n1", "u2")
    new = ask(one, "n1", "u2").body
    assert new["uid"] == SECOND
    assert new["key"] != old["key"]
    refused = ask(one, "n1", "u2", id=old["sealed"]["id"])
    assert refused.status == 400
    assert "was deleted" in refused.error
    del cluster.uids["ns"]
    assert ask(one, "n1", "u2").status == 409


def test_a_key_is_of_one_namespace(one: Replica) -> None:
    one.token("n1", "u1")
    id_ = ask(one, "n1").body["sealed"]["id"]
    one.agent("n1", "POST", "/v1/pods/other/u9/lease", {"seconds": 30})
    assert ask(one, "n1", "u9", "other").status == 200
    refused = ask(one, "n1", "u9", "other", id=id_)
    assert refused.status == 400
    assert "another namespace's" in refused.error


def test_while_the_cluster_is_away_one_asks_again(one: Replica, cluster: Cluster) -> None:
    one.token("n1", "u1")
    cluster.away = True
    assert ask(one, "n1").status == 503


def test_an_unknown_key_is_asked_for_again_and_never_given_up(one: Replica) -> None:
    """The database may have been lost; who gets a 400 takes what it wrapped for worthless."""
    one.token("n1", "u1")
    for more in ({}, {"wrapped": "ab" * 60}):
        refused = ask(one, "n1", id="00" * 8, **more)
        assert refused.status == 503
        assert "rebuild" in refused.error


def test_what_a_key_of_before_wrapped_opens_for_the_first_of_the_name(
    one: Replica, cluster: Cluster
) -> None:
    by, wrapped = one.kms.wrap(b"d" * 32, "ns")
    one.token("n1", "u1")
    one.shredder.look()
    assert ask(one, "n1", id=by, wrapped=wrapped).body["key"] == (b"d" * 32).hex()
    cluster.uids["ns"] = SECOND
    refused = ask(one, "n1", id=by, wrapped=wrapped)
    assert refused.status == 400
    assert "not the present one's" in refused.error


def test_a_grant_opens_one_data_key_and_no_more(one: Replica) -> None:
    one.token("n1", "u1")
    own = ask(one, "n1").body
    id_, wrapped = Of(own).wrap(b"d" * 32, "ns")
    one.agent("n2", "POST", "/v1/pods/other/u9/lease", {"seconds": 30})
    wish = {"pod_namespace": "other", "artifact": f"ns/{name_of(1)}", "id": id_, "wrapped": wrapped}
    assert ask(one, "n2", "u9", **wish).status == 409
    one.grants = (Grant("ns", ("other",), ("model",)),)
    given = ask(one, "n2", "u9", **wish)
    assert given.status == 200, given
    assert given.body["key"] == (b"d" * 32).hex()
    assert given.body["sealed"] is None
    assert ask(one, "n2", "u9", **{**wish, "artifact": f"other/{name_of(1)}"}).status == 400
    for count in (1, 2, 3):
        for lacking in combinations(("artifact", "id", "wrapped"), count):
            for nothing in (None, ""):
                refused = ask(one, "n2", "u9", **{**wish, **dict.fromkeys(lacking, nothing)})
                assert refused.status == 400, (lacking, refused)
            less = {name: value for name, value in wish.items() if name not in lacking}
            refused = ask(one, "n2", "u9", **less)
            assert refused.status == 400, (lacking, refused)
            assert "artifact: name the artifact of ns" in refused.error


def test_without_keys_that_wrap_it_says_so_and_one_asks_again(one: Replica) -> None:
    one.keys._kms = WrapKeys()
    one.token("n1", "u1")
    refused = ask(one, "n1")
    assert refused.status == 503
    assert "wrap-1.key" in refused.error


def test_lost_with_the_database_keys_are_found_in_the_place(
    one: Replica, store: Place, tmp_path: Path, clock: Clock, cluster: Cluster
) -> None:
    one.token("n1", "u1")
    given = ask(one, "n1").body
    secret = packs(given, store)
    (tmp_path / "new").mkdir()
    after = Replica(url_of(tmp_path / "new"), clock, namespaces=cluster, places=(store,))
    after.kms, after.keys._kms = one.kms, one.kms
    after.token("n1", "u1")
    assert ask(after, "n1", id=given["sealed"]["id"]).status == 503
    assert keyplaces.take_in(after.database, one.kms, store) == 1
    assert keyplaces.take_in(after.database, one.kms, store) == 0
    found = ask(after, "n1").body
    assert found == given
    assert packs(found, store) == secret
    after.close()


def test_a_namespace_that_is_gone_is_shredded_after_the_grace(
    one: Replica, cluster: Cluster, store: Place, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    one.token("n1", "u1")
    given = ask(one, "n1").body
    packs(given, store)
    one.shredder.look()
    del cluster.uids["ns"]
    one.shredder.look()
    assert "are destroyed in 1 h" in caplog.text
    clock.now += 3_599_000
    one.shredder.look()
    assert list(store.objects.scan("keys/"))
    clock.now += 2_000
    one.shredder.look()
    assert not list(store.objects.scan("keys/"))
    (known,) = one.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
    assert known["shredded_ms"] > known["shred_ms"]
    cluster.uids["ns"] = FIRST
    refused = ask(one, "n1", id=given["sealed"]["id"])
    assert refused.status in (400, 409)
    with one.database.read() as connection:
        assert connection.execute(select(NAMESPACE_KEYS.c.wrapped)).scalars().all() == [""]


def test_a_cluster_that_is_away_shreds_nothing(one: Replica, cluster: Cluster) -> None:
    one.token("n1", "u1")
    ask(one, "n1")
    cluster.away = True
    with pytest.raises(RetryableError):
        one.shredder.look()
    cluster.away = False
    (known,) = one.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
    assert known["shred_ms"] == 0


def known_key(one: Replica) -> dict[str, Any]:
    (known,) = one.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
    return dict(known)


@pytest.mark.parametrize("meanwhile", [None, SECOND])
def test_a_namespace_that_is_there_again_keeps_its_keys(
    one: Replica, cluster: Cluster, clock: Clock, meanwhile: str | None
) -> None:
    """As where the registry asked the wrong API server for a while, or one that was rolled back."""
    one.token("n1", "u1")
    given = ask(one, "n1").body
    one.shredder.look()
    for _ in range(2):
        cluster.uids["ns"] = meanwhile
        one.shredder.look()
        assert known_key(one)["shred_ms"] == clock.now + 3_600_000
        cluster.uids["ns"] = FIRST
        one.shredder.look()
        assert (known_key(one)["shred_ms"], known_key(one)["why"]) == (0, "")
        clock.now += 3_601_000
        one.shredder.look()
        one.token("n1", "u1")
        assert ask(one, "n1").body == given
    del cluster.uids["ns"]
    one.shredder.look()
    clock.now += 3_601_000
    one.shredder.look()
    assert known_key(one)["shredded_ms"]


def test_one_that_was_kept_and_is_there_again_is_shredded_once_it_is_gone_again(
    one: Replica, cluster: Cluster, clock: Clock
) -> None:
    one.token("n1", "u1")
    ask(one, "n1")
    one.shredder.look()
    del cluster.uids["ns"]
    one.shredder.look()
    assert shred(one, cancel=True).body["changed"] == 1
    one.shredder.look()
    assert known_key(one)["shred_ms"] == 0
    cluster.uids["ns"] = FIRST
    one.shredder.look()
    del cluster.uids["ns"]
    one.shredder.look()
    assert known_key(one)["shred_ms"] == clock.now + 3_600_000


def test_a_namespace_without_pods_or_artifacts_is_taken_back_too(
    one: Replica, cluster: Cluster
) -> None:
    one.keys.newest("ns")
    del cluster.uids["ns"]
    one.shredder.look()
    assert known_key(one)["shred_ms"]
    cluster.uids["ns"] = FIRST
    one.shredder.look()
    assert known_key(one)["shred_ms"] == 0


def test_what_somebody_wants_destroyed_stays_so_when_its_namespace_is_there_again(
    one: Replica, cluster: Cluster, clock: Clock
) -> None:
    one.token("n1", "u1")
    ask(one, "n1")
    one.shredder.look()
    del cluster.uids["ns"]
    one.shredder.look()
    shred(one, seconds=60)
    cluster.uids["ns"] = FIRST
    one.shredder.look()
    assert known_key(one)["why"] == "told to"
    clock.now += 60_001
    one.shredder.look()
    assert known_key(one)["shredded_ms"]


def test_the_cluster_is_asked_once_more_before_a_key_goes(
    one: Replica, cluster: Cluster, clock: Clock
) -> None:
    """What a watch has seen of the name may be older than what is so now."""
    one.token("n1", "u1")
    ask(one, "n1")
    one.shredder.look()
    cluster.uids["ns"] = SECOND
    one.shredder.look()
    clock.now += 3_601_000
    cluster.now = {"ns": FIRST}
    one.shredder.look()
    assert not known_key(one)["shredded_ms"]
    cluster.now_away = True
    with pytest.raises(RetryableError):
        one.shredder.look()
    assert not known_key(one)["shredded_ms"]
    one.shredder._cluster, at = None, one.shredder._cluster
    one.shredder.look()
    one.shredder._cluster = at
    cluster.now_away, cluster.now = False, {}
    assert not known_key(one)["shredded_ms"]
    one.shredder.look()
    assert known_key(one)["shredded_ms"]


def test_shredding_is_tried_dry_kept_and_done_when_told(
    one: Replica, store: Place, clock: Clock
) -> None:
    assert shred(one).status == 404
    one.token("n1", "u1")
    given = ask(one, "n1").body
    packs(given, store)
    dry = shred(one, dry_run=True)
    assert dry.body["changed"] == 1
    assert dry.body["keys"][0]["shred_ms"] == clock.now + 3_600_000
    (known,) = one.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
    assert known["shred_ms"] == 0
    assert shred(one).body["keys"][0]["shred_ms"] > 0
    assert shred(one, cancel=True).body["keys"][0]["shred_ms"] == 0
    shred(one, seconds=0)
    clock.now += 1
    one.shredder.look()
    assert not list(store.objects.scan("keys/"))
    refused = ask(one, "n1", id=given["sealed"]["id"])
    assert refused.status == 400
    assert "destroyed: told to" in refused.error
    assert ask(one, "n1").body["key"] != given["key"]
    assert shred(one, cancel=True).status == 200  # of the new one


def test_a_key_that_is_laid_anew_is_destroyed_again(
    one: Replica, store: Place, clock: Clock
) -> None:
    """By a node that had it in memory still."""
    one.token("n1", "u1")
    given = ask(one, "n1").body
    shred(one, seconds=0)
    clock.now += 1
    one.shredder.look()
    packs(given, store)
    assert list(store.objects.scan("keys/"))
    one.shredder.look()
    assert not list(store.objects.scan("keys/"))


@pytest.mark.parametrize("at", range(1, 4))
@pytest.mark.parametrize("how", ["kill-before", "kill-after", "down"])
def test_shredding_that_was_cut_short_is_done_the_next_time(
    one: Replica, store: Place, clock: Clock, at: int, how: str
) -> None:
    """Listing, reading, deleting; whatever happened, the key is out of the database first."""
    one.token("n1", "u1")
    packs(ask(one, "n1").body, store)
    shred(one, seconds=0)
    clock.now += 1
    broken = Place("broken", BreakingObjects(store.objects, at, how), store.root)
    one.shredder._places = (broken,)
    with pytest.raises((KilledError, RetryableError)):
        one.shredder.look()
    with one.database.read() as connection:
        assert connection.execute(select(NAMESPACE_KEYS.c.wrapped)).scalars().all() == [""]
    one.shredder._places = (store,)
    one.shredder.look()
    assert not list(store.objects.scan("keys/"))
    (known,) = one.controller("GET", "/v1/namespaces/ns/keys").body["keys"]
    assert known["shredded_ms"]


def renewed(one: Replica) -> WrapKeys:
    return WrapKeys((*one.kms.keys, os.urandom(32)))


def test_rewrapping_says_what_it_would_do_and_does_it_once(one: Replica, store: Place) -> None:
    one.token("n1", "u1")
    given = ask(one, "n1").body
    secret = packs(given, store)
    kms, said = renewed(one), []
    assert keyplaces.rewrap(one.database, kms, (store,), said.append, dry_run=True) == 2
    assert len(said) == 2
    assert read_key(store, "keys/ns/1").of.by == one.kms.newest
    assert keyplaces.rewrap(one.database, kms, (store,), said.append, dry_run=False) == 2
    assert keyplaces.rewrap(one.database, kms, (store,), said.append, dry_run=False) == 0
    assert read_key(store, "keys/ns/1").of.by == kms.newest
    # The key of before may go.
    one.keys._kms = WrapKeys((kms.keys[-1],))
    assert ask(one, "n1").body["key"] == given["key"]
    assert packs(ask(one, "n1").body, store) == secret


def test_what_nodes_lay_in_the_store_opens(one: Replica, store: Place) -> None:
    """As a node makes it, also after its registry has wrapped the namespace's key anew."""
    one.token("n1", "u1")
    packs(ask(one, "n1").body, store)
    made = read_key(store, "keys/ns/1")
    one.keys.check_data_key("ns", "1", keyobjects.encode(made))
    kms = renewed(one)
    keyplaces.rewrap(one.database, kms, (), lambda _: None, dry_run=False)
    one.keys._kms = kms
    one.keys.check_data_key("ns", "1", keyobjects.encode(made))
    other = replace(made.of, wrapped=kms.wrap(b"o" * 32, made.of.bound_to("ns"))[1])
    for spoilt in (
        replace(made, wrapped="00" * 60),
        replace(made, by="0" * 16),
        replace(made, of=replace(made.of, id="0" * 16)),
        replace(made, of=replace(made.of, uid=SECOND)),
        made.with_own(other),
    ):
        with pytest.raises(RefusedError, match="is no data key of namespace ns"):
            one.keys.check_data_key("ns", "1", keyobjects.encode(spoilt))
    with pytest.raises(RefusedError, match="is no data key of namespace other"):
        one.keys.check_data_key("other", "1", keyobjects.encode(made))


def test_data_keys_of_before_are_wrapped_anew_and_it_is_told_what_needs_the_old_key(
    one: Replica, store: Place
) -> None:
    old = replace(KEYS, kms=one.kms)
    wrapped, secret = data_key(store, "ns", old)
    kms, said = renewed(one), []
    assert keyplaces.rewrap(one.database, kms, (store,), said.append, dry_run=False) == 1
    assert wrapped.by in said[0]
    assert data_key(store, "ns", replace(KEYS, kms=WrapKeys((kms.keys[-1],))))[1] == secret


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("how", ["kill-before", "kill-after", "down"])
def test_rewrapping_that_was_cut_short_loses_nothing(
    one: Replica, store: Place, at: int, how: str
) -> None:
    one.token("n1", "u1")
    given = ask(one, "n1").body
    secret = packs(given, store)
    kms = renewed(one)
    broken = Place("broken", BreakingObjects(store.objects, at, how), store.root)
    with contextlib.suppress(KilledError, RetryableError):
        keyplaces.rewrap(one.database, kms, (broken,), lambda _: None, dry_run=False)
    one.keys._kms = kms
    assert ask(one, "n1").body["key"] == given["key"]
    assert packs(ask(one, "n1").body, store) == secret
    keyplaces.rewrap(one.database, kms, (store,), lambda _: None, dry_run=False)
    assert read_key(store, "keys/ns/1").of.by == kms.newest


class _Dies(WrapKeys):
    """A process that ends before, or right after, the key management system has wrapped."""

    after = False

    def wrap(self, secret: bytes, bound_to: str) -> tuple[str, str]:
        WrapKeys.wrap(self, secret, bound_to)
        raise KilledError


def test_first_use_that_was_cut_short_leaves_no_key_or_one_that_opens(
    one: Replica, store: Place
) -> None:
    one.token("n1", "u1")
    kms = one.kms
    one.keys._kms = _Dies(kms.keys)
    with pytest.raises(KilledError):
        one.keys.newest("ns")
    one.keys._kms = kms
    with one.database.read() as connection:
        assert not connection.execute(select(NAMESPACE_KEYS.c.id)).all()
    given = ask(one, "n1").body
    # And at the place: before and after its object is put.
    for at, how in ((2, "kill-before"), (2, "kill-after")):
        broken = Place("broken", BreakingObjects(store.objects, at, how), store.root)
        with pytest.raises(KilledError):
            packs(given, broken)
        secret = packs(given, store)
        assert packs(ask(one, "n1").body, store) == secret
        store.objects.delete(["keys/ns/1"])
