"""Node affinity, taints and policies as users know them, with the real kube-scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kybernate import keys
from tests.integration.extender.upstream import condition, node_of, offer, stays
from tests.kit.servers.extenderserver import ONE, PODS, until

if TYPE_CHECKING:
    from tests.integration.extender.upstream import Scheduler
    from tests.kit.servers.extenderserver import World

pytestmark = pytest.mark.integration

POOL, ZONES = "example.com/pool", ("a", "b", "c")
KEPT = {"key": POOL, "value": "kept", "effect": "NoSchedule"}
TOLERATES = {"key": POOL, "operator": "Exists"}


def nodes(world: World, tainted: tuple[str, ...] = ()) -> dict[str, str]:
    """Three nodes alike with four free seats each, labelled by pool.

    A pod was bound to each: scheduler and extender have heard all there is to know of them.
    """
    where = {}
    for zone in ZONES:
        taints = [KEPT] if zone in tainted else []
        where[zone] = offer(world, world.node(3), labels={POOL: zone}, taints=taints, x1="5")
    scouts = [
        a_pod(world, "scout", affinity=near("required", zone), tolerations=[TOLERATES])
        for zone in ZONES
    ]
    until(lambda: all(node_of(world, one) for one in scouts), "each node was found")
    return where


def a_pod(world: World, name: str, **spec: Any) -> dict[str, Any]:
    """A pod with a seat, and these fields in its spec. By its policy all nodes are worth the same,
    but for a point for the first by name: what else says where it goes decides."""
    limits = {"limits": {ONE: "1"}, "requests": {"cpu": "0"}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-",
            "annotations": {keys.VRAM: "8Gi", keys.POLICY: "first-fit"},
        },
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME,
            "automountServiceAccountToken": False,
            "containers": [{"name": "model", "image": "none", "resources": limits}],
            **spec,
        },
    }
    return world.make(PODS, body)


def near(kind: str, zone: str) -> dict[str, Any]:
    """An affinity to the nodes of a pool."""
    wanted = {"matchExpressions": [{"key": POOL, "operator": "In", "values": [zone]}]}
    if kind == "required":
        rule: Any = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}
        }
    else:
        one = {"weight": 100, "preference": wanted}
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [one]}
    return {"nodeAffinity": rule}


@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_a_pod_goes_to_the_nodes_that_its_affinity_names(
    scheduler: Scheduler, world: World, kind: str
) -> None:
    """To each of three nodes alike in turn: whichever the policy would take is right only once."""
    where = nodes(world)
    for zone, name in where.items():
        made = a_pod(world, kind, affinity=near(kind, zone))
        until(lambda made=made: node_of(world, made), "it is bound")
        assert node_of(world, made) == name
        assert world.group(made) in ("G0", "G1")


def test_a_required_affinity_is_kept_where_other_nodes_have_room(
    scheduler: Scheduler, world: World
) -> None:
    where = nodes(world)
    pods = [a_pod(world, "full", affinity=near("required", "b")) for _ in range(5)]
    bound = until(
        lambda: len(on := [p for p in pods if node_of(world, p)]) == 4 and on, "four are bound"
    )
    assert {node_of(world, one) for one in bound} == {where["b"]}
    (waits,) = [one for one in pods if one not in bound]
    stays(lambda: node_of(world, waits) is None, 1.0)
    assert "didn't match Pod's node affinity" in condition(world, waits)


def test_a_preferred_affinity_gives_way_where_there_is_no_seat(
    scheduler: Scheduler, world: World
) -> None:
    where = nodes(world)
    pods = [a_pod(world, "wish", affinity=near("preferred", "c")) for _ in range(6)]
    until(lambda: all(node_of(world, one) for one in pods), "all are bound")
    there = [one for one in pods if node_of(world, one) == where["c"]]
    assert len(there) == 4


def test_a_tainted_node_takes_only_pods_that_tolerate_it(
    scheduler: Scheduler, world: World
) -> None:
    where = nodes(world, tainted=("a", "b"))
    plain = [a_pod(world, "plain") for _ in range(5)]
    bound = until(
        lambda: len(on := [p for p in plain if node_of(world, p)]) == 4 and on, "four are bound"
    )
    assert {node_of(world, one) for one in bound} == {where["c"]}
    (waits,) = [one for one in plain if one not in bound]
    until(lambda: "untolerated taint" in condition(world, waits), "it is told why it waits")
    tolerant = a_pod(world, "bold", tolerations=[TOLERATES])
    until(lambda: node_of(world, tolerant), "it is bound")
    assert node_of(world, tolerant) in (where["a"], where["b"])


def test_a_pods_own_policy_decides_and_an_unknown_one_is_told(
    scheduler: Scheduler, world: World
) -> None:
    """The extender spreads; this pod packs. Here no webhook refused the other one."""
    offer(world, world.node(), x1="4")
    first = world.pod(vram="8Gi")
    until(lambda: node_of(world, first), "the first is bound")
    packed = world.pod(vram="8Gi", policy="bin-pack")
    until(lambda: node_of(world, packed), "it is bound")
    assert world.group(packed) == world.group(first)
    odd = world.pod(vram="8Gi", policy="fastest")
    said = "kyb.ai/policy: there is no policy 'fastest'; write one of"
    until(lambda: said in condition(world, odd), "it is told what to write")
