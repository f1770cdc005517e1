"""The proxy's decisions: examples by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.types import NodeName, PodUid, SeatState
from proxy import quotas
from proxy.actions import (
    Abort,
    CheckAt,
    Client,
    Close,
    Drained,
    Limits,
    Outlook,
    Reject,
    Report,
    Rouse,
    SeatInfo,
    Serve,
    Verify,
    Wish,
)
from proxy.admission import REFUSED_AT_MOST, Admission
from proxy.quotas import SMALL

N1 = NodeName("n1")
A = PodUid("a")
B = PodUid("b")


def seat(uid=A, *, model="m", node=N1, group="G0", state=SeatState.PARKED, wake=0.0, reason=""):
    return SeatInfo(
        uid=uid,
        node=node,
        name=f"{group}-seat-{uid}",
        group=group,
        pod=f"default/{uid}",
        model=model,
        state=state,
        address="10.0.0.1:8000",
        reason=reason,
        last_wake_ms=wake,
    )


@pytest.fixture
def admission():
    return Admission(Limits(wait=10.0, waiting=3, lease_break=2.0))


def of(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


def test_who_waits_for_a_seat_that_can_not_serve_is_told_so(admission):
    admission.seat(seat(), 0)
    admission.seat(seat(B, model="other"), 0)
    for ticket, model in ((1, "m"), (2, "other"), (3, "m")):
        admission.arrive(ticket, model, 0)
    actions = admission.refuse(A, "it ended", 1)
    refused = [(one.ticket, one.status, one.reason) for one in of(actions, Reject)]
    assert refused == [(1, 502, "it ended"), (3, 502, "it ended")]
    assert admission.demand(A, 1).waiting == 0
    assert of(actions, Report)[-1].uid == A
    assert admission.demand(B, 1).waiting == 1
    assert admission.refuse(A, "it ended", 1) == admission.refuse(PodUid("x"), "", 1) == []


def sleeping(model="m", namespace="shop", wake=0.0):
    nowhere = ("", "", "", "", "a")
    return SeatInfo(*nowhere, model, SeatState.GONE, namespace=namespace, wake=wake)


def test_who_waits_for_what_is_scaled_to_zero_hears_how_long_it_takes(admission):
    """Until it is served: also while its seat is there, and no agent knows more."""
    admission.asleep([sleeping(wake=9.0), sleeping(wake=7.0)], 0)
    assert of(admission.arrive(2, "m", 0, wish=Wish(patience=7.0)), Rouse)
    assert admission.outlook(2, 2) == Outlook(2, 5.0, "scaled to zero")
    assert not of(admission.arrive(3, "m", 3, wish=Wish(patience=3.9)), Reject), "it is a guess"
    admission.leave(3, 3)
    info = replace(seat(state=SeatState.RESTORING), namespace="shop")
    admission.seat(info, 4)
    admission.asleep([], 4)
    assert admission.outlook(2, 4) == Outlook(4, 3.0, "restoring")
    admission.seat(replace(info, state=SeatState.PARKED_OBJECT, wake=1.0), 5)
    assert admission.left("shop/m", 5) == 2.0, "the seat that is asked is the same"
    (late,) = of(admission.tick(7), Reject)
    assert (late.ticket, late.retry_after) == (2, 0.0)


def test_a_guess_about_what_is_scaled_to_zero_refuses_nobody(admission):
    """Its bytes by a table, and the starts of others, are no ground for that."""
    sleepers = [sleeping(wake=60.0), sleeping("n", wake=60.0)]
    there = replace(seat(state=SeatState.ACTIVE), namespace="shop")
    admission.asleep(sleepers, 0)
    assert of(admission.arrive(1, "m", 0, wish=Wish(patience=20.0)), Rouse)
    admission.seat(there, 1)
    assert of(admission.grant(A, 1, 8), Serve)
    assert admission.left("shop/n", 8) == 60.0
    assert of(admission.arrive(2, "n", 8, wish=Wish(patience=20.0)), Rouse)


def test_what_a_model_took_from_zero_is_known_while_it_sleeps_or_has_a_seat(admission):
    def slept_and_asked(ticket, patience):
        admission.asleep([sleeping(wake=60.0)], 10)
        return admission.arrive(ticket, "m", 10, wish=Wish(patience=patience))

    assert of(slept_and_asked(1, 20.0), Rouse)
    admission.seat(replace(seat(state=SeatState.ACTIVE), namespace="shop"), 11)
    admission.asleep([], 11)
    assert of(admission.grant(A, 1, 18), Serve)
    admission.leave(1, 19)
    admission.asleep([sleeping(wake=60.0)], 19)
    admission.gone(A, 19)
    (refused,) = slept_and_asked(2, 7.9)
    assert (refused.code, refused.retry_after) == ("not_in_time", 8.0)
    assert "in 8.0 s" in refused.reason
    assert of(slept_and_asked(3, 8.0), Rouse)
    guessed = replace(seat(B, state=SeatState.PARKED_OBJECT), namespace="shop", wake=50.0)
    admission.seat(guessed, 11)
    admission.asleep([], 11)
    assert admission.left("shop/m", 12) == 6.0, "a guess of its agent's says no more than that"
    admission.leave(3, 12)
    admission.gone(B, 12)
    admission.asleep([], 12)
    assert of(slept_and_asked(4, 7.9), Rouse), "the model was gone meanwhile"


def test_what_a_pods_start_takes_is_learnt_from_all_models(admission):
    admission.asleep([sleeping(wake=7.0), sleeping("n", wake=1.0), sleeping("o")], 0)
    assert [admission.left(f"shop/{one}", 0) for one in "mno"] == [7.0, 1.0, None]
    admission.arrive(1, "m", 0)
    admission.seat(replace(seat(state=SeatState.STARTING), namespace="shop"), 1)
    assert of(admission.grant(A, 1, 9), Serve)
    assert [admission.left(f"shop/{one}", 9) for one in "no"] == [3.0, None]
    admission.arrive(2, "o", 9)
    assert admission.outlook(2, 10).left is None
    admission.seat(replace(seat(B, model="o"), namespace="shop"), 10)
    admission.grant(B, 1, 18)
    assert admission.left("shop/n", 18) == 3.0, "nobody knows what its bytes took"


def test_who_asks_for_what_is_scaled_to_zero_has_it_roused_and_is_served(admission):
    assert of(admission.arrive(1, "m", 0), Reject)[0].status == 404
    assert admission.asleep([sleeping()], 0) == []
    assert admission.models(0) == {"shop/m": "m"}
    for ticket in (2, 3):
        assert of(admission.arrive(ticket, "m", 0), Rouse) == [Rouse("shop/m")]
    info = replace(seat(), namespace="shop")
    assert of(admission.seat(info, 5), Report)[0].uid == A
    assert of(admission.asleep([], 6), Reject) == []
    assert [one.ticket for one in of(admission.grant(A, 1, 7), Serve)] == [2, 3]


def test_it_is_roused_for_who_waited_before_it_slept(admission):
    info = replace(seat(), namespace="shop")
    admission.seat(info, 0)
    assert of(admission.arrive(1, "m", 0), Rouse) == []
    assert of(admission.asleep([sleeping()], 1), Rouse) == [], "it has a pod still"
    assert of(admission.gone(A, 2), Rouse) == [Rouse("shop/m")]
    other = replace(seat(B, model="n"), namespace="shop")
    admission.seat(other, 3)
    admission.arrive(2, "n", 3)
    admission.gone(B, 4)
    assert of(admission.asleep([sleeping(), sleeping("n")], 5), Rouse) == [Rouse("shop/n")]


def test_who_waits_too_long_for_it_is_told_so_and_a_stranger_does_not_learn_of_it(admission):
    admission.asleep([sleeping()], 0)
    admission.arrive(1, "m", 0)
    (late,) = of(admission.tick(10), Reject)
    assert (late.status, "its Deployment was scaled to zero" in late.reason) == (429, True)
    stranger = Client("x", frozenset({"other"}))
    assert of(admission.arrive(2, "shop/m", 0, stranger), Reject)[0].status == 404
    assert admission.models(0, stranger) == {}


def test_who_another_seat_of_the_model_is_asked_for_goes_on_waiting(admission):
    admission.seat(seat(), 0)
    admission.seat(seat(B, state=SeatState.WAKING), 0)
    admission.arrive(1, "m", 0)
    assert admission.refuse(A, "it ended", 1) == []
    assert admission.demand(B, 1).waiting == 1


def test_a_granted_seat_is_served_at_once_under_its_generation(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 7, 0)
    (serve,) = of(admission.arrive(1, "m", 0), Serve)
    assert (serve.seat.uid, serve.generation, serve.held) == (A, 7, 0.0)


N2 = NodeName("n2")


@pytest.mark.parametrize("old_first", [True, False])
def test_a_seat_in_whose_place_another_is_gets_nothing_though_its_agent_comes_back(
    admission, old_first
):
    old = seat(state=SeatState.ACTIVE)
    new = replace(seat(B, node=N2, state=SeatState.ACTIVE), predecessor=A)
    for info in (old, new) if old_first else (new, old):
        admission.seat(info, 0)
    admission.grant(B, 1, 0)
    for now in (1, 2):
        admission.disconnected(N1, now)
        admission.connected(N1)
        admission.seat(old, now)
        admission.grant(A, now, now)
        (serve,) = of(admission.arrive(now, "m", now), Serve)
        assert serve.seat.uid == B
    assert not admission.knows(A)


def test_what_is_in_flight_at_a_seat_ends_once_another_is_in_its_place(admission):
    admission.seat(seat(state=SeatState.ACTIVE), 0)
    admission.grant(A, 1, 0)
    assert of(admission.arrive(1, "m", 0), Serve)
    actions = admission.seat(replace(seat(B, node=N2), predecessor=A), 1)
    assert [one.ticket for one in of(actions, Abort)] == [1]
    assert of(actions, Close) == [Close(A)]
    assert "Another pod continues" in of(actions, Abort)[0].reason
    assert of(admission.leave(1, 2), Serve) == []
    assert of(admission.arrive(2, "m", 2), Report)[-1].uid == B


@pytest.fixture
def asking():
    """Asks a registry whose place is taken."""
    return Admission(Limits(wait=10.0, waiting=3, lease_break=2.0, registry=True))


SAID = Verify(N2, "", B, A)


def two(asking):
    """A serves a request, and B's agent says that B has taken A's place."""
    asking.seat(seat(state=SeatState.ACTIVE), 0)
    asking.grant(A, 1, 0)
    assert of(asking.arrive(1, "m", 0), Serve)
    return asking.seat(replace(seat(B, node=N2, state=SeatState.ACTIVE), predecessor=A), 1)


def test_whose_place_may_be_taken_gets_nothing_new_until_the_registry_denies_it(asking):
    assert of(actions := two(asking), Verify) == [SAID]
    assert of(actions, Abort) == of(actions, Close) == []
    (report,) = of(asking.arrive(2, "m", 2), Report)
    assert report.uid == B
    assert of(asking.seat(seat(state=SeatState.ACTIVE), 2), Serve) == []
    (serve,) = of(asking.verified(B, A, 3, confirmed=False), Serve)
    assert (serve.ticket, serve.seat.uid) == (2, A)
    assert asking.demand(A, 3).in_flight == 2, "what was in flight still is"


def test_a_place_that_the_registry_says_is_taken_is(asking):
    two(asking)
    actions = asking.verified(B, A, 2, confirmed=True)
    assert [one.ticket for one in of(actions, Abort)] == [1]
    assert not asking.knows(A)
    asking.seat(seat(state=SeatState.ACTIVE), 3)
    assert not asking.knows(A)
    assert of(asking.seat(replace(seat(B, node=N2), predecessor=A), 3), Verify) == []


def test_it_may_be_taken_also_where_its_seat_comes_after_the_word(asking):
    new = replace(seat(B, node=N2), predecessor=A)
    assert of(asking.seat(new, 0), Verify) == [SAID]
    asking.seat(seat(state=SeatState.ACTIVE), 1)
    assert of(asking.grant(A, 1, 1), Serve) == []
    assert of(asking.arrive(1, "m", 1), Report)[0].uid == B
    assert [one.ticket for one in of(asking.gone(B, 2), Serve)] == [1], "nobody says it any more"


def test_an_agent_whose_word_was_denied_holds_no_other_seat_back(asking):
    two(asking)
    asking.verified(B, A, 2, confirmed=False)
    for uid, node, held in (("c", N2, False), ("d", NodeName("n3"), True)):
        asking.seat(replace(seat(PodUid(uid), node=node), predecessor=A), 3)
        served = of(asking.arrive(ord(uid), "m", 3), Serve)
        assert (not served) == held, "another node may be right"
    asking.forget_node(NodeName("n3"), 4)
    asking.seat(replace(seat(B, node=N2), predecessor=PodUid("x")), 4)
    actions = asking.seat(replace(seat(B, node=N2), predecessor=A), 4)
    assert of(actions, Verify) == [SAID], "it is asked again what it says again"
    assert of(asking.arrive(9, "m", 4), Serve)[0].seat.uid == A
    assert asking.verified(PodUid("y"), A, 5, confirmed=True) == []
    assert of(asking.verified(B, A, 5, confirmed=True), Close) == [Close(A)]


@pytest.mark.parametrize("uid", [A, B])
def test_nobody_takes_the_place_of_a_seat_of_another_model_or_its_own(admission, uid):
    admission.seat(seat(state=SeatState.ACTIVE), 0)
    admission.grant(A, 1, 0)
    model = "m" if uid == A else "other"
    admission.seat(replace(seat(uid, model=model, node=N2), predecessor=A), 1)
    assert admission.knows(A)


def test_an_unknown_model_is_refused_and_the_known_ones_are_not_told(admission):
    admission.seat(seat(model="n-secret"), 0)
    (reject,) = admission.arrive(1, "x", 0)
    assert isinstance(reject, Reject)
    assert reject.status == 404
    assert "n-secret" not in reject.reason


def test_the_first_waiting_request_is_reported_at_once(admission):
    admission.seat(seat(), 0)
    actions = admission.arrive(1, "m", 0)
    assert of(actions, Report) == [Report(N1, A, urgent=True)]
    assert of(actions, CheckAt) == [CheckAt(10.0)]
    assert admission.demand(A, 4).waiting == 1
    assert admission.demand(A, 4).oldest_wait == 4


def test_held_requests_are_served_in_order_when_the_grant_comes(admission):
    admission.seat(seat(), 0)
    for ticket in (1, 2, 3):
        admission.arrive(ticket, "m", ticket)
    served = of(admission.grant(A, 1, 5), Serve)
    assert [(s.ticket, s.held) for s in served] == [(1, 4), (2, 3), (3, 2)]
    assert admission.waiting() == {}


def test_a_seat_without_an_address_is_not_served_before_it_has_one(admission):
    admission.seat(replace(seat(), address=""), 0)
    admission.grant(A, 1, 0)
    assert not of(admission.arrive(1, "m", 0), Serve)
    assert of(admission.seat(seat(), 1), Serve)


def test_a_full_queue_is_answered_429(admission):
    admission.seat(seat(), 0)
    for ticket in (1, 2, 3):
        admission.arrive(ticket, "m", 0)
    (reject,) = admission.arrive(4, "m", 0)
    assert isinstance(reject, Reject)
    assert (reject.status, reject.code) == (429, "too_many_waiting")


def test_waiting_too_long_is_answered_429_naming_the_seats_state(admission):
    admission.seat(seat(), 0)
    admission.arrive(1, "m", 0)
    admission.arrive(2, "m", 1)
    (reject,) = of(admission.tick(10), Reject)
    assert (reject.ticket, reject.status) == (1, 429)
    assert "n1/G0-seat-a is parked" in reject.reason
    assert admission.demand(A, 10).waiting == 1


def test_waiting_for_a_failed_seat_ends_in_503_with_the_cause(admission):
    admission.seat(seat(state=SeatState.FAILED, reason="restore ran out of memory"), 0)
    admission.arrive(1, "m", 0)
    (reject,) = of(admission.tick(10), Reject)
    assert reject.status == 503
    assert "restore ran out of memory" in reject.reason


def test_a_request_that_left_lowers_the_demand_and_is_not_served(admission):
    admission.seat(seat(), 0)
    admission.arrive(1, "m", 0)
    assert of(admission.leave(1, 1), Report) == [Report(N1, A, urgent=True)]
    assert admission.demand(A, 1).waiting == 0
    assert not of(admission.grant(A, 1, 2), Serve)


def test_a_drain_lets_requests_finish_and_then_says_so(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    assert not of(admission.drain(N1, A, 1, 1), Drained)
    assert not of(admission.arrive(2, "m", 1), Serve)
    assert of(admission.leave(1, 2, answered=True), Drained) == [Drained(N1, A, 1)]
    assert admission.is_drained(A, 1)
    assert admission.demand(A, 2).requests == 1
    assert [s.generation for s in of(admission.grant(A, 2, 3), Serve)] == [2]
    assert not admission.is_drained(A, 1)


def test_a_drain_of_an_idle_seat_is_answered_at_once_also_a_second_time(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    assert of(admission.drain(N1, A, 1, 1), Drained) == [Drained(N1, A, 1)]
    assert of(admission.drain(N1, A, 1, 1), Drained) == [Drained(N1, A, 1)]


def test_a_drain_of_an_unknown_seat_is_answered_so_that_nobody_waits_for_it(admission):
    assert admission.drain(N1, A, 3, 0) == [Drained(N1, A, 3)]
    assert admission.is_drained(A, 3)


def test_a_grant_takes_a_drain_back(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    admission.drain(N1, A, 1, 1)
    admission.grant(A, 1, 2)
    assert of(admission.arrive(2, "m", 2), Serve)
    assert not of(admission.leave(1, 3), Drained)


@pytest.fixture
def pair(admission):
    """A serves, B of the same group is parked, and their agent takes leases back."""
    admission.takes_back(N1, yes=True)
    admission.seat(seat(A, state=SeatState.ACTIVE), 0)
    admission.seat(seat(B, model="n"), 0)
    admission.grant(A, 1, 0)
    return admission


def test_an_idle_lease_goes_back_with_the_demand_for_its_group(pair):
    actions = pair.arrive(1, "n", 1)
    assert actions.index(Close(A)) < actions.index(Report(N1, B, urgent=True))
    assert pair.given_back(N1) == [(A, 1)]
    assert pair.given_back(N1) == []
    assert not of(pair.arrive(2, "m", 2), Serve)
    assert [one.ticket for one in of(pair.grant(A, 1, 3), Serve)] == [2]


def test_who_asks_for_what_was_given_back_waits_for_no_wake_yet():
    """Until the agent has said whether it stays, it is awake: no quota, and nobody is refused."""
    one = Admission(Limits(wait=10.0, client_wakes=1))
    one.takes_back(N1, yes=True)
    one.seat(seat(A, state=SeatState.ACTIVE, wake=9000.0), 0)
    one.seat(seat(B, model="n"), 0)
    one.grant(A, 1, 0)
    client = Client("1")
    one.arrive(1, "n", 1, client)
    wakes = dict(one.usage.wakes)
    assert not of(one.arrive(2, "m", 1, client, Wish(patience=0.5)), Reject)
    assert not of(one.arrive(3, "m", 1, client), Reject)
    assert dict(one.usage.wakes) == wakes
    assert [two.ticket for two in of(one.grant(A, 1, 1.01), Serve)] == [2, 3]


def test_a_seat_that_its_agent_drains_is_no_more_at_hand(pair):
    pair.arrive(1, "n", 1)
    pair.drain(N1, A, 1, 1)
    pair.seat(replace(seat(A, state=SeatState.ACTIVE), last_wake_ms=9000.0), 1)
    assert of(pair.arrive(2, "m", 1, wish=Wish(patience=0.5)), Reject)


def test_a_lease_that_was_granted_again_does_not_go_back(pair):
    pair.arrive(1, "n", 1)
    pair.grant(A, 2, 1)
    assert pair.given_back(N1) == []
    assert of(pair.arrive(2, "m", 2), Serve)


def test_of_a_seat_that_is_gone_no_lease_goes_back(pair):
    """It was granted again, and a request is in flight there."""
    pair.arrive(1, "n", 1)
    pair.grant(A, 2, 1)
    assert of(pair.arrive(2, "m", 2), Serve)
    pair.gone(A, 3)
    assert pair.given_back(N1) == []


def test_what_is_given_back_goes_with_the_next_demand_whoever_it_is_for(pair):
    pair.arrive(1, "n", 1)
    pair.leave(1, 1)
    assert pair.demand(B, 1).waiting == 0
    assert pair.given_back(N1) == [(A, 1)]


@pytest.mark.parametrize("busy", ["in flight", "of another group", "an agent that asks"])
def test_no_other_lease_goes_back(pair, busy):
    if busy == "in flight":
        pair.arrive(9, "m", 0)
    elif busy == "of another group":
        pair.seat(seat(B, model="n", group="G1"), 0)
    else:
        pair.takes_back(N1, yes=False)
    assert not of(pair.arrive(1, "n", 1), Close)
    assert pair.given_back(N1) == []


def test_a_broken_stream_gives_nothing_back(pair):
    pair.arrive(1, "n", 1)
    pair.disconnected(N1, 1)
    pair.connected(N1)
    pair.takes_back(N1, yes=True)
    assert pair.given_back(N1) == []


def test_a_revoke_ends_what_is_in_flight(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    assert [a.ticket for a in of(admission.revoke(A, 1, 1), Abort)] == [1]
    assert not of(admission.arrive(2, "m", 1), Serve)


@pytest.mark.parametrize("order", ["drain", "revoke"])
def test_an_order_for_an_older_lease_is_ignored(admission, order):
    admission.seat(seat(), 0)
    admission.grant(A, 2, 0)
    admission.arrive(1, "m", 0)
    node = (N1,) if order == "drain" else ()
    assert getattr(admission, order)(*node, A, 1, 1) == []
    assert of(admission.arrive(2, "m", 1), Serve)


def test_a_broken_stream_starts_nothing_and_ends_flights_after_the_deadline(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    assert of(admission.disconnected(N1, 1), CheckAt) == [CheckAt(3.0)]
    assert not of(admission.arrive(2, "m", 1), Serve)
    assert not of(admission.tick(2.9), Abort)
    assert [a.ticket for a in of(admission.tick(3.0), Abort)] == [1]


def test_a_stream_that_returns_with_a_grant_spares_what_is_in_flight(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    admission.disconnected(N1, 1)
    assert of(admission.connected(N1), Report) == [Report(N1, A, urgent=True)]
    admission.seat(seat(state=SeatState.ACTIVE), 2)
    admission.grant(A, 1, 2)
    assert not of(admission.tick(3.0), Abort)
    assert admission.demand(A, 3).in_flight == 1


def test_seats_that_a_restarted_agent_does_not_name_are_forgotten(admission):
    admission.seat(seat(A), 0)
    admission.seat(seat(B, model="n"), 0)
    admission.disconnected(N1, 1)
    admission.connected(N1)
    admission.seat(seat(A), 2)
    admission.forget_unconfirmed(N1, 7)
    assert admission.models(7) == {"m": "m"}


def test_a_forgotten_seat_that_comes_back_still_counts_what_is_in_flight(admission):
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    admission.gone(A, 1)
    admission.seat(seat(), 2)
    assert not of(admission.drain(N1, A, 1, 3), Drained)
    assert of(admission.leave(1, 4), Drained) == [Drained(N1, A, 1)]


def test_of_several_granted_seats_the_least_loaded_is_served(admission):
    for uid in (A, B):
        admission.seat(seat(uid), 0)
        admission.grant(uid, 1, 0)
    chosen = [of(admission.arrive(t, "m", 0), Serve)[0].seat.uid for t in (1, 2, 3)]
    assert chosen == [A, B, A]


@pytest.mark.parametrize(
    ("first", "second", "woken"),
    [
        pytest.param({"state": SeatState.PARKED}, {"state": SeatState.WAKING}, B, id="on its way"),
        pytest.param({"state": SeatState.WAITING}, {"state": SeatState.PARKED}, B, id="started"),
        pytest.param({"wake": 900.0}, {"wake": 20.0}, B, id="wakes faster"),
        pytest.param({"state": SeatState.FAILED}, {"state": SeatState.WAITING}, B, id="not failed"),
        pytest.param({}, {}, A, id="else the first by name"),
    ],
)
def test_of_several_parked_seats_the_cheapest_is_woken(admission, first, second, woken):
    admission.seat(seat(A, group="G0", **first), 0)
    admission.seat(seat(B, group="G1", **second), 0)
    admission.arrive(1, "m", 0)
    assert {uid: admission.demand(uid, 0).waiting for uid in (A, B)} == {
        A: int(woken == A),
        B: int(woken == B),
    }


PARKED = SeatState.PARKED
NVME, OBJECT = SeatState.PARKED_NVME, SeatState.PARKED_OBJECT


@pytest.mark.parametrize(
    ("first", "second", "woken"),
    [
        pytest.param({"state": NVME, "wake": 0.1}, {"state": PARKED, "wake": 5.0}, B, id="RAM"),
        pytest.param({"state": OBJECT}, {"state": NVME}, B, id="NVMe before the object store"),
        pytest.param({"state": NVME, "wake": 9.0}, {"state": NVME, "wake": 1.0}, B, id="sooner"),
        pytest.param({"state": NVME, "wake": 9.0}, {"state": OBJECT, "wake": 1.0}, A, id="nearer"),
        pytest.param({"state": NVME}, {"state": SeatState.RESTORING, "wake": 9.0}, B, id="begun"),
    ],
)
def test_a_seat_that_is_parked_less_deep_or_sooner_awake_is_woken(admission, first, second, woken):
    for uid, group, how in ((A, "G0", first), (B, "G1", second)):
        admission.seat(replace(seat(uid, group=group), **how), 0)
    admission.arrive(1, "m", 0)
    assert admission.demand(woken, 0).waiting == 1


@pytest.mark.parametrize(("wake", "woken"), [(1.5, A), (3.5, B)])
def test_a_whole_second_counts_more_than_waiting_for_others(admission, wake, woken):
    """The group of `b` is busy, the one of `a` isn't."""
    admission.seat(replace(seat(A, group="G0"), wake=wake), 0)
    admission.seat(replace(seat(B, group="G1"), wake=1.0), 0)
    admission.seat(seat(PodUid("c"), model="other", group="G1"), 0)
    admission.grant(PodUid("c"), 1, 0)
    admission.arrive(1, "other", 0)
    admission.arrive(2, "m", 0)
    assert admission.demand(woken, 0).waiting == 1


