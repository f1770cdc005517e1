"""Preemption with the real kube-scheduler: it deletes only whose owners agreed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.integration.extender.upstream import (
    condition,
    node_of,
    offer,
    priority_class,
    stays,
)
from tests.kit.servers.extenderserver import NAMESPACE, ONE, PODS, TWO, until

if TYPE_CHECKING:
    from tests.integration.extender.upstream import Scheduler
    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration


def filled(world: World, first: dict[str, str], second: dict[str, str]) -> list[dict[str, Any]]:
    """A node whose two seats of one GPU are held; the node offers no third."""
    node = offer(world, world.node(seats=1), x1="2", x2="1")
    pods = [world.pod(**first), world.pod(**second)]
    until(lambda: all(node_of(world, pod) == node for pod in pods), "both are bound")
    return pods


def leaving(world: World, pod: dict[str, Any]) -> bool:
    """Whether somebody deletes it: without a kubelet it stays for its grace period."""
    return "deletionTimestamp" in world.read(pod)["metadata"]


def plan(extender: Extender, pod: dict[str, Any]) -> dict[str, Any]:
    """What the extender answers who carries plans out."""
    with extender.session("controller") as session:
        name = pod["metadata"]["name"]
        url = f"https://127.0.0.1:{extender.port}/preemption/{NAMESPACE}/{name}"
        found: dict[str, Any] = session.get(url, timeout=5).json()
    return found


def test_who_is_not_marked_is_suspended_by_a_plan_for_nodes_that_suit(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    low, lower = filled(world, {"vram": "8Gi"}, {"vram": "16Gi"})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    for number, one in enumerate((low, lower)):
        path = f"{PODS}/{one['metadata']['name']}"
        mine = [{**owner, "uid": f"of-{number}"}]
        world.api.patch(path, {"metadata": {"ownerReferences": mine}})
    # There is nothing of lower priority here, but who waits does not tolerate its taint.
    taint = {"key": "other", "value": "yes", "effect": "NoSchedule"}
    offer(world, world.node(seats=1), taints=[taint], x1="2", x2="1")
    waiting = world.pod(priority=priority_class(world, 1000), vram="8Gi")
    until(lambda: "Insufficient" in condition(world, waiting), "it found no seat")
    until(lambda: plan(extender, waiting)["checked"], "the scheduler has named no node")
    stays(lambda: not leaving(world, low) and not leaving(world, lower), 2.0)
    found = plan(extender, waiting)
    assert [one["id"] for one in found["steps"]] == [
        f"suspend/{low['metadata']['uid']}",
        f"place/{waiting['metadata']['uid']}",
    ]
    assert found["node"] == node_of(world, low)
    # What the controller does once the state is in the object store.
    world.delete(low)
    until(lambda: node_of(world, waiting) == found["node"], "it got the seat")
    assert world.group(waiting) == found["group"]


def test_nodes_with_seats_of_other_groups_are_named_by_filter(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """Then the scheduler sees free seats, and proposes to delete nobody."""
    node = offer(world, world.node(seats=1), x1="2", x2="1")
    low = world.pod(**{"require-group": "G0"})
    until(lambda: node_of(world, low) == node, "it is bound")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}
    mine = {"metadata": {"ownerReferences": [{**owner, "uid": "of-j"}]}}
    world.api.patch(f"{PODS}/{low['metadata']['name']}", mine)
    high = {"priority": priority_class(world, 1000)}
    waiting = world.pod(**high, **{"require-group": "G0"})
    until(lambda: plan(extender, waiting)["checked"], "the scheduler has named no node")
    until(lambda: len(plan(extender, waiting)["steps"]) == 2, "nobody is to make room")
    assert plan(extender, waiting)["node"] == node


def test_only_who_may_ask_is_told_the_plan(extender: Extender, world: World) -> None:
    with extender.session("proxy") as session:
        url = f"https://127.0.0.1:{extender.port}/preemption/{NAMESPACE}/x"
        answer = session.get(url, timeout=5)
    assert (answer.status_code, "kyb-controller" in answer.text) == (403, True)


def test_only_who_is_marked_is_deleted(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    marked, kept = filled(world, {"on-preempt": "kill"}, {})
    high = priority_class(world, 1000)
    waiting = world.pod(priority=high)
    until(lambda: leaving(world, marked), "the pod that is marked is deleted")
    stays(lambda: not leaving(world, kept), 1.0)
    world.delete(marked)
    until(lambda: node_of(world, waiting), "the other has its seat")
    another = world.pod(priority=high)
    until(lambda: condition(world, another), "it found no seat")
    stays(lambda: not leaving(world, kept) and not leaving(world, waiting), 2.0)
    assert node_of(world, another) is None


def test_nobody_is_deleted_in_vain(extender: Extender, scheduler: Scheduler, world: World) -> None:
    """The scheduler knows how many seats a node has, and not of which group they must be."""
    marked = {"on-preempt": "kill"}
    important = {"priority": priority_class(world, 2000), "require-group": "G0"}
    keeper, killed = filled(world, important, {"require-group": "G1", **marked})
    high = {"priority": priority_class(world, 1000)}
    picky = world.pod(**{"require-group": "G0"}, **high)
    until(lambda: condition(world, picky), "it found no seat")
    stays(lambda: not leaving(world, keeper) and not leaving(world, killed), 2.0)
    easy = world.pod(**high)
    until(lambda: leaving(world, killed), "for a pod that it helps, it is deleted")
    world.delete(killed)
    until(lambda: node_of(world, easy), "that pod has its seat")
    assert (world.group(easy), node_of(world, picky)) == ("G1", None)


@pytest.mark.parametrize("resource", [ONE, TWO])
def test_plain_pods_still_take_cpu_from_ours(
    scheduler: Scheduler, world: World, resource: str
) -> None:
    """For what a seat doesn't have, the extender isn't asked: that is between the pods."""
    node = offer(world, world.node(), cpu="2", x1="4", x2="1")
    ours = world.pod(resource, cpu="1500m")
    until(lambda: node_of(world, ours) == node, "ours is bound")
    plain = world.pod(
        None, cpu="1500m", priority=priority_class(world, 1000), scheduler="default-scheduler"
    )
    until(lambda: leaving(world, ours), "ours makes room")
    world.delete(ours)
    until(lambda: node_of(world, plain) == node, "the plain pod is bound")
    assert keys.ASSIGNED_GROUP not in world.read(plain)["metadata"].get("annotations", {})
