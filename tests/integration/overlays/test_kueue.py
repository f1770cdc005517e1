"""Jobs with seats and Kueue's own controller, on a control plane without nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.cluster.processes.control import wait_until
from tests.kit.podowners import SOURCES, Owner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster

_MISSING = SOURCES["kueue"].program.not_built()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]

KUEUE = "kueue.x-k8s.io/v1beta2"
QUEUES = f"/apis/{KUEUE}"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
QUEUE = "seats"


@pytest.fixture
def kueue(bare: Cluster, tmp_path: Path) -> Iterator[Owner]:
    """Kueue, with a queue of one seat."""
    found = Owner(bare, tmp_path / "kueue", "kueue")
    quotas = {"cpu": "4", keys.seat_resource(1): "1"}
    flavor = {
        "name": QUEUE,
        "resources": [{"name": name, "nominalQuota": most} for name, most in quotas.items()],
    }
    groups = [{"coveredResources": list(quotas), "flavors": [flavor]}]
    meta = {"apiVersion": KUEUE, "metadata": {"name": QUEUE}}
    whole = {"namespaceSelector": {}, "resourceGroups": groups}
    local = {**meta, "kind": "LocalQueue", "spec": {"clusterQueue": QUEUE}}
    api = bare.api()
    api.post(f"{QUEUES}/resourceflavors", {**meta, "kind": "ResourceFlavor", "spec": {}})
    api.post(f"{QUEUES}/clusterqueues", {**meta, "kind": "ClusterQueue", "spec": whole})
    api.post(f"{QUEUES}/namespaces/default/localqueues", local)
    yield found
    found.close()


def queued(bare: Cluster, name: str) -> None:
    """A Job of one pod with a seat, which Kueue is to start."""
    resources = {"requests": {"cpu": "10m"}, "limits": {keys.seat_resource(1): "1"}}
    container = {"name": "c", "image": "x", "resources": resources}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    bare.api().post(JOBS, {"metadata": {"name": name, "labels": labels}, "spec": spec})


def suspended(bare: Cluster, name: str) -> tuple[bool, set[str]]:
    """Whether the Job is, and who has written that."""
    job = bare.api().get(f"{JOBS}/{name}")
    fields = job["metadata"]["managedFields"]
    wrote = {one["manager"] for one in fields if "f:suspend" in one["fieldsV1"].get("f:spec", {})}
    return job["spec"]["suspend"], wrote


def waits(bare: Cluster, name: str) -> bool:
    """Whether Kueue says that there is no quota for the Job."""
    uid = bare.api().get(f"{JOBS}/{name}")["metadata"]["uid"]
    items = bare.api().get(f"{QUEUES}/namespaces/default/workloads")["items"]
    conditions = [
        one
        for item in items
        if item["metadata"]["ownerReferences"][0]["uid"] == uid
        for one in (item.get("status") or {}).get("conditions") or ()
    ]
    return {one["type"]: one["status"] for one in conditions}.get("QuotaReserved") == "False"


@pytest.mark.usefixtures("kueue")
def test_seats_are_quota_and_kueue_alone_says_when_a_job_runs(bare: Cluster) -> None:
    queued(bare, "first")
    wait_until(lambda: not suspended(bare, "first")[0], 30, "the first is not started")
    queued(bare, "second")
    wait_until(lambda: waits(bare, "second"), 30, "it is not told that the second waits")
    assert suspended(bare, "second")[0]
    bare.api().delete(f"{JOBS}/first", {"propagationPolicy": "Background"})
    wait_until(lambda: not suspended(bare, "second")[0], 60, "the second is not started")
    assert suspended(bare, "second")[1] == {"kueue"}
    bare.api().delete(f"{JOBS}/second", {"propagationPolicy": "Background"})
