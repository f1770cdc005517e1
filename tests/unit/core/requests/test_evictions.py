"""Whether a pod with a seat may be evicted: every state of seat and request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.reasons import Standing
from kybernate.core.requests.checkpoint import Mode, Outcome, Request, Status
from kybernate.core.requests.evictions import (
    EvictedSeat,
    continues,
    lost_pod,
    may_go,
    predecessor,
)
from kybernate.core.requests.reasons import Reason
from kybernate.core.seat.seats import shown
from kybernate.types import SeatState, Tier

NOW = 10_000.0
SEAT = EvictedSeat("u1", "active", "", "", keeps=True)
SAFE = replace(SEAT, state="parked", tier="object")
ASKED = Request(
    *("r1", "shop", "evict-u1-1", "a", Mode.EVICT, Tier.OBJECT, keys.WEBHOOK_USER, NOW, 300.0),
    keep_s=3600.0,
    status=Status(),
)
IN_OBJECT = Outcome("", "object", 7)


def ended(reason, ago=1.0, outcome=None, **more):
    status = Status("u1", "n1", "ckpt-r1", NOW - 90, NOW - ago, reason, "why", outcome)
    return replace(ASKED, created_at=NOW - 100, status=status, **more)


def test_pods_without_a_seat_or_a_state_go_at_once():
    for seat in (None, *(replace(SEAT, state=one) for one in ("waiting", "failed", "gone"))):
        assert may_go(seat, (), NOW) == (may_go(None, (), NOW))
        assert may_go(seat, (), NOW).allowed


def test_a_state_that_has_to_be_saved_is_asked_for_once_by_name():
    found = may_go(SEAT, (), NOW)
    assert (found.allowed, found.ask) == (False, "evict-u1-1")
    assert not may_go(SEAT, [ASKED], NOW).allowed
    assert not may_go(SEAT, [ASKED], NOW).ask
    assert may_go(SAFE, [ended(Reason.EVICTED, outcome=IN_OBJECT)], NOW).allowed


def test_a_seat_whose_name_another_pod_has_is_not_asked_for_again_and_again():
    """As where a node that is gone, or a rogue one, still tells of it."""
    pinned = replace(ASKED, status=replace(ASKED.status, pod_uid="u2", node="n2", began_at=NOW))
    found = may_go(SEAT, [pinned], NOW, taken=lambda name: name == pinned.name)
    assert (found.allowed, found.ask) == (True, "")
    other = replace(SEAT, uid="u2")
    assert not may_go(other, [pinned], NOW).allowed, "it is being saved"
    users = replace(pinned, by="ann")
    assert may_go(SEAT, [users], NOW, taken=lambda name: name == users.name).ask == "evict-u1-2"


def test_what_is_in_the_object_store_already_is_asked_for_as_well():
    """Without a request nothing says in whose place its successor comes, and that begins again."""
    assert may_go(SAFE, (), NOW).ask == "evict-u1-1"
    assert not may_go(SAFE, [ASKED], NOW).allowed
    for other in (Reason.PARKED, Reason.SEALED):
        assert may_go(SAFE, [ended(other, outcome=IN_OBJECT, name="mine")], NOW).ask
    old = ended(Reason.EVICTED, ago=601.0, outcome=IN_OBJECT)
    assert may_go(SAFE, [old], NOW).ask == "evict-u1-2", "a successor is looked for in that hour"
    plan = ended(Reason.EVICTED, outcome=IN_OBJECT, name="rbal-1", by=keys.CONTROLLER_USER)
    assert may_go(SAFE, [plan], NOW).allowed, "one for another purpose says the same"


@pytest.mark.parametrize("state", ["starting", "draining", "parking", "dumping", "waking"])
def test_what_is_on_its_way_is_saved_first(state):
    assert may_go(replace(SEAT, state=state), (), NOW).ask == "evict-u1-1"


@pytest.mark.parametrize("tier", ["ram", "nvme"])
def test_a_parked_state_that_goes_with_its_node_is_saved_first(tier):
    assert may_go(replace(SAFE, tier=tier), (), NOW).ask == "evict-u1-1"


@pytest.mark.parametrize("operation", ["save", "move", "evict", "park"])
@pytest.mark.parametrize("seat", [SEAT, SAFE, replace(SEAT, keeps=False)])
def test_nothing_goes_while_something_is_done_to_it(operation, seat):
    found = may_go(replace(seat, operation=operation), (), NOW)
    assert (found.allowed, found.ask) == (False, "")
    assert operation in found.sentence


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_goes_while_what_a_request_began_is_under_way(mode):
    status = Status("u1", "n1", "ckpt-r1", began_at=NOW, reason=Reason.RUNNING)
    one = replace(ASKED, name="mine", by="ann", mode=mode, tier=None, status=status)
    for seat in (SAFE, replace(SEAT, keeps=False)):
        found = may_go(seat, [one], NOW)
        assert (found.allowed, found.others) == (False, True)
    other = replace(one, status=replace(status, pod_uid="u0"))
    assert may_go(SAFE, [other], NOW).ask, "it was about the pod of before"


@pytest.mark.parametrize("reason", [None, Reason.QUEUED, Reason.SEAT_BUSY, Reason.PENDING])
def test_what_others_only_wait_for_holds_no_pod_back(reason):
    status = Status("u1", "n1", "ckpt-r1", reason=reason) if reason else Status()
    for name in ("before-the-change", "evict-u1-1"):
        one = replace(ASKED, name=name, by="ann", deadline_s=86_400.0, status=status)
        taken = name == "evict-u1-1"
        for seat in (SEAT, SAFE):
            assert may_go(seat, [one], NOW).ask == f"evict-u1-{1 + taken}"


def test_what_others_have_begun_is_not_waited_for_without_patience():
    status = Status("u1", "n1", "ckpt-r1", began_at=NOW, reason=Reason.RUNNING)
    one = replace(ASKED, name="mine", by="ann", status=status)
    seat = replace(SEAT, operation="save")
    assert may_go(seat, [one], NOW, patient=False).ask == "evict-u1-1"
    assert not may_go(seat, [one, ASKED], NOW, patient=False).allowed, "its own is waited for"
    assert may_go(seat, [one, ended(Reason.DEADLINE_EXCEEDED)], NOW, patient=False).allowed


@pytest.mark.parametrize("name", ["9", "evict-u1-999999999", f"evict-u1-{'9' * 200}", "evict-u2-1"])
def test_names_of_others_push_ours_nowhere(name):
    known = [replace(ended(Reason.FAILED), name=name, by="ann")]
    assert may_go(SEAT, known, NOW).ask == "evict-u1-1"
    assert may_go(SEAT, [*known, ended(Reason.FAILED, ago=700.0)], NOW).ask == "evict-u1-2"


def test_without_an_object_store_it_goes_and_says_what_that_costs():
    found = may_go(replace(SEAT, keeps=False), (), NOW)
    assert (found.allowed, "no object store" in found.sentence) == (True, True)


TERMINAL = [
    one
    for one in Reason
    if one.standing is Standing.TERMINAL and one not in (Reason.NOT_LET_GO, Reason.STALLED)
]


@pytest.mark.parametrize("reason", TERMINAL)
def test_what_can_not_be_saved_goes_and_is_tried_again_much_later(reason):
    found = may_go(SEAT, [ended(reason)], NOW)
    assert (found.allowed, found.sentence) == (True, "its state goes with it: evict-u1-1: why")
    assert may_go(SEAT, [ended(reason, ago=601.0)], NOW).ask == "evict-u1-2"


def test_what_a_budget_kept_is_saved_before_the_budget_lets_it_go():
    found = may_go(SEAT, [ended(Reason.NOT_LET_GO)], NOW)
    assert (found.allowed, found.ask) == (False, "evict-u1-2")


def test_what_got_stuck_on_its_way_is_tried_again_before_it_is_lost():
    stuck = [replace(ended(Reason.STALLED), name=f"evict-u1-{n}", uid=f"r{n}") for n in (1, 2, 3)]
    assert may_go(SEAT, stuck[:2], NOW).ask == "evict-u1-3"
    lost = may_go(SEAT, stuck, NOW)
    assert (lost.allowed, lost.sentence) == (True, "its state goes with it: evict-u1-3: why")


def test_an_agent_that_knows_no_tier_of_evictions_holds_nothing_up():
    for outcome in (None, Outcome("", "ram", 7)):
        assert may_go(SEAT, [ended(Reason.EVICTED, outcome=outcome)], NOW).allowed


def test_what_was_woken_since_is_saved_again():
    done = ended(Reason.EVICTED, outcome=IN_OBJECT)
    assert not may_go(SEAT, [done], NOW).allowed
    assert not may_go(SEAT, [done], NOW).ask, "its node may be yet to tell"
    done = ended(Reason.EVICTED, ago=31.0, outcome=IN_OBJECT, name="evict-u1-10")
    older = ended(Reason.FAILED, ago=3000.0, name="evict-u1-9")
    assert may_go(SEAT, [done, older], NOW).ask == "evict-u1-11"


def test_without_a_controller_nothing_is_held_up_for_ever():
    assert not may_go(SEAT, [ASKED], NOW + 329).allowed
    found = may_go(SEAT, [ASKED], NOW + 330)
    assert (found.allowed, "kyb-controller" in found.sentence) == (True, True)


requests = st.builds(
    lambda reason, at, made, name, tier: replace(
        ASKED,
        name=name,
        created_at=made,
        status=Status("u1", "n1", "o", made, at, reason, "m", Outcome("", tier, 1)),
    ),
    st.sampled_from([None, *Reason]),
    st.one_of(st.just(0.0), st.floats(1.0, NOW)),
    st.floats(1.0, NOW),
    st.sampled_from(["evict-u1-1", "evict-u1-2", "evict-u1-x", "other"]),
    st.sampled_from(list(Tier)),
)
seats = st.builds(
    EvictedSeat,
    st.just("u1"),
    st.sampled_from([*map(shown, SeatState), "", "unheard-of"]),
    st.sampled_from(["", *Tier]),
    st.sampled_from(["", "move"]),
    st.booleans(),
)


@given(seats, st.lists(requests, max_size=3))
def test_every_answer_is_one_and_only_what_is_held_back_is_asked_for(seat, known):
    found = may_go(seat, known, NOW)
    assert not (found.allowed and found.ask)
    assert found.allowed or found.sentence
    assert found.ask not in {one.name for one in known}
    settled = found.ask or found.allowed
    later = may_go(seat, known, NOW + 400.0, patient=False)
    assert settled or later.ask or later.allowed, "nothing waits for ever"


def left(pod, *, ago=10.0, successor="", owner="rs", outcome=IN_OBJECT, reason=Reason.EVICTED):
    status = Status(pod, "n1", "o", 1.0, NOW - ago, reason, "", outcome, owner=owner)
    return replace(ASKED, uid=f"of-{pod}", name=pod, status=status, successor=successor)


class Seen:
    """The pods `here` stay; successors that are `lost` left the artifact where it was."""

    def __init__(self, here=(), lost=()):
        self.here, self.lost = here, lost

    def stays(self, uid, node):
        return (uid, node) in self.here

    def untaken(self, uid, successor):
        return (uid, successor) in self.lost


gone = Seen()


def test_a_successor_continues_from_the_oldest_that_nobody_has():
    known = [left("a", ago=5.0), left("b", ago=7.0), left("c", ago=9.0, successor="other")]
    assert predecessor("new", known, gone, NOW).name == "b"
    known[1] = replace(known[1], successor="new")
    assert predecessor("new", known, gone, NOW).name == "b", "asked twice, it is the same one"
    assert predecessor("next", known, gone, NOW).name == "a"
    known[0] = replace(known[0], successor="next")
    assert predecessor("third", known, gone, NOW) is None


def test_nobody_continues_in_the_place_of_a_pod_that_stays():
    known = [left("a")]
    assert predecessor("new", known, Seen([("a", "n1")]), NOW) is None
    assert predecessor("new", known, Seen([("b", "n1")]), NOW).name == "a"


def test_what_agents_keep_no_longer_has_no_successor():
    assert predecessor("new", [left("a", ago=3599.0)], gone, NOW)
    assert predecessor("new", [left("a", ago=3600.0)], gone, NOW) is None


@pytest.mark.parametrize(
    "other",
    [
        left("a", owner=""),
        left("a", outcome=None),
        left("a", outcome=Outcome("", "nvme", 7)),
        *(left("a", reason=one) for one in Reason if one is not Reason.EVICTED),
    ],
)
def test_only_what_is_in_the_object_store_has_successors(other):
    assert continues(left("a"))
    assert not continues(other)
    assert predecessor("new", [other], gone, NOW) is None


def test_what_a_lost_successor_never_had_is_the_next_ones():
    known = [left("a", successor="lost")]
    assert predecessor("new", known, gone, NOW) is None
    assert predecessor("new", known, Seen(lost=[("a", "lost")]), NOW).name == "a"
    stays = Seen([("a", "n1")], [("a", "lost")])
    assert predecessor("new", known, stays, NOW) is None


def test_a_pod_that_moves_again_and_again_continues_from_where_it_was_last():
    """The node that it has left first still tells of what it left there."""
    known = [left("a", ago=90.0, successor="b"), left("b", ago=60.0, successor="c"), left("c")]
    late = Seen(lost=[("a", "b"), ("b", "c")])
    assert predecessor("d", known, late, NOW).name == "c"
    known[2] = replace(known[2], successor="d")
    assert predecessor("e", known, late, NOW) is None
    known[1] = replace(known[1], status=replace(known[1].status, reason=Reason.FAILED))
    known.pop()
    assert predecessor("d", known, late, NOW).name == "a", "nothing of b was put away"


def test_a_state_that_several_were_put_away_with_is_that_of_the_first_and_the_next_ones():
    """Those between never continued with it: no node tells of a state of theirs."""
    outcome = Outcome("shop/a@20260101T000000Z-00000001", "object", 7)
    known = [left("a", ago=90.0, successor="b", outcome=outcome), left("b", outcome=outcome)]
    for here in ([], [("b", "n1")]):
        assert predecessor("c", known, Seen(here), NOW).name == "a"
    assert predecessor("c", known, Seen([("b", "")]), NOW) is None, "it wasn't deleted"
    known[0] = replace(known[0], successor="c")
    assert predecessor("c", known, gone, NOW).name == "a"
    assert predecessor("d", known, gone, NOW) is None
    known.append(left("c", ago=5.0, outcome=outcome))
    assert predecessor("d", known, gone, NOW).name == "a"
    own = replace(outcome, artifact="shop/a@20260101T000001Z-00000001")
    known[2] = left("c", ago=5.0, outcome=own)
    assert predecessor("d", known, gone, NOW).name == "c", "it has continued"


def test_what_somebody_else_has_just_put_away_is_not_put_away_again():
    """Its node has not told yet that it is in the object store."""
    seat = EvictedSeat("a", shown(SeatState.PARKING), "", "", keeps=True)
    fresh = replace(left("a", ago=5.0), pod="a")
    answer = may_go(seat, [fresh], NOW)
    assert (answer.allowed, answer.ask) == (False, "")
    assert "just put there" in answer.sentence
    stale = replace(left("a", ago=60.0), pod="a")
    assert may_go(seat, [stale], NOW).ask == "evict-a-1"


def test_a_lost_pods_request_counts_while_it_is_open_if_the_controller_has_made_it():
    status = Status("u1", "n1", "ckpt-r1", reason=Reason.AGENT_UNREACHABLE, owner="rs")
    lost = replace(ASKED, name="lost-u1", by=keys.CONTROLLER_USER, status=status)
    assert (lost_pod(lost), continues(lost)) == ("u1", True)
    assert not continues(replace(lost, status=Status()))
    for other in (replace(lost, by="ann"), replace(lost, name="evict-u1-1")):
        assert (lost_pod(other), continues(other)) == ("", False)
    late = replace(status, ended_at=NOW, reason=Reason.DEADLINE_EXCEEDED)
    assert not continues(replace(lost, status=late))
