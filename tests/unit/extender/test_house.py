"""Pods are read under the cluster's rules, and models are known by the traffic of their seats."""

from __future__ import annotations

import pytest

from extender.house import HOUSE, Histories
from extender.objects import read_gpu_node, read_pod, slim_node, slim_pod
from extender.snapshot import Snapshot
from kybernate import keys
from kybernate.core.activity import HOURS
from kybernate.core.forecast import UNKNOWN, Traffic
from kybernate.core.placement import Choosing, Table
from kybernate.errors import ConfigError
from tests.unit.extender.objects import gpu_node, pod

OFFICE = [700 if 8 <= hour < 18 else 0 for hour in range(HOURS)]
CALLS = [60 if 8 <= hour < 18 else 0 for hour in range(HOURS)]


@pytest.fixture
def house():
    yield HOUSE
    HOUSE.set("any", apart=False)


def activity(busy=OFFICE, calls=CALLS, **more):
    return {"busy": busy, "calls": calls, **more}


def seat(uid, **more):
    return {"uid": uid, "name": "G0-seat-1", "state": "parked", "activity": activity(**more)}


def labelled(name, **labels):
    item = pod(name)
    item["metadata"]["labels"] = labels
    return item


def test_pods_have_the_party_that_the_rule_gives_them_also_when_slimmed(house):
    house.set("labels:team,stage", apart=True)
    raw = labelled("p", team="red", stage="live", app="x")
    whole, slim = read_pod(raw), read_pod(slim_pod(raw))
    assert whole == slim
    assert whole.party == whole.demand.party == "stage=live, team=red"
    assert whole.demand.apart
    assert slim_pod(raw)["metadata"]["labels"] == {"team": "red", "stage": "live"}
    house.set("namespace", apart=False)
    assert read_pod(raw).demand.party == "namespace default"
    house.set("any", apart=False)
    assert read_pod(raw).demand.party == ""
    assert "labels" not in slim_pod(raw)["metadata"]


def test_a_setting_that_is_no_rule_is_refused(house):
    with pytest.raises(ConfigError, match="sharing"):
        house.set("everybody", apart=False)


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
    assert read_gpu_node(slim_node(raw), 0) == found
    assert slim_node(raw)["status"]["seats"][0] == {"uid": "a", "activity": activity()}


def test_a_node_without_a_status_stays_one_when_slimmed():
    assert slim_node({"metadata": {"name": "n1", "uid": "u", "labels": {}}}) == {
        "metadata": {"name": "n1", "uid": "u"}
    }


def test_strangers_get_no_seat_beside_each_other_whichever_way_they_came(house):
    house.set("namespace", apart=False)
    snapshot = Snapshot(lambda: 0.0)
    snapshot.node_event("ADDED", gpu_node())
    for number, group in enumerate(("G0", "G1")):
        theirs = pod(f"t{number}", node="n1", notes={keys.ASSIGNED_GROUP: group})
        theirs["metadata"]["namespace"] = "theirs"
        snapshot.pod_event("ADDED", theirs)
    mine = read_pod(pod("mine"))
    found = snapshot.fits(mine.ref.uid, mine.demand, ["n1"])
    assert "namespace theirs" in found.failed["n1"]
    yours = pod("t2")
    yours["metadata"]["namespace"] = "theirs"
    another = read_pod(yours)
    assert snapshot.fits(another.ref.uid, another.demand, ["n1"]).passed == ["n1"]


def test_a_models_next_pod_is_expected_to_be_like_the_last_one(house):
    house.set("any", apart=True)
    snapshot = Snapshot(lambda: 0.0)
    seen = []
    hot = {keys.MODEL: "hot"}
    for name, group in (("a", "G0"), ("b", "G1")):
        snapshot.pod_event("ADDED", pod(name, node="n1", notes={keys.ASSIGNED_GROUP: group, **hot}))
    snapshot.node_event("ADDED", gpu_node(seats=[seat("uid-a"), seat("uid-b")]))
    for model in ("hot", "other"):
        raw = pod(f"next-{model}", notes={keys.MODEL: model})
        snapshot.pod_event("ADDED", raw)
        one = read_pod(raw)
        seen.append(snapshot.fits(one.ref.uid, one.demand, ["n1"]))
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


def test_a_pod_is_placed_by_the_policy_of_its_own_its_namespace_or_its_profile(house):
    house.set("any", apart=False, choosing=Choosing({"batch": "bin-pack"}, {"packing": "fgd"}))
    plain, batch, packing, own = (pod(name) for name in ("plain", "batch", "packing", "own"))
    batch["metadata"]["namespace"] = "batch"
    packing["spec"]["schedulerName"] = "packing"
    own["metadata"] |= {"namespace": "batch", "annotations": {keys.POLICY: "topology"}}
    read = [read_pod(one) for one in (plain, batch, packing, own)]
    assert [one.demand.policy for one in read] == ["", "bin-pack", "fgd", "topology"]
    assert [read_pod(slim_pod(one)) for one in (plain, batch, packing, own)] == read
    house.set("any", apart=False)
    assert "schedulerName" not in slim_pod(packing)["spec"]


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
