"""Evictions as the API server asks about them, and the requests that are made for them."""

from __future__ import annotations

import json
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.adapters.k8s.requests import RequestIndex
from kybernate.core.artifacts.grants import no_grants
from kybernate.errors import ConflictError, RetryableError
from kybernate.settings.webhook import WebhookSettings
from tests.unit.webhook.pods import CLUSTER
from tests.unit.webhook.reviews import eviction
from webhook.app import Known, make_app
from webhook.evictions import Asker, Evictions, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

NODE = {
    "metadata": {"name": "n1"},
    "status": {
        "tiers": [{"name": "ram"}, {"name": "object"}],
        "seats": [{"uid": "u1", "namespace": "shop", "pod": "a", "state": "active"}],
    },
}


class Api:
    """Takes what is posted; `answers` says what it makes of each."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.answers: Callable[[], None] = lambda: None
        self.some = threading.Event()

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        self.posted.append((path, body))
        self.some.set()
        self.answers()
        return body


def item(name: str, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name, "uid": name, "resourceVersion": "1"}
    spec = {"pod": "a", "mode": "Evict", "tier": "object", "deadlineSeconds": 300}
    spec["requestedBy"] = keys.WEBHOOK_USER
    stamp = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**meta, **stamp}, "spec": spec, "status": status}


class Site:
    """The webhook's application with what it knows and asks for."""

    def __init__(self, *, within: float = 300.0) -> None:
        self.known, self.asked = Known(), list[Wanted]()
        self.now, self.failed = 1_767_225_600.0, ""
        self.requests = RequestIndex(Api(), attrgetter("pod"))  # type: ignore[arg-type]
        self.known.on_event("ADDED", NODE)
        answer = Evictions(
            *(self.known.seats, self.requests.of, self.requests.has, self.ask),
            within=within,
            wall=lambda: self.now,
        ).answer
        app = make_app(WebhookSettings(), lambda: CLUSTER, no_grants, answer)
        self.client = app.test_client()

    def ask(self, wanted: Wanted) -> str:
        self.asked.append(wanted)
        return self.failed

    def evict(self, pod: str = "a", **more: Any) -> dict[str, Any]:
        found = self.client.post("/evict?timeout=2s", json=eviction(pod, **more))
        assert found.status_code == 200
        response: dict[str, Any] = found.get_json()["response"]
        return response


def test_pods_of_others_go_at_once() -> None:
    site = Site()
    assert site.evict("other") == {"uid": "u-1", "allowed": True}
    assert site.evict("a", namespace="elsewhere") == {"uid": "u-1", "allowed": True}
    site.known.on_event("DELETED", NODE)
    assert site.evict() == {"uid": "u-1", "allowed": True}
    assert not site.asked


def test_a_pod_with_a_state_is_held_back_as_a_disruption_budget_does() -> None:
    site = Site()
    held = site.evict()
    assert held["allowed"] is False
    status = held["status"]
    assert (status["code"], status["reason"]) == (429, "TooManyRequests")
    assert "details" not in status, "client-go would wait without telling anybody"
    assert "once its state is in the object store" in status["message"]
    assert site.asked == [Wanted("shop", "a", "evict-u1-1")]
    site.requests.on_event("ADDED", item("evict-u1-1"))
    assert not site.evict()["allowed"]
    assert len(site.asked) == 1, "it is made already"
    site.requests.on_event("DELETED", item("evict-u1-1"))
    assert not site.evict()["allowed"]
    assert len(site.asked) == 2


def test_a_name_that_another_pods_request_has_is_passed_over() -> None:
    site = Site()
    assert not site.evict()["allowed"]
    squat = item("evict-u1-1")
    squat["spec"] |= {"pod": "x", "requestedBy": "ann"}
    unread = item("evict-u1-2")
    unread["spec"] = {"mode": "what"}
    for one in (squat, unread, item("evict-u2-3")):
        site.requests.on_event("ADDED", one)
    assert not site.evict()["allowed"]
    assert site.asked[-1] == Wanted("shop", "a", "evict-u1-3")
    site.requests.on_event("ADDED", item("evict-u1-3"))
    site.now += 299.0
    assert not site.evict()["allowed"]
    assert len(site.asked) == 2
    for one in (squat, unread):
        site.requests.on_event("DELETED", one)
    site.requests.on_event("DELETED", item("evict-u1-3"))
    assert not site.evict()["allowed"]
    assert site.asked[-1].name == "evict-u1-1", "it is free again"


