"""Plans of defragmentation from the extender's snapshot, and how they are shown."""

from __future__ import annotations

import io
import json
from math import inf

import flask
import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from extender.pages.defrag import Defragmenter, read_budget
from extender.state.snapshot import Snapshot
from kybernate import keys
from kybernate.cli import main
from kybernate.cli.planning.rebalance import show
from kybernate.core.defrag import Budget
from kybernate.core.ledger.ledger import Claim
from kybernate.core.tiers.tiers import rebalance_seconds
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.types import GroupName, NodeName
from tests.unit.extender.conftest import FakeCluster
from tests.unit.extender.objects import GIB, gpu_node, pod


def of_product(name, product):
    node = gpu_node(name)
    for gpu in node["status"]["gpus"]:
        gpu["product"] = product
    return node


def replaced(raw):
    """The pod, if a Deployment makes another one in its place."""
    owner = {"controller": True, "kind": "ReplicaSet", "uid": f"of-{raw['metadata']['name']}"}
    raw["metadata"]["ownerReferences"] = [owner]
    return raw


@pytest.fixture
def scene():
    """Two nodes: all seats for one GPU of the H100s are taken, one by a pod that is not picky."""
    snapshot, cluster = Snapshot(lambda: 0.0), FakeCluster()
    snapshot.node_event("ADDED", gpu_node("n1"))
    snapshot.node_event("ADDED", of_product("n2", "A100"))
    for number, group in enumerate(("G0", "G0", "G1", "G1")):
        notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: f"{10 + number}Gi"}
        if number != 2:
            notes[keys.GPU_PRODUCT] = "H100"
        snapshot.pod_event("ADDED", replaced(pod(f"s{number}", node="n1", notes=notes)))
    add(snapshot, cluster, "new", {keys.VRAM: "20Gi", keys.GPU_PRODUCT: "H100"})
    return snapshot, cluster


def add(snapshot, cluster, name, notes):
    raw = cluster.add(pod(name, notes=notes))
    snapshot.pod_event("ADDED", raw)
    return raw


@pytest.mark.parametrize("who", [("default", "new"), ("*", "*")], ids=["one", "all"])
def test_a_plan_for_pods_that_wait(scene, who):
    found = Defragmenter(*scene).plan(*who, Budget())
    assert (found["room"], found["proven"], found["moves"]) == (True, True, 1)
    assert found["pods"] == ["default/new"]
    move, place = found["steps"]
    assert (move["kind"], move["pod"], move["uid"]) == ("move", "default/s2", "uid-s2")
    assert (move["from"], move["to"]["node"]) == ({"node": "n1", "group": "G1"}, "n2")
    assert move["bytes"] == 12 * GIB
    assert (place["kind"], place["to"]) == ("place", {"node": "n1", "group": "G1"})
    assert found["seconds"] == move["seconds"] == rebalance_seconds(12 * GIB)
    assert len(found["sentences"]) == 3
    assert orjson.loads(orjson.dumps(found)) == found


def test_one_plan_is_made_at_a_time_so_that_who_binds_has_the_rest(scene, monkeypatch):
    asked = Defragmenter(*scene)
    with flask.Flask("pages", static_folder=None).test_request_context("/"):
        within = asked.plan

        def meanwhile(*of):
            with pytest.raises(RetryableError, match="another plan is being made"):
                asked.page("default", "new")
            return within(*of)

        monkeypatch.setattr(asked, "plan", meanwhile)
        assert asked.page("default", "new")["room"]
        assert asked.page("default", "new")["room"], "the first is done"


def test_a_plan_costs_what_moves_and_not_what_was_asked_for(scene):
    """Of s2 the agent has seen 1 GiB, where 12 were asked for; offloaded, its artifact counts."""
    snapshot, cluster = scene

    def costs(**told):
        node = gpu_node("n1")
        node["status"]["seats"] = [{"uid": "uid-s2", **told}]
        snapshot.node_event("MODIFIED", node)
        found = Defragmenter(snapshot, cluster).plan("default", "new", Budget())
        (move,) = [one for one in found["steps"] if one["kind"] == "move"]
        assert found["seconds"] == rebalance_seconds(move["bytes"])
        return move["bytes"], found["id"]

    size, plan = costs(heldBytes=GIB)
    assert (size, plan) == (GIB, costs(heldBytes=2 * GIB)[1]), "what is approved stays the same"
    assert costs(heldBytes="much")[0] == costs(heldBytes=-1)[0] == 12 * GIB
    parked = {"state": "parked", "tier": "nvme", "savedBytes": 3 * GIB}
    assert 3 * GIB <= costs(heldBytes=GIB, **parked)[0] < 1.2 * 3 * GIB


