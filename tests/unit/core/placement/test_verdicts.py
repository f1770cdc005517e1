"""What is kept of nodes is what would be found by looking at each of them again."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kybernate.core.ledger.ledger import Claim, Ledger, NodeSeats, NodeView
from kybernate.core.placement import (
    POLICIES,
    Demand,
    candidates,
    choose,
    choose_group,
    score,
    verdicts,
)
from kybernate.core.placement.verdicts import NO_NODE, Verdicts
from kybernate.core.swap.activity import HOURS
from kybernate.core.swap.forecast import Traffic
from kybernate.errors import ConflictError, NotFoundError
from kybernate.types import Gpu, GpuUuid, Group, GroupName, Link, NodeName, PodRef, PodUid

if TYPE_CHECKING:
    from kybernate.core.placement import Policy

ONE, TWO = "kyb.ai/gpu-1x-seat", "kyb.ai/gpu-2x-seat"
GIB = 1 << 30
NODES = tuple(NodeName(f"n{number}") for number in range(4))
POLICY = POLICIES["bin-pack"]
DEMANDS = (
    Demand(ONE),
    Demand(ONE, vram=60 * GIB),
    Demand(TWO, products=("A100",)),
    Demand(TWO, topology=Link.NVLINK, prefer_group=GroupName("G01")),
    Demand(ONE, require_group=GroupName("G1")),
)


def node(name: NodeName, *, product: str = "H100", link: Link = Link.NVLINK) -> NodeSeats:
    """Two GPUs, whose UUIDs are the node's own."""
    a, b = (GpuUuid(f"{name}-{at}") for at in "ab")
    gpus = (Gpu(a, 0, product, 80 * GIB), Gpu(b, 1, product, 40 * GIB))
    groups = (
        Group(GroupName("G0"), ONE, (a,), 2),
        Group(GroupName("G1"), ONE, (b,), 2),
        Group(GroupName("G01"), TWO, (a, b), 1),
    )
    return NodeSeats(name, gpus, {frozenset((a, b)): link}, groups, park_budget=100 * GIB)


def claim(number: int, on: NodeName, group: str | None, vram: int | None = None) -> Claim:
    pod = PodRef("default", f"p{number}", PodUid(f"u{number}"))
    name = None if group is None else GroupName(group)
    return Claim(pod, on, name, TWO if group == "G01" else ONE, vram)


def make() -> tuple[Ledger, Verdicts]:
    ledger = Ledger()
    return ledger, Verdicts(ledger, ledger.node)


def check(ledger: Ledger, known: Verdicts, demand: Demand, policy: Policy = POLICY) -> None:
    """Compares with a look at each node."""
    found = known.of(demand, policy).fits(NODES, {})
    views = {name: ledger.node(name) for name in NODES}
    fresh = {n: candidates(view, demand) if view else None for n, view in views.items()}
    said = known.of(demand, policy).verdicts(NODES)
    assert [one and one._replace(groups=()) for one in said] == [
        one and one._replace(groups=()) for one in fresh.values()
    ]
    assert [one and [group.name for group in one.groups] for one in said] == [
        one and [group.name for group in one.groups] for one in fresh.values()
    ]
    assert found.passed == [n for n, one in fresh.items() if one and one.groups]
    assert found.hopeless == {
        n: one.reason for n, one in fresh.items() if one and not one.groups and not one.seat_helps
    }
    assert found.failed == {
        n: one.reason if one else NO_NODE
        for n, one in fresh.items()
        if one is None or (not one.groups and one.seat_helps)
    }
    ranks = {n: choose(view, demand, policy).rank if view else WORST for n, view in views.items()}
    first = max(NODES, key=lambda name: ranks[name])
    points = known.of(demand, policy).points(NODES, {})
    assert points == [
        (score(view, demand, policy) if view else 0) + (ranks[name] == ranks[first] > WORST)
        for name, view in views.items()
    ]
    assert known.of(demand, policy).best_nodes(NODES, {}, 1) == [first]
    fits = any(one.groups for one in fresh.values() if one)
    assert known.of(demand, policy).best_node(NODES) == (first if fits else None)
    several = known.of(demand, policy).best_nodes(NODES, {}, 3)
    assert several == sorted(sorted(NODES, key=lambda name: ranks[name], reverse=True)[:3])
    for view in filter(None, views.values()):
        best = choose_group(view, demand, policy)
        assert known.of(demand, policy).best(view) == (best.name if best else None)


WORST = (False, -inf, 0)


