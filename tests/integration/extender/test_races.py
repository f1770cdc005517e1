"""Stale views on a real API server: what the extender knows is older than what it is asked."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import RetryableError
from tests.integration.extender.relay import Relay
from tests.integration.extender.upstream import stays
from tests.kit.servers.extenderserver import NAMESPACE, PODS, TWO, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.cluster.cluster import Cluster
    from tests.kit.servers.extenderserver import Extender, Extenders, World

pytestmark = pytest.mark.integration

CALL_S = 1.0
"""How long a call to the API server may take for the extender behind the relay."""


@pytest.fixture(scope="module")
def relay(control_plane: Cluster) -> Iterator[Relay]:
    """The way between the distant extender and the API server."""
    made = Relay(control_plane.ports.apiserver)
    yield made
    made.close()


@pytest.fixture(scope="module")
def distant_one(relay: Relay, extenders: Extenders) -> Iterator[Extender]:
    """An extender that reaches the API server by a relay only."""
    running = extenders.make("distant", relay.url, API_TIMEOUT_S=str(CALL_S))
    running.start()
    yield running
    relay.heal()
    running.stop()


@pytest.fixture
def distant(distant_one: Extender, relay: Relay) -> Iterator[Extender]:
    """The same; the way is whole before and after each test."""
    yield distant_one
    relay.heal()


def fits(extender: Extender, pod: dict[str, Any], node: str) -> bool:
    return node in extender.filter(pod, node)["NodeNames"]


def taken(extender: Extender, pod: dict[str, Any], node: str) -> str:
    """Why the pod doesn't fit there."""
    found: str = extender.filter(pod, node)["FailedNodes"].get(node, "")
    return found


def connected(extender: Extender, world: World) -> None:
    """It has a connection open for its next call, which need not be answered to be made."""
    node, pod = world.node(), world.pod()
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    assert extender.bind(pod, node) == ""


def bound(world: World, pod: dict[str, Any]) -> tuple[str | None, str | None]:
    """Node and group of the pod, as the API server has them."""
    return world.read(pod)["spec"].get("nodeName"), world.group(pod)


def test_a_node_that_is_gone_takes_nobody(extender: Extender, world: World) -> None:
    pod, node = world.pod(), world.node()
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    world.api.delete(f"{keys.GPU_NODES_PATH}/{node}")
    until(lambda: not fits(extender, pod, node), "it is seen to be gone")
    assert "no GPUNode tells of" in extender.bind(pod, node)
    assert bound(world, pod) == (None, None)


def test_a_node_that_left_the_cluster_takes_nobody_though_its_gpunode_is_left(
    extender: Extender, world: World
) -> None:
    pod, node = world.pod(), world.node()
    path = "/api/v1/nodes"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    world.make(path, body)
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    world.api.delete(f"{path}/{node}")
    until(lambda: not fits(extender, pod, node), "the node is seen to be gone")
    status = world.api.get(f"{keys.GPU_NODES_PATH}/{node}")["status"]
    status["groups"] = [{**group, "seats": 7} for group in status["groups"]]
    world.api.patch(f"{keys.GPU_NODES_PATH}/{node}/status", {"status": status})
    assert "no GPUNode tells of" in extender.bind(pod, node)
    assert bound(world, pod) == (None, None)
    world.make(path, body)
    until(lambda: fits(extender, pod, node), "it is back")
    assert extender.bind(pod, node) == ""


def test_a_node_that_left_while_no_extender_ran_takes_nobody(
    extenders: Extenders, world: World
) -> None:
    """Its GPUNode is left, as without a garbage collector, or before it has come round."""
    pod, node, other = world.pod(), world.node(), world.node()
    path = "/api/v1/nodes"
    for name in (node, other):
        made = world.make(path, {"metadata": {"name": name}})
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": made["metadata"]["uid"]}
        body = {"metadata": {"ownerReferences": [owner]}}
        world.api.patch(f"{keys.GPU_NODES_PATH}/{name}", body)
    late = extenders.make(f"late-{node}")
    late.start()
    until(lambda: fits(late, pod, node) and fits(late, pod, other), "GPUNodes are seen")
    late.stop()
    world.api.delete(f"{path}/{node}")
    late.start()
    try:
        until(lambda: fits(late, pod, other), "the other GPUNode is seen")
        assert "no GPUNode tells of" in late.bind(pod, node)
        world.make(path, {"metadata": {"name": node}})
        stays(lambda: not fits(late, pod, node), 1.0)
        assert late.bind(pod, other) == ""
    finally:
        late.stop()


def test_a_node_whose_gpus_are_gone_between_filter_and_bind_takes_nobody(
    extender: Extender, world: World
) -> None:
    pod, node = world.pod(), world.node()
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    path = f"{keys.GPU_NODES_PATH}/{node}"
    status = world.api.get(path)["status"]
    sick = [{**gpu, "healthy": False} for gpu in status["gpus"]]
    world.api.patch(f"{path}/status", {"status": {**status, "gpus": sick}})
    until(lambda: "unhealthy" in extender.bind(pod, node), "the bind is refused")
    assert bound(world, pod) == (None, None)


