"""The real kube-scheduler tries waiting pods again as soon as there is room for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kybernate import keys
from tests.integration.extender.upstream import condition, node_of, offer, stays
from tests.kit.servers.extenderserver import TWO, until

if TYPE_CHECKING:
    from tests.integration.extender.upstream import Scheduler
    from tests.kit.servers.extenderserver import Extender, World

pytestmark = pytest.mark.integration

SOON_S = 30.0
"""Far less than the minutes after which the scheduler would try again by itself."""


def change(world: World, node: str, **fields: object) -> None:
    """Change each group of a GPUNode, as its agent may."""
    path = f"{keys.GPU_NODES_PATH}/{node}"
    status = world.api.get(path)["status"]
    status["groups"] = [{**group, **fields} for group in status["groups"]]
    world.api.patch(f"{path}/status", {"status": status})


def test_a_pod_is_tried_again_when_only_the_extender_sees_the_room(
    extender: Extender, scheduler: Scheduler, world: World
) -> None:
    """The scheduler watches no GPUNodes: without a word of ours it would not try for minutes."""
    node = offer(world, world.node(seats=1), x1="8", x2="8")
    first = [world.pod(), world.pod()]
    until(lambda: all(node_of(world, pod) for pod in first), "the first pods are bound")
    waiting = world.pod()
    until(lambda: "seats of G0, G1 are taken" in condition(world, waiting), "there is no seat")
    stays(lambda: node_of(world, waiting) is None, 1.0)
    began = time.monotonic()
    change(world, node, seats=4)
    until(lambda: node_of(world, waiting), "it is bound")
    assert time.monotonic() - began < SOON_S
    assert "kyb_extender_nudges_total" in extender.probe("metrics").text


def test_pods_follow_each_other_on_one_seat(scheduler: Scheduler, world: World) -> None:
    """The scheduler hears of a deletion when the extender does; whoever is late, the next waits
    no longer than it must."""
    node = offer(world, world.node(), x1="8", x2="8")
    pods = [world.pod(TWO) for _ in range(8)]
    while pods:
        began = time.monotonic()
        (bound,) = until(lambda: [p for p in pods if node_of(world, p)], "one is bound")
        assert node_of(world, bound) == node
        assert time.monotonic() - began < SOON_S
        world.delete(bound)
        pods.remove(bound)