def test_a_seat_of_an_agent_that_tells_no_time_is_not_taken_for_the_fastest(admission):
    """An agent of before says 0. Its seat's group is busy, so that the other's turn comes first."""
    admission.seat(replace(seat(A, group="G0"), wake=0.0), 0)
    admission.seat(replace(seat(B, group="G1"), wake=2.0), 0)
    admission.seat(seat(PodUid("c"), model="other", group="G0"), 0)
    admission.grant(PodUid("c"), 1, 0)
    admission.arrive(1, "other", 0)
    admission.arrive(2, "m", 0)
    assert admission.demand(B, 0).waiting == 1


def test_who_waited_too_long_is_told_in_which_tier_the_seat_is(admission):
    admission.seat(replace(seat(state=NVME), tier="nvme"), 0)
    admission.arrive(1, "m", 0)
    (reject,) = of(admission.tick(10), Reject)
    assert "n1/G0-seat-a is parked in nvme" in reject.reason


def test_a_seat_in_a_quiet_group_is_woken_before_one_in_a_busy_group(admission):
    admission.seat(seat(A, group="G0"), 0)
    admission.seat(seat(PodUid("c"), model="other", group="G0"), 0)
    admission.seat(seat(B, group="G1"), 0)
    admission.grant(PodUid("c"), 1, 0)
    admission.arrive(1, "other", 0)
    admission.arrive(2, "m", 0)
    assert admission.demand(B, 0).waiting == 1