def test_who_must_stay_is_counted_by_reason(scene):
    snapshot, cluster = scene
    for number, extra in enumerate([{"gang": True}, {"deleted": True}]):
        notes = {keys.ASSIGNED_GROUP: "G01", keys.VRAM: "5Gi"}
        raw = pod(f"x{number}", node=f"n{number + 1}", notes=notes)
        if "gang" in extra:
            raw["metadata"]["annotations"][keys.GANG] = "g"
        if "deleted" in extra:
            raw["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
        raw["spec"]["containers"][1]["resources"]["limits"] = {"kyb.ai/gpu-2x-seat": "1"}
        snapshot.pod_event("ADDED", raw)
    snapshot.pod_event("ADDED", pod("odd", node="n2", notes={keys.VRAM: "much"}))
    found = Defragmenter(snapshot, cluster).plan("default", "new", Budget())
    assert found["fixed"] == {
        "they belong to a gang, which would have to move as a whole": 1,
        "they are being deleted": 1,
        "it is not known what they ask for": 1,
    }


def test_no_plan_is_an_answer_too(scene):
    snapshot, cluster = scene
    add(snapshot, cluster, "huge", {keys.VRAM: "200Gi"})
    found = Defragmenter(snapshot, cluster).plan("default", "huge", Budget())
    assert (found["room"], found["proven"], found["atLeastSeconds"]) == (False, True, None)
    assert "a seat may use at most" in found["sentences"][0]


def test_what_is_reserved_for_the_pod_does_not_stand_in_its_way(scene):
    snapshot, cluster = scene
    for number, group in enumerate(("G0", "G0", "G1")):
        notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: "5Gi", keys.GPU_PRODUCT: "A100"}
        snapshot.pod_event("ADDED", pod(f"t{number}", node="n2", notes=notes))
    raw = add(snapshot, cluster, "held", {keys.VRAM: "20Gi", keys.GPU_PRODUCT: "A100"})
    held = snapshot.pod(raw["metadata"]["uid"])
    claim = Claim(held.ref, NodeName("n2"), GroupName("G1"), held.resource, 20 * GIB)
    snapshot.reserve(claim, 60.0)
    found = Defragmenter(snapshot, cluster).plan("default", "held", Budget())
    assert (found["room"], found["moves"]) == (True, 0)


def test_pods_that_wait_for_nothing_are_refused(scene):
    snapshot, cluster = scene
    cluster.add(pod("bound", node="n1"))
    cluster.add(pod("plain", limits={}))
    defragmenter = Defragmenter(snapshot, cluster)
    with pytest.raises(RefusedError, match="waits for nothing"):
        defragmenter.plan("default", "bound", Budget())
    with pytest.raises(RefusedError, match="asks for no seat"):
        defragmenter.plan("default", "plain", Budget())
    with pytest.raises(NotFoundError):
        defragmenter.plan("default", "unknown", Budget())
    with pytest.raises(NotFoundError, match="no pod waits"):
        Defragmenter(Snapshot(lambda: 0.0), cluster).plan("*", "*", Budget())


def test_the_budget_is_read_from_the_query():
    assert read_budget({}) == Budget(inf, 10, 1000)
    assert read_budget({"moves": "3", "seconds": "1.5", "effort": "7"}) == Budget(1.5, 3, 7)


@pytest.mark.parametrize(
    ("field", "text"),
    [("moves", "101"), ("moves", "x"), ("seconds", "-1"), ("seconds", "nan"), ("effort", "1e9")],
)
def test_a_budget_that_is_none_is_refused_by_field(field, text):
    with pytest.raises(RefusedError, match=f"{field}: '{text}' is not a number"):
        read_budget({field: text})


