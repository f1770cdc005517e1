"""The extender against a real API server: one atomic binding, once, whatever happens."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import requests

from kybernate import keys
from kybernate.adapters.k8s import Watcher
from kybernate.errors import RefusedError
from tests.kit.servers.extenderserver import LIMIT_S, NAMESPACE, PODS, TWO, until

if TYPE_CHECKING:
    from typing import Any

    from tests.cluster.cluster import Cluster
    from tests.cluster.given import GivenCluster
    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration


def fits(extender: Extender, pod: dict[str, Any], node: str) -> bool:
    return node in extender.filter(pod, node)["NodeNames"]


def test_probes_and_metrics_are_plain(extender: Extender) -> None:
    assert extender.probe("healthz").text == "ok\n"
    assert extender.probe("readyz").text == "ok\n"
    assert "kyb_extender_gpu_nodes" in extender.probe("metrics").text


@pytest.mark.parametrize("prefix", ["", "v1/"])
def test_only_the_scheduler_may_call(extender: Extender, prefix: str) -> None:
    refused = extender.post(f"{prefix}bind", {}, name="proxy")
    assert refused.status_code == 403
    assert "certificate names kyb-proxy" in refused.json()["Error"]
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.post(
            f"https://127.0.0.1:{extender.port}/{prefix}bind",
            verify=str(extender.tls / "ca.crt"),
            timeout=LIMIT_S,
        )


def test_bad_input_is_answered_with_a_sentence(extender: Extender) -> None:
    answer = extender.post("v1/bind", {"PodName": "x"})
    assert (answer.status_code, answer.json()) == (
        400,
        {"Error": "PodNamespace: must be a string, got nothing"},
    )


def test_filter_and_prioritize_follow_the_ledger(extender: Extender, world: World) -> None:
    pod, free, full = world.pod(TWO), world.node(), world.node()
    until(lambda: fits(extender, pod, free) and fits(extender, pod, full), "GPUNodes are seen")
    assert extender.bind(world.pod(TWO), full) == ""
    answer = extender.filter(pod, free, full, "elsewhere")
    assert answer["NodeNames"] == [free]
    assert answer["FailedNodes"][full] == "all 1 seats of G01 are taken"
    small = world.pod()
    scores = extender.ask("prioritize", {"Pod": small, "NodeNames": [full, free]})
    assert scores[0]["Score"] < scores[1]["Score"]


def test_an_offered_seat_is_held_until_it_is_bound(extender: Extender, world: World) -> None:
    first, second, node, other = world.pod(TWO), world.pod(TWO), world.node(), world.node()
    until(lambda: fits(extender, first, node) and fits(extender, first, other), "they are seen")
    (offered,) = extender.offer(first, node, other)["NodeNames"]
    assert offered in (node, other)
    (left,) = {node, other} - {offered}
    assert extender.offer(second, node, other)["NodeNames"] == [left]
    assert extender.bind(first, offered) == extender.bind(second, left) == ""


def test_node_and_group_arrive_in_one_event(extender: Extender, world: World) -> None:
    pod, node = world.pod(vram="24Gi"), world.node()
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    events: list[tuple[str, str | None, str | None]] = []

    def note(kind: str, item: dict[str, Any]) -> None:
        notes = item["metadata"].get("annotations", {})
        events.append((kind, item["spec"].get("nodeName"), notes.get(keys.ASSIGNED_GROUP)))

    selector = {"fieldSelector": f"metadata.name={pod['metadata']['name']}"}
    watcher = Watcher(world.api, PODS, selector, note, "one pod")
    watcher.start()
    assert watcher.synced.wait(LIMIT_S)
    assert extender.bind(pod, node) == ""
    until(lambda: len(events) >= 2, "the binding is seen")
    watcher.stop()
    assert events == [("ADDED", None, None), ("MODIFIED", node, "G0")]
    stamp = world.read(pod)["metadata"]["annotations"][keys.ASSIGNED_AT]
    assert stamp.endswith("Z")


def test_binding_twice_is_a_success_and_changes_nothing(extender: Extender, world: World) -> None:
    pod, node, other = world.pod(), world.node(), world.node()
    until(lambda: fits(extender, pod, node) and fits(extender, pod, other), "GPUNodes are seen")
    assert extender.bind(pod, node) == ""
    before = world.read(pod)["metadata"]["resourceVersion"]
    assert extender.bind(pod, node) == ""
    assert f"bound to {node} already" in extender.bind(pod, other)
    assert world.read(pod)["metadata"]["resourceVersion"] == before


def test_binding_at_the_same_time_happens_once(extender: Extender, world: World) -> None:
    pod, node = world.pod(), world.node(seats=1)
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: extender.bind(pod, node), range(8)))
    assert answers == [""] * 8
    assert world.group(pod) == "G0"
    later = world.pod()
    assert extender.bind(later, node) == ""
    assert world.group(later) == "G1"


def test_no_group_gets_more_pods_than_seats(extender: Extender, world: World) -> None:
    node = world.node(seats=3)
    pods = [world.pod() for _ in range(12)]
    until(lambda: fits(extender, pods[0], node), "the GPUNode is seen")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda pod: extender.bind(pod, node), pods))
    groups = Counter(world.group(pod) for pod in pods)
    assert groups == {"G0": 3, "G1": 3, None: 6}
    assert sum(answer == "" for answer in answers) == 6
    assert all("are taken" in answer for answer in answers if answer)


def test_a_pod_that_is_gone_or_new_is_not_bound(extender: Extender, world: World) -> None:
    pod, node = world.pod(), world.node(seats=1)
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    assert extender.bind(pod, node, uid="somebody-else")
    world.delete(pod)
    assert "not found" in extender.bind(pod, node)
    for _ in range(2):
        assert extender.bind(world.pod(), node) == ""


def test_a_deleted_pod_gives_its_seat_back(extender: Extender, world: World) -> None:
    pod, node, waiting = world.pod(TWO), world.node(), world.pod(TWO)
    until(lambda: fits(extender, waiting, node), "the GPUNode is seen")
    assert extender.bind(pod, node) == ""
    assert not fits(extender, waiting, node)
    world.delete(pod)
    until(lambda: fits(extender, waiting, node), "the seat is free again")


def test_a_pod_that_ended_gives_its_seat_back(extender: Extender, world: World) -> None:
    pod, node, waiting = world.pod(TWO), world.node(), world.pod(TWO)
    until(lambda: fits(extender, waiting, node), "the GPUNode is seen")
    assert extender.bind(pod, node) == ""
    world.api.patch(f"{PODS}/{pod['metadata']['name']}/status", {"status": {"phase": "Failed"}})
    until(lambda: fits(extender, waiting, node), "the seat is free again")


def test_the_ledger_survives_a_kill(extender: Extender, world: World) -> None:
    bound, waiting, node = world.pod(TWO), world.pod(TWO), world.node()
    until(lambda: fits(extender, waiting, node), "the GPUNode is seen")
    assert extender.bind(bound, node) == ""
    extender.stop(kill=True)
    extender.start()
    assert not fits(extender, waiting, node)
    assert extender.bind(bound, node) == ""
    assert world.group(bound) == "G01"


def test_a_pod_bound_past_the_extender_is_counted(extender: Extender, world: World) -> None:
    pod, node = world.pod(), world.node()
    name = pod["metadata"]["name"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": node},
    }
    world.api.post(f"{PODS}/{name}/binding", binding)
    line = "kyb_extender_unplaced_seats 1.0"
    until(lambda: line in extender.probe("metrics").text, "the seat is counted")
    world.delete(pod)
    until(lambda: line not in extender.probe("metrics").text, "the seat is gone")


def test_preempt_offers_what_may_be_killed(extender: Extender, world: World) -> None:
    kill, keep = world.pod(TWO, **{"on-preempt": "kill"}), world.pod(TWO)
    nodes = [world.node(), world.node(), world.node()]
    until(lambda: all(fits(extender, keep, node) for node in nodes), "GPUNodes are seen")
    assert [extender.bind(kill, nodes[0]), extender.bind(keep, nodes[1])] == ["", ""]
    marked, unmarked = (
        {"Pods": [{"UID": pod["metadata"]["uid"]}], "NumPDBViolations": 0} for pod in (kill, keep)
    )
    victims = {nodes[0]: marked, nodes[1]: unmarked, "nowhere": marked}
    body = {"Pod": world.pod(TWO), "NodeNameToMetaVictims": victims}
    answer = extender.ask("preempt", body)
    assert answer == {"NodeNameToMetaVictims": {nodes[0]: marked}}


def test_its_account_can_bind_and_nothing_else(
    extender: Extender, world: World, any_cluster: Cluster | GivenCluster
) -> None:
    pod, api = world.pod(), any_cluster.api("extender")
    path = f"{PODS}/{pod['metadata']['name']}"
    for call in (
        lambda: api.patch(path, {"metadata": {"labels": {"a": "b"}}}),
        lambda: api.delete(path),
        lambda: api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        lambda: api.patch(f"{keys.GPU_NODES_PATH}/x/status", {"status": {}}),
    ):
        with pytest.raises(RefusedError, match="forbidden"):
            call()
    node = world.node()
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    assert extender.bind(pod, node) == ""