class AnyEvents(RuleBasedStateMachine):
    """Whatever happens to the ledger, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger, self.known = make()
        self.now = 0.0

    @rule(
        name=st.sampled_from(NODES),
        product=st.sampled_from(["H100", "A100"]),
        link=st.sampled_from([Link.NVLINK, Link.SYSTEM]),
    )
    def node(self, name: NodeName, product: str, link: Link) -> None:
        self.ledger.upsert_node(node(name, product=product, link=link))

    @rule(name=st.sampled_from(NODES))
    def node_gone(self, name: NodeName) -> None:
        self.ledger.remove_node(name)

    @rule(
        number=st.integers(0, 5),
        name=st.sampled_from(NODES),
        group=st.sampled_from(["G0", "G1", "G01", None]),
        vram=st.sampled_from([None, 30 * GIB]),
    )
    def bound(self, number: int, name: NodeName, group: str | None, vram: int | None) -> None:
        self.ledger.upsert_claim(claim(number, name, group, vram))

    @rule(
        number=st.integers(0, 9), name=st.sampled_from(NODES), group=st.sampled_from(["G0", "G01"])
    )
    def reserved(self, number: int, name: NodeName, group: str) -> None:
        with suppress(ConflictError, NotFoundError):
            self.ledger.reserve(claim(number, name, group), self.now, 3)

    @rule(number=st.integers(0, 9))
    def gone(self, number: int) -> None:
        self.ledger.remove_claim(PodUid(f"u{number}"))

    @rule(number=st.integers(0, 9))
    def released(self, number: int) -> None:
        self.ledger.release(PodUid(f"u{number}"))

    @rule()
    def later(self) -> None:
        self.now += 1
        self.ledger.expire(self.now)

    @invariant()
    def all_is_as_a_look_would_find(self) -> None:
        for demand in DEMANDS:
            check(self.ledger, self.known, demand)


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[NodeView]:
    """The nodes that were looked at."""
    looked: list[NodeView] = []

    def look(view: NodeView, demand: Demand) -> object:
        looked.append(view)
        return candidates(view, demand)

    monkeypatch.setattr(verdicts, "candidates", look)
    return looked


def test_only_what_changed_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, known = make()
    for name in NODES:
        ledger.upsert_node(node(name))
    known.of(DEMANDS[0], POLICY).fits(NODES, {})
    looked = counted(monkeypatch)
    known.of(DEMANDS[0], POLICY).fits(NODES, {})
    ledger.upsert_node(node(NODES[0]))
    known.of(DEMANDS[0], POLICY).fits(NODES, {})
    assert looked == []
    ledger.upsert_claim(claim(1, NODES[2], "G0"))
    known.of(DEMANDS[0], POLICY).fits(NODES, {})
    assert [view.seats.name for view in looked] == [NODES[2]]
    # A node that comes to what another one was has been looked at.
    ledger.upsert_claim(claim(2, NODES[1], "G0"))
    known.of(DEMANDS[0], POLICY).fits(NODES, {})
    assert len(looked) == 1


def test_shapes_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_SHAPES", 3)
    ledger, known = make()
    for number in range(20):
        ledger.upsert_node(node(NODES[number % 4], product=f"product {number}"))
        check(ledger, known, DEMANDS[0])
        check(ledger, known, Demand(ONE, products=("product 18",)))


@pytest.mark.parametrize("most", [7, verdicts.MOST_SHAPES])
@pytest.mark.parametrize(
    "policy", [POLICY, POLICIES["spread"], POLICIES["first-fit"]], ids=lambda one: one.name
)
def test_the_best_node_of_any_is_found_without_a_look_at_each(
    policy: Policy, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many shapes there are, few or many nodes are asked about, and nodes change."""
    monkeypatch.setattr(verdicts, "MOST_SHAPES", most)
    ledger, known = make()
    dice, names = random.Random(1), [NodeName(f"m{number:02}") for number in range(60)]
    for at in range(400):
        name = dice.choice(names)
        if at % 7:
            with suppress(ConflictError, NotFoundError):
                vram = dice.choice([None, 10 * GIB, 20 * GIB])
                ledger.reserve(claim(at, name, dice.choice(["G0", "G1", "G01"]), vram), at, 90)
        elif at % 5:
            ledger.upsert_node(node(name, product=f"product {dice.randrange(9)}"))
        else:
            ledger.remove_node(name)
        asked = dice.sample(names, dice.choice([2, 30, 60]))
        found = known.of(DEMANDS[at % 2], policy)
        fitting = found.fits(asked, {}).passed
        best = found.best_nodes(fitting, {}, 1)[0] if fitting else None
        said = found.best_node(asked)
        assert said == best or (said is None and len(asked) == 2)


