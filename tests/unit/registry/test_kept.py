"""What people keep in the object store outlasts its successor's need of it, and no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.registry.replica import STORE, artifact, name_of, pod

if TYPE_CHECKING:
    from tests.unit.registry.replica import Answer, Replica

ONE = name_of(1)
IN_STORE: dict[str, Any] = {"place": "object", "node": "", "store": STORE}
HELD = {**IN_STORE, "state": "verified"}
KEPT = {"driver": "580.1", "person_hold": "object"}


@pytest.fixture
def written(replica: Replica) -> int:
    """Of node n1 for pod u1, which has saved one state, and has put it into the store."""
    token = replica.token("n1", "u1")
    assert replica.record("n1", ONE, token).status == 201
    assert replica.report("n1", ONE, "verified", **IN_STORE).status == 200
    return token


def let_go(replica: Replica, node: str) -> Answer:
    return replica.drop(node, ONE, **IN_STORE, forget="its successor has continued since")


def known(replica: Replica) -> list[str]:
    """Where the artifact is."""
    found = replica.proxy(artifact(ONE))
    return [one["place"] for one in found.body["copies"]] if found.status == 200 else []


def claimed_on(replica: Replica) -> str:
    return str(replica.proxy(pod("u1")).body["artifact"])


def keep(replica: Replica, token: int) -> Answer:
    """As agents do: the artifact is recorded once more."""
    return replica.record("n1", ONE, token, facts=KEPT, held=HELD)


def hand_over(replica: Replica) -> None:
    """Its pod ends, with what its node has on NVMe, and a pod of n2 continues."""
    assert replica.stop("n1", "u1").status == 200
    assert replica.claim("n2", "u1", ONE, "u2").status == 200
    assert replica.drop("n1", ONE).status == 200


def test_that_it_is_kept_is_known_from_when_its_node_says_so(
    replica: Replica, written: int
) -> None:
    assert "person_hold" not in replica.proxy(artifact(ONE)).body["facts"]
    assert keep(replica, written).status == 200
    facts = replica.proxy(artifact(ONE)).body["facts"]
    assert (facts["person_hold"], facts["gpu_count"]) == ("object", 1)
    assert replica.record("n1", ONE, written).status == 200
    assert replica.proxy(artifact(ONE)).body["facts"] == facts, "to say nothing takes nothing back"


def test_what_people_keep_stays_when_its_successor_has_continued(
    replica: Replica, written: int
) -> None:
    keep(replica, written)
    hand_over(replica)
    refused = let_go(replica, "n3")
    assert (refused.status, claimed_on(replica)) == (400, f"ns/{ONE}")
    before = replica.proxy(pod("u1")).body
    assert let_go(replica, "n2").body == {"dropped": False, "copies": 1}
    after = replica.proxy(pod("u1")).body
    assert after == {**before, "artifact": "", "version": before["version"] + 1}
    assert (known(replica), after["successor"]) == (["object"], "u2")
    assert let_go(replica, "n2").body == {"dropped": False, "copies": 1}, "again is the same"
    # Its own node hears of it, and drops it once its person lets it go.
    assert let_go(replica, "n1").body == {"dropped": True, "copies": 0}
    assert known(replica) == []


def test_an_operator_drops_what_is_kept_whoever_keeps_it(replica: Replica, written: int) -> None:
    keep(replica, written)
    hand_over(replica)
    query = f"place=object&store={STORE}&forget=nobody+wants+it"
    gone = replica.controller("DELETE", f"{artifact(ONE)}/copies?{query}")
    assert gone.body == {"dropped": True, "copies": 0}


def test_what_nobody_keeps_is_forgotten_as_ever(replica: Replica, written: int) -> None:
    hand_over(replica)
    assert let_go(replica, "n2").body == {"dropped": True, "copies": 0}
    assert (known(replica), claimed_on(replica)) == ([], f"ns/{ONE}")


def test_what_its_person_lets_go_before_goes_when_its_successor_has_continued(
    replica: Replica, written: int
) -> None:
    keep(replica, written)
    hand_over(replica)
    early = let_go(replica, "n1")
    assert (early.status, "u2 on node n2 continues" in early.error) == (400, True)
    assert known(replica) == ["object"]
    assert let_go(replica, "n2").body == {"dropped": True, "copies": 0}


def test_of_what_is_kept_another_node_drops_no_copy_of_the_store_for_no_reason_either(
    replica: Replica, written: int
) -> None:
    keep(replica, written)
    replica.stop("n1", "u1")
    replica.claim("n2", "u1", ONE, "u2")
    replica.report("n2", ONE, "verified")
    assert replica.drop("n2", ONE, **IN_STORE).body == {"dropped": False, "copies": 3}
    assert claimed_on(replica) == f"ns/{ONE}", "it needs it still"
    assert replica.drop("n2", ONE).body == {"dropped": True, "copies": 2}, "its own is its own"


def test_of_what_is_kept_another_node_says_of_no_copy_of_the_store_that_it_is_missing(
    replica: Replica, written: int
) -> None:
    """Or nobody would restore from it any more."""
    keep(replica, written)
    hand_over(replica)
    refused = replica.report("n2", ONE, "missing", **IN_STORE)
    assert (refused.status, "people keep" in refused.error) == (400, True)
    assert replica.report("n2", ONE, "missing").status == 200, "its own is its own"
    held = {one["place"]: one["state"] for one in replica.proxy(artifact(ONE)).body["copies"]}
    assert held == {"object": "verified", "nvme": "missing"}
    let_go(replica, "n2")
    assert replica.report("n2", ONE, "missing", **IN_STORE).status == 400
    assert replica.report("n1", ONE, "missing", **IN_STORE).status == 200


def test_its_pods_writer_alone_says_that_it_is_kept(replica: Replica, written: int) -> None:
    """Or a rogue node could make what others have undroppable."""
    foreign = replica.record("n2", ONE, written, facts=KEPT, held=HELD)
    assert foreign.status == 409
    hand_over(replica)
    late = keep(replica, written)
    assert (late.status, "u2 continues" in late.error) == (409, True)
    theirs = replica.token("n2", "u2")
    as_own = replica.record("n2", ONE, theirs, pod_uid="u2", facts=KEPT, held=HELD)
    assert as_own.status == 409
    assert "person_hold" not in replica.proxy(artifact(ONE)).body["facts"]


def test_a_claim_that_is_told_again_brings_nothing_back_and_one_that_is_made_again_does(
    replica: Replica, written: int
) -> None:
    keep(replica, written)
    hand_over(replica)
    let_go(replica, "n2")
    told = replica.claim("n2", "u1", ONE, "u2", again=True)
    assert (told.status, told.body["artifact"]) == (200, "")
    once_more = replica.claim("n2", "u1", ONE, "u2")
    assert (once_more.status, once_more.body["artifact"]) == (200, f"ns/{ONE}")
    assert let_go(replica, "n1").status == 400
    assert replica.claim("n3", "u1", ONE, "u3").status == 409