@pytest.mark.parametrize(
    "dry", [{"dryRun": True}, {"object": {"deleteOptions": {"dryRun": ["All"]}}}]
)
def test_a_dry_run_is_told_of_and_asks_for_nothing(dry: dict[str, Any]) -> None:
    site = Site()
    told = site.evict(**dry)
    assert told["allowed"], "kubectl drain --dry-run=server would try for ever"
    assert "once its state is in the object store" in told["warnings"][0]
    assert not site.asked


def test_a_state_in_the_object_store_lets_its_pod_go_once_a_request_says_whose_it_is() -> None:
    site = Site()
    seat = {**NODE["status"]["seats"][0], "state": "parked", "tier": "object"}  # type: ignore[index]
    status = {**NODE["status"], "seats": [seat]}  # type: ignore[dict-item]
    site.known.on_event("MODIFIED", {**NODE, "status": status})
    assert not site.evict()["allowed"]
    assert site.asked == [Wanted("shop", "a", "evict-u1-1")]
    told = {"podUID": "u1", "node": "n1", "operation": "ckpt-evict-u1-1", "owner": "job"}
    over = {"type": "Complete", "status": "True", "reason": "Evicted", "message": "it is there"}
    done = {**told, "completionTime": "2026-01-01T00:00:00Z", "conditions": [over]}
    artifact = {"name": "", "tier": "object", "bytes": 7}
    site.requests.on_event("ADDED", item("evict-u1-1", **done, artifact=artifact))
    assert site.evict() == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("state", ["waiting", "failed", "gone"])
@pytest.mark.parametrize("other", ["n0", "n2"])
def test_no_nodes_word_lets_a_pod_go_that_another_one_tells_of(other: str, state: str) -> None:
    site = Site()
    seat = {**NODE["status"]["seats"][0], "state": state}  # type: ignore[index]
    rogue = {"metadata": {"name": other}, "status": {"seats": [seat]}}
    site.known.on_event("DELETED", NODE)
    for node in sorted((rogue, NODE), key=lambda one: one["metadata"]["name"]):  # type: ignore[index]
        site.known.on_event("ADDED", node)
    held = site.evict()
    assert not held["allowed"]
    assert site.asked == [Wanted("shop", "a", "evict-u1-1")]


def test_what_can_not_be_saved_goes_with_a_warning() -> None:
    site = Site()
    site.known.on_event("MODIFIED", {**NODE, "status": {**NODE["status"], "tiers": []}})  # type: ignore[dict-item]
    allowed = site.evict()
    assert allowed["allowed"]
    assert allowed["warnings"] == ["its state goes with it: its node has no object store"]


def test_a_request_that_can_not_be_made_holds_nobody_up_for_ever() -> None:
    site = Site()
    site.failed = "exceeded quota: requests"
    for _ in range(10):
        held = site.evict()
        assert held["allowed"] is False
        assert "exceeded quota: requests" in held["status"]["message"]
        site.now += 33.0
    site.now += 1.0
    allowed = site.evict()
    assert allowed["allowed"] is True
    (warning,) = allowed["warnings"]
    assert warning.startswith("its state goes with it: CheckpointRequest evict-u1-1 can't be made")
    made = item("evict-u1-1")
    made["metadata"]["creationTimestamp"] = "2026-01-01T00:05:00Z"
    site.requests.on_event("ADDED", made)
    assert not site.evict()["allowed"], "it is made after all"
    site.requests.on_event("DELETED", made)
    assert not site.evict()["allowed"], "and counts from again"


