"""The verbs over HTTP, without a socket."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from extender.http.app import Verbs, create_app
from extender.state.snapshot import OFFER_S
from kybernate.errors import RetryableError
from kybernate.types import PodUid
from tests.unit.extender.objects import GIB, ONE, TWO, gpu_node, pod

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from extender.bind.binder import Binder
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import Clock, FakeCluster

MAX_BODY = 20_000
GROUP = "kyb.ai/group"


class Gate:
    """Who may call, and whether there is an answer yet."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.waiting: str | None = None


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def client(snapshot: Snapshot, binder: Binder, gate: Gate) -> FlaskClient:
    verbs = Verbs(snapshot, binder)
    app = create_app(verbs, lambda: gate.waiting, lambda _environ: gate.refusal, MAX_BODY)
    return app.test_client()


def ask(client: FlaskClient, verb: str, **body: Any) -> Any:
    answer = client.post(verb, json=body)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_filter_sorts_the_nodes(client: FlaskClient, snapshot: Snapshot, prefix: str) -> None:
    snapshot.node_event("ADDED", gpu_node("full"))
    snapshot.pod_event(
        "ADDED", pod("h", limits={TWO: "1"}, node="full", notes={"kyb.ai/group": "G01"})
    )
    snapshot.node_event("ADDED", gpu_node("bare", groups=[]))
    answer = ask(
        client,
        f"{prefix}/filter",
        Pod=pod(limits={TWO: "1"}),
        NodeNames=["n1", "full", "bare", "cpu"],
    )
    assert answer["NodeNames"] == ["n1"]
    assert list(answer["FailedNodes"]) == ["full", "cpu"]
    assert "no GPUNode" in answer["FailedNodes"]["cpu"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "bare": "the node has no group for kyb.ai/gpu-2x-seat"
    }


def test_filter_refuses_a_wrong_pod_everywhere(client: FlaskClient) -> None:
    answer = ask(client, "/filter", Pod=pod(notes={"kyb.ai/vram": "lots"}), NodeNames=["n1", "n2"])
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert "is not a quantity" in answer["FailedAndUnresolvableNodes"]["n1"]


def test_filter_lets_pods_without_a_seat_pass(client: FlaskClient) -> None:
    assert ask(client, "/filter", Pod=pod(limits={}), NodeNames=["n9"])["NodeNames"] == ["n9"]


def test_filter_does_not_count_the_pods_own_reservation(
    client: FlaskClient, binder: Binder, cluster: FakeCluster
) -> None:
    item = cluster.add(pod(limits={TWO: "1"}))
    ask(client, "/bind", PodName="p1", PodNamespace="default", PodUID="uid-p1", Node="n1")
    other = ask(client, "/filter", Pod=pod("p2", limits={TWO: "1"}), NodeNames=["n1"])
    assert other["NodeNames"] == []
    assert ask(client, "/filter", Pod=item, NodeNames=["n1"])["NodeNames"] == ["n1"]


def test_prioritize_prefers_by_policy(client: FlaskClient, snapshot: Snapshot) -> None:
    snapshot.node_event("ADDED", gpu_node("n2"))
    for number, group in enumerate(("G0", "G1")):
        snapshot.pod_event("ADDED", pod(f"h{number}", node="n1", notes={"kyb.ai/group": group}))
    scores = ask(client, "/prioritize", Pod=pod(), NodeNames=["n1", "n2", "cpu"])
    assert [entry["Host"] for entry in scores] == ["n1", "n2", "cpu"]
    by_name = {entry["Host"]: entry["Score"] for entry in scores}
    assert by_name["n1"] == 10 > by_name["n2"] > by_name["cpu"] == 0


