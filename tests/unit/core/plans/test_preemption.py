"""Whom to suspend: enough, no more than that, and nobody as important as the pod that waits."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kybernate.core.ledger.ledger import Claim, NodeSeats, NodeView
from kybernate.core.placement import POLICIES, Demand
from kybernate.core.plans.preemption import Holder, Pending, Plan, makes_room, plan
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from collections.abc import Iterable

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GIB = 1 << 30
POLICY = POLICIES["best-fit"]


def ref(name: str) -> PodRef:
    return PodRef("d", name, PodUid(f"u-{name}"))


def node(
    *claims: tuple[str, str, int | None],
    name: str = "n1",
    seats: int = 1,
    budget: int | None = None,
) -> NodeView:
    """G0, G1 of one GPU with `seats` each, G01 of both with one; claims are (pod, group, GiB)."""
    gpus = tuple(Gpu(GpuUuid(f"{name}-{i}"), i, "H100", 80 * GIB) for i in (0, 1))
    uuids = tuple(gpu.uuid for gpu in gpus)
    groups = (
        Group(GroupName("G0"), ONE, uuids[:1], seats),
        Group(GroupName("G1"), ONE, uuids[1:], seats),
        Group(GroupName("G01"), TWO, uuids, 1),
    )
    held = tuple(
        Claim(
            ref(pod),
            NodeName(name),
            GroupName(group),
            TWO if group == "G01" else ONE,
            None if size is None else size * GIB,
        )
        for pod, group, size in sorted(claims)
    )
    return NodeView(NodeSeats(NodeName(name), gpus, {}, groups, park_budget=budget), held)


def ranks(**priorities: int) -> dict[PodUid, Holder]:
    return {PodUid(f"u-{name}"): Holder(value) for name, value in priorities.items()}


def pending(priority: int = 10, resource: str = ONE, vram: int = 8, **more: bool) -> Pending:
    return Pending(ref("new"), Demand(resource, vram=vram * GIB), priority, **more)


def names(found: Plan) -> list[str]:
    return [victim.pod.name for victim in found.victims]


def test_the_least_important_one_goes() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    found = plan(pending(), [view], ranks(a=5, b=1), POLICY)
    assert (names(found), found.node, found.group) == (["b"], "n1", "G1")
    assert found.sentence == (
        "suspending d/b (priority 1, 8Gi to save) makes room on n1 for pod d/new of priority 10"
    )


def test_of_equals_the_one_with_least_to_save_goes() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 40))
    holders = ranks(a=1, b=1)
    assert names(plan(pending(), [view], holders, POLICY)) == ["a"]
    holders[PodUid("u-b")] = Holder(1, expendable=True)
    found = plan(pending(), [view], holders, POLICY)
    assert [(v.pod.name, v.save) for v in found.victims] == [("b", 0)]
    assert "nothing to save" in found.sentence


def test_nobody_as_important_goes() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    found = plan(pending(priority=5), [view], ranks(a=5, b=6), POLICY)
    assert (found.node, found.victims) == (None, ())
    assert "even if all seats of pods below its priority of 5 were given up" in found.sentence


def test_a_pod_of_a_class_that_never_preempts_waits() -> None:
    found = plan(
        pending(preempts=False), [node(("a", "G0", 8), ("b", "G1", 8))], ranks(a=0, b=0), POLICY
    )
    assert found.node is None
    assert "preemptionPolicy: Never" in found.sentence


def test_who_is_leaving_is_waited_for() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    holders = ranks(a=0, b=0) | {PodUid("u-a"): Holder(99, leaving=True)}
    found = plan(pending(), [view], holders, POLICY)
    assert (found.node, found.group, found.victims) == ("n1", "G0", ())
    assert "needs nobody's seat" in found.sentence


def test_a_pod_that_nobody_knows_or_that_bypassed_us_stays() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    assert plan(pending(), [view], ranks(a=0), POLICY).victims[0].pod.name == "a"
    assert plan(pending(), [view], {}, POLICY).node is None


def test_host_memory_may_take_several() -> None:
    """The group has a free seat; what parks on the node must shrink before it can be used."""
    view = node(("a", "G0", 60), ("b", "G0", 60), ("c", "G1", 60), seats=4, budget=130 * GIB)
    found = plan(pending(vram=80), [view], ranks(a=3, b=1, c=2), POLICY)
    assert names(found) == ["b"]
    tight = node(("a", "G0", 80), ("b", "G0", 60), ("c", "G1", 60), seats=4, budget=80 * GIB)
    found = plan(pending(vram=40), [tight], ranks(a=3, b=1, c=2), POLICY)
    assert names(found) == ["b", "c"]


def test_the_node_that_is_hurt_least_is_taken() -> None:
    views = [
        node(("a", "G0", 8), ("b", "G1", 8), name="n1"),
        node(("c", "G0", 8), ("d", "G1", 8), name="n2"),
        node(("e", "G0", 4), ("f", "G1", 8), name="n3"),
    ]
    holders = ranks(a=5, b=5, c=2, d=2, e=2, f=7)
    found = plan(pending(), views, holders, POLICY)
    assert (found.node, names(found)) == ("n3", ["e"])
    assert plan(pending(), list(reversed(views)), holders, POLICY) == found


def test_what_never_fits_hurts_nobody() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    assert plan(pending(vram=100), [view], ranks(a=0, b=0), POLICY).node is None
    assert plan(pending(resource="kyb.ai/gpu-4x-seat"), [view], ranks(a=0), POLICY).node is None


def test_makes_room_tells_what_deleting_would_help() -> None:
    view = node(("a", "G0", 8), ("b", "G1", 8))
    demand = Demand(ONE, vram=8 * GIB, require_group=GroupName("G0"))
    assert makes_room(view, demand, {PodUid("u-a")})
    assert not makes_room(view, demand, {PodUid("u-b")})


def sets(of: Iterable[PodUid]) -> Iterable[tuple[PodUid, ...]]:
    known = list(of)
    return itertools.chain.from_iterable(
        itertools.combinations(known, size) for size in range(len(known) + 1)
    )


@pytest.mark.parametrize("seed", range(300))
def test_against_every_choice(seed: int) -> None:
    """Against all sets of victims: there is one if one helps, none can be spared, and the most
    important of them is no more important than in any other set."""
    rng = random.Random(seed)
    pods = [f"p{i}" for i in range(rng.randint(1, 6))]
    view = node(
        *((pod, rng.choice(("G0", "G1", "G01")), rng.choice((None, 8, 40, 80))) for pod in pods),
        seats=rng.choice((1, 2, 3)),
        budget=rng.choice((None, 40 * GIB, 200 * GIB)),
    )
    holders = ranks(**{pod: rng.randrange(4) for pod in pods})
    wanted = pending(
        priority=rng.randrange(5), vram=rng.choice((8, 80)), resource=rng.choice((ONE, TWO))
    )
    lower = [uid for uid, holder in holders.items() if holder.priority < wanted.priority]
    ways = [gone for gone in sets(lower) if makes_room(view, wanted.demand, gone)]
    found = plan(wanted, [view], holders, POLICY)
    assert (found.node is not None) == bool(ways)
    if found.node is None:
        return
    gone = {victim.pod.uid for victim in found.victims}
    assert gone <= set(lower)
    assert makes_room(view, wanted.demand, gone)
    assert not any(makes_room(view, wanted.demand, gone - {uid}) for uid in gone)

    def worst(chosen: Iterable[PodUid]) -> int:
        return max((holders[uid].priority for uid in chosen), default=-1)

    assert worst(gone) == min(worst(way) for way in ways)


@pytest.mark.parametrize("seed", range(100))
def test_a_plan_that_is_left_off_names_the_same_node_and_who_is_left(seed: int) -> None:
    """Whoever carries it out may die, or ask twice: nobody else is suspended for that."""
    rng = random.Random(seed)
    views, holders = [], {}
    for name in ("n1", "n2", "n3"):
        pods = [f"{name}p{i}" for i in range(rng.randint(1, 4))]
        claims = ((pod, rng.choice(("G0", "G1", "G01")), rng.choice((8, 40, 80))) for pod in pods)
        views.append(node(*claims, name=name, seats=2, budget=rng.choice((None, 100 * GIB))))
        holders |= ranks(**{pod: rng.randrange(3) for pod in pods})
    wanted = pending(priority=3, vram=rng.choice((8, 80)), resource=rng.choice((ONE, TWO)))
    found = plan(wanted, views, holders, POLICY)
    for done in range(len(found.victims) + 1):
        gone = {victim.pod.uid for victim in found.victims[:done]}
        without = [
            replace(view, claims=tuple(c for c in view.claims if c.pod.uid not in gone))
            for view in views
        ]
        leaving = {uid: replace(one, leaving=uid in gone) for uid, one in holders.items()}
        for again in (
            plan(wanted, without, holders, POLICY),
            plan(wanted, views, leaving, POLICY),
        ):
            assert again.node == found.node or done == len(found.victims)
            assert again.victims == found.victims[done:]
            assert [one.id for one in again.steps[:-1]] == [one.id for one in found.steps[done:-1]]
            assert again.steps[-1:] == found.steps[-1:]
