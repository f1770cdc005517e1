"""Plans against brute force on small clusters, and that no state on their way is invalid."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kybernate.core.defrag import (
    Budget,
    Cluster,
    Kind,
    NoPlan,
    Pending,
    Plan,
    Seated,
    plan,
    sentences,
)
from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats, NodeView
from kybernate.core.ledger.parking import bears
from kybernate.core.placement import Demand, candidates
from kybernate.core.swap.activity import HOURS
from kybernate.core.swap.forecast import Traffic
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName, PodRef, PodUid
from tests.unit.core.plans.done import is_done

GIB = 1 << 30
ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"


def node(name, product="H100", memory=80 * GIB, seats=2, budget=None):
    """Two GPUs, a group of each and one of both."""
    gpus = tuple(Gpu(GpuUuid(f"{name}-{i}"), i, product, memory) for i in range(2))
    groups = (
        Group(GroupName("G0"), ONE, (gpus[0].uuid,), seats),
        Group(GroupName("G1"), ONE, (gpus[1].uuid,), seats),
        Group(GroupName("G01"), TWO, (gpus[0].uuid, gpus[1].uuid), seats),
    )
    return NodeSeats(NodeName(name), gpus, {}, groups, park_budget=budget)


def pod(name):
    return PodRef("shop", name, PodUid(name))


def seated(name, at, group, vram=20 * GIB, seconds=10.0, **wants):
    resource = TWO if group == "G01" else ONE
    demand = Demand(resource, vram, **wants)
    claim = Claim(
        pod(name), NodeName(at), GroupName(group), resource, vram, demand.party, demand.traffic
    )
    return Seated(claim, demand, seconds)


def cluster(nodes, pods):
    ledger = Ledger()
    for one in nodes:
        ledger.upsert_node(one)
    for one in pods:
        ledger.upsert_claim(one.claim)
    views = {name: ledger.node(name) for name in ledger.nodes()}
    return Cluster(views, {one.claim.pod.uid: one for one in pods})


def pending(name, resource=ONE, vram=20 * GIB, **wants):
    return Pending(pod(name), Demand(resource, vram, **wants))


def take(view, item_pod, demand, group):
    """The view with the pod in the group; asserts that the product's own rules allow it."""
    without = replace(view, claims=tuple(c for c in view.claims if c.pod != item_pod))
    allowed = candidates(without, replace(demand, require_group=group)).groups
    assert [one.name for one in allowed] == [group], f"{item_pod} can't be in {group}"
    claim = Claim(
        item_pod,
        view.seats.name,
        group,
        demand.resource,
        demand.vram,
        demand.party,
        demand.traffic,
    )
    return replace(without, claims=(*without.claims, claim))


def check_state(view):
    """The invariants themselves, apart from the rules that keep them."""
    for group in view.seats.groups:
        assert view.taken(group.name) <= group.seats
    if view.seats.park_budget is not None:
        total, largest = view.held
        memory = sum(gpu.memory for gpu in view.seats.gpus)
        assert bears(memory, view.seats.park_budget, total, largest)


def play(what, found, wanted):
    """Carry the plan out step by step; every state on the way must be valid."""
    views = dict(what.views)
    demands = {one.pod: one.demand for one in wanted}
    demands |= {one.claim.pod: one.demand for one in what.seated.values()}
    away, seconds, moved = set(), 0.0, set()
    assert len({step.id for step in found.steps}) == len(found.steps)
    for step in found.steps:
        assert not is_done(step, views)
        if step.source is not None:
            at, _ = step.source
            claims = tuple(c for c in views[at].claims if c.pod != step.pod)
            assert len(claims) == len(views[at].claims) - 1
            views[at] = replace(views[at], claims=claims)
            seconds += step.seconds
            moved.add(step.pod)
            assert what.seated[step.pod.uid].seconds is not None
            check_state(views[at])
        if step.kind is Kind.SUSPEND:
            away.add(step.pod)
            assert is_done(step, views)
            continue
        if step.kind is Kind.RESUME:
            away.remove(step.pod)
        at, group = step.target
        views[at] = take(views[at], step.pod, demands[step.pod], group)
        check_state(views[at])
        assert is_done(step, views)
    assert not away
    assert all(is_done(step, views) for step in found.steps)
    held = [claim.pod for view in views.values() for claim in view.claims]
    assert len(held) == len(set(held)) == len(what.seated) + len(wanted)
    assert seconds == pytest.approx(found.seconds)
    assert len(moved) == found.moves
    return views