def test_a_pod_deleted_between_filter_and_bind_leaves_its_seat(
    extender: Extender, world: World
) -> None:
    """Twenty times at once after the deletion: now before, now after the watch tells of it."""
    node, last = world.node(seats=1), world.pod(TWO)
    until(lambda: fits(extender, last, node), "the GPUNode is seen")
    for _ in range(20):
        pod = world.pod(TWO)
        assert fits(extender, pod, node)
        world.delete(pod)
        assert "not found" in extender.bind(pod, node)
    assert extender.bind(last, node) == ""


def test_a_pod_that_is_being_deleted_is_not_bound(extender: Extender, world: World) -> None:
    pod, node = world.pod(TWO), world.node(seats=1)
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    path = f"{PODS}/{pod['metadata']['name']}"
    world.api.patch(path, {"metadata": {"finalizers": ["kyb.ai/test"]}})
    world.delete(pod)
    try:
        assert "is being deleted" in extender.bind(pod, node)
        assert bound(world, pod) == (None, None)
        assert extender.bind(world.pod(TWO), node) == ""
    finally:
        world.api.patch(path, {"metadata": {"finalizers": None}})


def test_a_name_used_again_is_another_pod(extender: Extender, world: World) -> None:
    """As StatefulSets do: neither is bound in the other's place, nor counted for it."""
    node = world.node(seats=1)
    for _ in range(10):
        old = world.pod(TWO)
        until(lambda old=old: fits(extender, old, node), "there is room")
        world.delete(old)
        new = world.again(old)
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        assert extender.bind(old, node), "the old one is refused"
        assert bound(world, new) == (None, None)
        assert extender.bind(new, node) == ""
        assert bound(world, new) == (node, "G01")
        other = world.pod(TWO)
        assert "G01 are taken" in taken(extender, other, node)
        world.delete(new)


def test_a_bind_that_timed_out_but_was_done_is_done(
    distant: Extender, relay: Relay, world: World
) -> None:
    pod, node = world.pod(), world.node(seats=1)
    until(lambda: fits(distant, pod, node), "the GPUNode is seen")
    connected(distant, world)
    relay.mute()
    answer = distant.bind(pod, node)
    assert answer.startswith(f"pod {NAMESPACE}/{pod['metadata']['name']} was not bound to {node}")
    assert bound(world, pod) == (node, "G0"), "though it was"
    relay.heal()
    assert distant.bind(pod, node) == "", "asked again, it is a success"
    others = [world.pod(), world.pod()]
    assert [bool(distant.bind(other, node)) for other in others] == [False, True]
    assert [world.group(other) for other in others] == ["G1", None], "its seat counts once"


def test_a_bind_that_timed_out_and_is_asked_for_elsewhere_stays_where_it_is(
    distant: Extender, relay: Relay, world: World
) -> None:
    pod, node, other = world.pod(TWO), world.node(), world.node()
    until(lambda: fits(distant, pod, node) and fits(distant, pod, other), "GPUNodes are seen")
    connected(distant, world)
    relay.mute()
    assert distant.bind(pod, node)
    relay.heal()
    assert f"it is bound to {node} already" in distant.bind(pod, other)
    assert bound(world, pod) == (node, "G01")
    assert distant.bind(world.pod(TWO), other) == "", "no seat is held there"


def test_while_the_api_server_is_away_each_bind_says_so_in_time(
    distant: Extender, relay: Relay, world: World
) -> None:
    pod, node = world.pod(TWO), world.node()
    until(lambda: fits(distant, pod, node), "the GPUNode is seen")
    relay.cut()
    began = time.monotonic()
    assert "was not bound" in distant.bind(pod, node)
    assert time.monotonic() - began < 4 * CALL_S
    assert bound(world, pod) == (None, None)
    assert fits(distant, pod, node), "what it knows it still answers"
    relay.heal()
    assert distant.bind(pod, node) == ""


def test_one_that_never_saw_the_cluster_answers_nothing(
    relay: Relay, distant: Extender, world: World, extenders: Extenders
) -> None:
    """An empty ledger would give away seats that are taken."""
    pod, node, late = world.pod(TWO), world.node(), world.pod(TWO)
    until(lambda: fits(distant, pod, node), "the GPUNode is seen")
    assert distant.bind(pod, node) == ""
    relay.cut()
    blind = extenders.make(f"blind-{node}", relay.url, API_TIMEOUT_S=str(CALL_S))
    blind.launch()
    until(lambda: blind.answers("healthz"), "it runs")
    answer = blind.post("v1/filter", {"Pod": late, "NodeNames": [node]})
    assert (answer.status_code, answer.headers["Connection"]) == (503, "close")
    assert answer.json()["Error"]
    assert not blind.answers("readyz")
    relay.heal()
    until(lambda: blind.answers("readyz"), "it has listed everything")
    assert "G01 are taken" in taken(blind, late, node)
    blind.stop()