def test_a_seat_on_its_way_is_not_given_up_for_another_as_good(admission):
    admission.seat(seat(A, group="G0", wake=50.0), 0)
    admission.arrive(1, "m", 0)
    admission.seat(seat(B, group="G1", wake=1.0), 0)
    admission.arrive(2, "m", 0)
    assert admission.demand(A, 0).waiting == 2
    assert admission.demand(B, 0).waiting == 0


def test_waiting_requests_move_to_another_seat_when_theirs_is_gone(admission):
    admission.seat(seat(A, group="G0"), 0)
    admission.arrive(1, "m", 0)
    admission.seat(seat(B, group="G1"), 0)
    assert of(admission.gone(A, 1), Report) == [Report(N1, B, urgent=True)]
    assert admission.demand(B, 1).waiting == 1


def test_bodies_have_a_budget_of_all_and_one_of_each_client():
    admission = Admission(Limits(bodies=100, client_bodies=60))
    greedy, other = Client("greedy"), Client("other")
    assert admission.announce(1, 60, greedy) == []
    assert admission.receive(1, 50, greedy) == []
    assert [r.code for r in admission.announce(2, 11, greedy)] == ["client_bodies_full"]
    assert admission.receive(2, 10, greedy) == []
    assert [r.status for r in admission.receive(2, 1, greedy)] == [429]
    assert admission.receive(3, 40, other) == []
    (refused,) = admission.receive(3, 1, other)
    assert (refused.ticket, refused.status, refused.code) == (3, 503, "bodies_full")
    assert admission.body_bytes == 100
    admission.release(1)
    admission.release(1)
    assert admission.body_bytes == 50
    assert admission.receive(3, 20, other) == []


