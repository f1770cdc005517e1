"""How far a node of bare GPUs would fill up with the pods expected."""

from __future__ import annotations

import pytest
from hypothesis import given

from bench.placement.fill import Fill
from bench.placement.prospect import expect
from kybernate.core.placement import Ask, Supply
from tests.unit.core.placement.test_outlook import ASKS, NODES


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