def brute(what, wanted, budget=Budget()):  # noqa: B008 - frozen
    """The least seconds of any arrangement in which all pods have a place, or None."""
    places = [
        (name, group)
        for name, view in what.views.items()
        for group in view.seats.groups
        if view.seats.not_ready is None
    ]
    free = [one for one in what.seated.values() if one.seconds is not None]
    best = None
    choices = [
        [(name, group.name) for name, group in places if group.resource == one.demand.resource]
        for one in (*free, *wanted)
    ]
    for chosen in itertools.product(*choices):
        homes = [(one.claim.node, one.claim.group) for one in free]
        moved = [one for one, home, at in zip(free, homes, chosen, strict=False) if at != home]
        cost = sum(one.seconds for one in moved)
        if (
            len(moved) > budget.moves
            or cost > budget.seconds
            or (best is not None and best <= cost)
        ):
            continue
        if valid(what, free, wanted, chosen, moved):
            best = cost
    return best


def valid(what, free, wanted, chosen, moved):
    views = {
        name: NodeView(
            view.seats, tuple(c for c in view.claims if what.seated[c.pod.uid].seconds is None)
        )
        for name, view in what.views.items()
    }
    for one, (name, group) in zip((*free, *wanted), chosen, strict=True):
        ref = one.pod if isinstance(one, Pending) else one.claim.pod
        demand = one.demand
        claim = Claim(ref, name, group, demand.resource, demand.vram, demand.party, demand.traffic)
        views[name] = replace(views[name], claims=(*views[name].claims, claim))
    for one, (name, group) in zip((*free, *wanted), chosen, strict=True):
        if isinstance(one, Seated) and one not in moved:
            continue
        ref = one.pod if isinstance(one, Pending) else one.claim.pod
        view = views[name]
        others = replace(view, claims=tuple(c for c in view.claims if c.pod != ref))
        if not candidates(others, replace(one.demand, require_group=group)).groups:
            return False
    return True


sizes = st.sampled_from([10 * GIB, 30 * GIB, 70 * GIB])
costs = st.sampled_from([1.0, 2.5, 4.0, 7.0, None])
parties = st.sampled_from(["", "a", "b"])
hot = Traffic((0.8,) * HOURS, (0.01,) * HOURS)


@st.composite
def wishes(draw, apart):
    return {
        "products": draw(st.sampled_from([(), (), ("H100",), ("A100",)])),
        "party": draw(parties),
        "traffic": draw(st.sampled_from([None, hot])),
        "apart": apart,
    }


@st.composite
def scenes(draw):
    mixed, apart = draw(st.booleans()), draw(st.booleans())  # a rule is the whole cluster's
    nodes = [
        node(
            f"n{at}",
            draw(st.sampled_from(["H100", "A100"])) if mixed else "H100",
            seats=draw(st.integers(1, 2)),
            budget=draw(st.sampled_from([None, 80 * GIB, 160 * GIB])),
        )
        for at in range(draw(st.integers(1, 3)))
    ]
    pods = []
    for number in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from(nodes))
        group = draw(st.sampled_from(["G0", "G1", "G01"]))
        one = seated(f"s{number}", at.name, group, draw(sizes), draw(costs), **draw(wishes(apart)))
        what = cluster(nodes, pods)
        rest = replace(one.demand, require_group=GroupName(group))
        if candidates(what.views[at.name], rest).groups:
            pods.append(one)
    wanted = [
        pending(f"p{number}", draw(st.sampled_from([ONE, TWO])), draw(sizes), **draw(wishes(apart)))
        for number in range(draw(st.integers(1, 2)))
    ]
    return cluster(nodes, pods), wanted


@settings(max_examples=100, deadline=None)
@given(scenes())
def test_no_arrangement_costs_less_and_where_there_is_none_none_is_found(scene):
    what, wanted = scene
    found, least = plan(what, wanted, Budget()), brute(what, wanted)
    if least is None:
        assert isinstance(found, NoPlan)
        assert found.proven
        assert found.at_least == inf
    else:
        assert isinstance(found, Plan)
        assert found.proven
        assert found.seconds == pytest.approx(least)
        play(what, found, wanted)