def test_large_bodies_leave_an_eighth_to_small_ones():
    whole = 32 * SMALL
    admission = Admission(Limits(bodies=whole, client_bodies=whole))
    assert admission.receive(1, SMALL, Client("a")) == []
    assert admission.receive(1, 26 * SMALL, Client("a")) == []
    assert [r.code for r in admission.announce(2, SMALL + 1, Client("b"))] == ["bodies_full"]
    assert admission.receive(2, SMALL, Client("b")) == [], "a small one so far"
    (refused,) = admission.receive(2, 1, Client("b"))
    assert (refused.status, refused.code) == (503, "bodies_full")
    for ticket in (3, 4, 5, 6):
        assert admission.receive(ticket, SMALL, Client("c")) == []
    assert [r.code for r in admission.receive(7, 1, Client("d"))] == ["bodies_full"]
    admission.release(1)
    assert admission.receive(2, SMALL, Client("b")) == []
    assert admission.body_bytes == 6 * SMALL


def test_a_wake_is_counted_to_its_client_and_namespace_and_comes_back_with_time():
    admission = Admission(Limits(waiting=2, client_wakes=2, namespace_wakes=3))
    for uid, model in (("a", "m"), ("b", "n"), ("c", "o"), ("d", "p")):
        admission.seat(replace(seat(PodUid(uid), model=model), namespace="shop"), 0)
    one, two = Client("one"), Client("two")
    assert of(admission.arrive(1, "m", 0, one), CheckAt)
    assert of(admission.arrive(2, "m", 0, one), CheckAt), "joins one that is under way"
    assert of(admission.arrive(3, "n", 0, one), CheckAt)
    (refused,) = admission.arrive(4, "o", 0, one)
    assert (refused.status, refused.code, refused.retry_after) == (429, "wake_quota", 30.0)
    assert of(admission.arrive(5, "o", 0, two), CheckAt)
    (refused,) = admission.arrive(6, "p", 0, two)
    assert "namespace 'shop'" in refused.reason
    assert refused.retry_after == 20.0
    assert of(admission.arrive(7, "p", 30.0, one), CheckAt)


