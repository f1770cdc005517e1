"""What each policy prefers, and who decides on the policy."""

from __future__ import annotations

import pytest

from kybernate import keys
from kybernate.core.placement import (
    FULL,
    POLICIES,
    Ask,
    Choosing,
    Demand,
    Fleet,
    Outlook,
    Place,
    Supply,
    Table,
    Weights,
    expect,
    parse_policies,
    parse_weights,
    policies,
)
from kybernate.errors import ConfigError
from kybernate.types import Link

WHOLE, HALF, BARE = Ask(1), Ask(1, 500), Ask(0, 0, cpu=1000)
EMPTY, USED = Supply((1000, 1000), cpu=8000), Supply((1000, 500), cpu=4000)


def chosen(nodes: list[Supply], ask: Ask, policy: str, outlook: Outlook | None = None) -> object:
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
        choice = Fleet(nodes, policies(Outlook(), weights)["weighted"]).choose(WHOLE)
        assert choice is not None
        assert choice.node == node


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Place((0, 1), link=Link.NVLINK), Place((0, 1), link=Link.PCIE_SWITCH)),
        (Place((0,)), Place((0,), breaks=Link.SYSTEM)),
        (Place((0,), breaks=Link.SYSTEM), Place((0,), breaks=Link.NVLINK)),
        (Place((0, 1), link=Link.NVLINK, breaks=Link.NVLINK), Place((0, 1), link=Link.NUMA_NODE)),
    ],
)
def test_topology_wants_the_best_links_and_breaks_the_worst(better: Place, worse: Place) -> None:
    worth = POLICIES["topology"].worth
    assert FULL >= worth(EMPTY, Ask(2), better) > worth(EMPTY, Ask(2), worse) >= 0


def test_the_nearest_word_on_the_policy_counts() -> None:
    choosing = Choosing({"batch": "spread"}, {"mine": "topology"})
    assert choosing.name("batch", "mine", "fgd") == "fgd"
    assert choosing.name("batch", "mine") == "spread"
    assert choosing.name("chat", "mine") == "topology"
    assert choosing.name("chat", "other") == ""
    table = Table("affinity")
    assert table.of(Demand(keys.seat_resource(1))).name == "affinity"
    assert table.of(Demand(keys.seat_resource(1), policy="fgd")).name == "fgd"


def test_weights_are_what_the_setting_says() -> None:
    assert parse_weights("40,30,20,10", "weights") == Weights()
    assert parse_weights(" 0, 0,1000 ,0", "weights") == Weights(0, 0, 1000, 0)
    for text in (
        "",
        "1,2,3",
        "1,2,3,4,5",
        "0,0,0,0",
        "1,2,3,-4",
        "1,2,3,x",
        "1,2,3,1001",
        "1,,2,3",
    ):
        with pytest.raises(ConfigError, match=r"weights.*write those of availability, product"):
            parse_weights(text, "weights")
    packing = Table("weighted", Weights(0, 0, 0, 1)).named("weighted")
    spreading = Table("weighted", Weights(1, 0, 0, 0)).named("weighted")
    for policy, better in ((packing, USED), (spreading, EMPTY)):
        worse = USED if better is EMPTY else EMPTY
        place = Place((0,))
        assert policy.worth(better, WHOLE, place) > policy.worth(worse, WHOLE, place)


def test_an_unknown_policy_is_refused_by_the_field_that_named_it() -> None:
    with pytest.raises(ConfigError, match=r"kyb.ai/policy.*'fast'.*write one of affinity"):
        Choosing().name("chat", "mine", "fast")
    for text, said in (
        ("batch=fast", "no policy 'fast'"),
        ("batch", "is no NAME=POLICY"),
        ("=fgd", "is no NAME=POLICY"),
        ("a=fgd, a=fgd", "is there twice"),
    ):
        with pytest.raises(ConfigError, match=f"namespace_policies.*{said}"):
            parse_policies(text, "namespace_policies")
    assert parse_policies(" a=fgd, b = spread ,", "x") == {"a": "fgd", "b": "spread"}
    assert parse_policies("", "x") == {}
