"""Artifacts and copies: recorded once, found again, never the last verified one dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.registry.replica import (
    BEGINNING,
    DIGEST,
    STORE,
    artifact,
    name_of,
    pod,
    recording,
)

if TYPE_CHECKING:
    from tests.unit.registry.replica import Clock, Replica

ONE = name_of(1)


@pytest.fixture
def token(replica: Replica) -> int:
    return replica.token("n1", "u1")


def test_an_artifact_is_recorded_once_and_found(replica: Replica, token: int) -> None:
    made = replica.record("n1", ONE, token)
    assert made.status == 201
    assert replica.record("n1", ONE, token).status == 200
    found = replica.proxy(artifact(ONE))
    assert found.body == made.body
    assert found.body["id"] == f"ns/{ONE}"
    assert found.body["facts"] == {"driver": "580.1", "gpu_count": 1}
    (copy,) = found.body["copies"]
    assert (copy["place"], copy["node"], copy["state"]) == ("nvme", "n1", "verified")


def test_another_artifact_of_the_name_is_refused(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    other = replica.record("n1", ONE, token, digest="cd" * 32)
    assert (other.status, DIGEST in other.error) == (409, True)
    told = replica.report("n1", ONE, "verified", digest="cd" * 32)
    assert told.status == 409


def test_what_its_files_hold_is_recorded_once(replica: Replica, token: int) -> None:
    """Also after it was recorded by 0.2.0, which doesn't tell; nobody changes it then."""
    assert "content" not in replica.record("n1", ONE, token).body["facts"]
    told = replica.record("n1", ONE, token, facts={"content": "ab" * 32})
    assert told.body["facts"] == {"driver": "580.1", "gpu_count": 1, "content": "ab" * 32}
    other = replica.record("n1", ONE, token, facts={"content": "cd" * 32})
    assert (other.status, "ab" * 32 in other.error) == (409, True)
    assert replica.record("n1", ONE, token).body["facts"]["content"] == "ab" * 32


def test_a_write_with_an_older_token_is_refused(replica: Replica, token: int, clock: Clock) -> None:
    clock.now += 31_000
    newer = replica.token("n2", "u1", runs=False)
    assert newer > token
    late = replica.record("n1", ONE, token)
    assert (late.status, f"older than {newer}" in late.error) == (409, True)
    assert replica.record("n1", ONE, newer).status == 409, "another node's token"
    assert replica.record("n2", ONE, newer + 1).status == 409, "a token that nobody gave"
    assert replica.record("n2", ONE, newer).status == 201


def test_without_a_lease_nothing_is_recorded(replica: Replica) -> None:
    found = replica.record("n1", ONE, 1)
    assert (found.status, "lease" in found.error) == (409, True)


def test_a_placed_copy_is_no_reason_to_let_the_last_one_go(replica: Replica, token: int) -> None:
    """Its node may say that it has one, and have none."""
    replica.record("n1", ONE, token)
    assert replica.report("n3", ONE, "verified").status == 200
    last = replica.drop("n1", ONE)
    assert (last.status, "last verified copy" in last.error) == (409, True)
    assert replica.drop("n3", ONE).status == 200


