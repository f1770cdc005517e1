"""Leases, proofs of stopping, and claims: one writer, one successor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest
from sqlalchemy import select, update

from kybernate.core.nodeaccess import Access, why_not
from registry.artifacts import Artifacts
from registry.schema import WRITERS
from tests.unit.registry.replica import DIGEST, STORE, Clock, Replica, name_of, pod, url_of

if TYPE_CHECKING:
    from pathlib import Path

ONE = name_of(1)


@pytest.fixture
def stopped(replica: Replica) -> int:
    """Pod u1 of node n1 was saved and stopped; gives its last token."""
    token = replica.token("n1", "u1")
    assert replica.record("n1", ONE, token).status == 201
    assert replica.stop("n1", "u1").status == 200
    return token


def test_a_lease_is_one_nodes_until_it_ends(replica: Replica, clock: Clock) -> None:
    token = replica.token("n1", "u1")
    other = replica.lease("n2", "u1", runs=False)
    assert (other.status, "node n1 writes" in other.error) == (409, True)
    clock.now += 29_000
    renewal = {"token": token, "seconds": 30}
    assert replica.agent("n1", "PUT", f"{pod('u1')}/lease", renewal).status == 200
    clock.now += 29_000
    assert replica.lease("n2", "u1", runs=False).status == 409
    clock.now += 2_000
    newer = replica.token("n2", "u1", runs=False)
    assert newer > token
    assert replica.agent("n1", "PUT", f"{pod('u1')}/lease", renewal).status == 409


def test_each_grant_has_a_newer_token_also_for_the_same_node(replica: Replica) -> None:
    tokens = [replica.token("n1", "u1") for _ in range(5)]
    assert tokens == sorted(set(tokens))


def test_a_lease_that_was_given_back_is_anybodys(replica: Replica) -> None:
    token = replica.token("n1", "u1")
    back = f"{pod('u1')}/lease?token={token}"
    assert replica.agent("n1", "DELETE", back).body["until_ms"] == 0
    assert replica.agent("n1", "DELETE", back).status == 200
    replica.token("n2", "u1", runs=False)
    assert replica.agent("n1", "DELETE", back).status == 409


def test_no_lease_lasts_longer_than_the_limit(replica: Replica, clock: Clock) -> None:
    found = replica.lease("n1", "u1", 86_400)
    assert found.body["until_ms"] == clock.now + 600_000


def test_a_claim_needs_proof(replica: Replica) -> None:
    token = replica.token("n1", "u1")
    replica.record("n1", ONE, token)
    found = replica.claim("n2", "u1", ONE, "u2")
    assert (found.status, "nothing proves" in found.error) == (409, True)
    replica.stop("n1", "u1")
    taken = replica.claim("n2", "u1", ONE, "u2")
    assert (taken.status, taken.body["successor"]) == (200, "u2")
    assert replica.proxy(pod("u1")).body == taken.body


@pytest.mark.usefixtures("stopped")
def test_there_is_one_successor(replica: Replica) -> None:
    taken = replica.claim("n2", "u1", ONE, "u2")
    assert replica.claim("n2", "u1", ONE, "u2").body == taken.body, "again is the same"
    for node, successor in (("n3", "u3"), ("n3", "u2"), ("n2", "u3"), ("n1", "u1")):
        found = replica.claim(node, "u1", ONE, successor)
        assert (found.status, "u2 on node n2 holds the claim" in found.error) == (409, True)


def test_who_went_on_without_knowing_writes_nothing_more(replica: Replica, stopped: int) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    late = replica.record("n1", name_of(2), stopped)
    assert (late.status, "u2 continues" in late.error) == (409, True)
    assert replica.lease("n1", "u1").status == 409


@pytest.mark.usefixtures("stopped")
def test_a_claim_on_an_old_version_is_refused(replica: Replica) -> None:
    version = replica.proxy(pod("u1")).body["version"]
    late = replica.claim("n2", "u1", ONE, "u2", version=version - 1)
    assert (late.status, f"version {version}" in late.error) == (409, True)
    assert replica.claim("n2", "u1", ONE, "u2", version=version).status == 200


@pytest.mark.usefixtures("stopped")
def test_a_claim_ends_with_proof_and_never_by_time(replica: Replica, clock: Clock) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    clock.now += 10**10
    assert replica.claim("n3", "u1", ONE, "u3").status == 409
    freed = f"{pod('u1')}/claim?successor=u2"
    early = replica.controller("DELETE", freed)
    assert (early.status, "nothing proves that pod ns/u2 stopped" in early.error) == (409, True)
    replica.token("n2", "u2")
    replica.stop("n2", "u2")
    assert replica.controller("DELETE", freed).body["successor"] == ""
    assert replica.release("n2", "u1", "u2").status == 200, "again is the same"
    assert replica.claim("n3", "u1", ONE, "u3").status == 200


@pytest.mark.usefixtures("stopped")
def test_nobody_goes_on_from_a_successor_that_gave_its_claim_back(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    token = replica.token("n2", "u2")
    replica.record("n2", name_of(2), token, pod_uid="u2")
    replica.stop("n2", "u2")
    replica.release("n2", "u1", "u2")
    found = replica.claim("n3", "u2", name_of(2), "u3")
    assert (found.status, "given to another" in found.error) == (409, True)
    assert replica.lease("n2", "u2").status == 409


@pytest.mark.usefixtures("stopped")
def test_a_claim_does_not_end_while_somebody_went_on_from_its_successor(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    token = replica.token("n2", "u2")
    replica.record("n2", name_of(2), token, pod_uid="u2")
    replica.stop("n2", "u2")
    assert replica.claim("n3", "u2", name_of(2), "u3").status == 200
    found = replica.release("n2", "u1", "u2")
    assert (found.status, "u3 took it over" in found.error) == (409, True)


@pytest.mark.usefixtures("stopped")
def test_no_other_nodes_agent_can_end_a_claim(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    assert replica.lease("n3", "u2").status == 409, "it runs on n2"
    assert replica.stop("n3", "u2").status == 400
    for node in ("n1", "n3"):
        assert replica.release(node, "u1", "u2").status == 400
    assert replica.stop("n2", "u2").status == 200
    for node in ("n1", "n3"):
        assert replica.release(node, "u1", "u2").status == 400, "it may have continued"
    assert replica.release("n2", "u1", "u2").status == 200


@pytest.mark.usefixtures("stopped")
def test_a_successor_that_ends_before_it_continues_hands_its_claim_back(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    told = replica.release("n2", "u1", "u2").body
    assert (told["successor"], told["stopped"], told["ended"]) == ("", "agent", False)
    ended = replica.proxy(pod("u2")).body
    assert (ended["stopped"], ended["stopped_by"], ended["ended"]) == ("agent", "n2", True)
    for again in (True, False):
        assert replica.claim("n2", "u1", ONE, "u2", again=again).status == 409, "it comes late"
    assert replica.lease("n2", "u2").status == 409
    assert replica.claim("n3", "u1", ONE, "u3").status == 200
    assert replica.release("n2", "u1", "u2").status == 409
    assert replica.proxy(pod("u1")).body["successor"] == "u3"


@pytest.mark.usefixtures("stopped")
def test_who_has_continued_itself_hands_nothing_back(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    replica.record("n2", name_of(2), replica.token("n2", "u2"), pod_uid="u2")
    replica.stop("n2", "u2")
    assert replica.claim("n2", "u2", name_of(2), "u2").status == 200
    assert replica.release("n2", "u1", "u2").status == 409
    assert replica.proxy(pod("u2")).body["successor"] == "u2", "it runs on"


def test_a_successor_is_claimed_for_where_it_runs(replica: Replica, stopped: int) -> None:
    replica.token("n3", "u2")
    found = replica.claim("n2", "u1", ONE, "u2")
    assert (found.status, "runs on node n3" in found.error, stopped > 0) == (409, True, True)
    assert replica.claim("n2", "u1", ONE, "u1").status == 409, "no pod changes its node"
    assert replica.claim("n3", "u1", ONE, "u2").status == 200


def test_a_pod_may_go_on_itself_and_stop_again(replica: Replica, stopped: int) -> None:
    found = replica.lease("n1", "u1")
    assert (found.status, "only with a claim" in found.error) == (409, True)
    assert replica.claim("n1", "u1", ONE, "u1").status == 200
    token = replica.token("n1", "u1")
    assert token > stopped
    assert replica.record("n1", name_of(2), token).status == 201
    assert replica.lease("n2", "u1", runs=False).status == 409
    assert replica.claim("n2", "u1", ONE, "u2").status == 409
    assert replica.stop("n1", "u1").body["successor"] == ""
    assert replica.claim("n2", "u1", name_of(2), "u2").status == 200


@pytest.mark.usefixtures("stopped")
def test_a_successor_may_go_on_itself_too(replica: Replica) -> None:
    replica.claim("n2", "u1", ONE, "u2")
    replica.record("n2", name_of(2), replica.token("n2", "u2"), pod_uid="u2")
    replica.stop("n2", "u2")
    found = replica.claim("n2", "u2", name_of(2), "u2")
    assert found.status == 200, found.error
    assert replica.claim("n3", "u2", name_of(2), "u3").status == 409
    assert replica.stop("n2", "u2").body["successor"] == ""
    assert replica.claim("n3", "u2", name_of(2), "u3").status == 200


def test_only_its_own_agent_can_say_that_a_pod_stopped(replica: Replica, clock: Clock) -> None:
    assert "no agent has said" in replica.stop("n1", "u1").error
    replica.token("n1", "u1")
    clock.now += 60_000
    away = replica.lease("n2", "u1")
    assert (away.status, "runs on node n1" in away.error) == (409, True)
    replica.token("n2", "u1", runs=False)
    found = replica.stop("n2", "u1")
    assert (found.status, "only the agent of node n1" in found.error) == (400, True)
    assert replica.stop("n1", "u1").status == 200


def test_what_the_controller_saw_counts_for_a_node_that_is_off(replica: Replica) -> None:
    replica.record("n1", ONE, replica.token("n1", "u1"))
    body = {"proof": "out-of-service", "why": "node n1 is tainted"}
    assert replica.agent("n1", "POST", f"{pod('u1')}/stop", body).status == 400
    assert replica.controller("POST", f"{pod('u1')}/stop", body).status == 200
    agents = {"proof": "agent", "why": "x"}
    assert replica.controller("POST", f"{pod('u1')}/stop", agents).status == 400
    assert replica.claim("n2", "u1", ONE, "u2").status == 200


@pytest.mark.usefixtures("stopped")
def test_a_pod_that_begins_anew_after_it_was_reported_stopped_claims_itself(
    replica: Replica,
) -> None:
    """Of what it left nothing need be known any more. Its states count again, and its stop ends
    the claim."""
    gone = name_of(7)
    assert replica.claim("n2", "u1", gone, "u2").status == 404
    assert replica.lease("n1", "u1").status == 409
    assert replica.claim("n1", "u1", gone, "u1").status == 200
    assert replica.record("n1", name_of(2), replica.token("n1", "u1")).status in (200, 201)
    assert replica.claim("n2", "u1", name_of(2), "u2").status == 409
    replica.stop("n1", "u1")
    assert replica.claim("n2", "u1", name_of(2), "u2").status == 200


@pytest.mark.usefixtures("stopped")
def test_a_claim_is_on_a_state_of_this_pod(replica: Replica) -> None:
    replica.record("n1", name_of(2), replica.token("n1", "other"), pod_uid="other")
    assert replica.claim("n2", "u1", name_of(2), "u2").status == 400
    assert replica.claim("n2", "u1", name_of(3), "u2").status == 404


@pytest.mark.usefixtures("replica")
class TestOlderStates:
    """Nobody goes on from an older state in its pod's place."""

    @pytest.fixture
    def two(self, replica: Replica) -> Replica:
        token = replica.token("n1", "u1")
        for number in (1, 2):
            assert replica.record("n1", name_of(number), token).status == 201
        assert replica.stop("n1", "u1").status == 200
        return replica

    def test_only_the_newest_is_claimed(self, two: Replica) -> None:
        found = two.claim("n2", "u1", ONE, "u2")
        assert (found.status, f"which is ns/{name_of(2)}" in found.error) == (409, True)
        assert two.claim("n2", "u1", name_of(2), "u2").status == 200

    def test_what_has_no_verified_copy_any_more_is_not_the_newest(self, two: Replica) -> None:
        two.report("n1", name_of(2), "missing")
        assert two.claim("n2", "u1", ONE, "u2").status == 200

    def test_people_may_say_that_it_is_meant_and_agents_may_not(self, two: Replica) -> None:
        found = two.claim("n2", "u1", ONE, "u2", older=True)
        assert (found.status, "kyb-controller and people can" in found.error) == (403, True)
        body = {"artifact": f"ns/{ONE}", "successor": "u2", "node": "n2", "older": True}
        assert two.controller("POST", f"{pod('u1')}/claim", body).status == 200

    def test_a_stranger_can_not_make_an_older_one_the_newest(self, two: Replica) -> None:
        """A node that has nothing to do with the pod can't have its newest copy forgotten."""
        store = {"place": "object", "node": "", "store": STORE}
        assert two.report("n1", name_of(2), "verified", **store).status == 200
        gone = two.report("n2", name_of(2), "missing", **store)
        assert (gone.status, "is not node n2's" in gone.error) == (400, True)
        drop = two.drop("n2", name_of(2), place="object", node="", store=STORE, forget="old")
        assert (drop.status, "is not node n2's" in drop.error) == (400, True)
        assert two.drop("n1", name_of(2), **store, forget="old").body["dropped"] is True


