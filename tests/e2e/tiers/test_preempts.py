"""Room for a pod that waits: less important ones are suspended and come back, or pods are moved.

docs/how-to/workloads/make-room.md, docs/how-to/operate/rebalance.md
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import NotFoundError, RefusedError
from tests.cluster.processes.control import wait_until
from tests.cluster.spec import GpuSpec
from tests.e2e.tiers.test_drains import APPS, REQUESTS, reader
from tests.e2e.tiers.test_rebalances import RBAL, page
from tests.e2e.tiers.test_restores import seats, standing
from tests.kit.clients.direct import Direct
from tests.kit.howto import Page
from tests.kit.pods import PODS, SeatPod, ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.tiers.test_restores import Site
    from tests.kit.clients.kubectl import Kubectl
    from tests.kit.pods import Pods

    Json = dict[str, Any]

__all__ = ["page", "reader", "seats"]

pytestmark = pytest.mark.e2e

JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
URGENT = "urgent"
G0 = {keys.REQUIRE_GROUP: "G0"}
COUNTER = {
    "args": ["-m", "tests.workloads.counter", "--bytes", "1GiB", "--interval", "0.2"],
    "ports": [],
}
ONE_EACH = {
    "profiles": [
        {"name": f"{size}x", "resource": keys.seat_resource(size), "groupSize": size}
        | {"seatsPerGroup": 1}
        for size in (1, 4)
    ]
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four GPUs a node, one seat a group, and next to no host memory for parked seats."""
    with standing(
        tmp_path_factory, GpuSpec(count=4), ONE_EACH, KYB_AGENT_PARK_BYTES=str(8 << 30)
    ) as found:
        yield found


@pytest.fixture
def made(site: Site, seats: Pods) -> Iterator[list[str]]:
    """Paths of objects that go after the test."""
    paths: list[str] = []
    api = site.cluster.api()
    yield paths
    for path in paths:
        api.delete(path, {"propagationPolicy": "Background"})
    wait_until(lambda: not seats.all(), 60, "pods stay")
    for item in api.get(REQUESTS)["items"]:
        api.delete(f"{REQUESTS}/{item['metadata']['name']}")


def training(site: Site) -> str:
    """A Job that counts its steps; an eviction is no failure of it. Its path."""
    pod = SeatPod("training", node="n1", annotations={**G0, keys.TURN: "always"}, more=COUNTER)
    template = pod.manifest()
    del template["metadata"]["name"]
    template["spec"]["restartPolicy"] = "Never"
    ignored = [{"type": "DisruptionTarget", "status": "True"}]
    spec = {
        "template": {"metadata": template["metadata"], "spec": template["spec"]},
        "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": ignored}]},
    }
    site.cluster.api().post(JOBS, {"metadata": {"name": "training"}, "spec": spec})
    return f"{JOBS}/training"


def of_job(seats: Pods, *, but: str = "") -> list[Json]:
    """The Job's pods that are there, without that of a UID."""
    return [
        one
        for one in seats.all().values()
        if one["metadata"].get("labels", {}).get("job-name") == "training"
        and one["metadata"]["uid"] != but
    ]


def steps(seats: Pods, name: str) -> list[int]:
    try:
        log = seats.log(name)
    except (RefusedError, NotFoundError):
        return []
    return [int(step) for step in re.findall(r"^counter=(\d+)", log, re.MULTILINE)]