def test_the_seconds_of_a_seat_are_divided_among_whose_requests_are_there():
    admission = Admission(Limits())
    admission.seat(replace(seat(), namespace="shop"), 0)
    one, two = Client("one", known=True), Client("two", known=True)
    admission.arrive(1, "m", 0, one)
    admission.grant(A, 1, 10.0)
    admission.arrive(2, "m", 14.0, two)
    admission.arrive(3, "m", 16.0, Client("10.0.0.9"))
    admission.leave(2, 19.0)
    admission.leave(1, 21.0)
    admission.leave(3, 22.0)
    assert admission.usage.seconds == {
        "one": {"shop": pytest.approx(4 + 1 + 1 + 1)},
        "two": {"shop": pytest.approx(1 + 1)},
        "": {"shop": pytest.approx(1 + 1 + 1)},
    }
    assert admission.usage.requests == {"one": 1, "two": 1, "": 1}
    assert admission.usage.wakes == {"one": 1}


def test_of_clients_without_end_those_of_long_ago_are_counted_together(monkeypatch):
    monkeypatch.setattr(quotas, "_MOST_CLIENTS", 2)
    admission = Admission(Limits())
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    for number, name in enumerate(["old", "one", "old", "two", "three"]):
        admission.arrive(number, "m", number * 10.0, Client(name, known=True))
        if name != "two":
            admission.leave(number, number * 10.0 + 2)
    admission.leave(3, 50.0)
    had = admission.usage.seconds
    assert sum(sum(one.values()) for one in had.values()) == pytest.approx(2 + 2 + 2 + 2 + 18)
    assert set(had) == set(admission.usage.requests) == {"", "two", "three"}
    assert admission.usage.requests == {"": 3, "two": 1, "three": 1}