class TestSigners:
    """Whose signature is believed of a state: who held its pod's lease when it was recorded."""

    PATH = f"/v1/artifacts/ns/{ONE}/signers"
    STORED: ClassVar = {"place": "object", "node": "", "store": STORE}

    def test_it_is_who_recorded_it_with_its_token(self, replica: Replica, stopped: int) -> None:
        found = replica.proxy(self.PATH)
        assert found.body == {"digest": DIGEST, "nodes": ["n1"], "token": stopped}
        missing = replica.proxy(self.PATH.replace("00000001", "00000009"))
        assert missing.status == 404

    def test_an_old_token_makes_nobody_one(self, replica: Replica, clock: Clock) -> None:
        old = replica.token("n1", "u1")
        clock.now += 60_000
        newer = replica.token("n2", "u1", runs=False)
        assert replica.record("n1", ONE, old).status == 409
        assert replica.proxy(self.PATH).status == 404
        assert replica.record("n2", ONE, newer).status == 201
        assert replica.record("n1", ONE, old).status == 409
        assert replica.proxy(self.PATH).body["nodes"] == ["n2"]

    @pytest.mark.usefixtures("stopped")
    def test_who_packs_what_it_succeeded_to_is_one_and_no_stranger(self, replica: Replica) -> None:
        assert replica.report("n3", ONE, "verified", **self.STORED).status == 400
        assert replica.report("n3", ONE, "verified").status == 200, "on its own disk, it says"
        replica.claim("n2", "u1", ONE, "u2")
        assert replica.report("n2", ONE, "verified", **self.STORED).status == 200
        assert replica.proxy(self.PATH).body["nodes"] == ["n1", "n2"]

    @pytest.mark.usefixtures("stopped")
    def test_nobody_becomes_one_under_another_pods_lease(self, replica: Replica) -> None:
        token = replica.token("n3", "u3")
        found = replica.record("n3", ONE, token, pod_uid="u3")
        assert (found.status, "a state of pod u1" in found.error) == (409, True)
        assert replica.proxy(self.PATH).body["nodes"] == ["n1"]

    @pytest.mark.usefixtures("stopped")
    def test_a_node_that_was_revoked_is_none(self, replica: Replica, clock: Clock) -> None:
        for node, nodes in (("n1", []), ("n2", ["n1"])):
            known = {node: Access(revoked=True, at_ms=clock.now + 1)}
            assert signers(replica, known) == nodes

    @pytest.mark.usefixtures("stopped")
    def test_nor_for_what_it_told_before_it_was_let_in_again(
        self, replica: Replica, clock: Clock
    ) -> None:
        replica.claim("n2", "u1", ONE, "u2")
        clock.now += 60_000
        assert replica.report("n2", ONE, "verified", **self.STORED).status == 200
        admitted = {node: Access(revoked=False, at_ms=clock.now - 1) for node in ("n1", "n2")}
        assert signers(replica, {}) == ["n1", "n2"]
        assert signers(replica, admitted) == ["n2"]
        # To say it once more makes it no newer.
        clock.now += 60_000
        replica.report("n2", ONE, "verified", **self.STORED)
        assert signers(replica, {"n2": Access(revoked=False, at_ms=clock.now - 1)}) == ["n1"]

    @pytest.mark.usefixtures("stopped")
    def test_of_one_that_an_older_registry_wrote_the_states_own_time_counts(
        self, replica: Replica, clock: Clock
    ) -> None:
        with replica.database.write() as connection:
            connection.execute(update(WRITERS).values(told_ms=0))
        for at, nodes in ((clock.now, ["n1"]), (clock.now + 1, [])):
            assert signers(replica, {"n1": Access(revoked=False, at_ms=at)}) == nodes

    @pytest.mark.usefixtures("stopped")
    def test_they_are_forgotten_with_it(self, replica: Replica) -> None:
        replica.drop("n1", ONE, forget="a test")
        assert replica.proxy(self.PATH).status == 404
        with replica.database.read() as connection:
            assert not connection.execute(select(WRITERS)).all()