@settings(max_examples=60, deadline=None)
@given(scenes(), st.integers(0, 3), st.sampled_from([0.0, 1.0, 3.0, 8.0, inf]))
def test_budgets_are_kept_and_proofs_hold_within_them(scene, moves, seconds):
    what, wanted = scene
    budget = Budget(seconds, moves)
    found, least = plan(what, wanted, budget), brute(what, wanted, budget)
    if least is None:
        assert isinstance(found, NoPlan)
        assert found.proven
        without = brute(what, wanted, Budget(moves=moves))
        assert without is None or found.at_least <= without + 1e-9
    else:
        assert isinstance(found, Plan)
        assert found.seconds == pytest.approx(least)
        assert found.moves <= moves
        play(what, found, wanted)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(scenes(), st.integers(0, 8))
def test_with_little_effort_what_is_said_is_true_all_the_same(scene, effort):
    what, wanted = scene
    found, least = plan(what, wanted, Budget(effort=effort)), brute(what, wanted)
    if isinstance(found, NoPlan):
        assert not found.proven or least is None
        assert least is None or found.at_least <= least + 1e-9
    else:
        play(what, found, wanted)
        assert least is not None
        assert found.at_least <= least + 1e-9 <= found.seconds + 2e-9
        assert not found.proven or found.seconds == pytest.approx(least)


def after(what, found, wanted, done):
    """The cluster once so many steps are carried out, and who waits then: a suspended pod does."""
    seated, views = dict(what.seated), dict(what.views)
    waiting = {one.pod.uid: one for one in wanted}
    for step in found.steps[:done]:
        uid = step.pod.uid
        one = waiting.pop(uid, None) or Pending(step.pod, seated[uid].demand)
        if step.source is not None:
            at, _ = step.source
            claims = tuple(c for c in views[at].claims if c.pod != step.pod)
            views[at] = replace(views[at], claims=claims)
            cost = seated.pop(uid).seconds
        else:
            cost = 1.0
        if step.target is None:
            waiting[uid] = one
            continue
        at, group = step.target
        views[at] = take(views[at], step.pod, one.demand, group)
        (claim,) = (c for c in views[at].claims if c.pod == step.pod)
        seated[uid] = Seated(claim, one.demand, cost)
    return Cluster(views, seated), list(waiting.values())


@settings(max_examples=60, deadline=None)
@given(scenes(), st.data())
def test_a_plan_that_is_left_off_anywhere_is_made_anew_for_what_was_left(scene, data):
    """Whoever carries one out may die: the next plan costs what the rest did, and no step twice."""
    what, wanted = scene
    found = plan(what, wanted, Budget())
    if not isinstance(found, Plan):
        return
    done = data.draw(st.integers(0, len(found.steps)))
    rest = sum(step.seconds for step in found.steps[done:])
    left, waiting = after(what, found, wanted, done)
    again = plan(left, waiting, Budget())
    assert isinstance(again, Plan)
    assert again.seconds == pytest.approx(rest)
    play(left, again, waiting)
    assert again == plan(left, waiting, Budget()), "who asks twice hears the same"
    assert again.id == plan(left, waiting, Budget()).id


def test_a_plan_that_is_left_off_while_a_pod_is_suspended_brings_it_back():
    what, wanted = ring()
    found = plan(what, wanted, Budget())
    left, waiting = after(what, found, wanted, 1)
    assert [one.pod.name for one in waiting] == ["p", "small"]
    again = plan(left, waiting, Budget())
    assert {(step.kind, step.pod.name) for step in again.steps} == {
        (Kind.MOVE, "big"),
        (Kind.PLACE, "small"),
        (Kind.PLACE, "p"),
    }
    over, none = after(what, found, wanted, len(found.steps))
    assert plan(over, none, Budget()).steps == ()


