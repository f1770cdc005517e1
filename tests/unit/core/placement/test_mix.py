"""What is learned of the seats that were asked for, and what the policies make of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from kybernate import keys
from kybernate.core.ledger.ledger import NodeSeats, NodeView
from kybernate.core.placement import FULL, Ask, Demand, Place, Supply, Table, expect
from kybernate.core.placement.mix import (
    Mix,
    Offered,
    Share,
    Wanted,
    learn,
    offered,
    scarcity,
    wanted,
)
from kybernate.core.placement.model import ENDLESS
from kybernate.core.placement.pool import Pool
from kybernate.types import Gpu, GpuUuid, Group, GroupName, NodeName

GIB = 1 << 30
ONE, TWO = keys.seat_resource(1), keys.seat_resource(2)
SMALL = Offered("A10", 24 * GIB, 4, 400 * GIB, (Share(ONE, 250), Share(TWO, 250)), 30)
LARGE = Offered("H200", 140 * GIB, 4, 1200 * GIB, (Share(ONE, 250), Share(TWO, 250)), 10)


def node(name: str, product: str, memory: int, budget: int | None) -> NodeView:
    gpus = tuple(Gpu(GpuUuid(f"{name}-{i}"), i, product, memory * GIB) for i in range(2))
    groups = (
        Group(GroupName("G0"), ONE, (gpus[0].uuid,), 4),
        Group(GroupName("G01"), TWO, (gpus[0].uuid, gpus[1].uuid), 1),
    )
    return NodeView(NodeSeats(NodeName(name), gpus, {}, groups, budget, GIB))


def test_demands_and_nodes_are_counted_by_kind() -> None:
    demands = Counter(
        {
            Demand(ONE, 10 * GIB, party="a"): 2,
            Demand(ONE, 10 * GIB, policy="fgd"): 3,
            Demand(TWO, None, ("H200",)): 1,
        }
    )
    assert wanted(demands) == (
        Wanted(ONE, 10 * GIB, (), 5),
        Wanted(TWO, -1, ("H200",), 1),
    )
    a, b, c = (
        node("a", "A10", 24, 100 * GIB),
        node("b", "A10", 24, 100 * GIB),
        node("c", "L4", 24, None),
    )
    shares = (Share(ONE, 200), Share(TWO, 200))
    assert offered(
        [(a, 2), (b, 1), (c, 1), (NodeView(NodeSeats(NodeName("d"), (), {}, ())), 1)]
    ) == (
        Offered("A10", 23 * GIB, 2, 148 * GIB, shares, 3),
        Offered("L4", 23 * GIB, 2, ENDLESS, shares, 1),
    )


def test_the_same_mix_gives_the_same_outlook_whatever_the_order() -> None:
    demands = [Demand(ONE, size * GIB) for size in (8, 8, 20, 100)] + [Demand(TWO)]
    outlooks = []
    for seed in range(3):
        Random(seed).shuffle(demands)
        outlooks.append(learn(Mix(wanted(Counter(demands)), (SMALL, LARGE))))
    assert outlooks[0] == outlooks[1] == outlooks[2]
    asks = {kind.ask: kind.part for kind in outlooks[0].kinds}
    assert asks[Ask(1, 250, 0, 8 * GIB)] == pytest.approx(0.4)
    # What a GPU must hold decides where it runs; the whole of a GPU may be the largest one's.
    assert Ask(1, 250, 0, 100 * GIB, ("H200",)) in asks
    assert Ask(2, 250, 0, 280 * GIB) in asks


def test_what_runs_on_no_gpu_here_teaches_nothing() -> None:
    mix = (
        Wanted(ONE, 200 * GIB, (), 5),
        Wanted(ONE, GIB, ("B300",), 5),
        Wanted(keys.seat_resource(8), GIB, (), 5),
    )
    assert learn(Mix(mix, (SMALL, LARGE))).kinds == ()
    assert learn(Mix()).kinds == ()


def test_gpus_that_only_some_pods_need_are_scarce_as_those_come() -> None:
    nodes = {Supply((FULL,), "A10"): 3, Supply((FULL,), "H200"): 1}
    small, large = Ask(1, 250), Ask(1, 250, products=("H200",))
    found = [scarcity({small: 100 - n, large: n}, nodes)["H200"] for n in (0, 5, 10, 50)]
    assert found == pytest.approx([0.0, 0.2, 0.4, 1.0])
    assert scarcity({small: 1}, {Supply((FULL,), "A10"): 3}) == {"A10": 0.0}


def test_small_pods_leave_large_gpus_alone_before_and_after_somebody_needs_them() -> None:
    seat = Place((0,), GroupName("G0"), room=140 * GIB, vram=8 * GIB)
    ask = Ask(1, 250)
    here, there = (Supply((FULL,) * 4, one, 0, ENDLESS) for one in ("A10", "H200"))
    seen = (Wanted(ONE, 8 * GIB, (), 90), Wanted(ONE, 100 * GIB, (), 10))
    for mix in ((), seen):
        table = Table()
        table.take(table.made(learn(Mix(mix, (SMALL, LARGE)))))
        worth = table.named("default").worth
        assert worth(here, ask, seat) > worth(there, ask, seat) + 50


def test_nodes_that_differ_in_their_seats_are_one_supply() -> None:
    asked = (Wanted(ONE, 10 * GIB, (), 100), Wanted(ONE, 100 * GIB, (), 100))
    many, more = replace(LARGE, nodes=1000), replace(LARGE, shares=(Share(ONE, 500),), nodes=1)
    whole = learn(Mix(asked, (SMALL, replace(LARGE, nodes=1001)))).scarcity
    assert 0 < whole["H200"] < 1
    assert learn(Mix(asked, (SMALL, many, more))).scarcity == whole


def test_more_seats_than_thousandths_teach_nothing_and_break_nothing() -> None:
    odd = replace(SMALL, shares=(Share(ONE, 0),))
    assert learn(Mix((Wanted(ONE, GIB, (), 1),), (odd,))).scarcity == {"A10": 0.0}


def test_what_can_not_be_parked_is_seen_as_lost() -> None:
    """Where memory runs out before seats, a large pod takes others' too, and a small one leaves
    its own to them; where seats do, a seat is a seat."""
    pool = Pool(learn(Mix((Wanted(ONE, 20 * GIB, (), 9), Wanted(ONE, 60 * GIB, (), 1)), (LARGE,))))
    roomy, tight = (Supply((500,) * 4, "H200", 0, room * GIB) for room in (1000, 160))
    assert [pool.use(one) for one in (roomy, tight)] == pytest.approx([2000, 250 * 160 / 24])
    seat, lost = Place((0,), GroupName("G0")), []
    for size in (10, 24, 60):
        ask = Ask(1, 250, 0, size * GIB)
        lost += [pool.lost(one, ask) for one in (roomy, tight)]
        for one in (roomy, tight):
            assert pool.lost(one, ask) == pool.use(one) - pool.use(one.less(ask, seat)) - 250
    assert lost == pytest.approx([0, -250 * 14 / 24, 0, 0, 0, 250 * 36 / 24])
    assert Pool(learn(Mix())).use(tight) == 2000
    assert pool.use(tight._replace(memory=-GIB)) == 0


def test_a_learned_table_has_new_policies_and_says_what_became_of_the_old() -> None:
    table = Table("fgd")
    before = {name: table.named(name) for name in ("fgd", "default")}
    changed = table.take(table.made(expect([Ask(1)], [Supply((FULL,))])))
    for name, old in before.items():
        assert changed[old] is table.named(name)
        assert changed[old] is not old
    assert table.of(Demand(ONE)).name == "fgd"


def test_a_mix_differs_by_the_part_that_is_of_another_kind() -> None:
    a, b = Wanted(ONE, 1, (), 90), Wanted(TWO, 1, (), 10)
    mix = Mix((a, b), (SMALL,))
    more = Mix((Wanted(ONE, 1, (), 900), Wanted(TWO, 1, (), 100)), (SMALL,))
    assert not mix.differs(more, 0.01)
    other = Mix((Wanted(ONE, 1, (), 75), Wanted(TWO, 1, (), 25)), (SMALL,))
    assert mix.differs(other, 0.14)
    assert not mix.differs(other, 0.16)
    assert mix.differs(Mix((a, b), (SMALL, LARGE)), 0.2)
    assert Mix().differs(mix, 0.9)
    assert not Mix().differs(Mix(), 0.0)
