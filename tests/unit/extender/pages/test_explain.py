"""Why pods wait: over HTTP, as events, and as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flask
import pytest
from prometheus_client import REGISTRY

from extender.bind.events import BURST, OTHER_S, SAME_S, Events
from extender.pages.explain import GRACE_S, MOST_DEMANDS, Explainer
from extender.pages.pages import register
from kybernate import keys
from kybernate.errors import RetryableError
from kybernate.runtime.lead import Open
from kybernate.types import PodRef, PodUid
from tests.unit.extender.objects import GIB, ONE, TWO, gpu_node, pod

if TYPE_CHECKING:
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import Clock, FakeCluster


class Gangs:
    def reason(self, namespace: str, gang: str) -> str:
        return f"gang {gang} of {namespace} starts as a whole"


class Told(list[tuple[str, str, str]]):
    def tell(self, ref: PodRef, reason: str, sentence: str) -> None:
        self.append((ref.name, reason, sentence))


class Closed(Open):
    def check(self) -> None:
        raise RetryableError("another one leads")


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def explainer(snapshot: Snapshot, cluster: FakeCluster, told: Told) -> Explainer:
    return Explainer(snapshot, cluster, Gangs(), told, Open())  # type: ignore[arg-type]


def take(snapshot: Snapshot, name: str, group: str, vram: str = "24Gi") -> None:
    resource = TWO if group == "G01" else ONE
    notes = {keys.ASSIGNED_GROUP: group, keys.VRAM: vram}
    item = pod(name, limits={resource: "1"}, notes=notes, node="n1")
    snapshot.pod_event("ADDED", item)


def wait_for(snapshot: Snapshot, name: str, resource: str = ONE, **notes: str) -> dict[str, Any]:
    found = {f"kyb.ai/{key}": text for key, text in notes.items()}
    item = pod(name, limits={resource: "1"}, notes=found)
    snapshot.pod_event("ADDED", item)
    return item


def pending(reason: str) -> float:
    return REGISTRY.get_sample_value("kyb_extender_pending_pods", {"reason": reason}) or 0.0


def test_a_page_says_all_about_a_pod(
    explainer: Explainer, snapshot: Snapshot, cluster: FakeCluster
) -> None:
    take(snapshot, "llama-b", "G01")
    item = cluster.add(wait_for(snapshot, "new", TWO))
    item["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    ]
    found = explainer.page("default", "new")
    assert found["summary"] == (
        "1 node: no free 2x seat; suspending default/llama-b (48Gi) would fit it on n1, group G01"
    )
    assert found["scheduler"] == "0/1 nodes are available"
    assert (found["nodes"], found["fits"], found["counts"]) == (1, 0, {"seat": 1})
    assert found["groups"] == [
        {
            "kind": "seat",
            "group": "G01",
            "sentence": "all 1 seats of G01 are taken",
            "nodes": 1,
            "examples": ("n1",),
        }
    ]
    assert found["remedy"] == {
        "suspend": "default/llama-b",
        "uid": "uid-llama-b",
        "node": "n1",
        "group": "G01",
        "bytes": 48 * GIB,
    }


@pytest.mark.parametrize(
    ("item", "status", "text"),
    [
        (pod("p", limits={}), 400, "asks for no seat"),
        (pod("p", node="n1", notes={keys.ASSIGNED_GROUP: "G0"}), 200, "bound to n1, group G0"),
        (pod("p", notes={keys.VRAM: "lots"}), 200, "'lots' is not a quantity"),
        (pod("p", notes={keys.GANG: "g"}), 200, "gang g of default starts as a whole; 1 node"),
        (pod("p"), 200, "1 node: a 1x seat is free"),
        (pod("other"), 404, "not found"),
    ],
    ids=["no seat", "bound", "unreadable", "gang", "free", "no pod"],
)
def test_a_page_answers_for_every_pod(
    explainer: Explainer, cluster: FakeCluster, item: dict[str, Any], status: int, text: str
) -> None:
    cluster.add(item)
    app = flask.Flask("test")
    register(app, {"explain": explainer.page}, lambda: None, lambda _environ: None)
    answer = app.test_client().get("/explain/default/p")
    assert answer.status_code == status
    assert text in str(answer.json)


def test_waiting_pods_are_counted_by_reason_and_told_after_a_while(
    explainer: Explainer, snapshot: Snapshot, told: Told
) -> None:
    for number in range(4):
        take(snapshot, f"p{number}", f"G{number % 2}", "1Gi")
    for name in ("a", "b"):
        wait_for(snapshot, name)
    wait_for(snapshot, "pair", TWO)
    wait_for(snapshot, "strange", vram="lots")
    wait_for(snapshot, "member", gang="g", **{"gang-size": "2"})
    explainer.look(100.0)
    counts = {reason: pending(reason) for reason in ("seat", "scheduler", "problem", "gang")}
    assert counts == {"seat": 2, "scheduler": 1, "problem": 1, "gang": 1}
    assert told == []
    explainer.look(100.0 + GRACE_S)
    assert [(name, reason) for name, reason, _ in told] == [("a", "NoSeat"), ("b", "NoSeat")]
    assert told[0][2].startswith("No seat for it: 1 node: no free 1x seat; suspending default/p")
    take(snapshot, "a", "G0")
    explainer.look(200.0)
    assert pending("seat") == 1


def test_who_does_not_lead_tells_nothing(
    snapshot: Snapshot, cluster: FakeCluster, told: Told
) -> None:
    explainer = Explainer(snapshot, cluster, Gangs(), told, Closed())  # type: ignore[arg-type]
    take(snapshot, "x", "G01")
    wait_for(snapshot, "pair", TWO)
    explainer.look(0.0)
    explainer.look(GRACE_S)
    assert told == []
    assert pending("seat") == 1


def test_of_too_many_demands_the_rest_is_counted_as_other(
    explainer: Explainer, snapshot: Snapshot
) -> None:
    for number in range(MOST_DEMANDS + 3):
        wait_for(snapshot, f"p{number}", vram=f"{number + 1}Gi")
    explainer.look(0.0)
    assert pending("other") == 3
    assert pending("scheduler") == MOST_DEMANDS


def test_no_nodes_are_a_reason_too(cluster: FakeCluster, snapshot: Snapshot, told: Told) -> None:
    snapshot.node_event("DELETED", gpu_node("n1"))
    explainer = Explainer(snapshot, cluster, Gangs(), told, Open())  # type: ignore[arg-type]
    wait_for(snapshot, "a")
    explainer.look(0.0)
    explainer.look(GRACE_S)
    assert pending("node") == 1
    assert "is the node agent running" in told[0][2]


class Posted(list[dict[str, Any]]):
    def __call__(self, namespace: str, body: dict[str, Any]) -> None:
        assert namespace == body["metadata"]["namespace"]
        self.append(body)

    def sentences(self) -> list[str]:
        return [body["message"] for body in self]


REF = PodRef("default", "a", PodUid("uid-a"))


@pytest.fixture
def posted() -> Posted:
    return Posted()


@pytest.fixture
def events(clock: Clock, posted: Posted) -> Events:
    return Events(posted, clock, lambda: 1_000_000_000.0)


def test_an_event_names_the_pod_exactly(events: Events, posted: Posted) -> None:
    events.tell(REF, "NoSeat", "No seat")
    events.tell(REF, "GangPlanned", "All have one")
    events.flush()
    assert [(body["reason"], body["type"]) for body in posted] == [
        ("NoSeat", "Warning"),
        ("GangPlanned", "Normal"),
    ]
    about = posted[0]["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Pod", "a", "uid-a")
    assert posted[0]["firstTimestamp"] == "2001-09-09T01:46:40Z"


def test_the_same_is_told_seldom_and_news_soon_but_not_at_once(
    events: Events, posted: Posted, clock: Clock
) -> None:
    for second in range(int(SAME_S)):
        clock.now = float(second)
        events.tell(REF, "NoSeat", "full")
        events.flush()
    assert posted.sentences() == ["full"]
    clock.now = SAME_S
    events.flush()
    assert posted.sentences() == ["full"] * 2
    for number in range(3):
        events.tell(REF, "NoSeat", f"news {number}")
        events.flush()
    clock.now += OTHER_S
    events.flush()
    assert posted.sentences() == ["full", "full", "news 2"]


def test_all_pods_together_get_so_many(events: Events, posted: Posted, clock: Clock) -> None:
    for number in range(int(BURST) * 2):
        events.tell(PodRef("default", "a", PodUid(str(number))), "NoSeat", "full")
    events.flush()
    assert len(posted) == BURST
    clock.now = 3600.0
    events.flush()
    assert len(posted) == 2 * BURST


def test_an_event_that_can_not_be_written_stops_nothing(clock: Clock) -> None:
    def post(_namespace: str, _body: object) -> None:
        raise RetryableError("no answer")

    events = Events(post, clock, clock)
    events.tell(REF, "NoSeat", "full")
    events.flush()
