"""A successor that let go of a state which people keep holds its claim, and hands nothing on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts.succession import (
    Asked,
    PodRecord,
    claim,
    handed_on,
    is_own,
    let_go,
    release,
    stop,
)
from kybernate.errors import ConflictError

ONE, TWO = "ns/a@1", "ns/a@2"
NODES = st.sampled_from(["n1", "n2", "n3"])
POD = PodRecord("ns", "u1", node="n1", stopped="deleted")
NEXT = PodRecord("ns", "u2", node="n2")
CLAIMED, _ = claim(POD, NEXT, Asked(ONE, "u2", "n2"), 1)
FREE = let_go(CLAIMED, "n2", ONE)


@given(
    runs=NODES,
    there=NODES,
    node=NODES,
    artifact=st.sampled_from([ONE, TWO]),
    successor=st.sampled_from(["", "u1", "u2"]),
)
def test_the_node_of_another_successor_alone_lets_go_and_of_what_it_claimed_alone(
    runs: str, there: str, node: str, artifact: str, successor: str
) -> None:
    claimed = ONE if successor else ""
    pod = PodRecord(
        *("ns", "u1"), node=runs, successor=successor, successor_node=there, artifact=claimed
    )
    after = let_go(pod, node, artifact)
    may = successor == "u2" and there == node and runs != node and artifact == ONE
    expected = replace(pod, artifact="", version=1) if may else pod
    assert after == expected
    assert let_go(after, node, artifact) is after, "again it changes nothing"


def test_then_its_own_node_may_drop_it_and_nobody_else_gets_the_claim() -> None:
    assert handed_on(CLAIMED, "n1", ONE)
    assert not handed_on(FREE, "n1", ONE)
    assert (FREE.successor, FREE.successor_node) == ("u2", "n2")
    assert (is_own(FREE, "n1"), is_own(FREE, "n2")) == (True, False)
    for other, node in (("u3", "n3"), ("u2", "n3"), ("u3", "n2"), ("u1", "n1")):
        with pytest.raises(ConflictError, match="u2 on node n2 holds the claim"):
            claim(FREE, PodRecord("ns", other), Asked(ONE, other, node), 9)


def test_a_claim_that_is_told_again_stays_as_it_is_and_one_that_is_made_again_hands_on() -> None:
    told = Asked(ONE, "u2", "n2", again=True)
    assert claim(FREE, NEXT, told, 9) == (FREE, NEXT)
    once_more, there = claim(FREE, NEXT, Asked(ONE, "u2", "n2"), 9)
    assert (once_more.artifact, there) == (ONE, NEXT)
    assert handed_on(once_more, "n1", ONE)
    gone = stop(NEXT, "deleted", "kyb-controller", "gone")
    with pytest.raises(ConflictError, match="has stopped itself"):
        claim(FREE, gone, Asked(ONE, "u2", "n2"), 9)


def test_people_end_its_claim_as_any() -> None:
    free, ended = release(FREE, stop(NEXT, "deleted", "kyb-controller", "gone"))
    assert (free.successor, free.artifact, ended.ended) == ("", "", True)
    taken, _ = claim(free, PodRecord("ns", "u3"), Asked(ONE, "u3", "n3"), 9)
    assert taken.artifact == ONE
