"""A Deployment is scaled to zero and back on a real API server, with the controller killed between
any two steps; and who may do what of it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError
from tests.integration.controller.conftest import (
    LIMIT_S,
    NAMESPACE,
    NODE,
    PODS,
    REQUESTS,
    complete,
    pod,
    request,
)
from tests.integration.controller.test_policies import POLICIES, policy
from tests.integration.hooks import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.integration.controller.conftest import Controller
    from tests.kit.servers.agentdoor import Door

    Json = dict[str, Any]

pytestmark = pytest.mark.integration

APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
SCALERS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LABELS = {"app": "web"}
TEMPLATE = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "c", "image": "x"}]},
}
SPEC = {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}
IDLE = {"idle": {"object": "1s"}}
WANTED = {"metadata": {"annotations": {keys.WANTED: "2026-01-01T00:00:00Z"}}}
SCALER = {
    "metadata": {"name": "web"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "maxReplicas": 3,
    },
}


class Web:
    """A Deployment of two pods, as its controllers would have made them: none runs here."""

    def __init__(self, control_plane: Cluster, door: Door) -> None:
        self.api, self._plane, self._door = control_plane.api(), control_plane, door
        body = {"metadata": {"name": "web"}, "spec": {**SPEC, "replicas": 2}}
        made = self.api.post(f"{APPS}/deployments", body)
        body = {"metadata": {"name": "web-1"}, "spec": {**SPEC, "replicas": 2}}
        body["metadata"]["ownerReferences"] = [_owner("Deployment", made)]
        self.owner = _owner("ReplicaSet", self.api.post(f"{APPS}/replicasets", body))
        self.uids = {name: self._pod(name) for name in ("web-1-a", "web-1-b")}

    @property
    def replicas(self) -> int:
        return int(self.api.get(f"{APPS}/deployments/web")["spec"]["replicas"])

    def rest(self, *names: str, ago: float = 60.0) -> None:
        """These rest in the object store, as their GPUNode says."""
        since = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
        row = {"group": "G0", "namespace": NAMESPACE, "state": "parked", "tier": "object"}
        rows = [
            {**row, "uid": self.uids[name], "name": name, "pod": name, "since": since}
            for name in names
        ]
        told = {"status": {"observedGeneration": 1, "seats": rows}}
        self._plane.api("agent").patch(f"{keys.GPU_NODES_PATH}/{NODE}/status", told)

    def asked(self) -> dict[str, str]:
        """Reasons of what was asked for, by name."""
        every = self.api.get(REQUESTS)["items"]
        return {one["metadata"]["name"]: complete(one)[1] for one in every}

    def gone(self) -> None:
        """Its pods are deleted, as their controller would."""
        for name in self.uids:
            self.api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def clear(self) -> None:
        for path in (PODS, REQUESTS, SCALERS, f"{APPS}/replicasets", f"{APPS}/deployments"):
            for item in self.api.get(path)["items"]:
                with contextlib.suppress(NotFoundError):
                    body = {"gracePeriodSeconds": 0}
                    self.api.delete(f"{path}/{item['metadata']['name']}", body)
        with contextlib.suppress(NotFoundError):
            self.api.delete(f"{POLICIES}/p")

    def _pod(self, name: str) -> str:
        made = pod(name, {keys.seat_resource(1): "1", "memory": "1Gi"})
        made["metadata"] |= {
            "labels": {**LABELS, keys.MANAGED_LABEL: "true"},
            "annotations": {keys.VRAM: "1Gi", keys.MODEL: "oak"},
            "ownerReferences": [self.owner],
        }
        made["spec"]["containers"][0]["args"] = ["serve"]
        uid = str(self.api.post(PODS, made)["metadata"]["uid"])
        notes = {keys.ASSIGNED_GROUP: "G0", keys.ASSIGNED_AT: "2026-01-01T00:00:00Z"}
        target = {"kind": "Node", "name": NODE}
        bound = {"metadata": {"name": name, "annotations": notes}, "target": target}
        self._plane.api("extender").post(f"{PODS}/{name}/binding", bound)
        self._door.seats.add(uid)
        return uid


def _owner(kind: str, made: Json) -> Json:
    meta = made["metadata"]
    named = {"kind": kind, "name": meta["name"], "uid": meta["uid"]}
    return {"apiVersion": "apps/v1", **named, "controller": True}


@pytest.fixture
def web(control_plane: Cluster, namespace: str, door: Door, webhook: object) -> Iterator[Web]:
    found = Web(control_plane, door)
    yield found
    found.clear()


def test_it_is_scaled_to_zero_and_back_though_the_controller_is_killed(
    web: Web, controllers: Callable[..., Controller], control_plane: Cluster, door: Door
) -> None:
    controller, door.takes = controllers(), 0.5
    web.api.post(POLICIES, policy(**IDLE))
    web.rest("web-1-a", "web-1-b")
    controller.start()
    names = {f"zero-{uid}" for uid in web.uids.values()}
    until(lambda: set(web.asked()) == names, "nothing is asked for", LIMIT_S)
    controller.kill()
    assert web.replicas == 2
    controller.start()
    # One that is killed between the two never says it.
    until(lambda: said(web) >= {"ScaledToZero"}, "it is not scaled to zero", LIMIT_S)
    assert web.replicas == 0
    controller.kill()
    assert web.asked() == dict.fromkeys(names, "Evicted")
    assert {one[1:] for one in door.begun} == {
        ("evict", uid, "object") for uid in web.uids.values()
    }
    assert len(door.begun) == 2, "none was done twice"

    web.gone()
    web.rest()
    controller.start()
    until(controller.ready, "it is not ready", LIMIT_S)
    assert web.replicas == 0
    control_plane.api("proxy").patch(f"{REQUESTS}/{min(names)}", WANTED)
    until(lambda: web.replicas == 2, "it is not scaled up", LIMIT_S)
    controller.kill()
    controller.start()
    until(
        lambda: all(one["status"].get("scaledUpTime") for one in web.api.get(REQUESTS)["items"]),
        "it is not told",
        LIMIT_S,
    )
    # Whoever scales it down by hand now means it.
    web.api.patch(f"{APPS}/deployments/web", {"spec": {"replicas": 0}})
    controller.kill()
    controller.start()
    assert web.replicas == 0


def said(web: Web) -> set[str]:
    return {one["reason"] for one in web.api.get(EVENTS)["items"]}


def test_one_that_wakes_meanwhile_has_the_other_woken(
    web: Web, controller: Controller, door: Door
) -> None:
    # So long that it can't be scaled down before.
    door.takes = 4.0
    web.rest("web-1-a", "web-1-b")
    web.api.post(POLICIES, policy(**IDLE))
    until(lambda: len(web.asked()) == 2, "nothing is asked for", LIMIT_S)
    first, second = (f"zero-{web.uids[name]}" for name in ("web-1-a", "web-1-b"))
    web.rest("web-1-a")
    until(lambda: not {first, second} & set(web.asked()), "they stay", LIMIT_S)
    assert web.replicas == 2


def test_what_another_one_scales_is_left_alone_and_people_hear_why(
    web: Web, controller: Controller
) -> None:
    web.api.post(SCALERS, SCALER)
    web.api.post(POLICIES, policy(**IDLE))
    web.rest("web-1-a", "web-1-b")

    def told() -> list[str]:
        every = web.api.get(EVENTS)["items"]
        return [one["message"] for one in every if one["reason"] == "NotScaledToZero"]

    until(lambda: bool(told()), "nothing is said", LIMIT_S)
    assert "HorizontalPodAutoscaler web scales Deployment web" in told()[0]
    assert (web.replicas, web.asked()) == (2, {})


def test_a_scaler_that_comes_in_between_has_its_pods_woken(
    web: Web, controllers: Callable[..., Controller], door: Door
) -> None:
    controller, door.takes = controllers().start(), 3.0
    web.api.post(POLICIES, policy(**IDLE))
    web.rest("web-1-a", "web-1-b")
    until(lambda: len(web.asked()) == 2, "nothing is asked for", LIMIT_S)
    web.api.post(SCALERS, SCALER)
    asked = (one["metadata"]["uid"] for one in web.api.get(REQUESTS)["items"])
    back = {f"zero-back-{uid}" for uid in asked}
    until(lambda: set(web.asked()) == back, f"they stay away: {web.asked()}", LIMIT_S)
    until(lambda: set(web.asked().values()) == {"Awake"}, "they are not woken", LIMIT_S)
    assert web.replicas == 2
    assert controller.stop() == 0


# --- who may do what --------------------------------------------------------------------------


def test_nobody_has_what_scaled_that_they_may_not_scale(
    web: Web, users: Callable[[str, list[Json]], Api]
) -> None:
    rules = [
        {"apiGroups": ["kyb.ai"], "resources": ["checkpointpolicies"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]
    scales = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]}
    eve = users("zero-eve", rules)
    at_night = {"cron": "0 8 * * *", "duration": "1h", **IDLE}
    for spec in (IDLE, {"schedule": [at_night]}):
        with pytest.raises(RefusedError, match="right to patch deployments/scale in namespace"):
            eve.post(POLICIES, policy(**spec))
    eve.post(POLICIES, policy(idle={"nvme": "1h"}))
    web.api.delete(f"{POLICIES}/p")
    users("zero-carol", [*rules, scales]).post(POLICIES, policy(**IDLE))


def test_the_controllers_account_scales_to_zero_and_from_there_only(
    web: Web, control_plane: Cluster
) -> None:
    machine, path = control_plane.api("controller"), f"{APPS}/deployments/web/scale"
    with pytest.raises(RefusedError, match="only to zero, or from zero"):
        machine.patch(path, {"spec": {"replicas": 3}})
    for number in (0, 3):
        machine.patch(path, {"spec": {"replicas": number}})
    with pytest.raises(RefusedError):
        machine.patch(f"{APPS}/deployments/web", {"spec": {"paused": True}})
    for name, mode in (("once", "Wake"), ("zero-back-x", "Park")):
        with pytest.raises(RefusedError, match=f"may not ask for mode {mode}"):
            machine.post(REQUESTS, request(name, mode, "web-1-a"))
    machine.post(REQUESTS, request("zero-back-x", "Wake", "web-1-a"))


def test_of_its_requests_each_changes_only_what_is_theirs(web: Web, control_plane: Cluster) -> None:
    machine, proxy = control_plane.api("controller"), control_plane.api("proxy")
    made = request("zero-x", "Evict", "web-1-a", tier="object")
    made["metadata"]["ownerReferences"] = web.api.get(f"{APPS}/replicasets/web-1")["metadata"][
        "ownerReferences"
    ]
    made["metadata"]["labels"] = {keys.ZERO_LABEL: "true"}
    machine.post(REQUESTS, made)
    web.api.post(REQUESTS, request("own", "Park", "web-1-a"))
    labels = {"metadata": {"labels": {keys.ZERO_LABEL: None}}}
    model = {"metadata": {"annotations": {keys.MODEL: "other"}}}
    for who, name, change in (
        (proxy, "own", WANTED),
        (proxy, "zero-x", labels),
        (proxy, "zero-x", model),
        (proxy, "zero-x", {"metadata": {"annotations": {keys.SUCCESSOR: "u"}}}),
        (proxy, "zero-x", {"metadata": {"finalizers": ["a.b/c"]}}),
        (web.api, "zero-x", {"metadata": {"ownerReferences": None}}),
        (web.api, "zero-x", model),
        (control_plane.api("extender"), "zero-x", WANTED),
    ):
        with pytest.raises(RefusedError):
            who.patch(f"{REQUESTS}/{name}", change)
    proxy.patch(f"{REQUESTS}/zero-x", WANTED)
    found = proxy.get(REQUESTS.replace(f"namespaces/{NAMESPACE}/", ""), {"limit": "1"})
    assert found["items"], "it may list them"


def test_nobody_has_a_deployment_scaled_up_without_the_right_to(
    web: Web, control_plane: Cluster, users: Callable[[str, list[dict[str, Any]]], Api]
) -> None:
    control_plane.api("controller").post(
        REQUESTS,
        {
            **request("zero-y", "Evict", "web-1-a", tier="object"),
        },
    )
    edits = {"apiGroups": ["kyb.ai"], "resources": ["checkpointrequests"], "verbs": ["patch"]}
    scales = {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]}
    with pytest.raises(RefusedError, match="right to patch deployments/scale"):
        users("zero-mallory", [edits]).patch(f"{REQUESTS}/zero-y", WANTED)
    users("zero-bob", [edits, scales]).patch(f"{REQUESTS}/zero-y", WANTED)