def test_an_operation_of_an_agent_that_is_away_holds_nobody_up_for_ever() -> None:
    site = Site()
    seat = {**NODE["status"]["seats"][0], "operation": "save"}  # type: ignore[index]
    status = {**NODE["status"], "seats": [seat]}  # type: ignore[dict-item]
    site.known.on_event("MODIFIED", {**NODE, "status": status})
    for _ in range(30):
        assert not site.evict()["allowed"]
        assert not site.asked
        site.now += 60.0
    site.now += 1.0
    assert not site.evict()["allowed"]
    assert site.asked == [Wanted("shop", "a", "evict-u1-1")]
    stamp = "2026-01-01T00:40:00Z"
    over = {"type": "Complete", "status": "False", "reason": "DeadlineExceeded", "message": "away"}
    told = {"podUID": "u1", "node": "n1", "operation": "ckpt-evict-u1-1", "completionTime": stamp}
    site.requests.on_event("ADDED", item("evict-u1-1", **told, conditions=[over]))
    site.now += 600.0
    assert site.evict()["warnings"] == ["its state goes with it: evict-u1-1: away"]


def test_it_can_be_turned_off() -> None:
    site = Site(within=0.0)
    assert site.evict() == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": {"group": "", "kind": "Pod"}}, "pods/eviction alone"),
        ({"name": None}, "request.name is not a text"),
        ({"namespace": 1}, "request.namespace is not a text"),
        ({"userInfo": []}, "request.userInfo is not an object"),
        ({"object": {"deleteOptions": 1}}, "deleteOptions is not an object"),
    ],
)
def test_what_is_no_eviction_is_refused_in_words(wrong: dict[str, Any], says: str) -> None:
    body = eviction()
    body["request"].update(wrong)
    answer = Site().client.post("/evict", data=json.dumps(body))
    assert answer.status_code == 400
    assert says in answer.get_json()["error"]


def test_a_node_of_no_form_has_no_seats() -> None:
    site = Site()
    for status in (None, [], {"seats": 1}, {"seats": [1, {"pod": 7}], "tiers": "x"}):
        site.known.on_event("MODIFIED", {"metadata": {"name": "n1"}, "status": status})
        assert site.evict()["allowed"]


@pytest.mark.parametrize("error", [None, ConflictError("it is there"), RetryableError("away")])
def test_requests_are_made_behind_the_answers(error: Exception | None) -> None:
    api = Api()

    def answers() -> None:
        if error is not None:
            raise error

    api.answers = answers
    asker = Asker(api, 300.0)  # type: ignore[arg-type]
    asker.start()
    for name in ("evict-u1-1", "evict-u2-1"):
        api.some.clear()
        asker.ask(Wanted("shop", "a", name))
        assert api.some.wait(10.0), "an error ends no thread"
    asker.stop()
    path, body = api.posted[0]
    assert path == f"/apis/{keys.API_VERSION}/namespaces/shop/checkpointrequests"
    assert body["spec"] == {
        "pod": "a",
        "mode": "Evict",
        "tier": "object",
        "deadlineSeconds": 300,
        "ttlSecondsAfterFinished": 3600,
    }


def test_with_too_much_to_ask_for_nobody_waits() -> None:
    asker = Asker(Api(), 300.0)  # type: ignore[arg-type]
    for number in range(1_500):
        asker.ask(Wanted("shop", "a", f"evict-u1-{number}"))


def test_who_asks_for_one_again_and_again_takes_one_place() -> None:
    api = Api()
    asker = Asker(api, 300.0)  # type: ignore[arg-type]
    for _ in range(1_500):
        asker.ask(Wanted("mine", "a", "evict-u1-1"))
    asker.ask(Wanted("shop", "b", "evict-u2-1"))
    asker.start()
    asker.stop()
    assert [body["metadata"]["name"] for _, body in api.posted] == ["evict-u1-1", "evict-u2-1"]


def test_why_one_can_not_be_made_is_told_to_who_asks_again() -> None:
    api = Api()

    def answers() -> None:
        raise RetryableError("exceeded quota: requests")

    api.answers = answers
    asker = Asker(api, 300.0)  # type: ignore[arg-type]
    wanted = Wanted("shop", "a", "evict-u1-1")
    assert asker.ask(wanted) == ""
    asker.start()
    asker.stop()
    assert asker.ask(wanted) == "exceeded quota: requests"