def test_a_plan_is_shown_as_numbered_steps(scene):
    snapshot, cluster = scene
    snapshot.pod_event("ADDED", pod("odd", node="n2", notes={keys.VRAM: "much"}))
    found = json.loads(json.dumps(Defragmenter(snapshot, cluster).plan("*", "*", Budget())))
    out = io.StringIO()
    show(found, Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("1 move makes room, for")
    assert lines[1].startswith("  1. Move default/s2 (12.0 GiB,")
    assert lines[2] == "  2. Now default/new (20.0 GiB) fits group G1 of n1."
    assert lines[3:] == ["Not moved:", "  1 pod: it is not known what they ask for"]


def test_a_dump_gives_the_same_plan(scene, tmp_path):
    snapshot, cluster = scene
    file = tmp_path / "dump.json"
    file.write_bytes(orjson.dumps(snapshot.dump("2026-11-21T10:00:00Z")))
    asked = Defragmenter(snapshot, cluster).plan("*", "*", Budget())
    run = CliRunner().invoke(main, ["rebalance", "--dry-run", "--dump", str(file), "--json"])
    assert run.exit_code == 0, run.output
    told = json.loads(run.output)
    assert {**told, "fixed": {}} == {**asked, "fixed": {}}
    one = CliRunner().invoke(main, ["rebalance", "--dry-run", "new", "--dump", str(file)])
    assert "1. Move default/s2" in one.output
    assert "Not moved" not in one.output
    none = CliRunner().invoke(main, ["rebalance", "--dry-run", "--moves", "0", "--dump", str(file)])
    assert (none.exit_code, "within 0 moves" in none.output) == (1, True)
    other = CliRunner().invoke(main, ["rebalance", "--dry-run", "unknown", "--dump", str(file)])
    assert "no pod default/unknown waits for a seat" in other.output
    file.write_text("{")
    broken = CliRunner().invoke(main, ["rebalance", "--dry-run", "--dump", str(file)])
    assert "is not JSON" in broken.output
    bare = CliRunner().invoke(main, ["rebalance", "--dump", str(file)])
    assert (bare.exit_code, "say --dry-run" in bare.output) == (2, True)


@pytest.fixture
def spread():
    """Two nodes of two GPUs; `a` and `b` on G0 of n1, `c` on G1 of n2."""
    snapshot = Snapshot(lambda: 0.0)
    for node in ("n1", "n2"):
        snapshot.node_event("ADDED", gpu_node(node))
    for name, node, group in (("a", "n1", "G0"), ("b", "n1", "G0"), ("c", "n2", "G1")):
        notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: "10Gi"}
        snapshot.pod_event("ADDED", replaced(pod(name, node=node, notes=notes)))
    return Defragmenter(snapshot, FakeCluster())


@pytest.mark.parametrize(
    ("target", "to"),
    [
        (("", "G1"), {"node": "n1", "group": "G1"}),
        (("n2", "G0"), {"node": "n2", "group": "G0"}),
        (("n2", ""), {"node": "n2", "group": "G0"}),
    ],
)
def test_a_pod_goes_where_it_is_asked_to(spread, target, to):
    found = spread.moved("default", "a", target, Budget())
    (step,) = found["steps"]
    assert (step["kind"], step["uid"], step["why"]) == ("move", "uid-a", "it is asked for")
    assert (step["from"], step["to"]["node"]) == ({"node": "n1", "group": "G0"}, to["node"])
    if target[1]:
        assert step["to"] == to
    assert found["moves"] == 1
    assert found["seconds"] == rebalance_seconds(10 * GIB)


def test_a_move_that_can_not_be_says_why(spread):
    with pytest.raises(RefusedError, match="is on node n1, group G0; name another"):
        spread.moved("default", "a", ("n1", "G0"), Budget())
    with pytest.raises(NotFoundError, match="no pod default/x has a seat"):
        spread.moved("default", "x", ("n1", "G1"), Budget())
    with pytest.raises(NotFoundError, match="no GPUNode n9"):
        spread.moved("default", "a", ("n9", ""), Budget())
    found = spread.moved("default", "a", ("n1", "G01"), Budget())
    assert (found["room"], found["proven"]) == (False, True)
    spread._snapshot.pod_event("ADDED", pod("bare", node="n1", notes={keys.ASSIGNED_GROUP: "G1"}))
    with pytest.raises(RefusedError, match="nobody makes another pod in their place"):
        spread.moved("default", "bare", ("n2", ""), Budget())