def ring():
    """A big pod and a small one that must change places: one node is short of room to park, all
    seats of the other are taken."""
    nodes = [node("h", "H100", seats=1, budget=0), node("a", "A100", seats=1)]
    pods = [
        seated("h-both", "h", "G01", 40 * GIB, seconds=None),
        seated("big", "h", "G0", 70 * GIB, seconds=9.0),
        seated("small", "a", "G0", 10 * GIB, seconds=3.0),
        seated("a-one", "a", "G1", seconds=None),
        seated("a-both", "a", "G01", seconds=None),
    ]
    return cluster(nodes, pods), [
        pending("p", ONE, 20 * GIB, require_group="G1", products=("H100",))
    ]


def test_pods_that_wait_for_each_others_places_are_suspended_for_a_while():
    what, wanted = ring()
    found = plan(what, wanted, Budget())
    assert isinstance(found, Plan)
    play(what, found, wanted)
    assert [(step.kind, step.pod.name) for step in found.steps] == [
        (Kind.SUSPEND, "small"),
        (Kind.MOVE, "big"),
        (Kind.RESUME, "small"),
        (Kind.PLACE, "p"),
    ]
    assert (found.seconds, found.moves) == (12.0, 2)


def test_it_is_told_in_sentences():
    what, wanted = ring()
    assert sentences(plan(what, wanted, Budget())) == (
        "2 moves make room, for 12 s in all; no other moves cost less.",
        (
            "Suspend shop/small (10.0 GiB, 3 s with its return): pods wait for each other's "
            "places, and it gives up group G0 of a."
        ),
        "Move shop/big (70.0 GiB, 9 s) from group G0 of h to group G0 of a.",
        "Resume shop/small (10.0 GiB) at group G0 of h.",
        "Now shop/p (20.0 GiB) fits group G1 of h.",
    )


def test_where_there_is_room_nothing_moves():
    what = cluster([node("n")], [seated("s", "n", "G0")])
    found = plan(what, [pending("p")], Budget())
    assert (found.moves, found.seconds, found.proven) == (0, 0.0, True)
    assert sentences(found) == (
        "Nothing has to move: there is room as it is.",
        "Now shop/p (20.0 GiB) fits group G0 of n.",
    )


def test_what_fits_no_node_at_all_is_refused_with_the_reasons():
    nodes = [node(f"n{at}", "H100") for at in range(3)] + [node("a", "A100", seats=1)]
    pods = [seated("s0", "a", "G0", seconds=None), seated("s1", "a", "G1", seconds=None)]
    found = plan(cluster(nodes, pods), [pending("p", products=("A100",))], Budget())
    assert isinstance(found, NoPlan)
    assert (found.proven, found.at_least) == (True, inf)
    assert sentences(found) == (
        (
            "No node can take shop/p, even if every pod moved that may: 3 nodes: the pod asks for "
            "A100, and the groups have H100; 1 node: all 2 seats of G0, G1 are taken."
        ),
    )


def test_a_budget_that_is_too_small_is_told_with_what_it_takes_at_least():
    what, wanted = ring()
    found = plan(what, wanted, Budget(seconds=8.0))
    assert isinstance(found, NoPlan)
    assert found.proven
    assert 8.0 < found.at_least <= 12.0
    assert "within 20 moves and 8 s" in found.why
    fewer = plan(what, wanted, Budget(moves=1))
    assert isinstance(fewer, NoPlan)
    assert "within 1 moves" in fewer.why


def test_no_nodes_no_plan():
    found = plan(cluster([], []), [pending("p")], Budget())
    assert isinstance(found, NoPlan)
    assert "there is no node with GPUs" in found.why


def test_thousands_of_nodes_that_are_alike_are_looked_at_once():
    """Full of pods that any node suits; one kind of pod has to give way."""
    nodes = [node(f"n{at:04}", "H100", seats=2) for at in range(2000)]
    nodes += [node(f"a{at}", "A100", seats=2) for at in range(2)]
    pods = [
        seated(f"s{at:04}-{group}-{k}", f"n{at:04}", group, seconds=20.0)
        for at in range(2000)
        for group in ("G0", "G1")
        for k in range(2)
    ]
    what = cluster(nodes, pods)
    wanted = [pending(f"p{at}", products=("H100",)) for at in range(3)]
    found = plan(what, wanted, Budget(effort=200))
    assert isinstance(found, Plan)
    assert (found.moves, found.seconds, found.proven) == (3, 60.0, True)
    play(what, found, wanted)