def test_filter_offers_the_best_unless_the_pod_has_wishes(
    snapshot: Snapshot, binder: Binder
) -> None:
    for name in ("n2", "n3"):
        snapshot.node_event("ADDED", gpu_node(name))
    for number, group in enumerate(("G0", "G1")):
        snapshot.pod_event("ADDED", pod(f"h{number}", node="n2", notes={"kyb.ai/group": group}))
    verbs = Verbs(snapshot, binder, most=2)
    names = ["n1", "n2", "n3"]
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    for more, offered in (
        ({}, ["n1", "n2"]),
        ({"affinity": {"nodeAffinity": wish}}, names),
        ({"affinity": {"podAntiAffinity": wish}}, names),
        ({"affinity": {"nodeAffinity": {"required": {}}}}, ["n1", "n2"]),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, names),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, ["n1", "n2"]),
    ):
        item = pod()
        item["spec"].update(more)
        answer = verbs.filter({"Pod": item, "NodeNames": names})
        assert isinstance(answer, dict)
        assert (answer["NodeNames"], answer["FailedNodes"]) == (offered, {})
    answer = Verbs(snapshot, binder).filter({"Pod": pod(), "NodeNames": names})
    assert isinstance(answer, dict)
    assert answer["NodeNames"] == names


def test_the_seat_of_the_one_node_offered_is_held(
    snapshot: Snapshot, binder: Binder, clock: Clock
) -> None:
    for name in ("n2", "n3"):
        snapshot.node_event("ADDED", gpu_node(name))
    # Each has one seat of two GPUs, and that of n2 is taken.
    snapshot.pod_event("ADDED", pod("h", limits={TWO: "1"}, node="n2", notes={GROUP: "G01"}))
    verbs = Verbs(snapshot, binder, most=1)

    def offered(name: str, nodes: list[str]) -> Any:
        answer = verbs.filter({"Pod": pod(name, limits={TWO: "1"}), "NodeNames": nodes})
        assert isinstance(answer, dict)
        return answer["NodeNames"]

    assert offered("a", ["n1", "n2"]) == ["n1"]
    # Asked again it is offered the same; the next pod finds the seat taken.
    assert offered("a", ["n1", "n2"]) == ["n1"]
    assert offered("b", ["n1", "n2"]) == []
    # A pod that is offered another node lets go of the first.
    assert offered("a", ["n2", "n3"]) == ["n3"]
    assert offered("b", ["n1", "n2", "n3"]) == ["n1"]
    assert offered("c", ["n1", "n2", "n3"]) == []
    clock.now += OFFER_S
    assert offered("c", ["n1"]) == ["n1"]


def test_a_pod_that_is_bound_already_is_offered_a_node_as_any(
    snapshot: Snapshot, binder: Binder
) -> None:
    item = pod(node="n1", notes={GROUP: "G0"})
    snapshot.pod_event("ADDED", item)
    verbs = Verbs(snapshot, binder, most=1)
    answer = verbs.filter({"Pod": item, "NodeNames": ["n1"]})
    assert isinstance(answer, dict)
    assert answer["NodeNames"] == ["n1"]


def test_what_a_bind_has_reserved_stays_through_a_filter(
    snapshot: Snapshot, binder: Binder, cluster: FakeCluster, clock: Clock
) -> None:
    snapshot.node_event("ADDED", gpu_node("n2"))
    item = cluster.add(pod(limits={TWO: "1"}))
    snapshot.pod_event("ADDED", item)
    verbs = Verbs(snapshot, binder, most=1)
    # Whether this Binding took effect is unknown.
    cluster.before, cluster.unreadable = [RetryableError("away")], [RetryableError("away")]
    call = {"PodName": "p1", "PodNamespace": "default", "PodUID": "uid-p1", "Node": "n1"}
    assert "away" in str(verbs.bind(call))
    answer = verbs.filter({"Pod": item, "NodeNames": ["n2"]})
    assert isinstance(answer, dict)
    assert answer["NodeNames"] == ["n2"]
    clock.now += OFFER_S
    held = snapshot.claim(PodUid("uid-p1"))
    assert held is not None
    assert held.node == "n1"