def test_training_makes_room_for_an_urgent_pod_and_continues_at_its_step_by_itself(
    site: Site, seats: Pods, made: list[str], reader: Kubectl
) -> None:
    """As docs/how-to/workloads/make-room.md has it; the controller is killed meanwhile."""
    api, room = site.cluster.api(), Page("make-room", reader)
    made.append(training(site))
    wait_until(lambda: len(of_job(seats)) == 1, 20, "the Job makes no pod")
    (first,) = of_job(seats)
    name, uid = first["metadata"]["name"], first["metadata"]["uid"]
    wait_until(lambda: len(steps(seats, name)) > 5, 90, "it does not train")
    wait_until(lambda: site.seat("n1", name) != {}, 20, "not told of")
    before = steps(seats, name)[-1]

    room("kubectl create priorityclass")
    made.append(f"{CLASSES}/{URGENT}")
    urgent = SeatPod("urgent", node="n1", bytes_="1GiB", annotations=G0).manifest()
    urgent["spec"]["priorityClassName"] = URGENT
    api.post(PODS, urgent)
    asked = f"preempt-{api.get(f'{PODS}/urgent')['metadata']['uid']}-{uid}"
    with room:
        watched = ("kubectl get ckpt", "kubectl describe pod")
        wait_until(lambda: asked in room(watched[0]), 60, "nobody is to make room")
        wait_until(lambda: "Preempting" in room(watched[1]), 30, "nobody says so")
    # The last that it says: a killed one says nothing.
    wait_until(lambda: bool(site.sentence(name, "Preempted")), 30, "the Job isn't told")
    site.cluster.process("controller").kill9()
    seats.wait(["urgent"], ready, 120, "Ready")
    assert Direct.to(seats.get("urgent")).ask().counter == 1
    wait_until(lambda: len(of_job(seats, but=uid)) == 1, 30, "the Job makes no other pod")
    (second,) = of_job(seats, but=uid)
    assert not second["spec"].get("nodeName"), "it waits"
    assert "makes room" in site.sentence("urgent", "Preempting")
    assert "of priority 1000 gets its seat" in site.sentence(name, "Preempted")

    seats.delete(["urgent"])
    again = second["metadata"]["name"]
    wait_until(lambda: bool(steps(seats, again)), 120, "it does not train on")
    found = seats.get(again)
    assert found["metadata"]["annotations"][keys.RESTORE_FROM] == f"pod/{uid}"
    log = steps(seats, again)
    assert log == [*range(log[0], log[0] + len(log))]
    assert log[0] > before, "it continues where it was"
    status = api.get(made[0])["status"]
    assert not status.get("failed"), status


def server(name: str, labels: dict[str, str], node: str = "") -> Json:
    pod = SeatPod(name, bytes_="1GiB", node=node or None).manifest()
    meta = {**pod["metadata"], "labels": {**pod["metadata"]["labels"], **labels}}
    del meta["name"]
    template = {"metadata": meta, "spec": pod["spec"]}
    return {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}


def test_a_pod_of_four_gpus_starts_once_a_plan_has_made_room(
    site: Site, seats: Pods, made: list[str], page: Page
) -> None:
    """A pod of one GPU on each node: neither has the memory for one of four GPUs."""
    api = site.cluster.api()
    for number, name in enumerate(("oak", "elm"), 1):
        api.patch(f"/api/v1/nodes/n{3 - number}", {"spec": {"unschedulable": True}})
        labels = {"app": name}
        spec = server(name, labels)
        api.post(f"{APPS}/deployments", {"metadata": {"name": name}, "spec": spec})
        made.append(f"{APPS}/deployments/{name}")
        wait_until(lambda n=name: _pod_of(seats, n) is not None, 90, f"{name} does not serve")
        site.cluster.kubectl("uncordon", f"n{3 - number}")
    placed = {name: _pod_of(seats, name) for name in ("oak", "elm")}
    answers = {name: Direct.to(pod).ask().counter for name, pod in placed.items() if pod}
    assert answers == {"oak": 1, "elm": 1}
    for pod in placed.values():
        assert pod is not None
        where, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
        wait_until(lambda w=where, n=name: site.seat(w, n).get("heldBytes"), 30, "not seen")
    api.post(PODS, SeatPod("big", gpus=4, bytes_="1GiB").manifest())
    wait_until(lambda: "PodScheduled" in str(seats.get("big")["status"]), 30, "not looked at")

    assert "default/big" in page("kubectl kyb rebalance -n kyb-system")
    planned = page("kubectl kyb rebalance big-0")
    assert "1 move makes room" in planned, planned
    (asked,) = api.get(RBAL)["items"]
    (move,) = [one for one in asked["status"]["plan"]["steps"] if one["kind"] == "move"]
    assert move["bytes"] < 2 << 30, "what moves, and not the 72 GiB that were asked for"
    assert "nodeName" not in seats.get("big")["spec"], "nobody has approved it"
    page("kubectl kyb approve", request=asked["metadata"]["name"])
    seats.wait(["big"], ready, 120, "Ready")
    moved = next(
        name for name, pod in placed.items() if pod and pod["metadata"]["uid"] == move["uid"]
    )
    wait_until(lambda: _pod_of(seats, moved, but=move["uid"]) is not None, 60, "it is not there")
    pod = _pod_of(seats, moved, but=move["uid"])
    assert pod is not None
    assert Direct.to(pod).ask().counter == 2, "it continues"
    seats.delete(["big"])


def _pod_of(seats: Pods, app: str, *, but: str = "") -> Json | None:
    """The Deployment's pod that serves."""
    for one in seats.all().values():
        meta = one["metadata"]
        if meta.get("labels", {}).get("app") == app and meta["uid"] != but and ready(one):
            return one
    return None