def test_what_is_in_flight_at_a_seat_that_comes_back_counts_on_as_it_did():
    admission = Admission(Limits())
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0, Client("one", known=True))
    admission.gone(A, 5.0)
    admission.seat(seat(), 6.0)
    admission.leave(1, 8.0)
    assert admission.usage.seconds == {"one": {"": pytest.approx(8.0)}}


def test_a_request_to_a_seat_that_is_awake_costs_no_wake():
    admission = Admission(Limits(client_wakes=1, namespace_wakes=1))
    admission.seat(seat(), 0)
    admission.grant(A, 1, 0)
    for ticket in range(5):
        assert of(admission.arrive(ticket, "m", 0), Serve)


def test_a_proxy_that_resigns_keeps_no_lease_not_even_one_that_comes_late(admission):
    admission.seat(seat(A), 0)
    admission.seat(seat(B, model="n"), 0)
    admission.grant(A, 1, 0)
    admission.arrive(1, "m", 0)
    admission.arrive(2, "n", 0)
    assert [r.ticket for r in of(admission.refuse_all("stopped"), Reject)] == [2]
    assert admission.waiting() == {}
    assert of(admission.resign(), Drained) == [], "one is still in flight"
    assert of(admission.leave(1, 1), Drained) == [Drained(N1, A, 1)]
    assert of(admission.grant(B, 5, 2), Drained) == [Drained(N1, B, 5)]
    assert admission.is_drained(B, 5)
    assert not of(admission.arrive(3, "n", 2), Serve)


