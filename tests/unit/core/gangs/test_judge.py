"""What is to be done for a gang, and the sentence when nothing can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kybernate import keys
from kybernate.core.gangs.gang import (
    MOST_MEMBERS,
    Act,
    PlannedSeat,
    in_turn,
    judge,
    parse_size,
    trouble,
)
from kybernate.errors import ConfigError
from kybernate.types import GroupName, NodeName
from tests.unit.core.gangs.world import gang, member

SEAT = PlannedSeat(NodeName("n1"), GroupName("G0"), until=30.0)
BOUND = {"node": NodeName("n1"), "group": GroupName("G0"), "gates": ()}


def always(_member: object) -> bool:
    return True


def never(_member: object) -> bool:
    return False


def test_a_gang_waits_until_all_of_its_pods_exist() -> None:
    step = judge([member("a", size=3), member("b", size=3)], 0, always)
    assert (step.act, step.reason) == (Act.WAIT, "2 of its 3 pods exist (a, b)")


def test_a_complete_gang_is_planned_then_lifted_then_waits_to_be_bound() -> None:
    pods = [member("a"), member("b")]
    step = judge(pods, 0, always)
    assert (step.act, step.members) == (Act.PLAN, tuple(pods))
    planned = [replace(one, seat=SEAT) for one in pods]
    step = judge(planned, 0, always)
    assert (step.act, step.members) == (Act.LIFT, tuple(planned))
    half = [planned[0], replace(planned[1], gates=())]
    assert judge(half, 0, always).members == (planned[0],)
    open_ = [replace(one, gates=()) for one in planned]
    step = judge(open_, 0, always)
    assert (step.act, step.reason) == (Act.WAIT, "seats are held for it; to be bound: a, b")
    assert judge([replace(one, **BOUND) for one in open_], 99, never).act is Act.NOTHING


def test_a_pod_that_takes_the_place_of_a_bound_one_is_planned_beside_the_others() -> None:
    new = member("c")
    step = judge([replace(member("a"), **BOUND), new], 0, always)
    assert (step.act, step.members) == (Act.PLAN, (new,))


@pytest.mark.parametrize(
    ("pods", "now", "stands", "reason"),
    [
        pytest.param(
            [member("a", size=3, seat=SEAT), member("b", size=3, seat=SEAT)],
            *(0, always, "2 of its 3 pods exist (a, b)"),
            id="a member went away",
        ),
        pytest.param(
            [member("a", seat=SEAT), member("b")],
            *(0, always, "the plan lacks a seat for b"),
            id="a plan that was written in part",
        ),
        pytest.param(
            [member("a", seat=SEAT), member("b", seat=SEAT)],
            *(30, always, "the scheduler did not bind a, b in time"),
            id="the time is over",
        ),
        pytest.param(
            [member("a", seat=SEAT, gates=()), member("b", **BOUND)],
            *(30, always, "the scheduler did not bind a in time"),
            id="one of them was never bound",
        ),
        pytest.param(
            [member("a", seat=SEAT), member("b", seat=SEAT)],
            *(0, never, "a seat that was planned can't be had any more (G0 of n1, G0 of n1)"),
            id="a planned seat is lost",
        ),
    ],
)
def test_seats_are_given_back_when(pods: list, now: float, stands: object, reason: str) -> None:
    step = judge(pods, now, stands)
    assert (step.act, step.reason) == (Act.RELEASE, reason)
    assert set(step.members) == {one for one in pods if one.seat}


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        pytest.param(
            [member("a", size="two")],
            "pod a: kyb.ai/gang-size: 'two' is no whole number from 1 to 256",
            id="not a number",
        ),
        pytest.param(
            [member("a", size=0)],
            "pod a: kyb.ai/gang-size: '0' is no whole number from 1 to 256",
            id="zero",
        ),
        pytest.param(
            [member("a", size=None)],
            "pod a: kyb.ai/gang-size: it is missing; write how many pods the gang has, since "
            "kyb.ai/gang is set",
            id="missing",
        ),
        pytest.param(
            [member("a", size=2), member("b", size=3)],
            "its pods disagree on kyb.ai/gang-size (a says 2, b says 3); give all of them the same",
            id="disagreeing",
        ),
        pytest.param(
            [member(name, size=1) for name in "abcdefg"],
            "it has 7 pods (a, b, c, d, e and 2 more), and kyb.ai/gang-size is 1: raise it, or "
            "give the others another kyb.ai/gang",
            id="more members than size",
        ),
        pytest.param(
            [member("a", size=1, problem="vram: wrong")], "pod a: vram: wrong", id="no seat suits"
        ),
        pytest.param(
            [member("a", size=1, demand=None)], "pod a: it asks for no seat", id="no seat asked"
        ),
        pytest.param(
            [member("a", size=1, gates=(keys.GANG_GATE, "kueue"))],
            "pod a is held by the scheduling gate kueue",
            id="somebody else's gate",
        ),
    ],
)
def test_what_is_wrong_with_a_gang_is_a_sentence(pods: list, reason: str) -> None:
    assert trouble(pods) == reason
    assert judge(pods, 0, always).act is Act.WAIT


@pytest.mark.parametrize("text", ["-1", "1.5", " 2", "٣", "1e9", "9" * 5000, "257", ""])
def test_odd_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kyb\.ai/gang-size"):
        parse_size(text)


def test_the_limits_of_a_size_are_sizes() -> None:
    assert [parse_size("1"), parse_size("007"), parse_size(str(MOST_MEMBERS))] == [1, 7, 256]


def test_gangs_take_turns_by_priority_and_then_by_age() -> None:
    old, young, urgent = gang("old", 1), gang("young", 1), gang("urgent", 2)
    young = [replace(one, created="2026-02-01") for one in young]
    urgent[1] = replace(urgent[1], priority=5, created="2026-03-01")
    assert in_turn([young, urgent, [], old]) == [urgent, old, young]