def test_bind_answers_with_an_error_or_without(client: FlaskClient, cluster: FakeCluster) -> None:
    call = {"PodName": "p1", "PodNamespace": "default", "PodUID": "uid-p1", "Node": "n1"}
    assert "not found" in ask(client, "/bind", **call)["Error"]
    cluster.add(pod())
    assert ask(client, "/bind", **call) == {"Error": ""}


def test_preempt_offers_only_pods_marked_for_it(client: FlaskClient, snapshot: Snapshot) -> None:
    kill = {"kyb.ai/on-preempt": "kill"}
    snapshot.pod_event("ADDED", pod("yes", node="n1", notes=kill))
    snapshot.pod_event("ADDED", pod("plain", node="n1", notes=kill, limits={}))
    snapshot.pod_event("ADDED", pod("no", node="n1", notes={"kyb.ai/on-preempt": "pause"}))
    proposed = {
        "a": {"Pods": [{"UID": "uid-yes"}, {"UID": "uid-plain"}], "NumPDBViolations": 2},
        "b": {"Pods": [{"UID": "uid-yes"}, {"UID": "uid-no"}], "NumPDBViolations": 0},
        "c": {"Pods": [{"UID": "never-seen"}], "NumPDBViolations": 0},
    }
    answer = ask(client, "/preempt", Pod=pod(), NodeNameToMetaVictims=proposed)
    assert answer == {"NodeNameToMetaVictims": {"a": proposed["a"]}}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'{"Pod": 3}', b"\xff\xfe"])
def test_bad_input_is_answered_400_with_a_sentence(
    client: FlaskClient, verb: str, body: bytes
) -> None:
    answer = client.post(f"/{verb}", data=body)
    assert answer.status_code == 400
    assert answer.get_json()["Error"]


def test_a_body_beyond_the_limit_is_answered_413(client: FlaskClient) -> None:
    answer = client.post("/filter", data=b"x" * (MAX_BODY + 1))
    assert answer.status_code == 413
    assert "POST /filter" in answer.get_json()["Error"]


@pytest.mark.parametrize(("method", "path", "code"), [("GET", "/filter", 405), ("POST", "/x", 404)])
def test_other_calls_are_answered_in_json(
    client: FlaskClient, method: str, path: str, code: int
) -> None:
    answer = client.open(path, method=method)
    assert (answer.status_code, list(answer.get_json())) == (code, ["Error"])


def test_nobody_else_may_call(client: FlaskClient, gate: Gate) -> None:
    gate.refusal = "only kyb-scheduler may"
    answer = client.post("/filter", json={})
    assert (answer.status_code, answer.get_json()) == (403, {"Error": gate.refusal})
    assert client.get("/healthz").status_code == 200


def test_nothing_is_answered_from_half_a_ledger(client: FlaskClient, gate: Gate) -> None:
    gate.waiting = "the first list is under way"
    answer = client.post("/bind", json={})
    assert (answer.status_code, answer.get_json()) == (503, {"Error": gate.waiting})


def test_a_mistake_of_ours_shows_no_traceback(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(body: object) -> object:
        raise ZeroDivisionError(body)

    broken = SimpleNamespace(**dict.fromkeys(("filter", "prioritize", "bind", "preempt"), breaks))
    app = create_app(broken, lambda: None, lambda _environ: None, MAX_BODY)
    with caplog.at_level(logging.CRITICAL):
        answer = app.test_client().post("/filter", json={"secret": 1})
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.get_json()["Error"]
    assert "secret" not in answer.text


def test_memory_is_compared_exactly(client: FlaskClient) -> None:
    for vram, fits in ((str(80 * GIB), True), (str(80 * GIB + 1), False)):
        answer = ask(
            client,
            "/filter",
            Pod=pod(limits={ONE: "1"}, notes={"kyb.ai/vram": vram}),
            NodeNames=["n1"],
        )
        assert bool(answer["NodeNames"]) is fits
