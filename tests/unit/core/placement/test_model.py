"""What a node has left once a pod has come or gone."""

from __future__ import annotations

import pytest

from kybernate.core.placement import Ask, Place, Supply

NODE = Supply((1000, 400, 0), "T4", cpu=8000, memory=100)


@pytest.mark.parametrize(
    ("ask", "suits"),
    [
        (Ask(1), True),
        (Ask(2), False),
        (Ask(1, 400), True),
        (Ask(1, cpu=8001), False),
        (Ask(1, memory=101), False),
        (Ask(1, products=("V100", "T4")), True),
        (Ask(1, products=("V100",)), False),
        (Ask(0, 0, cpu=8000, memory=100), True),
        (Ask(0, 0, products=("V100",)), True),
        (Ask(0, 0, cpu=8001), False),
    ],
)
def test_a_node_suits_a_pod_if_all_that_it_takes_is_left(ask: Ask, suits: bool) -> None:
    assert NODE.suits(ask) is suits


def test_a_pod_takes_its_share_of_each_gpu_of_the_place() -> None:
    ask, place = Ask(2, 300, cpu=1000, memory=30), Place((0, 1))
    left = NODE.less(ask, place)
    assert left == Supply((700, 100, 0), "T4", cpu=7000, memory=70, sizes=frozenset({0}))


def test_a_node_remembers_the_sizes_of_pods_with_gpus() -> None:
    node = Supply((1000,) * 8, cpu=8000)
    node = node.less(Ask(0, 0, cpu=1), Place(())).less(Ask(1, 10), Place((0,)))
    assert node.less(Ask(4), Place((1, 2, 3, 4))).sizes == {0, 4}


def test_the_total_counts_every_gpu() -> None:
    assert Ask(8).total == 8000
    assert Ask(1, 250).total == 250
