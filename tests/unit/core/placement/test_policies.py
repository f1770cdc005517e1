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
    Place,
    Supply,
    Table,
    Weights,
    parse_policies,
    parse_weights,
)
from kybernate.errors import ConfigError
from kybernate.types import Link

WHOLE = Ask(1)
EMPTY, USED = Supply((1000, 1000), cpu=8000), Supply((1000, 500), cpu=4000)


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


def test_no_worth_is_below_nothing_however_large_the_node() -> None:
    large = Supply((FULL,) * 16, sizes=frozenset((2,)))
    for name in set(POLICIES) - {"default"}:
        assert POLICIES[name].worth(large, WHOLE, Place((0,))) >= 0


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
        loads = {EMPTY: Place((0,)), USED: Place((0,), load=500)}
        assert policy.worth(better, WHOLE, loads[better]) > policy.worth(worse, WHOLE, loads[worse])


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
