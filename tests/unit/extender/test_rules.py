"""Pods are read under the cluster's rules, and models are known by the traffic of their seats."""

from __future__ import annotations

import orjson
import pytest

from extender.http import decode
from extender.state.histories import Histories
from extender.state.objects import Rules
from extender.state.snapshot import Snapshot
from kybernate import keys
from kybernate.api.nodeseats import read_gpu_node
from kybernate.core.ledger.sharing import parse_sharing
from kybernate.core.placement import Choosing, Table
from kybernate.core.swap.activity import HOURS
from kybernate.core.swap.forecast import UNKNOWN, Traffic
from tests.unit.extender.objects import gpu_node, pod, read_pod

OFFICE = [700 if 8 <= hour < 18 else 0 for hour in range(HOURS)]
CALLS = [60 if 8 <= hour < 18 else 0 for hour in range(HOURS)]


def activity(busy=OFFICE, calls=CALLS, **more):
    return {"busy": busy, "calls": calls, **more}


def seat(uid, **more):
    return {"uid": uid, "name": "G0-seat-1", "state": "parked", "activity": activity(**more)}


def labelled(name, **labels):
    item = pod(name)
    item["metadata"]["labels"] = labels
    return item


def watched(item):
    """The pod as its watch passes it on."""
    return decode.pods(orjson.dumps({"type": "ADDED", "object": item}))["object"]


def test_pods_have_the_party_that_the_rule_gives_them_whichever_way_they_came():
    rules = Rules(parse_sharing("labels:team,stage"), apart=True)
    raw = labelled("p", team="red", stage="live", app="x")
    found = read_pod(raw, rules)
    assert found == read_pod(watched(raw), rules)
    assert found.party == found.demand.party == "stage=live, team=red"
    assert found.demand.apart
    assert read_pod(raw, Rules(parse_sharing("namespace"))).demand.party == "namespace default"
    assert read_pod(raw, Rules()).demand.party == ""


def test_the_traffic_of_seats_is_read_and_what_cannot_be_read_is_left_out():
    odd = [
        seat("short", busy=[1]),
        seat("words", busy=["x"] * HOURS),
        seat("none", busy=None),
        {"uid": "without"},
        seat("unseen", busy=[-1] * HOURS, calls=[-1] * HOURS),
        seat("lists", busy=[[1]] * HOURS),
        {"uid": "no-object", "activity": 7},
    ]
    raw = gpu_node(seats=[seat("a"), *odd])
    found = read_gpu_node(raw, 0)
    assert found.not_ready is None
    assert list(found.traffic) == ["a"]
    assert found.traffic["a"].busy[9] == pytest.approx(0.7)
    assert found.traffic["a"].calls[9] == pytest.approx(60 / 3600, rel=0.1)


def test_strangers_get_no_seat_beside_each_other_whichever_way_they_came():
    snapshot = Snapshot(lambda: 0.0, rules=Rules(parse_sharing("namespace")))
    snapshot.node_event("ADDED", gpu_node())
    for number, group in enumerate(("G0", "G1")):
        theirs = pod(f"t{number}", node="n1", notes={keys.ASSIGNED_GROUP: group})
        theirs["metadata"]["namespace"] = "theirs"
        snapshot.pod_event("ADDED", theirs)
    mine = snapshot.read_pod(pod("mine"))
    found = snapshot.offer(mine.ref, mine.demand, ["n1"])
    assert "namespace theirs" in found.failed["n1"]
    yours = pod("t2")
    yours["metadata"]["namespace"] = "theirs"
    another = snapshot.read_pod(yours)
    assert snapshot.offer(another.ref, another.demand, ["n1"]).passed == ["n1"]


def test_a_models_next_pod_is_expected_to_be_like_the_last_one():
    snapshot = Snapshot(lambda: 0.0, rules=Rules(apart=True))
    seen = []
    hot = {keys.MODEL: "hot"}
    for name, group in (("a", "G0"), ("b", "G1")):
        snapshot.pod_event("ADDED", pod(name, node="n1", notes={keys.ASSIGNED_GROUP: group, **hot}))
    snapshot.node_event("ADDED", gpu_node(seats=[seat("uid-a"), seat("uid-b")]))
    for model in ("hot", "other"):
        raw = pod(f"next-{model}", notes={keys.MODEL: model})
        snapshot.pod_event("ADDED", raw)
        one = snapshot.read_pod(raw)
        seen.append(snapshot.offer(one.ref, one.demand, ["n1"]))
    assert "holds a hot model" in seen[0].failed["n1"] or "hold hot" in seen[0].failed["n1"]
    assert seen[1].passed == ["n1"]


def test_of_too_many_models_the_one_not_seen_for_longest_is_forgotten():
    histories = Histories(most=2)
    other = Traffic((0.5,) * HOURS, (0.1,) * HOURS)
    histories.learn("ns", "a", UNKNOWN)
    histories.learn("ns", "b", UNKNOWN)
    histories.learn("ns", "a", other)
    histories.learn("ns", "c", UNKNOWN)
    assert histories.of("ns", "a") == other
    assert histories.of("ns", "b") is None
    assert histories.of("other", "a") is None


def test_a_pod_is_placed_by_the_policy_of_its_own_its_namespace_or_its_profile():
    rules = Rules(choosing=Choosing({"batch": "bin-pack"}, {"packing": "fgd"}))
    plain, batch, packing, own = (pod(name) for name in ("plain", "batch", "packing", "own"))
    batch["metadata"]["namespace"] = "batch"
    packing["spec"]["schedulerName"] = "packing"
    own["metadata"] |= {"namespace": "batch", "annotations": {keys.POLICY: "topology"}}
    read = [read_pod(one, rules) for one in (plain, batch, packing, own)]
    assert [one.demand.policy for one in read] == ["", "bin-pack", "fgd", "topology"]
    assert [read_pod(watched(one), rules) for one in (plain, batch, packing, own)] == read


def test_an_unknown_policy_is_the_pods_problem_in_a_sentence():
    found = read_pod(pod(notes={keys.POLICY: "fastest"}))
    assert found.demand is None
    assert "kyb.ai/policy: there is no policy 'fastest'; write one of affinity" in found.problem


def test_the_pods_policy_decides_also_whether_traffic_counts():
    snapshot = Snapshot(lambda: 0.0, table=Table("bin-pack"))
    quiet = {"uid": "uid-b", "activity": activity([0] * HOURS, [0] * HOURS)}
    snapshot.node_event("ADDED", gpu_node(seats=[seat("uid-a"), quiet]))
    for name, group in (("a", "G0"), ("b", "G1")):
        notes = {keys.ASSIGNED_GROUP: group, keys.MODEL: name}
        snapshot.pod_event("ADDED", pod(name, node="n1", notes=notes))
    best = {}
    for policy in ("bin-pack", "default"):
        snapshot.pod_event("ADDED", pod(policy, notes={keys.MODEL: "a", keys.POLICY: policy}))
        one = snapshot.pod(f"uid-{policy}")
        assert snapshot.policy(one.demand).name == policy
        _, best[policy] = snapshot.best(one.ref.uid, one.demand, "n1")
    # Both GPUs are as full; beside the model that is busy at the same hours it would wait.
    assert best == {"bin-pack": "G0", "default": "G1"}
