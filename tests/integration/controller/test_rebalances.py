"""RebalanceRequests from the plan to the end: a real API server with its policies, an agent's door,
an extender that a test leads, and the controller as a process that is killed at each stage."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kybernate import keys
from kybernate.cli import main
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    NODE,
    PODS,
    REQUESTS,
    complete,
    pod,
)
from tests.integration.hooks import until
from tests.kit.servers.planner import Extender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door

    Json = dict[str, Any]

pytestmark = pytest.mark.integration

RBAL = f"/apis/{keys.API_VERSION}/namespaces/{NAMESPACE}/rebalancerequests"
OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "rs",
    "uid": "of-rs",
    "controller": True,
}


@pytest.fixture
def extender(control_plane: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Extender]:
    found = Extender(control_plane.layout.tls)
    monkeypatch.setenv("KYB_CONTROLLER_EXTENDER", found.url)
    yield found
    found.stop()


@pytest.fixture
def api(control_plane: Cluster, extender: Extender) -> Iterator[Api]:
    """The administrator; nothing is left afterwards."""
    found = control_plane.api()
    yield found
    for path in (RBAL, REQUESTS):
        for item in found.get(path)["items"]:
            with contextlib.suppress(NotFoundError):
                found.delete(f"{path}/{item['metadata']['name']}")
    with contextlib.suppress(NotFoundError):
        found.delete(f"{PODS}/b", {"gracePeriodSeconds": 0})


def moving(api: Api, name: str = "once", **more: Any) -> None:
    spec = {"move": {"pod": "a", "to": {"group": "G1"}}, **more}
    kind = {"apiVersion": keys.API_VERSION, "kind": keys.REBALANCE_REQUEST_KIND}
    api.post(RBAL, {**kind, "metadata": {"name": name}, "spec": spec})


def status(api: Api, name: str = "once") -> Json:
    found: Json = api.get(f"{RBAL}/{name}").get("status") or {}
    return found


def at(api: Api, reason: str, name: str = "once") -> None:
    until(
        lambda: complete(api.get(f"{RBAL}/{name}"))[1] == reason,
        f"not {reason}",
        LIMIT_S,
    )


def staged(api: Api) -> str:
    """How far its one step is."""
    plan = status(api).get("plan") or {"steps": [{"stage": ""}]}
    return str(plan["steps"][0]["stage"])


def approve(api: Api, hash_: str = "h1", name: str = "once") -> None:
    api.patch(f"{RBAL}/{name}", {"spec": {"approvedPlan": hash_}})


@pytest.fixture
def replaced(api: Api, seated: Callable[..., str], extender: Extender) -> str:
    """The pod `a`, which a ReplicaSet has made; its UID."""
    uid = seated()
    api.patch(f"{PODS}/a", {"metadata": {"ownerReferences": [OWNER]}})
    extender.plans(NAMESPACE, uid)
    return uid


def succeed(control_plane: Cluster, api: Api, made: str, group: str = "G1") -> None:
    """What ReplicaSet, scheduler, extender and kubelet do once the pod is evicted."""
    body = pod("b", {keys.seat_resource(1): "1", "memory": "1Gi"})
    body["metadata"] |= {"labels": {keys.MANAGED_LABEL: "true"}, "ownerReferences": [OWNER]}
    body["metadata"]["annotations"] = {keys.VRAM: "1Gi"}
    body["spec"]["containers"][0]["args"] = ["serve"]
    uid = api.post(PODS, body)["metadata"]["uid"]
    note = {"metadata": {"annotations": {keys.SUCCESSOR: uid}}}
    control_plane.api("extender").patch(f"{REQUESTS}/{made}", note)
    notes = {keys.ASSIGNED_GROUP: group, keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
    target = {"kind": "Node", "name": NODE}
    bound = {"metadata": {"name": "b", "annotations": notes}, "target": target}
    control_plane.api("extender").post(f"{PODS}/b/binding", bound)
    ready = [{"type": "Ready", "status": "True"}]
    api.patch(f"{PODS}/b/status", {"status": {"phase": "Running", "conditions": ready}})


def test_a_move_goes_on_though_the_controller_is_killed_at_each_stage(
    control_plane: Cluster,
    api: Api,
    extender: Extender,
    controller: Controller,
    door: Door,
    replaced: str,
) -> None:
    def killed() -> None:
        controller.kill()
        controller.start(wait=False)

    door.takes = 3.0
    moving(api)
    at(api, "AwaitingApproval")
    assert f"/defrag/{NAMESPACE}/a?moves=10&within={NAMESPACE}&node=&group=G1" in extender.asked
    killed()
    time.sleep(1.0)
    assert api.get(REQUESTS)["items"] == [], "nothing is done before it is approved"
    approve(api)
    until(lambda: staged(api) == "Saving", "it does not begin", LIMIT_S)
    killed()
    until(lambda: staged(api) == "Arriving", "it does not get there", LIMIT_S)
    assert "deletionTimestamp" in api.get(f"{PODS}/a")["metadata"], "evicted"
    killed()
    (made,) = api.get(REQUESTS)["items"]
    assert made["spec"]["successor"] == {"node": NODE, "group": "G1"}
    succeed(control_plane, api, made["metadata"]["name"])
    at(api, "Moved")
    assert status(api)["movesDone"] == 1
    assert [one[1:] for one in door.begun] == [("evict", replaced, "object")]
    assert len(api.get(REQUESTS)["items"]) == 1


def test_a_pod_that_comes_elsewhere_is_told_of(
    control_plane: Cluster, api: Api, controller: Controller, replaced: str
) -> None:
    moving(api)
    at(api, "AwaitingApproval")
    approve(api)
    until(lambda: staged(api) == "Arriving", "it does not get there", LIMIT_S)
    (made,) = api.get(REQUESTS)["items"]
    succeed(control_plane, api, made["metadata"]["name"], "G2")
    at(api, "Displaced")


def test_only_the_plan_as_it_stands_is_carried_out(
    api: Api, extender: Extender, controller: Controller, replaced: str
) -> None:
    moving(api)
    at(api, "AwaitingApproval")
    with pytest.raises(RefusedError, match=r"is not status.plan.hash"):
        approve(api, "h2")
    with pytest.raises(RefusedError, match="stays as it was written"):
        api.patch(f"{RBAL}/once", {"spec": {"move": {"pod": "b"}}})
    extender.plans(NAMESPACE, replaced, hash_="h2")
    approve(api)
    at(api, "PlanChanged")
    assert api.get(REQUESTS)["items"] == []
    approve(api, "h2")
    until(lambda: staged(api) == "Arriving", "it does not get there", LIMIT_S)
    with pytest.raises(RefusedError, match="its plan has begun"):
        approve(api, "h1")


def test_requests_that_nobody_approves_cost_few_plans_and_end(
    api: Api, extender: Extender, controller: Controller, replaced: str
) -> None:
    names = [f"r{number}" for number in range(12)]

    def reasons() -> list[str]:
        return [complete(api.get(f"{RBAL}/{name}"))[1] for name in names]

    for name in names[:10]:
        moving(api, name)
    made = time.time()
    until(lambda: time.time() >= made + 1, "no later second", LIMIT_S)  # their ages are in seconds
    for name in names[10:]:
        moving(api, name)
    ends = ["AwaitingApproval"] * 10 + ["Queued"] * 2
    until(lambda: sorted(reasons()) == ends, "not planned", LIMIT_S)
    for number in range(3):
        for name in names:
            api.patch(f"{RBAL}/{name}", {"metadata": {"annotations": {"touched": str(number)}}})
    moving(api, "late", deadlineSeconds=1)
    at(api, "DeadlineExceeded", "late")
    assert sorted(reasons()) == ends
    for selector, found in (("spec.move.pod=a", 13), ("spec.move.pod=b", 0)):
        assert len(api.get(RBAL, {"fieldSelector": selector})["items"]) == found
    assert len(extender.asked) == 10
    assert api.get(REQUESTS)["items"] == []


def test_a_plan_is_shown_through_the_api_server_and_leaves_no_request(
    control_plane: Cluster, api: Api, extender: Extender, controller: Controller, replaced: str
) -> None:
    at_home = ["--kubeconfig", str(control_plane.kubeconfig), "-n", NAMESPACE]
    ask = ["rebalance", "--dry-run", "--empty", NODE, *at_home]
    shown = CliRunner().invoke(main, ask)
    assert shown.exit_code == 0, shown.output
    assert (
        "1. Move requests/a (1.0 GiB, 3 s) from group G0 of n1 to group G1 of n1." in shown.output
    )
    path = f"/defrag/{NAMESPACE}/*?moves=10&within={NAMESPACE}&empty={NODE}"
    assert extender.asked == [path]
    assert api.get(RBAL)["items"] == []
    plan = json.loads(CliRunner().invoke(main, [*ask, "--json"]).stdout)["status"]["plan"]
    assert (plan["hash"], plan["steps"][0]["pod"]) == ("h1", "a")
    extender.answer = {"Error": "no pod waits"}
    none = CliRunner().invoke(main, ["rebalance", "--dry-run", "b", *at_home])
    assert none.exit_code == 1, none.output
    assert api.get(RBAL)["items"] == []
    assert api.get(REQUESTS)["items"] == []


def test_a_models_move_is_asked_for_from_a_laptop_and_planned_as_one(
    control_plane: Cluster, api: Api, extender: Extender, controller: Controller, replaced: str
) -> None:
    at_home = ["--kubeconfig", str(control_plane.kubeconfig), "-n", NAMESPACE]
    shown = CliRunner().invoke(main, ["move", "--model", "llama", "--to", NODE, *at_home])
    assert shown.exit_code == 0, shown.output
    assert "1. Move requests/a (1.0 GiB, 3 s)" in shown.output
    path = f"/defrag/{NAMESPACE}/*?moves=10&within={NAMESPACE}&model=llama&node={NODE}&group="
    assert extender.asked == [path]
    (made,) = api.get(RBAL)["items"]
    assert made["spec"]["move"] == {"model": "llama", "to": {"node": NODE}}
    assert complete(made)[1] == "AwaitingApproval"


def test_what_a_deleted_request_has_begun_is_taken_back(
    api: Api, controller: Controller, door: Door, replaced: str
) -> None:
    door.takes = 3600.0
    moving(api)
    at(api, "AwaitingApproval")
    approve(api)
    until(lambda: len(door.begun) == 1, "it does not begin", LIMIT_S)
    api.delete(f"{RBAL}/once")
    until(lambda: len(door.cancelled) == 1, "it is not cancelled", LIMIT_S)
    assert "deletionTimestamp" not in api.get(f"{PODS}/a")["metadata"]


def test_nobody_moves_or_approves_what_they_may_not(
    api: Api,
    users: Callable[[str, list[dict[str, Any]]], Api],
    controller: Controller,
    replaced: str,
) -> None:
    ours = {"apiGroups": [keys.GROUP], "resources": ["rebalancerequests"]}
    edits = {**ours, "verbs": ["create", "patch", "get"]}
    evicts = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    with pytest.raises(RefusedError, match="takes the right to create pods/eviction"):
        moving(users("stranger", [edits]))
    mover = users("mover", [edits, evicts])
    with pytest.raises(RefusedError, match="no plan yet"):
        moving(mover, approvedPlan="h1")
    moving(mover)
    found = api.get(f"{RBAL}/once")["spec"]["requestedBy"]
    assert found == f"system:serviceaccount:{NAMESPACE}:mover"
    at(api, "AwaitingApproval")
    with pytest.raises(RefusedError, match="takes the verb approve"):
        approve(mover)
    chief = users("chief", [edits, {**ours, "verbs": ["approve"]}])
    approve(chief)
    until(lambda: staged(api) == "Arriving", "it does not get there", LIMIT_S)


@pytest.mark.parametrize(
    ("move", "told"),
    [
        ({"to": {"node": "n2"}}, "name either a pod or a model"),
        ({"pod": "a", "model": "birch", "to": {"node": "n2"}}, "name either a pod or a model"),
        ({"model": "birch", "to": {"group": "G1"}}, "pods of a model may be on several nodes"),
    ],
)
def test_a_move_is_of_one_pod_or_of_a_model_to_a_node(
    api: Api, namespace: str, move: Json, told: str
) -> None:
    del namespace
    with pytest.raises(RefusedError, match=told):
        moving(api, move=move)
    moving(api, move={"model": "birch", "to": {"node": "n2"}})
    assert api.get(f"{RBAL}/once")["spec"]["move"] == {"model": "birch", "to": {"node": "n2"}}
