"""Gangs with the real kube-scheduler: all of their pods or none, over several nodes."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from kybernate.errors import ConflictError
from kybernate.runtime.lead import LEASES
from tests.integration.extender.upstream import condition, node_of, offer, stays
from tests.kit.servers.extenderserver import LIMIT_S, NAMESPACE, ONE, PODS, TWO, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kybernate.adapters.k8s import Api
    from tests.integration.extender.upstream import Scheduler
    from tests.kit.servers.extenderserver import Extender, Extenders, World

pytestmark = pytest.mark.integration

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


class Gang:
    """Pods as the webhook admits them, made one by one."""

    def __init__(self, world: World, size: int, resource: str = ONE) -> None:
        self.name = f"gang-{uuid.uuid4().hex[:6]}"
        self.pods: list[dict[str, Any]] = []
        self._world, self._size, self._resource = world, size, resource

    def add(self, count: int = 1, cpu: str = "100m", size: object = None) -> Gang:
        amounts = {self._resource: "1", "cpu": cpu}
        for _ in range(count):
            notes = {keys.GANG: self.name, keys.GANG_SIZE: str(size or self._size)}
            name = f"{self.name}-{len(self.pods)}"
            container = {"name": "model", "image": "none", "resources": {"limits": amounts}}
            spec = {
                "schedulerName": keys.SCHEDULER_NAME,
                "automountServiceAccountToken": False,
                "schedulingGates": [{"name": keys.GANG_GATE}],
                "containers": [container],
            }
            meta = {"name": name, "annotations": notes}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            self.pods.append(self._world.make(PODS, body))
        return self

    def bound(self) -> Counter[tuple[str, str]]:
        """Node and group of each bound pod."""
        found = [self._world.read(pod) for pod in self.pods]
        return Counter(
            (pod["spec"]["nodeName"], pod["metadata"]["annotations"][keys.ASSIGNED_GROUP])
            for pod in found
            if pod["spec"].get("nodeName")
        )

    def gated(self) -> int:
        found = (self._world.read(pod) for pod in self.pods)
        return sum(bool(pod["spec"].get("schedulingGates")) for pod in found)

    def runs(self) -> bool:
        return sum(self.bound().values()) == self._size

    def told(self, reason: str) -> list[str]:
        events = self._world.api.get(EVENTS)["items"]
        return [
            event["message"]
            for event in events
            if event["involvedObject"]["name"].startswith(self.name) and event["reason"] == reason
        ]

    def delete(self) -> None:
        for pod in self.pods:
            self._world.delete(pod)


def seats(world: World, count: int = 1, seats: int = 2, cpu: str = "4") -> list[str]:
    """Nodes with G0, G1, and G01."""
    return [offer(world, world.node(seats), cpu=cpu, x1="8", x2="8") for _ in range(count)]


def test_a_gang_is_bound_over_several_nodes_once_its_last_pod_exists(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    nodes = seats(world, 2)
    gang = Gang(world, 4).add(3)
    stays(lambda: gang.gated() == 3, 1.5)
    gang.add()
    until(gang.runs, "all are bound")
    assert gang.bound() == {(node, group): 1 for node in nodes for group in ("G0", "G1")}
    until(lambda: len(gang.told("GangPlanned")) == 4, "each pod is told its seat")
    assert any("3 of its 4 pods exist" in text for text in gang.told("GangWaiting"))


def test_two_gangs_that_want_the_same_seats_don_t_hold_each_other_up(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    seats(world, 2, seats=1)
    gangs = [Gang(world, 3), Gang(world, 3)]
    for _ in range(3):
        for gang in gangs:
            gang.add()
    (first,) = until(lambda: [gang for gang in gangs if gang.runs()], "one of them runs")
    (second,) = [gang for gang in gangs if gang is not first]
    stays(lambda: second.gated() == 3, 1.0)
    single = world.pod()
    until(lambda: node_of(world, single), "a single pod gets the seat that neither needs")
    world.delete(single)
    first.delete()
    until(second.runs, "the other one runs")


def test_a_gang_of_which_one_pod_fits_nowhere_keeps_nobody_waiting(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    seats(world, 1, seats=1)
    gang = Gang(world, 2).add().add(cpu="64")
    until(lambda: gang.gated() == 0, "it had a plan: seats are all that we know of")
    single = world.pod()
    until(lambda: node_of(world, single), "its seat goes to another pod")
    assert not gang.bound()
    until(lambda: any("did not bind" in text for text in gang.told("GangWaiting")), "it is told")
    until(lambda: "starts as a whole" in condition(world, gang.pods[0]), "the scheduler says it")


def test_cpu_for_one_pod_only_starts_none_of_them(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Each pod fits the node alone; only both at once don't."""
    seats(world, 1, cpu="3")
    gang = Gang(world, 2).add(2, cpu="2")
    until(lambda: gang.gated() == 0, "it had a plan")
    stays(lambda: not gang.bound(), 8.0)


