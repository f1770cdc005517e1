"""Which snapshots of a namespace may begin, and which evictions of a node and of the cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.policy.effective import Policy, PutAway
from kybernate.core.requests.checkpoint import Copied, Mode, Pace, Request, Status
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.turns import (
    WAITS_S,
    Limits,
    eviction_waits,
    has_turn,
    may_begin,
    takes_turn,
)

NOW = 100.0


def asked(number, **status):
    told = Status("u", "n", f"ckpt-{number}", **status)
    given_ = (f"r{number}", "shop", f"r{number}", "a", Mode.SNAPSHOT, None, "ann", float(number))
    return Request(*given_, deadline_s=60.0, keep_s=None, status=told)


def beginning(every, most):
    """Who has begun, or may begin now."""
    return [one.name for one in every if one.status.began_at or has_turn(one, every, most)]


def test_the_oldest_begin_and_what_has_begun_counts():
    every = [asked(number) for number in range(4)]
    assert beginning(every, 2) == ["r0", "r1"]
    every[3] = asked(3, began_at=1.0)
    assert beginning(every, 2) == ["r0", "r3"]
    every[3] = asked(3, began_at=1.0, ended_at=2.0)
    assert beginning(every, 2) == ["r0", "r1", "r3"]


_REASONS = st.sampled_from([None, Reason.PENDING, Reason.QUEUED, Reason.SEAT_BUSY])


@given(
    st.lists(st.tuples(_REASONS, st.booleans(), st.booleans()), max_size=9),
    st.integers(1, 4),
)
def test_whose_turn_it_is_are_those_who_wait_and_have_one(drawn, most):
    every = [
        asked(number, reason=reason, began_at=float(begun), ended_at=2.0 * (begun and over))
        for number, (reason, begun, over) in enumerate(drawn)
    ]
    every.append(replace(asked(20), mode=Mode.EVICT))
    wait = [one for one in every if not (one.ended or one.status.began_at)]
    able = [one for one in wait if one.status.reason is not Reason.SEAT_BUSY]
    able = [one for one in able if one.mode is Mode.SNAPSHOT]
    assert may_begin(every, most) == [one for one in able if has_turn(one, every, most)]


@pytest.mark.parametrize("mode", [one for one in Mode if one is not Mode.SNAPSHOT])
def test_other_modes_take_no_turn_and_wait_for_none(mode):
    others = [replace(asked(number), mode=mode) for number in range(3)]
    last = asked(9)
    assert has_turn(last, [*others, last], 1)
    begun = [asked(number, began_at=1.0) for number in range(3)]
    assert has_turn(others[0], [*begun, *others], 1)


@pytest.mark.parametrize(
    "reason", [Reason.SEAT_BUSY, Reason.AGENT_UNREACHABLE, Reason.SEAT_NOT_READY]
)
def test_what_can_not_begin_holds_up_nobody(reason):
    stuck, next_ = asked(1, reason=reason), asked(2, reason=Reason.QUEUED)
    next_ = replace(next_, status=replace(next_.status, node="other"))
    assert has_turn(next_, [stuck, next_], 1)
    stuck = asked(1, reason=reason, began_at=1.0)
    assert not has_turn(next_, [stuck, next_], 1), "its agent has it, and may be at it"


def test_what_waited_for_one_agent_does_not_begin_at_once_when_it_is_back():
    every = [asked(number, reason=Reason.AGENT_UNREACHABLE) for number in range(5)]
    assert beginning(every, 2) == ["r0", "r1"]


requests = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0]),
        st.sampled_from([0.0, 2.0]),
        st.sampled_from([None, *Reason]),
    ),
    max_size=8,
)


@given(requests, st.integers(1, 4))
def test_never_more_than_may_be_and_never_none_that_could(rows, most):
    every = [
        replace(
            asked(number, began_at=began, ended_at=ended, reason=reason), created_at=float(made)
        )
        for number, (made, began, ended, reason) in enumerate(rows)
    ]
    under_way = [one for one in every if one.status.began_at and not one.ended]
    waiting = [one for one in every if not one.status.began_at and not one.ended]
    # What is stuck counts for nobody until it gets on.
    free = [one for one in waiting if one.status.reason not in _STUCK]
    first = [one for one in free if has_turn(one, every, most)]
    assert len(first) == min(len(free), max(0, most - len(under_way)))


_STUCK = (
    *(Reason.POD_NOT_BOUND, Reason.SEAT_NOT_READY, Reason.SEAT_BUSY),
    Reason.DISRUPTION_BUDGET,
)


def evicting(number, node="n1", namespace="shop", **status):
    one = replace(asked(number, **status), mode=Mode.EVICT, namespace=namespace)
    return replace(one, status=replace(one.status, node=node))


def let(every):
    """Who has begun to be put away, or may now."""
    return [
        one.name
        for one in every
        if one.status.began_at or not eviction_waits(one, every, Limits(), NOW)
    ]


def test_two_of_a_node_and_five_of_the_cluster_whoever_asks():
    every = [evicting(number, f"n{number // 3}", f"of-{number}") for number in range(12)]
    assert let(every) == ["r0", "r1", "r3", "r4", "r6"]
    assert "2 states of node n0" in eviction_waits(every[2], every, Limits(), NOW)
    assert "5 states are put away" in eviction_waits(every[9], every, Limits(), NOW)
    every[8] = evicting(8, "n2", began_at=1.0)
    assert let(every) == ["r0", "r1", "r3", "r4", "r8"], "what has begun counts first"


def test_what_a_budget_keeps_and_what_is_lost_hold_up_nobody():
    kept = [evicting(number, reason=Reason.DISRUPTION_BUDGET) for number in range(9)]
    lost = [
        replace(evicting(number), name=f"lost-u{number}", by=keys.CONTROLLER_USER)
        for number in range(9, 20)
    ]
    last = evicting(99)
    assert eviction_waits(last, [*kept, *lost, last], Limits(), NOW) == ""
    busy = [evicting(number, began_at=1.0) for number in range(30, 40)]
    assert eviction_waits(lost[0], [*busy, *lost], Limits(), NOW) == "", "nothing of it is put away"
    snapshots = [asked(number, began_at=1.0) for number in range(40, 50)]
    assert eviction_waits(last, [*snapshots, last], Limits(), NOW) == ""


def test_a_seat_that_can_not_be_parked_holds_up_others_for_a_while_only():
    stuck = [evicting(number, began_at=NOW, reason=Reason.WAITING) for number in range(2)]
    last = evicting(9)
    assert eviction_waits(last, [*stuck, last], Limits(), NOW + WAITS_S)
    assert not eviction_waits(last, [*stuck, last], Limits(), NOW + WAITS_S + 1)
    running = [evicting(number, began_at=NOW, reason=Reason.RUNNING) for number in range(2)]
    assert eviction_waits(last, [*running, last], Limits(), NOW + WAITS_S + 1)


def test_evictions_on_a_dead_node_hold_up_others_for_a_while_only():
    dead = [evicting(n, began_at=NOW, reason=Reason.AGENT_UNREACHABLE) for n in range(5)]
    last = evicting(9, "n2")
    assert eviction_waits(last, [*dead, last], Limits(), NOW + 150)
    assert not eviction_waits(last, [*dead, last], Limits(), NOW + 151)
    copied = Copied(5, 100, since=NOW + 60)
    dead = [replace(one, status=replace(one.status, copied=copied)) for one in dead]
    assert eviction_waits(last, [*dead, last], Limits(), NOW + 210), "bytes came later"
    assert not eviction_waits(last, [*dead, last], Limits(), NOW + 211)
    assert not eviction_waits(last, [*dead, last], Limits(pace=Pace(idle=20.0)), NOW + 81)


@pytest.mark.parametrize("copied", [None, Copied(1, 1 << 62, since=9e9), Copied(9, 9, since=9e9)])
def test_an_agent_takes_a_turn_no_longer_than_the_pods_memory_can_take(copied):
    told = {"began_at": NOW, "reason": Reason.RUNNING, "limit": 1 << 30, "copied": copied}
    rogue = [evicting(number, **told) for number in range(5)]
    last = evicting(9, "n2")
    assert eviction_waits(last, [*rogue, last], Limits(), NOW + 270)
    assert not eviction_waits(last, [*rogue, last], Limits(), NOW + 271)


def test_without_a_limit_and_without_bytes_one_takes_a_turn_as_long_as_8_gib_would():
    quiet = [evicting(n, began_at=NOW, reason=Reason.RUNNING) for n in range(5)]
    last = evicting(9, "n2")
    assert eviction_waits(last, [*quiet, last], Limits(), NOW + 1320)
    assert not eviction_waits(last, [*quiet, last], Limits(), NOW + 1321)


def test_what_a_budget_keeps_takes_no_turn_from_those_who_make_room():
    assert takes_turn(evicting(1, reason=Reason.QUEUED), NOW)
    assert not takes_turn(evicting(1, reason=Reason.DISRUPTION_BUDGET), NOW)
    assert not takes_turn(evicting(1, began_at=1.0, ended_at=2.0), NOW)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30),
    st.integers(1, 3),
    st.integers(1, 6),
)
def test_there_are_never_more_evictions_and_no_room_is_wasted(world, of_node, at_once):
    limits, every = Limits(of_node, at_once), []
    for number, (node, began, ended) in enumerate(world):
        told = {"began_at": 1.0} if began or ended else {}
        every.append(evicting(number, f"n{node}", **told, **({"ended_at": 2.0} if ended else {})))
    before = Counter(o.status.node for o in every if o.status.began_at and not o.status.ended_at)
    for one in every:
        if one.status.began_at or eviction_waits(one, every, limits, NOW):
            continue
        before[one.status.node] += 1
        assert before[one.status.node] <= of_node
        assert before.total() <= at_once
    first = next((one for one in every if not one.status.began_at), None)
    began = Counter(o.status.node for o in every if o.status.began_at and not o.status.ended_at)
    if first and began[first.status.node] < of_node and began.total() < at_once:
        assert not eviction_waits(first, every, limits, NOW)


def by_policy(parallel, *names):
    """The policy of the pods of requests of these names, of which so many may go at a time."""
    policy = Policy("p1", "shop", "few", limits=PutAway(parallel))
    return lambda one: policy if one.name in names else None


def test_a_policy_lets_few_of_its_pods_go_at_a_time_and_holds_up_no_others():
    every = [evicting(number, f"n{number}") for number in range(4)]
    few = by_policy(1, "r0", "r1", "r2")
    limits = Limits(of_node=2, at_once=2)
    why = [eviction_waits(one, every, limits, NOW, few) for one in every]
    assert [bool(one) for one in why] == [False, True, True, False]
    assert why[1] == "1 states are put away, as many as CheckpointPolicy few lets at a time"
    every[2] = evicting(2, "n2", began_at=1.0)
    assert eviction_waits(every[0], every, limits, NOW, few), "what has begun counts first"
    assert not eviction_waits(every[0], every, limits, NOW)
    assert not eviction_waits(every[1], every, Limits(), NOW, by_policy(None, "r0", "r1"))
