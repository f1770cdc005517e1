"""What each policy prefers where pods ask for bare GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.placement.fleet import Fleet
from bench.placement.policies import policies
from bench.placement.prospect import expect
from kybernate.core.placement import POLICIES, Ask, Supply, Weights

if TYPE_CHECKING:
    from bench.placement.prospect import Prospect

WHOLE, HALF, BARE = Ask(1), Ask(1, 500), Ask(0, 0, cpu=1000)
EMPTY, USED = Supply((1000, 1000), cpu=8000), Supply((1000, 500), cpu=4000)


def chosen(nodes: list[Supply], ask: Ask, policy: str, outlook: Prospect | None = None) -> object:
    choice = Fleet(nodes, policies(outlook or expect([WHOLE, HALF], nodes))[policy]).choose(ask)
    return (choice.node, choice.place.gpus) if choice else None


@pytest.mark.parametrize(
    ("policy", "nodes", "ask", "where"),
    [
        ("first-fit", [EMPTY, USED], HALF, (0, (0,))),
        ("best-fit", [EMPTY, USED], HALF, (1, (1,))),
        ("worst-fit", [USED, EMPTY], HALF, (1, (0,))),
        ("bin-pack", [EMPTY, USED], HALF, (1, (1,))),
        ("spread", [USED, EMPTY], HALF, (1, (0,))),
        ("fgd", [EMPTY, USED], HALF, (1, (1,))),
        ("affinity", [Supply((1000,), sizes=frozenset({1})), Supply((1000,))], HALF, (1, (0,))),
        ("affinity", [Supply((1000,)), Supply((1000,), sizes=frozenset({0}))], HALF, (1, (0,))),
    ],
)
def test_a_policy_prefers(policy: str, nodes: list[Supply], ask: Ask, where: object) -> None:
    assert chosen(nodes, ask, policy) == where


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_of_equals_the_first_is_taken_and_what_does_not_suit_never(policy: str) -> None:
    busy = Supply((400, 400), cpu=8000)
    assert chosen([busy, EMPTY, EMPTY], HALF, policy) == (1, (0,))
    assert chosen([busy, busy], HALF, policy) is None
    assert chosen([Supply((1000,), cpu=0)], BARE, policy) is None


def test_default_leaves_gpus_where_later_pods_have_the_cpu_to_use_them() -> None:
    # Pods to come ask for 4 CPUs and a GPU each. A pod without GPU goes where none is left.
    outlook = expect([Ask(1, cpu=4000)])
    full, free = Supply((0, 0), cpu=2000), Supply((1000, 1000), cpu=8000)
    assert chosen([free, full], BARE, "default", outlook) == (1, ())
    spare = Supply((1000, 1000), cpu=9000)
    assert chosen([free, spare], BARE, "default", outlook) == (1, ())


def test_default_puts_a_share_where_it_leaves_no_useless_rest() -> None:
    outlook = expect([Ask(1, 600), Ask(1, 400)])
    assert chosen([Supply((600, 400))], Ask(1, 400), "default", outlook) == (0, (1,))


def test_default_keeps_a_block_of_gpus_for_the_pods_that_need_it() -> None:
    outlook = expect([Ask(4), Ask(1, 810)])
    nodes = [Supply((1000,) * 4), Supply((0, 0, 0, 1000))]
    assert chosen(nodes, Ask(1, 810), "default", outlook) == (1, (3,))


def test_the_weights_decide_between_what_is_free_and_what_is_used() -> None:
    nodes = [USED, EMPTY]
    for weights, node in ((Weights(1, 0, 0, 0), 1), (Weights(0, 0, 0, 1), 0)):
        choice = Fleet(nodes, policies(expect([]), weights)["weighted"]).choose(WHOLE)
        assert choice is not None
        assert choice.node == node


def test_the_table_has_the_policies_of_the_product() -> None:
    assert list(policies(expect([]))) == list(POLICIES)
