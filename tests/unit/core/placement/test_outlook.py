"""What is expected, and how fragmented a node is for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.placement import FULL, Ask, Supply, expect
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
