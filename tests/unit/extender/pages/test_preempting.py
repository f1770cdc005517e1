"""The veto against deleting pods in vain, and the plan over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flask
import pytest

from extender.http.wire import Victims
from extender.pages.pages import register
from extender.pages.preempting import Preemption
from kybernate.types import NodeName, PodUid
from tests.unit.extender.objects import ONE, TWO, gpu_node, pod, read_pod

if TYPE_CHECKING:
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import FakeCluster

KILL = {"kyb.ai/on-preempt": "kill"}
N1 = NodeName("n1")


@pytest.fixture
def preemption(snapshot: Snapshot, cluster: FakeCluster) -> Preemption:
    return Preemption(snapshot, cluster)


def hold(snapshot: Snapshot, name: str, group: str, priority: int = 0, **more: str) -> None:
    resource = TWO if group == "G01" else ONE
    item = pod(name, limits={resource: "1"}, notes={"kyb.ai/group": group, **more}, node="n1")
    item["spec"]["priority"] = priority
    if not more.pop("bare", ""):
        owner = {"controller": True, "kind": "Job", "uid": f"of-{name}"}
        item["metadata"]["ownerReferences"] = [owner]
    snapshot.pod_event("ADDED", item)


def wanted(resource: str = ONE, **notes: str) -> dict[str, Any]:
    item = pod("new", limits={resource: "1"}, notes=notes)
    item["spec"]["priority"] = 10
    return item


def victims(*names: str) -> dict[NodeName, Victims]:
    return {N1: Victims(tuple(PodUid(f"uid-{name}") for name in names), 0)}


def test_victims_that_die_in_vain_are_spared(preemption: Preemption, snapshot: Snapshot) -> None:
    hold(snapshot, "a", "G01", **KILL)
    for number in range(2):
        hold(snapshot, f"b{number}", "G0", **KILL)
        hold(snapshot, f"c{number}", "G1", **KILL)
    two = read_pod(wanted(TWO))
    assert preemption.veto(two, victims("b0")) == victims("a"), "one that helps instead"
    assert preemption.veto(two, victims("a")) == victims("a")
    first = read_pod(wanted(**{"kyb.ai/require-group": "G0"}))
    assert preemption.veto(first, victims("c0")) == victims("b0")
    assert preemption.veto(first, victims("b1")) == victims("b1"), "as it was proposed"


def test_who_is_not_marked_is_spared_whatever_it_would_help(
    preemption: Preemption, snapshot: Snapshot
) -> None:
    hold(snapshot, "a", "G01")
    assert preemption.veto(read_pod(wanted(TWO)), victims("a")) == {}
    assert preemption.veto(read_pod(wanted(TWO)), victims("nobody")) == {}


def test_a_node_without_gpus_is_left_out(preemption: Preemption, snapshot: Snapshot) -> None:
    hold(snapshot, "a", "G01", **KILL)
    snapshot.node_event("DELETED", gpu_node("n1"))
    assert preemption.veto(read_pod(wanted(TWO)), victims("a")) == {}


def test_those_that_are_marked_go_in_place_of_the_proposed_if_they_suffice(
    preemption: Preemption, snapshot: Snapshot
) -> None:
    hold(snapshot, "a", "G01", priority=10)
    hold(snapshot, "b", "G0", **KILL)
    hold(snapshot, "c", "G0")
    hold(snapshot, "d", "G1", priority=3)
    hold(snapshot, "e", "G1", priority=3)
    one = read_pod(wanted(**{"kyb.ai/require-group": "G0"}))
    assert preemption.veto(one, victims("c")) == victims("b")
    other = read_pod(wanted(**{"kyb.ai/require-group": "G1"}))
    assert preemption.veto(other, victims("d")) == {}, "they are to be suspended"


def test_a_plan_is_for_nodes_that_the_scheduler_has_named(
    snapshot: Snapshot, cluster: FakeCluster
) -> None:
    now = [0.0]
    preemption = Preemption(snapshot, cluster, lambda: now[0])
    snapshot.node_event("ADDED", gpu_node("n2"))
    hold(snapshot, "a", "G01", priority=3)
    new = read_pod(cluster.add(wanted(TWO)))

    def planned() -> tuple[bool, str | None]:
        found = preemption.plan("default", "new")
        return found["checked"], found["node"]

    assert planned() == (False, "n2"), "there is room, but who knows of its taints"
    preemption.heard(new, [N1])
    assert planned() == (True, "n1")
    preemption.veto(new, {NodeName("n2"): Victims((), 0)})
    assert planned() == (True, "n2")
    now[0] = 599.0
    preemption.heard(new, [N1])
    now[0] = 601.0
    assert planned() == (True, "n1"), "what was said of n2 is old"
    now[0] = 1300.0
    assert planned()[0] is False


def test_one_tenants_pods_push_out_what_is_known_of_no_other(
    preemption: Preemption, snapshot: Snapshot, cluster: FakeCluster
) -> None:
    hold(snapshot, "a", "G01", priority=3)
    preemption.heard(read_pod(cluster.add(wanted(TWO))), [N1])
    for number in range(1100):
        one = wanted(TWO)
        one["metadata"] |= {"namespace": "flood", "name": f"f{number}", "uid": f"f{number}"}
        preemption.heard(read_pod(cluster.add(one)), [N1])
    assert preemption.plan("default", "new")["checked"]
    assert preemption.plan("flood", "f1099")["checked"]
    assert not preemption.plan("flood", "f0")["checked"], "its own oldest makes room"


def test_who_would_not_come_back_is_not_suspended(
    preemption: Preemption, snapshot: Snapshot, cluster: FakeCluster
) -> None:
    hold(snapshot, "a", "G01", bare="yes")
    cluster.add(wanted(TWO))
    assert preemption.plan("default", "new")["node"] is None
    hold(snapshot, "a", "G01", **{"kyb.ai/gang": "g"})
    assert preemption.plan("default", "new")["node"] is None
    hold(snapshot, "a", "G01")
    assert len(preemption.plan("default", "new")["steps"]) == 2
    answer = client(preemption).get("/preemption/default/new?spare=uid-x,uid-a")
    assert answer.json["node"] is None


def client(preemption: Preemption, refusal: str | None = None) -> Any:
    app = flask.Flask("pages", static_folder=None)
    register(app, {"preemption": preemption.page}, lambda: None, lambda _environ: refusal)
    return app.test_client()


def test_the_plan_is_told(preemption: Preemption, snapshot: Snapshot, cluster: FakeCluster) -> None:
    hold(snapshot, "a", "G01", priority=3, **{"kyb.ai/vram": "24Gi"})
    cluster.add(wanted(TWO))
    answer = client(preemption).get("/preemption/default/new")
    assert (answer.status_code, answer.json) == (
        200,
        {
            "pod": "default/new",
            "uid": "uid-new",
            "priority": 10,
            "sentence": "suspending default/a (priority 3, 48Gi to save) makes room on n1 for pod "
            "default/new of priority 10",
            "checked": False,
            "node": "n1",
            "group": "G01",
            "id": answer.json["id"],
            "steps": [
                {
                    "id": "suspend/uid-a",
                    "kind": "suspend",
                    "pod": "default/a",
                    "uid": "uid-a",
                    "from": {"node": "n1", "group": "G01"},
                    "to": None,
                    "seconds": 0.0,
                    "bytes": 48 << 30,
                    "why": "pod default/new of priority 10 waits, and its own is 3",
                },
                {
                    "id": "place/uid-new",
                    "kind": "place",
                    "pod": "default/new",
                    "uid": "uid-new",
                    "from": None,
                    "to": {"node": "n1", "group": "G01"},
                    "seconds": 0.0,
                    "bytes": 160 << 30,
                    "why": "it waits for a seat",
                },
            ],
        },
    )


@pytest.mark.parametrize(
    ("item", "status", "sentence"),
    [
        (pod("new", limits={}), 400, "asks for no seat"),
        (pod("new", node="n1"), 400, "bound to n1"),
        (pod("new", limits={ONE: "2"}), 400, 'must be "1"'),
        (pod("other"), 404, "not found"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(
    preemption: Preemption, cluster: FakeCluster, item: Any, status: int, sentence: str
) -> None:
    cluster.add(item)
    answer = client(preemption).get("/preemption/default/new")
    assert answer.status_code == status
    assert sentence in answer.json["Error"]


def test_only_some_may_ask(preemption: Preemption) -> None:
    assert client(preemption, "not you").get("/preemption/d/p").status_code == 403