def test_what_happened_while_the_watch_was_cut_is_known_after(
    distant: Extender, extender: Extender, relay: Relay, world: World
) -> None:
    node = world.node(seats=1)
    gone, stays, new = world.pod(), world.pod(), world.pod(TWO)
    until(lambda: fits(distant, gone, node) and fits(extender, gone, node), "the GPUNode is seen")
    assert [distant.bind(pod, node) for pod in (gone, stays)] == ["", ""]
    relay.cut()
    world.delete(gone)
    assert extender.bind(new, node) == ""
    relay.heal()
    until(lambda: taken(distant, world.pod(TWO), node), "the other one's binding is seen")
    late = world.pod()
    until(lambda: distant.bind(late, node) == "", "the seat of the one that is gone is free")
    assert world.group(late) != world.group(stays)


def test_two_schedulers_bind_a_pod_once(extender: Extender, world: World) -> None:
    """Two nodes for each of ten pods, both asked for at once."""
    left, right = world.node(seats=4), world.node(seats=4)
    pods = [world.pod() for _ in range(8)]
    until(lambda: fits(extender, pods[0], left) and fits(extender, pods[0], right), "GPUNodes")
    calls = [(pod, node) for pod in pods for node in (left, right)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda call: extender.bind(*call), calls))
    for number, pod in enumerate(pods):
        pair = dict(zip((left, right), answers[2 * number : 2 * number + 2], strict=True))
        node = bound(world, pod)[0]
        assert [name for name, answer in pair.items() if not answer] == [node]
        assert f"it is bound to {node} already" in next(filter(None, pair.values()))
    # What the losers had reserved is free: both nodes can be filled.
    groups = Counter(bound(world, pod) for pod in pods)
    for node in (left, right):
        more = [
            world.pod() for _ in range(8 - sum(n for (at, _), n in groups.items() if at == node))
        ]
        assert [extender.bind(pod, node) for pod in more] == [""] * len(more)
        assert "are taken" in extender.bind(world.pod(), node)


def test_two_extenders_bind_a_pod_once_and_agree_in_the_end(
    extender: Extender, distant: Extender, world: World
) -> None:
    """Two schedulers with an extender each and no common lease: a mistake, and not a disaster.

    Neither knows of the other's reservations. Each pod is still bound once, and whoever is one
    too many in a group is refused by the agent; after that both see the same.
    """
    node = world.node(seats=4)
    pods = [world.pod() for _ in range(8)]
    until(lambda: all(fits(one, pods[0], node) for one in (extender, distant)), "the GPUNode")
    calls = [(one, pod) for pod in pods for one in (extender, distant)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda call: call[0].bind(call[1], node), calls))
    assert all(bound(world, pod)[0] == node for pod in pods)
    for number in range(len(pods)):
        assert answers[2 * number : 2 * number + 2] == ["", ""], "same node: both are right"
    groups = Counter(world.group(pod) for pod in pods)
    for name in ("G0", "G1"):
        late, free = world.pod(**{"require-group": name}), groups[name] < 4
        for one in (extender, distant):
            until(lambda one=one: fits(one, late, node) == free, f"it sees {groups}")  # noqa: B023


def test_a_pod_that_bypassed_us_takes_no_seat_of_a_group(extender: Extender, world: World) -> None:
    """It was bound by somebody else, without a group: the agent refuses it."""
    node, bypassed = world.node(seats=1), world.pod(TWO)
    name = bypassed["metadata"]["name"]
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    world.api.post(f"{PODS}/{name}/binding", binding)
    pod = world.pod(TWO)
    until(lambda: fits(extender, pod, node), "the GPUNode is seen")
    assert f"it is bound to {node} already" not in extender.bind(bypassed, node)
    assert world.group(bypassed) is None, "nobody gives it a group afterwards"
    assert extender.bind(pod, node) == ""
    assert world.group(pod) == "G01"


def test_a_watch_whose_version_is_forgotten_lists_anew(
    control_plane: Cluster, distant: Extender, relay: Relay, world: World
) -> None:
    """The API server restarts while the watch is cut: it knows no event from before (410).

    Last of all tests here: everybody's watches break.
    """
    node = world.node(seats=1)
    gone, kept = world.pod(), world.pod()
    until(lambda: fits(distant, gone, node), "the GPUNode is seen")
    assert [distant.bind(pod, node) for pod in (gone, kept)] == ["", ""]
    seen = distant.log.count("too old resource version")
    relay.cut()
    world.delete(gone)
    control_plane.process("apiserver").restart()
    until(lambda: answers(world.api), "the API server is back")
    relay.heal()
    until(lambda: distant.log.count("too old resource version") > seen, "it was told 410")
    late = world.pod()
    until(lambda: distant.bind(late, node) == "", "the seat of the one that is gone is free")
    assert world.group(late) != world.group(kept)
    assert "are taken" in distant.bind(world.pod(), node)


def answers(api: Api) -> bool:
    """Whether the API server does its work."""
    try:
        return api.text("/readyz", timeout=2.0) == "ok"
    except RetryableError:
        return False