def test_cpu_for_one_pod_on_each_node_is_found(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Each node has two seats, and each pod fits each of them alone: the second one is refused."""
    nodes = seats(world, 3, cpu="3")
    gang = Gang(world, 3).add(3, cpu="2")
    until(gang.runs, "it runs")
    assert Counter(node for node, _ in gang.bound().elements()) == dict.fromkeys(nodes, 1)


def test_nodes_that_pods_may_not_go_to_are_left_alone(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Taints, labels and room are the scheduler's: what it refuses, the next plan leaves out."""
    tainted, cordoned, small = seats(world, 6), seats(world, 1), seats(world, 3, cpu="1")
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    for node in tainted:
        world.api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    world.api.patch(f"/api/v1/nodes/{cordoned[0]}", {"spec": {"unschedulable": True}})
    free = seats(world, 2)
    gang = Gang(world, 4).add(4, cpu="1500m")
    until(gang.runs, f"it runs, and none of it on {tainted}, {cordoned}, {small}")
    assert {node for node, _ in gang.bound()} == set(free)
    # An event may be written after the pod is bound.
    until(lambda: any("does not have" in text for text in gang.told("GangWaiting")), "told why")


def test_a_pod_that_the_scheduler_has_no_node_for_holds_up_nobody_for_long(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """After the first plan its gang waits without seats, until there is a node for it."""
    seats(world, 1)
    gang = Gang(world, 2).add().add(cpu="64")
    until(lambda: any("no node at all for" in text for text in gang.told("GangWaiting")), "told")
    singles = [world.pod(), world.pod()]
    until(lambda: all(node_of(world, pod) for pod in singles), "its seats go to others")
    large = seats(world, 1, cpu="96")
    until(gang.runs, "it runs where there is room now")
    assert [node_of(world, gang.pods[1])] == large


def test_a_gang_of_thirty_two_is_bound_whole(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Twice as many as the extender has threads for calls: all wait for the last one."""
    seats(world, 16, seats=1)
    gang = Gang(world, 32).add(31).add(cpu="64")
    until(lambda: gang.gated() == 0, "it had a plan")
    stays(lambda: not gang.bound(), 4.0)
    single = world.pod()
    until(lambda: node_of(world, single), "its seats go to others")
    world.delete(single)
    world.delete(gang.pods.pop())
    gang.add()
    until(gang.runs, "with a pod that fits it runs")
    assert set(gang.bound().values()) == {1}


def test_two_gangs_that_want_the_same_room_both_run_in_the_end(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Twenty-four pods each, and room for one gang at a time."""
    seats(world, 12, seats=1)
    gangs = [Gang(world, 24), Gang(world, 24)]
    for _ in range(24):
        for gang in gangs:
            gang.add()
    (first,) = until(lambda: [gang for gang in gangs if gang.runs()], "one of them runs")
    (second,) = [gang for gang in gangs if gang is not first]
    assert not second.bound()
    first.delete()
    until(second.runs, "the other one runs")


def test_an_extender_that_is_killed_all_the_time_still_starts_gangs_whole(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    seats(world, 3, seats=1)
    gang = Gang(world, 6).add(6)
    for delay in (0.0, 0.05, 0.1, 0.2):
        time.sleep(delay)
        extender.stop(kill=True)
        assert sum(gang.bound().values()) in (0, 6) or gang.gated() == 0
        extender.start()
    until(gang.runs, "it runs", 3 * LIMIT_S)
    assert set(gang.bound().values()) == {1}


def test_a_pod_in_place_of_a_lost_one_joins_the_gang(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    seats(world, 1)
    gang = Gang(world, 2).add(2)
    until(gang.runs, "it runs")
    world.delete(gang.pods[0])
    gang.add()
    del gang.pods[0]
    until(gang.runs, "it runs again")


def test_gangs_of_pairs_share_no_gpu(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    nodes = seats(world, 2)
    gang = Gang(world, 2, TWO).add(2)
    until(gang.runs, "it runs")
    assert gang.bound() == {(node, "G01"): 1 for node in nodes}


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((2, 3), "disagree on kyb.ai/gang-size"),
        (("two",), "is no whole number from 1 to 256"),
        ((1, 1), "it has 2 pods"),
    ],
)
def test_what_is_wrong_with_a_gang_is_told_on_its_pods(
    extender: Extender, scheduler: Scheduler, world: World, sizes: tuple[object, ...], sentence: str
) -> None:
    gang = Gang(world, 1)
    for size in sizes:
        gang.add(size=size)
    until(lambda: any(sentence in text for text in gang.told("GangWaiting")), "it is told")
    assert gang.gated() == len(sizes) or len(set(sizes)) == 1


@pytest.fixture
def replicas(
    extender: Extender, extenders: Extenders, admin: Api
) -> Iterator[tuple[Extender, Extender]]:
    """Two of which one leads, in place of the one that runs all along."""
    extender.stop()
    with suppress(ConflictError):
        admin.post(LEASES, {"metadata": {"name": "kyb-extender"}})
    settings = {"LEASE": "kyb-extender", "LEASE_S": "3", "API_TIMEOUT_S": "1"}
    made = [extenders.make(f"gangs-{name}", **settings) for name in "ab"]
    for one in made:
        one.start()
    yield made[0], made[1]
    for one in made:
        one.stop()
    admin.delete(f"{LEASES}/kyb-extender")
    extender.start()


def test_the_next_leader_goes_on_where_the_last_one_was_killed(
    replicas: tuple[Extender, Extender], world: World
) -> None:
    nodes = [world.node(seats=1) for _ in range(4)]
    gang = Gang(world, 8).add(8)

    def plans() -> list[str]:
        found = (world.read(pod)["metadata"]["annotations"] for pod in gang.pods)
        return [notes[keys.GANG_PLAN] for notes in found if keys.GANG_PLAN in notes]

    until(plans, "it is being planned")
    for one in replicas:
        if "kyb_extender_leading 1.0" in one.probe("metrics").text:
            one.stop(kill=True)
    until(lambda: len(plans()) == 8 and gang.gated() == 0, "its gates are lifted")
    seats = {(seat["node"], seat["group"]) for seat in map(json.loads, plans())}
    assert seats == {(node, group) for node in nodes for group in ("G0", "G1")}