def test_the_last_verified_copy_is_kept(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    last = replica.drop("n1", ONE)
    assert (last.status, "last verified copy" in last.error) == (409, True)
    store = {"place": "object", "node": "", "store": STORE}
    replica.report("n1", ONE, "pending", **store)
    assert replica.drop("n1", ONE).status == 409, "the other is not verified"
    replica.report("n1", ONE, "verified", **store)
    assert replica.drop("n1", ONE).body == {"dropped": True, "copies": 1}
    assert replica.drop("n1", ONE).body == {"dropped": False, "copies": 1}, "again is the same"
    assert replica.drop("n1", ONE, **store).status == 409


def test_with_a_reason_even_the_last_is_forgotten(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    assert replica.drop("n1", ONE, forget="the model was deleted").body["copies"] == 0
    assert replica.proxy(artifact(ONE)).status == 404
    assert replica.drop("n1", ONE).status == 404
    assert replica.record("n1", ONE, token).status == 201


def test_a_copy_that_is_lost_does_not_count(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    replica.report("n2", ONE, "verified")
    replica.report("n2", ONE, "missing")
    assert replica.drop("n1", ONE).status == 409
    assert replica.drop("n2", ONE).body == {"dropped": True, "copies": 1}


def test_a_verified_copy_is_not_pending_again(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    found = replica.report("n1", ONE, "pending")
    assert (found.status, "is verified" in found.error) == (409, True)
    assert replica.report("n1", ONE, "missing").status == 200
    assert replica.report("n1", ONE, "pending").status == 200


def test_copies_of_what_is_not_recorded_are_refused(replica: Replica) -> None:
    assert replica.report("n1", ONE, "verified").status == 404


def many(replica: Replica, count: int, token: int) -> list[str]:
    """So many artifacts, of which each two were created at the same time; newest first."""
    for number in range(count):
        made = replica.record(
            "n1",
            name_of(number),
            token,
            created_ms=BEGINNING + number // 2,
            model=f"m{number % 3}",
            held={"state": "verified" if number % 4 else "pending"},
        )
        assert made.status == 201
        if number % 5 == 0:
            replica.report("n2", name_of(number), "verified", place="ram")
    return [f"ns/{name_of(number)}" for number in reversed(range(count))]


def pages(replica: Replica, query: str) -> list[str]:
    found, after = [], ""
    while True:
        page = replica.proxy(f"/v1/artifacts?limit=7{query}{after}")
        assert page.status == 200, page
        found += [item["id"] for item in page.body["items"]]
        if page.body["next"] is None:
            return found
        assert len(page.body["items"]) == 7
        after = f"&after={page.body['next']}"


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ("", lambda _number: True),
        ("&namespace=ns", lambda _number: True),
        ("&namespace=other", lambda _number: False),
        ("&model=m1", lambda number: number % 3 == 1),
        ("&namespace=ns&model=m1&pod=model-0", lambda number: number % 3 == 1),
        ("&pod_uid=u1", lambda _number: True),
        ("&node=n2", lambda number: number % 5 == 0),
        ("&place=ram", lambda number: number % 5 == 0),
        ("&node=n1&state=pending", lambda number: number % 4 == 0),
        ("&model=m0&node=n2&place=ram", lambda number: number % 15 == 0),
        ("&place=object", lambda _number: False),
        ("&state=verified", lambda number: number % 4 != 0 or number % 5 == 0),
    ],
)
def test_lists_are_filtered_and_paged(
    replica: Replica, token: int, query: str, chosen: Any
) -> None:
    newest = many(replica, 40, token)
    wanted = [
        id_ for number, id_ in zip(reversed(range(40)), newest, strict=True) if chosen(number)
    ]
    assert pages(replica, query) == wanted


def test_the_newest_of_each_namespace(replica: Replica, token: int) -> None:
    newest = many(replica, 20, token)
    assert pages(replica, "&newest=9") == newest[:9]
    leased = replica.agent("n1", "POST", pod("u9", "zz") + "/lease", {"seconds": 30, "runs": True})
    body = recording("n1", leased.body["token"], pod_uid="u9", created_ms=1)
    assert replica.agent("n1", "PUT", artifact(name_of(1), "zz"), body).status == 201
    assert pages(replica, "&newest=9") == [*newest[:9], f"zz/{name_of(1)}"]
    refused = replica.proxy("/v1/artifacts?newest=9&namespace=ns")
    assert (refused.status, "leave the other conditions out" in refused.error) == (400, True)


def test_pages_stay_apart_while_artifacts_come_and_go(replica: Replica, token: int) -> None:
    newest = many(replica, 20, token)
    first = replica.proxy("/v1/artifacts?limit=5").body
    replica.record("n1", name_of(99), token, created_ms=BEGINNING + 1000)
    replica.drop("n1", newest[4].partition("/")[2], forget="gone")
    replica.drop("n2", newest[4].partition("/")[2], place="ram", forget="gone")
    second = replica.proxy(f"/v1/artifacts?limit=5&after={first['next']}").body
    assert [one["id"] for one in second["items"]] == newest[5:10]


def test_the_latest_is_the_newest_that_can_be_restored(replica: Replica, token: int) -> None:
    many(replica, 10, token)
    replica.record(
        "n1", name_of(50), token, created_ms=BEGINNING + 90, model="m1", held={"state": "pending"}
    )
    latest = "/v1/latest?namespace=ns"
    assert replica.proxy(f"{latest}&model=m1").body["id"] == f"ns/{name_of(7)}"
    assert replica.proxy(f"{latest}&model=m1&any=true").body["id"] == f"ns/{name_of(50)}"
    assert replica.proxy(f"{latest}&pod=model-0").body["id"] == f"ns/{name_of(9)}"
    assert replica.proxy(f"{latest}&pod_uid=u1&model=m2").body["id"] == f"ns/{name_of(5)}"
    nothing = replica.proxy(f"{latest}&model=m9")
    assert (nothing.status, "verified copy" in nothing.error) == (404, True)


def test_two_places_of_one_artifact_are_listed_once(replica: Replica, token: int) -> None:
    replica.record("n1", ONE, token)
    replica.report("n1", ONE, "verified", place="ram")
    replica.report("n1", ONE, "verified", place="object", node="", store=STORE)
    page = replica.proxy("/v1/artifacts?state=verified").body
    assert [len(item["copies"]) for item in page["items"]] == [3]
    assert page["items"][0]["facts"] == {}


def test_copies_are_counted(replica: Replica, token: int) -> None:
    many(replica, 10, token)
    assert sorted(replica.artifacts.counts()) == [
        ("nvme", "pending", 3),
        ("nvme", "verified", 7),
        ("ram", "verified", 2),
    ]
