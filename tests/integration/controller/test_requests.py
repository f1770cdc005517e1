"""CheckpointRequests from their creation to their end: a real API server, an agent's door over real
mutual TLS, and the controller as a process that is killed in between."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate.errors import NotFoundError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    PODS,
    REQUESTS,
    complete,
    pod,
    request,
)
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door

pytestmark = pytest.mark.integration


@pytest.fixture
def api(control_plane: Cluster) -> Iterator[Api]:
    """The administrator; no request is left afterwards."""
    found = control_plane.api()
    yield found
    for item in found.get(REQUESTS)["items"]:
        with contextlib.suppress(NotFoundError):
            found.delete(f"{REQUESTS}/{item['metadata']['name']}")


def ended(api: Api, name: str) -> dict[str, Any]:
    """The request, once nothing more becomes of it."""
    item: dict[str, Any] = {}

    def over() -> bool:
        nonlocal item
        item = api.get(f"{REQUESTS}/{name}")
        return bool((item.get("status") or {}).get("completionTime"))

    until(over, f"{name} does not end: {item.get('status')}", LIMIT_S)
    return item


def at(api: Api, name: str, reason: str) -> None:
    until(
        lambda: complete(api.get(f"{REQUESTS}/{name}"))[1] == reason,
        f"{name} is not {reason}",
        LIMIT_S,
    )


def gone(api: Api, name: str) -> bool:
    try:
        api.get(f"{REQUESTS}/{name}")
    except NotFoundError:
        return True
    return False


def test_a_snapshot_from_the_request_to_the_artifact(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    uid, door.takes = seated(), 1.0
    made = api.post(REQUESTS, request("once", tier="object"))
    found = ended(api, "once")
    operation = f"ckpt-{made['metadata']['uid']}"
    assert complete(found) == ("True", "Sealed")
    status = found["status"]
    assert (status["podUID"], status["node"], status["operation"]) == (uid, "n1", operation)
    assert status["artifact"] == {"name": f"shop/a@{operation}", "tier": "object", "bytes": 7}
    assert door.begun == [(operation, "save", uid, "object")]
    why = door.operations[operation].why
    assert why == f"CheckpointRequest {NAMESPACE}/once of admin"

    def told() -> list[str]:
        events = api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        return sorted(one["reason"] for one in events if one["involvedObject"]["name"] == "once")

    # The event goes out after the status.
    until(lambda: told() == ["Pending", "Running", "Sealed"], "not all is told", LIMIT_S)
    assert controller.stop() == 0


@pytest.mark.parametrize(
    ("mode", "reason"), [("Park", "Parked"), ("Evict", "Evicted"), ("Wake", "Awake")]
)
def test_a_seat_is_parked_evicted_or_woken(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str], mode: str, reason: str
) -> None:
    seated()
    api.post(REQUESTS, request("once", mode))
    assert complete(ended(api, "once")) == ("True", reason)
    assert [one[1] for one in door.begun] == [mode.lower()]


def test_what_can_not_be_done_ends_with_the_reason(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    api.post(REQUESTS, request("nobody", of="nobody"))
    assert complete(ended(api, "nobody")) == ("False", "PodNotFound")
    api.post(PODS, pod("plain"))
    try:
        api.post(REQUESTS, request("plain", of="plain"))
        assert complete(ended(api, "plain")) == ("False", "NoSeat")
    finally:
        api.delete(f"{PODS}/plain", {"gracePeriodSeconds": 0})
    seated()
    door.refuses = "this node has no tier object"
    api.post(REQUESTS, request("refused"))
    found = ended(api, "refused")
    assert complete(found) == ("False", "Refused")
    assert "this node has no tier object" in found["status"]["conditions"][0]["message"]


def test_two_of_one_seat_come_one_after_the_other(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    seated()
    door.takes = 3.0
    api.post(REQUESTS, request("first"))
    at(api, "first", "Running")
    api.post(REQUESTS, request("second"))
    at(api, "second", "SeatBusy")
    assert complete(ended(api, "first")) == ("True", "Sealed")
    assert complete(ended(api, "second")) == ("True", "Sealed")
    assert len(door.begun) == 2


def test_a_deletion_cancels(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    seated()
    door.takes = 3600.0
    api.post(REQUESTS, request("once"))
    at(api, "once", "Running")
    api.delete(f"{REQUESTS}/once")
    until(lambda: len(door.cancelled) == 1, "it is not cancelled", LIMIT_S)


def test_a_deletion_that_nobody_saw_is_found_on_the_agent(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    seated()
    door.takes = 3600.0
    api.post(REQUESTS, request("once"))
    at(api, "once", "Running")
    controller.kill()
    api.delete(f"{REQUESTS}/once")
    controller.start()
    until(lambda: len(door.cancelled) == 1, "it is not cancelled", LIMIT_S)


def test_the_deadline_cancels_and_the_end_is_kept_for_its_time(
    api: Api, controller: Controller, door: Door, seated: Callable[..., str]
) -> None:
    seated()
    door.takes = 3600.0
    api.post(REQUESTS, request("once", deadlineSeconds=3, ttlSecondsAfterFinished=3))
    assert complete(ended(api, "once")) == ("False", "DeadlineExceeded")
    assert len(door.cancelled) == 1
    until(lambda: gone(api, "once"), "its time is over, and it stays", LIMIT_S)


def test_killed_at_any_time_each_is_done_once(
    api: Api, controllers: Callable[..., Controller], door: Door, seated: Callable[..., str]
) -> None:
    """Twelve requests of twelve seats, and a controller that is killed ten times meanwhile."""
    names = [f"p{number}" for number in range(12)]
    for name in names:
        seated(name)
    door.takes = 2.0
    one, chance = controllers(), random.Random(16)
    for round_, name in enumerate([*names, *[""] * 10]):
        if name:
            api.post(REQUESTS, request(name, of=name))
        if round_ % 2 == 0 and round_ < 20:
            one.kill()
            one.start(wait=False)
        time.sleep(chance.uniform(0.1, 1.2))
    found = {name: complete(ended(api, name)) for name in names}
    assert found == dict.fromkeys(names, ("True", "Sealed"))
    begun = [one[0] for one in door.begun]
    assert len(begun) == len(set(begun)) == 12
    assert door.cancelled == []


def test_of_two_replicas_one_acts_and_the_other_follows(
    api: Api, controllers: Callable[..., Controller], door: Door, seated: Callable[..., str]
) -> None:
    seated()
    door.takes = 3.0
    first = controllers("kyb-controller").start()
    until(first.leads, "the first does not lead", LIMIT_S)
    second = controllers("kyb-controller").start()
    assert not second.leads()
    api.post(REQUESTS, request("once"))
    at(api, "once", "Running")
    first.kill()
    assert complete(ended(api, "once")) == ("True", "Sealed")
    assert second.leads()
    assert len(door.begun) == 1
    # Who ends in order gives the lease back.
    assert second.stop() == 0
    until(first.start().leads, "the first does not lead again", 5.0)


BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"


@pytest.fixture
def budget(api: Api) -> Iterator[Callable[[int], None]]:
    """A PodDisruptionBudget for the pod `a`, and how many may go; nobody else reckons it here."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    made = api.post(BUDGETS, {"metadata": {"name": "kept"}, "spec": spec})

    def lets(number: int) -> None:
        status = {
            "observedGeneration": made["metadata"]["generation"],
            "disruptionsAllowed": number,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
        }
        api.patch(f"{BUDGETS}/kept/status", {"status": status})

    lets(0)
    yield lets
    api.delete(f"{BUDGETS}/kept")


def test_a_pod_that_a_budget_keeps_is_not_parked_for_an_eviction(
    api: Api,
    controller: Controller,
    door: Door,
    seated: Callable[..., str],
    budget: Callable[[int], None],
) -> None:
    seated()
    api.patch(f"{PODS}/a", {"metadata": {"labels": {"app": "kept"}}})
    ready = [{"type": "Ready", "status": "True"}]
    api.patch(f"{PODS}/a/status", {"status": {"phase": "Running", "conditions": ready}})
    api.post(REQUESTS, request("once", "Evict"))
    at(api, "once", "DisruptionBudget")
    message = api.get(f"{REQUESTS}/once")["status"]["conditions"][0]["message"]
    assert "disruption budget" in message
    controller.kill()
    controller.start()
    assert door.begun == []
    budget(1)
    assert complete(ended(api, "once")) == ("True", "Evicted")
    assert "deletionTimestamp" not in api.get(f"{PODS}/a")["metadata"]