def test_clients_that_wait_take_turns_and_a_priority_counts_among_ones_own(admission):
    admission = Admission(Limits(waiting=9))
    admission.seat(seat(), 0)
    many, few = Client("many"), Client("few")
    for ticket in (1, 2, 3):
        admission.arrive(ticket, "m", ticket, many)
    admission.arrive(4, "m", 4, few)
    admission.arrive(5, "m", 5, few, Wish(priority=9))
    served = of(admission.grant(A, 1, 6), Serve)
    assert [one.ticket for one in served] == [1, 5, 2, 4, 3]


def test_a_full_queue_takes_one_more_of_who_has_few_for_one_of_who_has_the_most():
    admission = Admission(Limits(waiting=3))
    admission.seat(seat(), 0)
    many, few = Client("many"), Client("few")
    for ticket in (1, 2, 3):
        admission.arrive(ticket, "m", ticket, many)
    actions = admission.arrive(4, "m", 4, few)
    assert isinstance(actions[0], CheckAt), "the newcomer is held"
    assert [(r.ticket, r.code) for r in of(actions, Reject)] == [(3, "too_many_waiting")]
    assert [r.ticket for r in of(admission.arrive(5, "m", 5, few), Reject)] == [5]
    assert admission.demand(A, 6).waiting == 3


@pytest.mark.parametrize(
    ("told", "measured", "patience", "refused"),
    [
        (4.0, True, 3.0, True),
        (4.0, True, 5.0, False),
        (4.0, False, 3.0, False),
        (0.0, False, 0.5, False),
    ],
)
def test_who_would_wait_too_long_is_refused_at_once_and_wakes_nothing(
    admission, told, measured, patience, refused
):
    """Where nobody has measured how long it takes, it waits for as long as it may."""
    admission.seat(replace(seat(), wake=told, measured=measured), 0)
    actions = admission.arrive(1, "m", 0, wish=Wish(patience=patience))
    rejects = [(r.status, r.code, r.retry_after) for r in of(actions, Reject)]
    assert rejects == ([(503, "not_in_time", 4.0)] if refused else [])
    assert admission.demand(A, 0).waiting == int(not refused)
    assert of(actions, CheckAt) == ([] if refused else [CheckAt(patience)])
    assert [r.code for r in of(admission.tick(patience), Reject)] == (
        [] if refused else ["wait_limit"]
    )


def test_a_guess_is_told_refuses_nobody_and_gives_way_to_what_a_wait_took(admission):
    """The object store is as fast as it is, whatever a table of tiers says of it."""
    asleep = replace(seat(), state=SeatState.PARKED_OBJECT, wake=200.0)
    admission.seat(asleep, 0)
    assert admission.left("m", 0) == 200.0
    assert not of(admission.arrive(1, "m", 0, wish=Wish(patience=30.0)), Reject)
    assert admission.outlook(1, 2).left == 198.0
    assert not of(admission.arrive(2, "m", 2, wish=Wish(patience=30.0)), Reject), "still a guess"
    admission.grant(A, 1, 6)
    for ticket in (1, 2):
        admission.leave(ticket, 7)
    admission.drain(N1, A, 1, 7)
    admission.revoke(A, 1, 7)
    admission.seat(asleep, 8)
    assert admission.left("m", 8) == 6.0
    assert of(admission.arrive(3, "m", 8, wish=Wish(patience=5.9)), Reject)
    assert not of(admission.arrive(4, "m", 8, wish=Wish(patience=6.0)), Reject)


def test_a_time_that_was_long_by_chance_is_measured_again(admission):
    """Nobody who is refused wakes anything: it would be believed for ever."""
    brief = Wish(patience=5.0)
    admission.seat(replace(seat(), wake=300.0, measured=True), 0)
    assert of(admission.arrive(1, "m", 10, wish=brief), Reject)
    assert of(admission.arrive(2, "m", 9 + REFUSED_AT_MOST, wish=brief), Reject)
    assert not of(admission.arrive(3, "m", 10 + REFUSED_AT_MOST, wish=brief), Reject)
    assert of(admission.arrive(4, "m", 11 + REFUSED_AT_MOST, wish=brief), Reject), "one is enough"
    assert admission.demand(A, 11 + REFUSED_AT_MOST).waiting == 1