def test_the_best_node_is_of_those_that_are_ranked_where_waits_are_foreseen() -> None:
    ledger, known = make()
    names = [NodeName(f"m{number:02}") for number in range(20)]
    for number, name in enumerate(names):
        ledger.upsert_node(replace(node(name), park_budget=(100 + number) * GIB))
    ranked: list[str] = []

    def counted(view: NodeView, *rest: object) -> object:
        ranked.append(view.seats.name)
        return choose(view, *rest)  # type: ignore[arg-type]

    foreseen = known.of(DEMANDS[0], POLICIES["default"])
    with patch("kybernate.core.placement.verdicts.choose", counted):
        for calls in range(1, 20 // verdicts.MOST_FRESH + 1):
            best = foreseen.best_node(names)
            assert best in ranked
            assert len(set(ranked)) == len(ranked) == min(20, calls * verdicts.MOST_FRESH)
    assert best == foreseen.best_nodes(names, {}, 1)[0]


def test_nodes_that_differ_in_names_only_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger, known = make()
    for number, name in enumerate(NODES):
        ledger.upsert_node(node(name))
        ledger.upsert_claim(claim(number, name, "G0"))
    looked = counted(monkeypatch)
    found = known.of(DEMANDS[0], POLICY).fits(NODES, {})
    assert found.passed == list(NODES)
    assert len(looked) == 1


def test_the_class_that_was_not_asked_about_for_longest_goes() -> None:
    ledger = Ledger()
    ledger.upsert_node(node(NODES[0]))
    known = Verdicts(ledger, ledger.node, most=2)
    first = known.of(DEMANDS[0], POLICY)
    second = known.of(DEMANDS[1], POLICY)
    assert known.of(DEMANDS[0], POLICY) is first
    known.of(DEMANDS[2], POLICY)
    assert (len(known), known.of(DEMANDS[0], POLICY)) == (2, first)
    assert known.of(DEMANDS[1], POLICY) is not second


def test_what_a_pod_holds_itself_is_left_out_for_it_alone() -> None:
    ledger, known = make()
    ledger.upsert_node(node(NODES[0]))
    ledger.upsert_claim(claim(1, NODES[0], "G01"))
    demand = Demand(TWO)
    own = {NODES[0]: ledger.node(NODES[0], PodUid("u1"))}
    assert None not in own.values()
    mine = {name: view for name, view in own.items() if view is not None}
    assert known.of(demand, POLICY).fits(NODES[:2], mine).passed == [NODES[0]]
    assert known.of(demand, POLICY).points(NODES[:1], mine)[0] > 0
    found = known.of(demand, POLICY).fits(NODES[:2], {})
    assert (found.passed, list(found.failed)) == ([], [NODES[0], NODES[1]])


def test_a_policy_that_has_become_another_ranks_anew_and_judges_nothing_again() -> None:
    ledger, known = make()
    for name in NODES:
        ledger.upsert_node(node(name))
    for number, group in enumerate(("G0", "G1")):
        ledger.upsert_claim(claim(number, NODES[0], group, GIB))
    calls: list[object] = []
    packing, spreading = (POLICIES[name] for name in ("bin-pack", "spread"))
    before = known.of(DEMANDS[0], packing)
    assert before.best_nodes(NODES, {}, 1) == [NODES[0]]
    with patch("kybernate.core.placement.verdicts.candidates", calls.append):
        known.adopt({packing: spreading})
        found = known.of(DEMANDS[0], spreading)
        assert found is before
        assert found.best_nodes(NODES, {}, 1) == [NODES[1]]
        assert found.fits(NODES, {}).passed == list(NODES)
    assert not calls
    assert len(known) == 1


def test_where_waits_are_foreseen_a_call_ranks_only_so_many_nodes_anew() -> None:
    """Those that are least strained; the next call goes on with the others."""
    ledger, known = make()
    names = [NodeName(f"m{number:02}") for number in range(10)]
    for number, name in enumerate(names):
        ledger.upsert_node(node(name))
        for taken in range(number):
            ledger.upsert_claim(claim(10 * number + taken, name, "G1"))
    ranked: list[str] = []

    def counted(view: NodeView, *rest: object) -> object:
        ranked.append(view.seats.name)
        return choose(view, *rest)  # type: ignore[arg-type]

    foreseen, plain = (known.of(DEMANDS[0], POLICIES[name]) for name in ("default", "spread"))
    wishing = known.of(replace(DEMANDS[0], prefer_group=GroupName("G1")), POLICIES["default"])
    with (
        patch("kybernate.core.placement.verdicts.MOST_FRESH", 4),
        patch("kybernate.core.placement.verdicts.choose", counted),
    ):
        assert foreseen.best_nodes(names, {}, 1) == names[:1]
        assert sorted(ranked) == names[:4]
        points = foreseen.points(names, {})
        assert sorted(ranked) == names[:8]
        # The rest is guessed, and no better than it will be found to be among the others.
        assert 10 >= points[0] > max(points[8:]) > 0
        foreseen.points(names, {})
        foreseen.points(names, {})
        assert sorted(ranked) == names
        for one in (plain, wishing):
            one.best_nodes(names, {}, 1)
        assert len(ranked) == 30


def test_whether_a_pod_fits_is_not_asked_again_for_others_traffic() -> None:
    """Unless it must be kept apart from hot ones."""
    ledger, known = make()
    ledger.upsert_node(node(NODES[0]))
    ledger.upsert_claim(claim(1, NODES[0], "G0", GIB))
    hot = Traffic((0.9,) * HOURS, (0.01,) * HOURS)
    apart = replace(DEMANDS[0], vram=GIB, traffic=hot, apart=True)
    judged: list[Demand] = []

    def counted(view: NodeView, demand: Demand) -> object:
        judged.append(demand)
        return candidates(view, demand)

    with patch("kybernate.core.placement.verdicts.candidates", counted):
        for traffic in ({}, {PodUid("u1"): hot}):
            ledger.upsert_node(replace(node(NODES[0]), traffic=traffic))
            for demand in (DEMANDS[0], apart):
                assert known.of(demand, POLICY).fits(NODES[:1], {}).passed == [NODES[0]]
    assert judged == [DEMANDS[0], apart, apart]
