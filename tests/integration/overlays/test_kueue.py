"""Jobs with seats and Kueue's own controller, on a control plane without nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.api.pods import Pod, read_pod
from tests.cluster.processes.control import wait_until
from tests.kit.podowners import QUEUED, QUEUES, SOURCES, Owner, make_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster

    Json = dict[str, Any]

_MISSING = SOURCES["kueue"].program.not_built()
pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(scope="module")
def kueue(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """Kueue, with a queue of one seat."""
    found = Owner(bare, tmp_path_factory.mktemp("owners") / "kueue", "kueue")
    try:
        make_queue(bare)
        yield found
    finally:
        found.close()


def queued(bare: Cluster, name: str) -> None:
    """A Job of one pod with a seat, which Kueue is to start."""
    resources = {"requests": {"cpu": "10m"}, "limits": {keys.seat_resource(1): "1"}}
    container = {"name": "c", "image": "x", "resources": resources}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    bare.api().post(JOBS, {"metadata": {"name": name, "labels": QUEUED}, "spec": spec})


def suspended(bare: Cluster, name: str) -> tuple[bool, set[str]]:
    """Whether the Job is, and who has written that."""
    job = bare.api().get(f"{JOBS}/{name}")
    fields = job["metadata"]["managedFields"]
    wrote = {one["manager"] for one in fields if "f:suspend" in one["fieldsV1"].get("f:spec", {})}
    return job["spec"]["suspend"], wrote


def workloads(bare: Cluster) -> list[Json]:
    """Kueue's objects of Jobs."""
    found: list[Json] = bare.api().get(f"{QUEUES}/namespaces/default/workloads")["items"]
    return found


def owner(workload: Json) -> str:
    """The UID of its Job."""
    return str(workload["metadata"]["ownerReferences"][0]["uid"])


def waits(bare: Cluster, name: str) -> bool:
    """Whether Kueue says that there is no quota for the Job."""
    uid = bare.api().get(f"{JOBS}/{name}")["metadata"]["uid"]
    conditions = [
        one
        for item in workloads(bare)
        if owner(item) == uid
        for one in (item.get("status") or {}).get("conditions") or ()
    ]
    return {one["type"]: one["status"] for one in conditions}.get("QuotaReserved") == "False"


def pods(bare: Cluster, name: str) -> dict[str, Pod]:
    """Those of the Job that aren't being deleted, by UID."""
    items = bare.api().get(PODS, {"labelSelector": f"job-name={name}"})["items"]
    found = map(read_pod, items)
    return {str(one.ref.uid): one for one in found if not one.leaving and not one.over}


def known(pod: Pod) -> tuple[str, str]:
    """By what a successor is found: who makes it, and what its container is."""
    assert pod.ask is not None
    return pod.succession, pod.ask.template_hash()


@pytest.mark.usefixtures("kueue")
def test_another_pod_of_its_job_is_the_successor_of_an_evicted_one(bare: Cluster) -> None:
    """Also where Kueue has suspended the Job meanwhile, and starts it again: for it both are pods
    of one Job, whose template it puts back."""
    queued(bare, "moves")
    wait_until(lambda: pods(bare, "moves"), 30, "it is not started")
    ((uid, first),) = pods(bare, "moves").items()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first.ref.name}}
    bare.api().post(f"{PODS}/{first.ref.name}/eviction", body)
    wait_until(lambda: pods(bare, "moves").keys() - {uid}, 60, "no other pod is made")
    ((again, second),) = pods(bare, "moves").items()
    assert known(second) == known(first)

    (workload,) = (one for one in workloads(bare) if owner(one) == first.succession)
    path = f"{QUEUES}/namespaces/default/workloads/{workload['metadata']['name']}"
    for active in (False, True):
        bare.api().patch(path, {"spec": {"active": active}})
        wait_until(
            lambda active=active: (
                bool(pods(bare, "moves").keys() - {again}) == active
                and suspended(bare, "moves")[0] != active
            ),
            60,
            f"active={active} is not followed",
        )
    ((_, third),) = pods(bare, "moves").items()
    assert known(third) == known(first)
    bare.api().delete(f"{JOBS}/moves", {"propagationPolicy": "Background"})
    wait_until(lambda: not pods(bare, "moves"), 30, "its pods stay")


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
