"""Deployments, StatefulSets and disruption budgets while seats are parked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RetryableError
from tests.cluster.processes.control import wait_until
from tests.e2e.node.test_probes import HANDLERS, probed, restarts, seats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster import Cluster
    from tests.kit.clients.models import Models
    from tests.kit.pods import Pods

pytestmark = pytest.mark.e2e

APPS = "/apis/apps/v1/namespaces/default"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LABELS = {"app": "served"}
LIMIT = 120.0


def template(model: str) -> dict[str, Any]:
    """A pod with a seat on the one GPU that all of them share."""
    pod = probed(model, HANDLERS["http"])
    metadata = {**pod["metadata"], "labels": {**pod["metadata"]["labels"], **LABELS}}
    del metadata["name"]
    return {"metadata": metadata, "spec": pod["spec"]}


@pytest.fixture
def api(cluster: Cluster, pods: Pods) -> Iterator[Api]:
    """The API; objects that would make pods again go before the pods do."""
    api = cluster.api()
    yield api
    for path in (f"{APPS}/deployments/d", f"{APPS}/statefulsets/s", f"{BUDGETS}/b"):
        try:
            api.delete(path, {"propagationPolicy": "Background"})
        except NotFoundError:
            continue
    wait_until(lambda: not pods.all(), 60, "the pods didn't go with their owners")


def deployment(model: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": LABELS},
            "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template(model),
        },
    }


def available(api: Api, path: str) -> int:
    """Replicas that are Ready: what rollouts, budgets and autoscalers count."""
    return int(api.get(path)["status"].get("readyReplicas") or 0)


def parked(cluster: Cluster) -> int:
    return sum(seat["state"] == "parked" for seat in seats(cluster).values())


def test_a_rollout_goes_through_and_never_lacks_a_replica(
    cluster: Cluster, api: Api, pods: Pods, models: Models
) -> None:
    path = f"{APPS}/deployments/d"
    api.post(f"{APPS}/deployments", deployment("served"))
    wait_until(lambda: available(api, path) == 2, LIMIT, "the deployment is not available")
    wait_until(lambda: parked(cluster) == 1, 10, "one of two on one GPU is not parked")
    assert models.ask("served").intact
    old = set(pods.all())
    change = {"spec": {"template": {"metadata": {"annotations": {"round": "2"}}}}}
    api.patch(path, change, kind="merge")
    deadline, least = time.monotonic() + LIMIT, 2
    while old & set(pods.all()):
        least = min(least, available(api, path))
        assert time.monotonic() < deadline, pods.story(min(pods.all()))
        time.sleep(0.1)
    assert least == 2
    wait_until(lambda: available(api, path) == 2, 30, "the new pods are not all available")
    status = api.get(path)["status"]
    assert (status["updatedReplicas"], status["replicas"]) == (2, 2)
    assert {restarts(pod) for pod in pods.all().values()} == {0}
    assert models.ask("served").intact


def test_a_budget_counts_parked_pods_as_healthy(cluster: Cluster, api: Api, pods: Pods) -> None:
    path = f"{APPS}/deployments/d"
    selector = {"matchLabels": LABELS}
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": selector}}
    api.post(BUDGETS, budget)
    api.post(f"{APPS}/deployments", deployment("served"))
    wait_until(lambda: available(api, path) == 2, LIMIT, "the deployment is not available")

    def healthy() -> bool:
        return bool(api.get(f"{BUDGETS}/b")["status"].get("currentHealthy") == 2)

    wait_until(healthy, 20, "the budget doesn't count two healthy pods")
    wait_until(lambda: parked(cluster) == 1, 10, "one of two on one GPU is not parked")
    assert healthy()
    name = min(pods.all())
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    eviction = f"/api/v1/namespaces/default/pods/{name}/eviction"
    with pytest.raises(RetryableError, match="disruption budget"):
        api.post(eviction, body)
    api.patch(f"{BUDGETS}/b", {"spec": {"minAvailable": 1}}, kind="merge")

    def evicted() -> bool:
        try:
            api.post(eviction, body)
        except RetryableError:
            return False
        return True

    wait_until(evicted, 20, "a budget of one did not let one of two go")
    wait_until(lambda: name not in pods.all(), 30, "the evicted pod is still there")


def test_a_stateful_set_comes_up_in_order_and_is_renewed_in_reverse(
    cluster: Cluster, api: Api, pods: Pods, models: Models
) -> None:
    path = f"{APPS}/statefulsets/s"
    spec = {
        "serviceName": "s",
        "replicas": 2,
        "selector": {"matchLabels": LABELS},
        "template": template("served"),
    }
    api.post(f"{APPS}/statefulsets", {"metadata": {"name": "s"}, "spec": spec})
    wait_until(lambda: available(api, path) == 2, LIMIT, "the set is not available")
    first = {name: pod["metadata"]["uid"] for name, pod in pods.all().items()}
    assert set(first) == {"s-0", "s-1"}
    assert models.ask("served").intact
    change = {"spec": {"template": {"metadata": {"annotations": {"round": "2"}}}}}
    api.patch(path, change, kind="merge")

    def renewed() -> bool:
        now = {name: pod["metadata"]["uid"] for name, pod in pods.all().items()}
        if now.get("s-0") not in (None, first["s-0"]):
            # In reverse order: the first one goes only once its successor is back and Ready.
            assert now.get("s-1") not in (None, first["s-1"])
        same = {now.get(name) for name in first} & set(first.values())
        return not same and available(api, path) == 2

    wait_until(renewed, LIMIT, "the set was not renewed")
    seat = {name: pods.get(name)["metadata"]["annotations"][keys.SEAT] for name in first}
    assert len(set(seat.values())) == 2
    assert models.ask("served").intact


def test_an_autoscalers_bounds_are_kept_over_parked_replicas(
    cluster: Cluster, api: Api, pods: Pods, models: Models
) -> None:
    # Without a metrics server an autoscaler still keeps the bounds; it counts ready replicas.
    path, scalers = f"{APPS}/deployments/d", "/apis/autoscaling/v2/namespaces/default/"
    scaler = f"{scalers}horizontalpodautoscalers/d"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    bounds = {"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 3}
    api.post(f"{APPS}/deployments", deployment("served"))
    api.post(f"{scalers}horizontalpodautoscalers", {"metadata": {"name": "d"}, "spec": bounds})
    try:
        wait_until(lambda: available(api, path) == 3, LIMIT, "it was not scaled up to three")
        wait_until(lambda: parked(cluster) == 2, 10, "two of three on one GPU are not parked")
        api.patch(scaler, {"spec": {"minReplicas": 1, "maxReplicas": 1}}, kind="merge")
        wait_until(lambda: len(pods.all()) == 1, LIMIT, "it was not scaled down to one")
        assert available(api, path) == 1
        assert models.ask("served").intact
    finally:
        api.delete(scaler)
