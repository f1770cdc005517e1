"""Pods of a JobSet, of a LeaderWorkerSet and of a Job of Kueue's, with these projects' own
controllers, are evicted, and those that are made in their places continue.

docs/how-to/operate/drain-a-node.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import RetryableError
from tests.cluster.processes.control import wait_until
from tests.e2e.tiers.test_restores import Site, seats, site
from tests.kit.clients.direct import Direct
from tests.kit.podowners import QUEUED, SOURCES, Owner, make_queue
from tests.kit.pods import SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["seats", "site"]
"""Fixtures, the same as of restores: two nodes, an object store, a registry."""

pytestmark = pytest.mark.e2e

REQUESTS = f"/apis/{keys.API_VERSION}/namespaces/default/checkpointrequests"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
INDEX = "batch.kubernetes.io/job-completion-index"
EVICTED_IS_NO_FAILURE = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
}


@pytest.fixture(scope="module")
def jobset(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """JobSet's controller."""
    found = Owner(site.cluster, tmp_path_factory.mktemp("owners") / "jobset", "jobset")
    yield found
    found.close()


@pytest.fixture(scope="module")
def lws(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """LeaderWorkerSet's controller."""
    found = Owner(site.cluster, tmp_path_factory.mktemp("owners") / "lws", "lws")
    yield found
    found.close()


@pytest.fixture
def kueue(site: Site, tmp_path: Path) -> Iterator[Owner]:
    """Kueue, with quota for one seat."""
    if missing := SOURCES["kueue"].program.not_built():
        pytest.skip(missing)
    found = Owner(site.cluster, tmp_path / "kueue", "kueue")
    make_queue(site.cluster)
    yield found
    found.close()


@pytest.fixture
def made(site: Site, seats: Pods) -> Iterator[list[str]]:
    """Paths of what a test makes; none of it is there afterwards."""
    paths: list[str] = []
    yield paths
    api = site.cluster.api()
    for path in paths:
        api.delete(path, {"propagationPolicy": "Background"})
    wait_until(lambda: not seats.all(), 90, "its pods stay")
    for item in api.get(REQUESTS)["items"]:
        api.delete(f"{REQUESTS}/{item['metadata']['name']}")


def template(**spec: object) -> Json:
    """Of pods with seats."""
    pod = SeatPod("toy", bytes_="1GiB").manifest()
    kept = {name: pod["metadata"][name] for name in ("labels", "annotations")}
    return {"metadata": kept, "spec": {**pod["spec"], **spec}}


def serving(seats: Pods, number: int, *, but: Collection[Json] = ()) -> list[Json]:
    """So many pods that serve, once none else is there but those."""
    others = {one["metadata"]["uid"] for one in but}
    found: list[Json] = []

    def there() -> bool:
        found[:] = [one for one in seats.all().values() if one["metadata"]["uid"] not in others]
        return len(found) == number and all(ready(one) for one in found)

    wait_until(there, 150, f"no {number} pods serve")
    return found


def evict(site: Site, pod: Json) -> None:
    """As `kubectl drain` does, which asks again until the pod may go."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    wait_until(lambda: site.seat(node, name) != {}, 20, "not told of")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}

    def gone() -> bool:
        try:
            site.cluster.api().post(f"/api/v1/namespaces/default/pods/{name}/eviction", body)
        except RetryableError:
            return False
        return True

    wait_until(gone, 120, f"pod {name} may not go")


def continues(site: Site, old: Json, new: Json, counter: int) -> None:
    """The pod `new` continues where `old` had counted to `counter`."""
    notes, name = new["metadata"]["annotations"], new["metadata"]["name"]
    assert notes.get(keys.RESTORE_FROM) == f"pod/{old['metadata']['uid']}"
    answer = Direct.to(new).ask()
    told = site.sentence(name, "RestoreRefused")
    assert (answer.counter, answer.intact) == (counter + 1, True), told


def test_a_pod_of_a_jobset_continues_under_its_own_index(
    site: Site, seats: Pods, made: list[str], jobset: Owner
) -> None:
    job = {
        "parallelism": 2,
        "completions": 2,
        "backoffLimit": 0,
        "podFailurePolicy": EVICTED_IS_NO_FAILURE,
        "template": template(restartPolicy="Never"),
    }
    spec = {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}]}
    site.cluster.api().post(
        JOBSETS,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "train"},
            "spec": spec,
        },
    )
    made.append(f"{JOBSETS}/train")
    before = {one["metadata"]["labels"][INDEX]: one for one in serving(seats, 2)}
    assert set(before) == {"0", "1"}
    counts = {"0": 2, "1": 4}
    for index, number in counts.items():
        assert [Direct.to(before[index]).ask().counter for _ in range(number)][-1] == number
    old = before["1"]
    evict(site, old)
    after = {one["metadata"]["labels"][INDEX]: one for one in serving(seats, 2, but=(old,))}
    assert after["0"]["metadata"]["uid"] == before["0"]["metadata"]["uid"], "the other one stays"
    assert after["1"]["metadata"]["name"] != old["metadata"]["name"]
    continues(site, old, after["1"], counts["1"])
    assert Direct.to(after["0"]).ask().counter == counts["0"] + 1
    status = site.cluster.api().get(f"{JOBSETS}/train")["status"]
    assert status.get("restarts", 0) == 0


def group(site: Site, made: list[str], **policy: str) -> None:
    """A LeaderWorkerSet of one group: a leader and a worker."""
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}}
    spec["leaderWorkerTemplate"] |= policy
    site.cluster.api().post(
        LWS,
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "group"},
            "spec": spec,
        },
    )
    made.append(f"{LWS}/group")


def named(pods: list[Json]) -> tuple[Json, Json]:
    """The leader and the worker of the one group."""
    found = {one["metadata"]["name"]: one for one in pods}
    assert set(found) == {"group-0", "group-0-1"}
    return found["group-0"], found["group-0-1"]


def test_worker_and_leader_of_a_leaderworkerset_continue(
    site: Site, seats: Pods, made: list[str], lws: Owner
) -> None:
    """A leader's workers are its own to Kubernetes: they are deleted with it, and begin again."""
    group(site, made, restartPolicy="None")
    leader, worker = named(serving(seats, 2))
    assert [Direct.to(worker).ask().counter for _ in range(2)] == [1, 2]
    assert [Direct.to(leader).ask().counter for _ in range(3)] == [1, 2, 3]
    evict(site, worker)
    same, second = named(serving(seats, 2, but=(worker,)))
    assert same["metadata"]["uid"] == leader["metadata"]["uid"], "the leader stays"
    continues(site, worker, second, 2)
    evict(site, leader)
    after, third = named(serving(seats, 2, but=(leader, second)))
    continues(site, leader, after, 3)
    assert Direct.to(third).ask().counter == 1


def test_a_group_that_its_owner_makes_again_begins_again_whole(
    site: Site, seats: Pods, made: list[str], lws: Owner
) -> None:
    """No pod of it continues beside one that has forgotten what they had come to."""
    group(site, made, restartPolicy="RecreateGroupOnPodRestart")
    before = named(serving(seats, 2))
    assert [Direct.to(one).ask().counter for one in before] == [1, 1]
    evict(site, before[1])
    after = named(serving(seats, 2, but=before))
    assert [Direct.to(one).ask().counter for one in after] == [1, 1]


def test_a_pod_of_a_job_that_kueue_has_started_continues_from_the_object_store(
    site: Site, seats: Pods, kueue: Owner, made: list[str]
) -> None:
    """Its state is there before it is evicted, and Kueue has changed its Job's template."""
    spec = {
        "backoffLimit": 0,
        "podFailurePolicy": EVICTED_IS_NO_FAILURE,
        "template": template(restartPolicy="Never"),
    }
    site.cluster.api().post(JOBS, {"metadata": {"name": "first", "labels": QUEUED}, "spec": spec})
    made.append(f"{JOBS}/first")
    (old,) = serving(seats, 1)
    assert [Direct.to(old).ask().counter for _ in range(2)] == [1, 2]
    site.park(old["spec"]["nodeName"], old["metadata"]["name"])
    evict(site, old)
    (new,) = serving(seats, 1, but=(old,))
    continues(site, old, new, 2)