def test_what_is_left_of_a_wake_counts_for_who_comes_later_and_for_retry_after(admission):
    admission.seat(replace(seat(), wake=4.0, measured=True), 0)
    admission.arrive(1, "m", 0)
    assert of(admission.arrive(9, "m", 1, wish=Wish(patience=2.0)), Reject)
    assert admission.outlook(1, 1.0).left == 3.0
    assert "parked" in admission.outlook(1, 1.0).told
    assert not of(admission.arrive(2, "m", 3, wish=Wish(patience=2.0)), Reject)
    admission.arrive(3, "m", 3)
    (full,) = of(admission.arrive(4, "m", 3), Reject)
    assert (full.code, full.retry_after) == ("too_many_waiting", 1.0)
    assert admission.outlook(4, 3) is None


def test_a_wait_that_took_longer_than_told_is_expected_next_time(admission):
    """Its agent tells what a wake takes, and not that another seat is drained first."""
    for waited in (8.0, 8.0):
        admission.seat(replace(seat(), wake=1.0), 0)
        admission.arrive(1, "m", 0)
        admission.seat(replace(seat(), state=SeatState.WAKING), 7)
        admission.grant(A, 1, waited)
        admission.leave(1, waited)
        admission.drain(N1, A, 1, waited)
        admission.revoke(A, 1, waited)
    admission.seat(replace(seat(), wake=1.0), 9)
    (refused,) = of(admission.arrive(2, "m", 10, wish=Wish(patience=5.0)), Reject)
    assert (refused.code, refused.retry_after) == ("not_in_time", 8.0)


def test_a_full_seat_has_the_next_wait_and_one_of_another_group_woken():
    admission = Admission(Limits(at_seat=2, client_wakes=1))
    admission.seat(seat(A, group="G0"), 0)
    admission.grant(A, 1, 0)
    assert of(admission.arrive(1, "m", 0), Serve)
    assert of(admission.arrive(2, "m", 0), Serve)
    actions = admission.arrive(3, "m", 0)
    assert not of(actions, Serve | Report), "there is nothing to wake, and no wake is counted"
    admission.seat(seat(PodUid("c"), group="G0"), 0)
    assert admission.demand(PodUid("c"), 0).waiting == 0, "it could only take the other's place"
    assert of(admission.seat(seat(B, group="G1"), 0), Report) == [Report(N1, B, urgent=True)]
    assert admission.demand(B, 0).waiting == 1
    assert [s.ticket for s in of(admission.leave(1, 1, answered=True), Serve)] == [3]
    assert admission.demand(B, 1).waiting == 0


def test_the_wakes_of_a_minute_are_shared_by_all_proxies_and_no_agent_takes_them_away():
    admission = Admission(Limits(client_wakes=6, waiting=9))
    for number, (node, proxies) in enumerate((("n1", 3), ("n2", 3), ("n3", 4_000_000))):
        admission.connected(NodeName(node))
        admission.replicas(NodeName(node), proxies)
        admission.seat(seat(PodUid(str(number)), model=f"m{number}", node=NodeName(node)), 0)
    codes = []
    for ticket in range(3):
        actions = admission.arrive(ticket, f"m{ticket}", 0)
        codes += [one.code for one in of(actions, Reject)]
    assert codes == ["wake_quota"], "a third of six"
    for node in ("n1", "n2", "n3"):
        admission.disconnected(NodeName(node), 1)
    admission.connected(N1)
    admission.replicas(N1, 1)
    assert not of(admission.arrive(9, "m2", 61), Reject), "the others are gone"


def test_a_seat_that_another_proxy_asks_for_is_asked_for_here_too(admission):
    admission.seat(seat(A, group="G0"), 0)
    admission.seat(replace(seat(B, group="G1", wake=9.0), awaited=True), 0)
    admission.arrive(1, "m", 0)
    assert admission.demand(B, 0).waiting == 1


@given(
    facts=st.lists(
        st.tuples(
            st.sampled_from([PARKED, NVME, SeatState.WAKING, SeatState.DRAINING]),
            st.sampled_from(["G0", "G1", "G2"]),
            st.floats(0.0, 3.0),
        ),
        min_size=2,
        max_size=5,
    ),
    busy=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_proxies_that_share_nothing_settle_on_one_seat(facts, busy):
    """Each sees its own requests in other groups, and so chooses another seat at first. What their
    agent then tells them all of who is asked for makes them one."""
    proxies = [Admission(Limits(waiting=9)) for _ in range(3)]
    rest = [seat(PodUid(f"r{n}"), model="rest", group=f"G{n}") for n in range(3)]
    seats = [
        replace(seat(PodUid(f"s{n}"), group=group, state=state), wake=wake)
        for n, (state, group, wake) in enumerate(facts)
    ]
    for number, (proxy, most) in enumerate(zip(proxies, busy, strict=True)):
        for one in (*seats, *rest):
            proxy.seat(one, 0)
        target = rest[number]
        proxy.grant(target.uid, 1, 0)
        for ticket in range(most):
            proxy.arrive(100 + ticket, "rest", 0)
        proxy.arrive(1, "m", 0)
    for _ in range(3):
        asked = {s.uid for s in seats for proxy in proxies if proxy.demand(s.uid, 0).waiting}
        for one in seats:
            for proxy in proxies:
                proxy.seat(replace(one, awaited=one.uid in asked), 1)
    asked = [[s.uid for s in seats if proxy.demand(s.uid, 1).waiting] for proxy in proxies]
    assert len({tuple(one) for one in asked}) == 1
    assert len(asked[0]) == 1
