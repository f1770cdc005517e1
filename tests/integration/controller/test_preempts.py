"""Room for a pod that waits: a real API server with its policies, an agent's door, an extender that
a test leads, and the controller as a process that is killed at each stage."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError, RefusedError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    NODE,
    PODS,
    REQUESTS,
    pod,
    request,
)
from tests.integration.controller.test_rebalances import Extender, api, replaced
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.controller.agent import Door

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller

    Json = dict[str, Any]

__all__ = ["api", "replaced"]

pytestmark = pytest.mark.integration

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
URGENT = "urgent"


@pytest.fixture
def extender(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Extender]:
    found = Extender(control_plane.layout.tls)
    monkeypatch.setenv("KYB_CONTROLLER_EXTENDER", found.url)
    monkeypatch.setenv("KYB_CONTROLLER_PREEMPT_AFTER_S", "1")
    yield found
    found.stop()


@pytest.fixture
def waiting(api: Api, replaced: str, extender: Extender) -> Iterator[str]:
    """An urgent pod that finds no seat, for which pod `a` is to make room; its UID."""
    with contextlib.suppress(ConflictError):
        api.post(CLASSES, {"metadata": {"name": URGENT}, "value": 1000})
    body = pod("new", {keys.seat_resource(1): "1", "memory": "1Gi"})
    body["metadata"]["labels"] = {keys.MANAGED_LABEL: "true"}
    body["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
    body["spec"]["priorityClassName"] = URGENT
    body["spec"]["containers"][0]["args"] = ["serve"]
    made: list[Json] = []

    def known() -> bool:
        # The admission that reads priority classes hears of a new one in a moment.
        with contextlib.suppress(RefusedError):
            made.append(api.post(PODS, body))
        return bool(made)

    until(known, "the class is not known", LIMIT_S)
    uid: str = made[0]["metadata"]["uid"]
    spot = {"node": NODE, "group": "G0"}
    suspend = {"kind": "suspend", "pod": f"{NAMESPACE}/a", "uid": replaced, "from": spot}
    place = {"kind": "place", "pod": f"{NAMESPACE}/new", "uid": uid, "to": spot}
    plan = {"uid": uid, "checked": True, "room": True, "id": "h1", "sentence": "a makes room"}
    extender.answer = {**plan, "steps": [{**suspend, "bytes": 1 << 30}, place]}
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = [{**said, "lastTransitionTime": at}]
    api.patch(f"{PODS}/new/status", {"status": {"conditions": condition}})
    yield uid
    with contextlib.suppress(NotFoundError):
        api.delete(f"{PODS}/new", {"gracePeriodSeconds": 0})


def leaves(api: Api) -> bool:
    return "deletionTimestamp" in api.get(f"{PODS}/a")["metadata"]


def test_room_is_made_once_though_the_controller_is_killed_at_each_operation(
    api: Api, controller: Controller, door: Door, extender: Extender, waiting: str, replaced: str
) -> None:
    def killed() -> None:
        controller.kill()
        controller.start(wait=False)

    door.takes = 3.0
    until(lambda: extender.asked, "nobody asks for a plan", LIMIT_S)
    killed()
    until(lambda: api.get(REQUESTS)["items"], "nothing is asked for", LIMIT_S)
    killed()
    until(lambda: door.begun, "it does not begin", LIMIT_S)
    assert not leaves(api), "its state comes first"
    killed()
    until(lambda: leaves(api), "it is not evicted", LIMIT_S)
    killed()
    # Until the seat is free and the scheduler has bound the other one, nobody else makes room.
    time.sleep(3.0)
    (made,) = api.get(REQUESTS)["items"]
    assert made["metadata"]["name"] == f"preempt-{waiting}-{replaced}"
    assert made["spec"]["requestedBy"] == keys.CONTROLLER_USER
    assert [one[1:] for one in door.begun] == [("evict", replaced, "object")]
    assert set(extender.asked) == {f"/preemption/{NAMESPACE}/new"}


def test_what_was_begun_for_a_pod_that_goes_is_taken_back(
    api: Api, controller: Controller, door: Door, waiting: str
) -> None:
    door.takes = 3600.0
    until(lambda: door.begun, "it does not begin", LIMIT_S)
    api.delete(f"{PODS}/new", {"gracePeriodSeconds": 0})
    until(lambda: len(door.cancelled) == 1, "it is not cancelled", LIMIT_S)
    until(lambda: not api.get(REQUESTS)["items"], "the request stays", LIMIT_S)
    assert not leaves(api)


def test_a_tenant_has_no_more_priority_than_the_namespace_is_given(
    api: Api,
    control_plane: Cluster,
    users: Callable[[str, list[Json]], Api],
    controller: Controller,
    waiting: str,
    replaced: str,
) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get"]}
    own = {"apiGroups": [keys.GROUP], "resources": ["checkpointrequests"], "verbs": ["create"]}
    tenant = users("tenant", [rule, own])
    body = pod("pushy", {keys.seat_resource(1): "1", "memory": "1Gi"})
    body["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
    body["spec"]["containers"][0]["args"] = ["serve"]
    with pytest.raises(RefusedError, match="priority"):
        tenant.post(PODS, {**body, "spec": {**body["spec"], "priority": 5000}})
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [URGENT]}
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    hard = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [scope]}}
    api.post(quotas, {"metadata": {"name": "none-urgent"}, "spec": hard})
    # What Kubernetes' quota controller writes, which does not run here.
    counted = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    api.patch(f"{quotas}/none-urgent/status", counted)
    try:
        urgent = {**body, "spec": {**body["spec"], "priorityClassName": URGENT}}

        def refused() -> bool:
            # The quota is heard of in a moment; a dry run makes no pod until then.
            try:
                tenant.post(PODS, urgent, {"dryRun": "All"})
            except RefusedError as error:
                return "quota" in str(error)
            return False

        until(refused, "it may", LIMIT_S)
    finally:
        api.delete(f"{quotas}/none-urgent")
    name = f"preempt-{waiting}-{replaced}"
    with pytest.raises(RefusedError, match="takes the right to create pods/eviction"):
        tenant.post(REQUESTS, request(name + "-x", "Evict"))
    acting = control_plane.api("controller")
    with pytest.raises(RefusedError, match="may not ask for mode Snapshot"):
        acting.post(REQUESTS, request("preempt-x", "Snapshot"))
    with pytest.raises(RefusedError, match="may not ask for mode Wake"):
        acting.post(REQUESTS, request("mine", "Wake"))
