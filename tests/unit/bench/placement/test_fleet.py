"""The choice among many nodes, and room made by moving pods."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.placement.fleet import Fleet, best, places
from bench.placement.moves import Tenants, without
from bench.placement.policies import policies
from bench.placement.prospect import expect
from kybernate.core.placement import FULL, Ask, Place, Supply

NODES = st.lists(
    st.builds(
        Supply,
        st.lists(st.just(FULL), min_size=1, max_size=4).map(tuple),
        st.sampled_from(["T4", "G2"]),
        st.integers(4, 20),
        st.integers(4, 20),
    ),
    min_size=1,
    max_size=5,
)
ASKS = st.lists(
    st.builds(
        lambda gpus, share, cpu, memory, products: Ask(
            gpus, share if gpus == 1 else FULL * (gpus > 0), cpu, memory, products
        ),
        st.sampled_from([0, 1, 1, 1, 2, 4]),
        st.sampled_from([300, 500, 700, FULL]),
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from([(), (), ("T4",)]),
    ),
    min_size=1,
    max_size=25,
)
POLICY = st.sampled_from(["default", "fgd", "best-fit", "spread", "bin-pack", "weighted"])


@settings(deadline=None)
@given(NODES, ASKS, POLICY)
def test_what_a_fleet_keeps_never_changes_what_it_chooses(
    nodes: list[Supply], asks: list[Ask], name: str
) -> None:
    policy = policies(expect(asks, nodes))[name]
    fleet = Fleet(nodes, policy)
    for ask in asks:
        fresh = [
            (best(node, ask, places(node, ask), policy), -at)
            for at, node in enumerate(fleet.nodes)
            if node.suits(ask)
        ]
        choice = fleet.choose(ask)
        if not fresh:
            assert choice is None
            continue
        (worth, place), at = max(fresh, key=lambda one: (one[0][0], one[1]))
        assert choice == (worth, -at, place)
        fleet.take(-at, ask, place)


def check(nodes: list[Supply], tenants: Tenants, placed: list[Ask]) -> None:
    """No GPU, CPU or memory is given twice, and none is lost."""
    left = tenants.fleet.nodes
    assert all(0 <= free <= FULL for node in left for free in node.free)
    assert all(node.cpu >= 0 and node.memory >= 0 for node in left)
    for field in ("cpu", "memory"):
        used = sum(getattr(ask, field) for ask in placed)
        assert sum(getattr(n, field) for n in nodes) - sum(getattr(n, field) for n in left) == used
    taken = sum(ask.total for ask in placed)
    assert sum(sum(n.free) for n in nodes) - sum(sum(n.free) for n in left) == taken


@settings(deadline=None)
@given(NODES, ASKS, st.integers(0, 4))
def test_moves_keep_the_books_and_stay_within_the_budget(
    nodes: list[Supply], asks: list[Ask], most: int
) -> None:
    tenants = Tenants(nodes, policies(expect(asks, nodes))["default"])
    placed: list[Ask] = []
    for ask in asks:
        choice = tenants.fleet.choose(ask)
        before = list(tenants.fleet.nodes)
        if choice is not None:
            tenants.take(choice, ask)
        else:
            plan = tenants.make_room(ask, most)
            if plan is None:
                assert tenants.fleet.nodes == before
                continue
            assert 1 <= len(plan.moves) <= most
            _check_order(before, plan.moves)
        placed.append(ask)
        check(nodes, tenants, placed)


def _check_order(nodes: list[Supply], moves: tuple) -> None:
    for source, held, choice in moves:
        target = nodes[choice.node]
        assert target.suits(held.ask)
        assert all(target.free[at] >= held.ask.share for at in choice.place.gpus)
        nodes[choice.node] = target.less(held.ask, choice.place)
        nodes[source] = without(nodes[source], held)


def fleet_of(*nodes: Supply) -> Tenants:
    return Tenants(nodes, policies(expect([Ask(1)]))["first-fit"])


def test_a_block_is_cleared_by_moving_the_pod_in_the_way() -> None:
    tenants = fleet_of(Supply((FULL, FULL)), Supply((FULL, 0)))
    choice = tenants.fleet.choose(Ask(1, 500))
    assert choice is not None
    tenants.take(choice, Ask(1, 500))
    assert tenants.fleet.choose(Ask(2)) is None
    assert tenants.make_room(Ask(2), 0) is None
    assert (plan := tenants.make_room(Ask(2), 1)) is None  # not looked for again, nothing has moved
    tenants = fleet_of(Supply((FULL, FULL)), Supply((FULL, 0)))
    tenants.take(choice, Ask(1, 500))
    plan = tenants.make_room(Ask(2), 1)
    assert plan is not None
    assert [(source, held.ask, to.node) for source, held, to in plan.moves] == [(0, Ask(1, 500), 1)]
    assert plan.choice[1:] == (0, Place((0, 1)))
    assert [node.free for node in tenants.fleet.nodes] == [(0, 0), (500, 0)]


def test_cpu_is_freed_by_moving_pods_without_a_gpu_first() -> None:
    tenants = fleet_of(Supply((FULL, FULL), cpu=4), Supply((0,), cpu=2))
    for ask in (Ask(1, cpu=2), Ask(0, 0, cpu=2)):
        choice = tenants.fleet.choose(ask)
        assert choice is not None
        tenants.take(choice, ask)
    plan = tenants.make_room(Ask(1, cpu=2), 5)
    assert plan is not None
    assert [held.ask.gpus for _, held, _ in plan.moves] == [0]
    assert tenants.fleet.nodes[0].free == (0, 0)
