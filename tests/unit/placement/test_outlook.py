"""What is expected, how fragmented a node is for it, and how far it would fill up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.placement import FULL, Ask, Supply, expect
from kybernate.core.placement.fill import Fill
from kybernate.core.placement.fragments import Fragments


def slow(node: Supply, asks: list[Ask]) -> float:
    """The measure as its authors write it, for kinds that are all equally frequent."""
    total = 0.0
    for ask in asks:
        enough = sum(left >= ask.share for left in node.free) >= ask.gpus
        product = not ask.products or node.product in ask.products
        if not ask.gpus or not product or not enough or node.cpu < ask.cpu:
            total += sum(node.free)
        else:
            total += sum(left for left in node.free if left < ask.share)
    return total / len(asks)


ASKS = st.lists(
    st.builds(
        lambda gpus, share, cpu, products: Ask(
            gpus, share if gpus == 1 else FULL * (gpus > 0), cpu, 0, products
        ),
        st.sampled_from([0, 1, 1, 2, 4]),
        st.sampled_from([200, 500, FULL]),
        st.integers(0, 8),
        st.sampled_from([(), ("T4",), ("T4", "G2")]),
    ),
    min_size=1,
    max_size=12,
    unique=True,
)
NODES = st.builds(
    Supply,
    st.lists(st.sampled_from([0, 190, 500, FULL]), max_size=8).map(tuple),
    st.sampled_from(["T4", "G2", "V100"]),
    st.integers(0, 8),
    st.integers(0, 8),
)


@given(ASKS, st.lists(NODES, min_size=1, max_size=4))
def test_fragmentation_is_as_published(asks: list[Ask], nodes: list[Supply]) -> None:
    few = asks[: max(1, len(asks))]
    fragments = Fragments(expect(few * 20)) if len(few) < 20 else None
    assert fragments is not None
    for node in nodes:
        assert fragments.of(node) == pytest.approx(slow(node, few))


def test_the_target_is_the_shortest_prefix_that_covers_95_percent_without_memory() -> None:
    asks = [Ask(1, memory=n % 2) for n in range(60)] + [Ask(2)] * 36 + [Ask(4)] * 3 + [Ask(8)]
    outlook = expect(asks)
    assert [(kind.ask.gpus, kind.part) for kind in outlook.target] == [
        (1, pytest.approx(60 / 96)),
        (2, pytest.approx(36 / 96)),
    ]
    assert sum(kind.part for kind in outlook.kinds) == pytest.approx(1)
    assert {kind.ask.memory for kind in outlook.kinds} == {0, 1}


def test_of_equally_frequent_kinds_the_larger_one_is_in_the_target() -> None:
    asks = [Ask(1)] * 18 + [Ask(1, cpu=3), Ask(1, cpu=5)]
    assert [kind.ask.cpu for kind in expect(asks).target] == [0, 5]


@given(ASKS, NODES)
def test_the_use_is_at_most_what_is_left_and_the_same_every_time(
    asks: list[Ask], node: Supply
) -> None:
    fill = Fill(expect(asks))
    assert 0 <= fill.use(node) <= sum(node.free)
    assert Fill(expect(asks)).use(node) == fill.use(node)


@given(ASKS.filter(lambda asks: any(ask.gpus for ask in asks)), NODES)
def test_the_use_is_nothing_where_no_pod_to_come_fits(asks: list[Ask], node: Supply) -> None:
    fits = any(node.suits(ask) for ask in asks if ask.gpus)
    assert fits or Fill(expect(asks)).use(node) == 0


def test_the_use_is_all_that_is_left_if_nothing_is_known() -> None:
    assert Fill(expect([])).use(Supply((1000, 190))) == 1190


def test_the_use_is_bounded_by_cpu_memory_and_shares() -> None:
    fill = Fill(expect([Ask(1, 600, cpu=4, memory=2)]))
    assert fill.use(Supply((1000,) * 3, cpu=100, memory=100)) == 1800
    assert fill.use(Supply((1000,) * 3, cpu=8, memory=100)) == 1200
    assert fill.use(Supply((1000,) * 3, cpu=100, memory=3)) == 600
    assert fill.use(Supply((590,) * 3, cpu=100, memory=100)) == 0


def test_an_untouched_node_is_worth_more_if_pods_want_all_of_it() -> None:
    large, small = Supply((1000,) * 4, cpu=4), Supply((1000,) * 4)
    fill = Fill(
        expect([Ask(4, cpu=1)] + [Ask(1, 600)] * 60, [large, small, small, small]), length=0
    )
    # The pod that wants all of it is a tenth of the demand, and it suits a fourth of the GPUs.
    assert fill.use(large) == pytest.approx(4000 * 0.1 / 0.25)
    assert fill.use(small) == 0
    assert fill.use(Supply((1000, 1000, 1000, 0), cpu=4)) == 0
