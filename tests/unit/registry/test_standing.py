"""For which pods an agent may speak, with a cluster of which a test says what is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.api.restores import read_source
from kybernate.errors import RetryableError
from registry.cluster import Pod
from tests.unit.registry.replica import Clock, Replica, artifact, name_of, pod, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE = name_of(1)


class Facts:
    """A cluster: `seen` is what its watch has told, `there` what the API server has."""

    def __init__(self) -> None:
        self.seen: dict[str, Pod] = {}
        self.there: dict[str, Pod] = {}
        self.away = False

    def add(self, uid: str, node: str, succeeds: str = "") -> None:
        wish = read_source(succeeds) if succeeds else None
        made = Pod(uid, "ns", f"model-{uid[1:]}", node, wish=wish, placed=bool(node))
        self.there[uid] = self.seen[uid] = made

    def pod(self, uid: str) -> Pod | None:
        return self.seen.get(uid)

    def find(self, namespace: str, uid: str, node: str = "") -> Pod | None:
        if self.away:
            raise RetryableError("the API server can't be asked now")
        found = self.there.get(uid)
        return found if found is not None and found.namespace == namespace else None

    def placed(self, node: str, namespace: str) -> list[Pod]:
        there = (node, namespace, True)
        found = self.seen.values()
        return [pod for pod in found if (pod.node, pod.namespace, pod.placed) == there]

    def namespace_uid(self, name: str, *, fresh: bool = False) -> str | None:
        return f"uid-of-{name}"


@pytest.fixture
def facts() -> Facts:
    """u0 runs on n1, u2 on n2 and asks for the state of u0."""
    made = Facts()
    made.add("u0", "n1")
    made.add("u2", "n2", succeeds="pod/u0")
    return made


@pytest.fixture
def replica(tmp_path: Path, facts: Facts) -> Iterator[Replica]:
    made = Replica(url_of(tmp_path), Clock(), facts)
    assert made.controller("POST", "/v1/settle", {"why": "new"}).status == 200
    yield made
    made.close()


def saved(replica: Replica) -> int:
    """u0 on n1 has saved a state in the object store."""
    token = replica.token("n1", "u0")
    held = {"place": "object", "store": "s3://x", "node": ""}
    assert replica.record("n1", ONE, token, pod_uid="u0", held=held).status == 201
    return token


def test_an_agent_takes_leases_for_pods_of_its_node_alone(replica: Replica) -> None:
    for runs in (True, False):
        got = replica.lease("n2", "u0", runs=runs)
        assert (got.status, "which is on node n1" in got.error) == (403, True)
    assert replica.lease("n1", "u0").status == 200
    assert replica.lease("n1", "u9").status == 403, "a pod that nobody knows"


def test_a_pod_that_the_extender_has_not_placed_is_nobodys(replica: Replica, facts: Facts) -> None:
    facts.add("u1", "n1")
    for known in (facts.seen, facts.there):
        known["u1"] = replace(known["u1"], placed=False)
    got = replica.lease("n1", "u1")
    assert (got.status, "the extender has not placed" in got.error) == (403, True)
    # What the watch has not seen as placed is asked for.
    facts.there["u1"] = replace(facts.there["u1"], placed=True)
    assert replica.lease("n1", "u1").status == 200


def test_a_pod_is_looked_up_under_its_namespace(replica: Replica, facts: Facts) -> None:
    got = replica.agent("n1", "POST", pod("u0", "other") + "/lease", {"seconds": 5})
    assert (got.status, "no such pod" in got.error) == (403, True)


def test_a_watch_that_lags_refuses_nobody(replica: Replica, facts: Facts) -> None:
    del facts.seen["u0"]
    assert replica.lease("n1", "u0").status == 200
    facts.seen["u2"] = replace(facts.there["u2"], node="", placed=False)
    assert replica.lease("n2", "u2").status == 200


def test_while_the_api_server_is_away_nobody_is_refused_for_good(
    replica: Replica, facts: Facts
) -> None:
    facts.away = True
    assert replica.lease("n1", "u0").status == 200, "what was seen is enough"
    facts.seen.clear()
    assert replica.lease("n1", "u0").status == 200, "what the registry knew is enough"
    assert replica.lease("n2", "u2").status == 503
    assert replica.lease("n2", "u0").status == 503


def test_a_pod_that_is_gone_is_still_its_nodes(replica: Replica, facts: Facts) -> None:
    saved(replica)
    facts.seen["u0"] = replace(facts.there.pop("u0"), gone=True)
    assert replica.stop("n2", "u0").status == 403
    assert replica.stop("n1", "u0").status == 200
    # Over a restart of the registry, too, whose watch sees nothing of it.
    del facts.seen["u0"]
    assert replica.stop("n1", "u0").status == 200
    assert replica.stop("n2", "u0").status == 403


def test_a_state_is_recorded_under_its_own_pods_name(replica: Replica) -> None:
    token = replica.token("n1", "u0")
    got = replica.record("n1", ONE, token, pod_uid="u0", pod="model-2")
    assert (got.status, got.error.startswith("artifact.pod: ")) == (403, True)
    assert replica.record("n1", ONE, token, pod_uid="u0").status == 201


def test_another_node_says_nothing_of_its_copies(replica: Replica, facts: Facts) -> None:
    saved(replica)
    there = {"place": "object", "store": "s3://x", "node": ""}
    for state in ("verified", "missing", "pending"):
        assert replica.report("n2", ONE, state, **there).status == 403
    assert replica.drop("n2", ONE, place="object", store="s3://x", node="").status == 403
    forget = {"place": "object", "store": "s3://x", "node": "", "forget": "x"}
    assert replica.drop("n2", ONE, **forget).status == 403
    # That it comes: a move. That it is there: only once a pod of that node goes on from it.
    assert replica.report("n2", ONE, "pending").status == 200
    assert replica.report("n2", ONE, "verified").status == 403
    assert replica.stop("n1", "u0").status == 200
    assert replica.claim("n2", "u0", ONE, "u2").status == 200
    assert replica.report("n2", ONE, "verified").status == 200
    assert replica.drop("n2", ONE, **forget).body["dropped"] is True


def test_a_node_tells_of_its_copy_that_a_tierplacement_wants_there(
    tmp_path: Path, facts: Facts
) -> None:
    """And of no other: neither of another artifact, nor of the object store."""
    wanted = {(f"ns/{ONE}", "n2")}
    replica = Replica(url_of(tmp_path), Clock(), facts, placed=lambda *copy: copy in wanted)
    try:
        saved(replica)
        there = {"place": "object", "store": "s3://x", "node": ""}
        assert replica.report("n2", ONE, "verified", **there).status == 403
        assert replica.report("n2", ONE, "verified").status == 200
        assert replica.report("n3", ONE, "verified").status == 403
        wanted.clear()
        assert replica.report("n2", ONE, "verified").status == 403
        assert replica.drop("n2", ONE).body["dropped"] is True
    finally:
        replica.close()


def test_a_successor_is_on_the_claiming_node(replica: Replica, facts: Facts) -> None:
    saved(replica)
    assert replica.stop("n1", "u0").status == 200
    facts.add("u3", "n3", succeeds="pod/u0")
    got = replica.claim("n2", "u0", ONE, "u3")
    assert (got.status, "which is on node n3" in got.error) == (403, True)
    assert replica.claim("n2", "u0", ONE, "u0").status == 403, (
        "nor does it continue as itself there"
    )
    assert replica.claim("n2", "u0", ONE, "u2").status == 200
    assert replica.release("n3", "u0", "u2").status == 403
    assert replica.release("n1", "u0", "u2").status == 400, "nor does its predecessor's node"
    assert replica.release("n2", "u0", "u2").status == 200


def test_a_successor_asks_for_just_that_state(replica: Replica, facts: Facts) -> None:
    saved(replica)
    assert replica.stop("n1", "u0").status == 200
    for wish in ("", "pod/u7", f"ns/{name_of(2)}"):
        facts.add("u2", "n2", succeeds=wish)
        got = replica.claim("n2", "u0", ONE, "u2")
        assert (got.status, "does not ask for the state" in got.error) == (403, True), wish
    facts.there["u2"] = replace(facts.there["u2"], wish=read_source(f"ns/{ONE}"))
    assert replica.claim("n2", "u0", ONE, "u2").status == 200, "its annotation came late"
    facts.add("u2", "n2")
    assert replica.claim("n2", "u0", ONE, "u2").status == 200, "what it has, it has"


def test_nobody_takes_over_what_runs_elsewhere_by_saying_so_again(
    replica: Replica, facts: Facts
) -> None:
    saved(replica)
    replica.pods.unsettle_all()
    got = replica.claim("n2", "u0", ONE, "u2", again=True)
    assert (got.status, "is there still, on node n1" in got.error) == (409, True)
    del facts.there["u0"]
    assert replica.claim("n2", "u0", ONE, "u2", again=True).status == 200


def test_controllers_speak_for_all(replica: Replica, facts: Facts) -> None:
    saved(replica)
    why = {"proof": "deleted", "why": "gone"}
    assert replica.controller("POST", f"{pod('u0')}/stop", why).status == 200
    facts.add("u3", "n3")
    body = {"artifact": f"ns/{ONE}", "successor": "u3", "node": "n3"}
    assert replica.controller("POST", f"{pod('u0')}/claim", body).status == 200
    gone = f"{artifact(ONE)}/copies?place=object&store=s3://x&forget=x"
    assert replica.controller("DELETE", gone).status == 200