def signers(replica: Replica, known: dict[str, Access]) -> list[str]:
    """Who is believed of the state, by what was decided of nodes."""
    artifacts = Artifacts(replica.database, lambda node, at: not why_not(known, node, at))
    found: list[str] = artifacts.signers(f"ns/{ONE}")["nodes"]
    return found


class TestAfterALoss:
    """A database that nobody said is complete."""

    @pytest.fixture
    def lost(self, tmp_path: Path, clock: Clock) -> Replica:
        made = Replica(url_of(tmp_path), clock)
        token = made.token("n1", "u1")
        made.record("n1", ONE, token)
        made.stop("n1", "u1")
        return made

    def test_nobody_gets_a_claim(self, lost: Replica) -> None:
        found = lost.claim("n2", "u1", ONE, "u2")
        assert (found.status, "lost its database" in found.error) == (409, True)

    def test_a_claim_of_before_is_told_again(self, lost: Replica) -> None:
        assert lost.claim("n2", "u1", ONE, "u2", again=True).status == 200
        assert lost.claim("n3", "u1", ONE, "u3", again=True).status == 409
        assert lost.claim("n3", "u1", ONE, "u3").status == 409
        released = lost.release("n2", "u1", "u2")
        assert "lost its database" in released.error, "who continues from u2 is not known"

    def test_also_on_a_pod_that_nobody_reported_stopped(self, tmp_path: Path, clock: Clock) -> None:
        made = Replica(url_of(tmp_path), clock)
        made.record("n1", ONE, made.token("n1", "u1"))
        found = made.claim("n2", "u1", ONE, "u2", again=True).body
        assert (found["successor"], found["stopped"]) == ("u2", "known-before")

    def test_a_pod_that_was_settled_is_claimable(self, lost: Replica) -> None:
        assert lost.agent("n1", "POST", f"{pod('u1')}/settle", {"why": "x"}).status == 403
        assert lost.controller("POST", f"{pod('u1')}/settle", {"why": "looked"}).status == 200
        assert lost.claim("n2", "u1", ONE, "u2").status == 200
        assert lost.claim("n4", "u5", name_of(9), "u4", again=True).status == 404

    def test_all_are_settled_and_those_to_come(self, lost: Replica) -> None:
        assert lost.controller("POST", "/v1/settle", {"why": "looked"}).body == {"pods": 1}
        lost.record("n1", name_of(2), lost.token("n1", "u7"), pod_uid="u7")
        lost.stop("n1", "u7")
        assert lost.claim("n2", "u7", name_of(2), "u8").status == 200
        late = lost.claim("n2", "u1", ONE, "u2", again=True)
        assert (late.status, "without `again`" in late.error) == (409, True)

    def test_tokens_of_before_are_refused_and_new_ones_are_greater(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        before = [Replica(url_of(tmp_path), clock).token("n1", "u1") for _ in range(3)][-1]
        clock.now += 1000
        folder = tmp_path / "new"
        folder.mkdir()
        fresh = Replica(url_of(folder), clock)
        assert fresh.record("n1", ONE, before).status == 409
        assert fresh.token("n1", "u1") > before
        assert fresh.record("n1", ONE, before).status == 409