def test_all_pods_of_a_node_that_is_emptied_go_to_others(spread):
    found = spread.emptied(NodeName("n1"), "*", Budget())
    assert [(one["kind"], one["uid"]) for one in found["steps"]] == [
        ("move", "uid-a"),
        ("move", "uid-b"),
    ]
    assert {one["to"]["node"] for one in found["steps"]} == {"n2"}
    assert found["seconds"] == pytest.approx(2 * rebalance_seconds(10 * GIB))
    assert spread.emptied(NodeName("n1"), "lab", Budget())["steps"] == []
    few = spread.emptied(NodeName("n1"), "*", Budget(moves=1))
    assert not few["room"]
    assert "within 1 moves" in few["sentences"][0]
    with pytest.raises(NotFoundError, match="no GPUNode n9"):
        spread.emptied(NodeName("n9"), "*", Budget())


def test_in_a_namespace_no_pods_of_others_move(scene):
    snapshot, cluster = scene
    found = Defragmenter(snapshot, cluster).plan("default", "*", Budget())
    assert found["moves"] == 1
    with pytest.raises(NotFoundError, match="no pod waits"):
        Defragmenter(snapshot, cluster).plan("lab", "*", Budget())
    other = snapshot.pod("uid-s2")
    assert other is not None
    raw = replaced(pod("s2", node="n1", notes={keys.ASSIGNED_GROUP: "G1", keys.VRAM: "12Gi"}))
    raw["metadata"]["namespace"] = "lab"
    snapshot.pod_event("MODIFIED", raw)
    found = Defragmenter(snapshot, cluster).plan("default", "*", Budget(), "default")
    assert not found["room"]
    assert found["fixed"]["they are of other namespaces"] == 1


@pytest.fixture
def fleet(spread):
    """Of model `birch`: `a` and `b` on n1, and `c` on n2, where it is to be."""
    for name, node, group in (("a", "n1", "G0"), ("b", "n1", "G0"), ("c", "n2", "G1")):
        notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: "10Gi", keys.MODEL: "birch"}
        spread._snapshot.pod_event("MODIFIED", replaced(pod(name, node=node, notes=notes)))
    other = {keys.ASSIGNED_GROUP: "G1", keys.VRAM: "10Gi", keys.MODEL: "oak"}
    spread._snapshot.pod_event("ADDED", replaced(pod("oak", node="n1", notes=other)))
    return spread


def test_all_pods_of_a_model_go_where_it_is_asked_to_and_those_that_are_there_stay(fleet):
    found = fleet.moved("default", "*", ("n2", ""), Budget(), "birch")
    assert [(one["kind"], one["uid"]) for one in found["steps"]] == [
        ("move", "uid-a"),
        ("move", "uid-b"),
    ]
    assert {one["to"]["node"] for one in found["steps"]} == {"n2"}
    there = fleet.moved("default", "*", ("n1", "G1"), Budget(), "oak")
    assert (there["room"], there["moves"], there["steps"]) == (True, 0, [])
    few = fleet.moved("default", "*", ("n2", ""), Budget(moves=1), "birch")
    assert not few["room"], "all of them or none"


def test_a_model_that_can_not_go_says_why(fleet):
    with pytest.raises(NotFoundError, match="no pod of model elm in namespace default"):
        fleet.moved("default", "*", ("n2", ""), Budget(), "elm")
    with pytest.raises(NotFoundError, match="no pod of model birch in namespace lab"):
        fleet.moved("lab", "*", ("n2", ""), Budget(), "birch")
    notes = {keys.ASSIGNED_GROUP: "G1", keys.MODEL: "birch"}
    fleet._snapshot.pod_event("ADDED", pod("bare", node="n1", notes=notes))
    with pytest.raises(RefusedError, match="pod default/bare must stay"):
        fleet.moved("default", "*", ("n2", ""), Budget(), "birch")


def test_a_pod_of_a_model_that_must_stay_stays_where_the_model_goes(fleet):
    notes = {keys.ASSIGNED_GROUP: "G0", keys.MODEL: "birch"}
    fleet._snapshot.pod_event("ADDED", pod("bare", node="n2", notes=notes))
    found = fleet.moved("default", "*", ("n2", ""), Budget(), "birch")
    assert [one["uid"] for one in found["steps"]] == ["uid-a", "uid-b"]
