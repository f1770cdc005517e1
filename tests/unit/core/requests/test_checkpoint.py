"""What becomes of a CheckpointRequest: every answer of the world, and crashes between steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.policy.effective import Policy, PutAway
from kybernate.core.reasons import Standing
from kybernate.core.requests.asked import MOST_RESTARTS, Copied
from kybernate.core.requests.checkpoint import (
    PACE,
    Act,
    Mode,
    Observed,
    Operation,
    Outcome,
    Pace,
    PodFacts,
    Problem,
    Remnant,
    Request,
    Status,
    Trouble,
    decide,
    operation_name,
    strays,
    trouble_of,
)
from kybernate.core.requests.reasons import Reason
from kybernate.core.seat.operations import Progress

NOW = 1000.0
POD = PodFacts("u1", "n1", seat=True, ended=False)
ASKED = Request(
    "r1", "shop", "once", "a", Mode.SNAPSHOT, None, "ann", NOW, 60.0, keep_s=None, status=Status()
)
PINNED = replace(ASKED, status=Status("u1", "n1", operation_name("r1"), reason=Reason.PENDING))
BEGUN = replace(PINNED, status=replace(PINNED.status, began_at=NOW))
KEPT = Outcome("shop/a@1", "nvme", 5)


def test_the_pod_is_pinned_before_anything_is_asked():
    found = decide(Observed(ASKED, POD), NOW)
    assert (found.act, found.again) == (None, 0.0)
    assert (found.status.pod_uid, found.status.node) == ("u1", "n1")
    assert found.status.operation == "ckpt-r1"
    assert not found.status.began_at
    assert decide(Observed(ASKED, replace(POD, owner="rs")), NOW).status.owner == "rs"


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (None, Reason.POD_NOT_FOUND),
        (replace(POD, ended=True), Reason.POD_ENDED),
        (replace(POD, seat=False), Reason.NO_SEAT),
        (replace(POD, node=""), Reason.POD_NOT_BOUND),
    ],
)
def test_what_pods_can_not_be_asked_of(pod, reason):
    found = decide(Observed(ASKED, pod), NOW)
    assert found.status.reason is reason
    assert bool(found.status.ended_at) is (reason.standing is Standing.TERMINAL)
    assert not found.status.operation


def test_a_pinned_request_is_begun_once_and_found_again():
    assert decide(Observed(PINNED, POD), NOW).act is Act.BEGIN
    found = decide(Observed(PINNED, operation=Operation(Progress.PENDING, "waits")), NOW + 1)
    assert (found.act, found.status.reason) == (None, Reason.WAITING)
    assert found.status.began_at == NOW + 1
    # Known to have been begun, it is never begun again.
    found = decide(Observed(BEGUN, POD), NOW + 2)
    assert (found.act, found.status.reason) == (None, Reason.OPERATION_LOST)
    assert found.status.ended_at


@pytest.mark.parametrize(
    ("request_", "pod", "answer", "reason"),
    [
        (PINNED, POD, Problem(Trouble.UNREACHABLE, "no"), Reason.AGENT_UNREACHABLE),
        (PINNED, POD, Problem(Trouble.NO_SEAT, "no"), Reason.SEAT_NOT_READY),
        (PINNED, POD, Problem(Trouble.BUSY, "no"), Reason.SEAT_BUSY),
        (PINNED, POD, Problem(Trouble.REFUSED, "no"), Reason.REFUSED),
        (PINNED, None, Problem(Trouble.UNREACHABLE, "no"), Reason.POD_GONE),
        (PINNED, None, None, Reason.POD_GONE),
        (PINNED, replace(POD, uid="u2"), Problem(Trouble.NO_SEAT, "no"), Reason.POD_GONE),
        (PINNED, replace(POD, ended=True), None, Reason.POD_ENDED),
        (BEGUN, None, Operation(Progress.RUNNING, "goes"), Reason.RUNNING),
        (BEGUN, None, Operation(Progress.SUCCEEDED, "done", KEPT), Reason.SEALED),
        (BEGUN, None, Operation(Progress.FAILED, "no room"), Reason.FAILED),
        (BEGUN, None, Operation(Progress.CANCELLED, "by hand"), Reason.CANCELLED),
    ],
)
def test_what_an_agent_says(request_, pod, answer, reason):
    found = decide(Observed(request_, pod, answer), NOW + 1)
    assert (found.act, found.status.reason) == (None, reason)
    assert bool(found.status.ended_at) is (reason.standing is not Standing.RETRYABLE)
    assert found.status.outcome == (KEPT if reason is Reason.SEALED else None)
    if isinstance(answer, Operation | Problem):
        assert answer.sentence in found.status.message


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (Mode.PARK, Reason.PARKED),
        (Mode.SNAPSHOT, Reason.SEALED),
        (Mode.EVICT, Reason.EVICTED),
        (Mode.WAKE, Reason.AWAKE),
    ],
)
def test_each_mode_has_its_word_for_done(mode, reason):
    done = Operation(Progress.SUCCEEDED, "done")
    assert decide(Observed(replace(BEGUN, mode=mode), operation=done), NOW).status.reason is reason


def test_at_its_deadline_it_is_cancelled_first_and_what_it_came_to_counts():
    late, running = NOW + 60, Operation(Progress.RUNNING, "goes")
    seen = Observed(BEGUN, operation=running)
    assert decide(seen, late).act is Act.CANCEL
    for after in (running, Operation(Progress.CANCELLED, "it was cancelled")):
        found = decide(replace(seen, operation=after, cancelled=True), late)
        assert (found.act, found.status.reason) == (None, Reason.DEADLINE_EXCEEDED)
    done = replace(seen, operation=Operation(Progress.SUCCEEDED, "done", KEPT), cancelled=True)
    assert decide(done, late).status.reason is Reason.SEALED


def test_what_is_copied_is_told_and_when_the_rest_is_expected():
    half = Operation(Progress.RUNNING, "it is copied", copied=Copied(25, 100))
    found = decide(Observed(BEGUN, operation=half), NOW + 10).status
    assert found.copied == Copied(25, 100, NOW + 40, NOW + 10)
    # As long as nothing more is there, nothing new is told.
    again = replace(BEGUN, status=found)
    assert decide(Observed(again, operation=half), NOW + 20).status == found
    more = replace(half, copied=Copied(50, 100))
    assert decide(Observed(again, operation=more), NOW + 20).status.copied.ready_at == NOW + 40
    told = decide(Observed(again, operation=more), NOW + 20).status
    fast = Observed(replace(BEGUN, status=told), operation=replace(half, copied=Copied(90, 100)))
    # What came since the last look counts, not what came before.
    assert decide(fast, NOW + 24).status.copied.ready_at == NOW + 25
    for figures in (Copied(0, 100), Copied(100, 100)):
        seen = Observed(BEGUN, operation=replace(half, copied=figures))
        assert decide(seen, NOW + 10).status.copied == replace(figures, since=NOW + 10)


EVICTED = replace(BEGUN, mode=Mode.EVICT, deadline_s=86_400.0)
GIB = 1 << 30


def stalled(done, since, now, **more):
    told = replace(EVICTED, status=replace(EVICTED.status, copied=Copied(done, GIB, since=since)))
    state = more.pop("state", Progress.RUNNING)
    going = Operation(state, "it is copied", copied=Copied(done, GIB))
    return decide(Observed(told, operation=going, **more), now, Pace(150.0, 150.0))


def test_an_eviction_of_which_no_byte_comes_is_cancelled():
    assert stalled(5, NOW, NOW + 150).act is None
    late = NOW + 151
    assert stalled(5, NOW, late).act is Act.CANCEL
    for over in ({"cancelled": True}, {"state": Progress.CANCELLED}):
        found = stalled(5, NOW, late, **over)
        assert (found.status.reason, found.status.ended_at) == (Reason.STALLED, late)
        assert "no byte came for 150 s" in found.status.message
    done = stalled(5, NOW, late, state=Progress.SUCCEEDED)
    assert done.status.reason is Reason.EVICTED


def test_an_eviction_has_so_long_for_each_gib():
    assert stalled(5, NOW + 260, NOW + 270).act is None
    assert stalled(5, NOW + 260, NOW + 271).act is Act.CANCEL
    assert stalled(GIB, NOW, NOW + 270).act is None, "all bytes are there; it is sealed"
    assert stalled(GIB, NOW, NOW + 271).act is Act.CANCEL, "and that takes no longer"


FEW = Policy("p1", "shop", "few", limits=PutAway(None, 30.0, 20.0))


@pytest.mark.parametrize(
    ("mode", "of", "policy", "pace"),
    [
        (Mode.EVICT, "", None, PACE),
        (Mode.EVICT, "", FEW, Pace(30.0, 20.0)),
        (Mode.EVICT, "", replace(FEW, limits=PutAway(None, 900.0)), PACE),
        (Mode.SNAPSHOT, "p1", FEW, Pace(30.0, 20.0)),
        (Mode.SNAPSHOT, "p1", replace(FEW, limits=PutAway(None, 900.0)), Pace(900.0, math.inf)),
        (Mode.SNAPSHOT, "p1", replace(FEW, limits=PutAway()), Pace(math.inf, math.inf)),
        (Mode.SNAPSHOT, "p1", None, None),
        (Mode.SNAPSHOT, "", FEW, None),
        (Mode.SNAPSHOT, "p2", FEW, None),
        (Mode.PARK, "", FEW, None),
    ],
)
def test_whose_pace_a_request_has_to_keep(mode, of, policy, pace):
    assert PACE.of(replace(BEGUN, mode=mode, policy=of), policy) == pace


@pytest.mark.parametrize("limit", [0, GIB])
def test_an_agent_that_tells_of_one_byte_of_one_has_as_long_as_any(limit):
    one = look(Copied(1, 1, since=NOW), Copied(1, 1), NOW + 120, limit=limit)
    assert one.act is None
    assert look(Copied(1, 1, since=NOW), Copied(1, 1), NOW + 121, limit=limit).act is Act.CANCEL


def test_more_bytes_than_the_pod_may_have_give_an_agent_no_more_time():
    told = replace(EVICTED.status, copied=Copied(5, 100 * GIB, since=NOW + 260), limit=GIB)
    going = Operation(Progress.RUNNING, "it is copied", copied=Copied(6, 100 * GIB))
    seen = Observed(replace(EVICTED, status=told), operation=going)
    assert decide(seen, NOW + 270, PACE).act is None
    assert decide(seen, NOW + 271, PACE).act is Act.CANCEL


def look(copied, figures, now, limit=0):
    """What is known of a copy at one look, given what was before and what its agent tells."""
    told = replace(EVICTED, status=replace(EVICTED.status, copied=copied, limit=limit))
    going = Operation(Progress.RUNNING, "goes", copied=figures)
    return decide(Observed(told, operation=going), now, PACE)


@pytest.mark.parametrize("figures", [Copied(50, 100), Copied(50, 200), None])
def test_no_more_bytes_are_no_progress(figures):
    half = Copied(50, 100, since=NOW)
    assert look(half, figures, NOW + 100).status.copied.since == NOW
    assert look(half, Copied(51, 100), NOW + 100).status.copied.since == NOW + 100


def test_a_copy_that_begins_again_from_0_and_moves_is_not_cancelled():
    copied, size = Copied(90 * GIB, 100 * GIB, since=NOW), 100 * GIB
    for seconds, done in ((140, 0), (280, 30 * GIB), (420, 60 * GIB), (560, 89 * GIB)):
        found = look(copied, Copied(done, size), NOW + seconds)
        assert found.act is None
        copied = found.status.copied
        assert (copied.done, copied.since, copied.restarts) == (done, NOW + seconds, 1)
    assert look(copied, Copied(89 * GIB, size), NOW + 711).act is Act.CANCEL


def test_an_agent_that_begins_again_each_time_stalls():
    copied, now = Copied(100, 10 * GIB, since=NOW), NOW
    for again in range(MOST_RESTARTS):
        now += 100
        copied = look(copied, Copied(50 - again, 10 * GIB), now).status.copied
        assert (copied.since, copied.restarts) == (now, again + 1)
    assert look(copied, Copied(0, 10 * GIB), now + 150).act is None
    assert look(copied, Copied(0, 10 * GIB), now + 151).act is Act.CANCEL
    more = look(copied, Copied(copied.done + 1, 10 * GIB), now + 151).status.copied
    assert (more.since, more.restarts) == (now + 151, MOST_RESTARTS), "it counts as before"


def test_how_much_memory_the_pod_may_have_is_pinned_with_it():
    assert decide(Observed(ASKED, replace(POD, limit=7)), NOW).status.limit == 7


def test_a_snapshot_copies_as_slowly_as_its_deadline_lets_it():
    told = replace(BEGUN, deadline_s=86_400.0)
    told = replace(told, status=replace(told.status, copied=Copied(5, GIB, since=NOW)))
    going = Operation(Progress.RUNNING, "it is copied", copied=Copied(5, GIB))
    assert decide(Observed(told, operation=going), NOW + 3600).act is None


def test_who_waited_for_other_evictions_until_the_deadline_was_not_let_go():
    queued = replace(PINNED, mode=Mode.EVICT)
    queued = replace(queued, status=replace(queued.status, reason=Reason.QUEUED, message="5"))
    assert decide(Observed(queued, POD), NOW + 60).status.reason is Reason.NOT_LET_GO


def test_of_what_has_ended_no_end_is_foretold():
    copying = replace(BEGUN, status=replace(BEGUN.status, copied=Copied(25, 100, NOW + 40)))
    found = decide(Observed(copying, operation=Operation(Progress.FAILED, "no room")), NOW + 10)
    assert not found.status.copied
    stuck = Problem(Trouble.UNREACHABLE, "no")
    found = decide(Observed(copying, POD, stuck), NOW + 60).status
    assert (found.reason, found.copied) == (Reason.DEADLINE_EXCEEDED, Copied(25, 100))


def test_an_eviction_that_was_queued_has_its_whole_time_once_it_begins():
    queued = replace(PINNED, mode=Mode.EVICT, status=replace(PINNED.status, reason=Reason.QUEUED))
    late = NOW + 59
    assert (queued.left(late), queued.granted(late)) == (1.0, 60.0)
    assert PINNED.granted(late) == 1.0, "a snapshot ends when it was to"
    running = Operation(Progress.RUNNING, "goes")
    begun = decide(Observed(queued, POD, running), NOW + 61)
    assert (begun.act, begun.status.reason) == (None, Reason.RUNNING)
    begun = replace(queued, status=begun.status)
    assert decide(Observed(begun, POD, running), NOW + 120).act is None
    assert decide(Observed(begun, POD, running), NOW + 121).act is Act.CANCEL


def test_a_time_that_nobody_can_write_is_not_told():
    slow = Operation(Progress.RUNNING, "it is copied", copied=Copied(1, 1 << 62))
    copied = decide(Observed(BEGUN, operation=slow), NOW + 10).status.copied
    assert copied == Copied(1, 1 << 62, since=NOW + 10)


def test_a_clock_that_is_behind_gives_no_more_time_than_was_asked():
    assert ASKED.left(NOW - 500) == ASKED.deadline_s


def test_nothing_is_begun_after_the_deadline():
    found = decide(Observed(PINNED, POD), NOW + 60)
    assert (found.act, found.status.reason) == (None, Reason.DEADLINE_EXCEEDED)


def test_what_has_ended_is_removed_when_its_time_is_over_and_not_before():
    ended = replace(BEGUN, status=replace(BEGUN.status, ended_at=NOW, reason=Reason.SEALED))
    assert decide(Observed(ended), NOW + 1e9).act is None
    ended = replace(ended, keep_s=10.0)
    assert (decide(Observed(ended), NOW + 4).act, decide(Observed(ended), NOW + 4).again) == (
        None,
        6.0,
    )
    assert decide(Observed(ended), NOW + 10).over


def test_strays_are_ours_and_of_requests_that_want_nothing():
    names = ["ckpt-r1", "ckpt-r2", "drain-r3", "park-1"]
    assert list(strays(names, {"r1"})) == ["ckpt-r2"]


def test_every_reason_has_a_meaning_and_fits_a_condition():
    assert all(one.value.isalpha() and one.told for one in Reason)


class Agent:
    """Operations by name, each begun once; one goes a step further whenever it is looked at."""

    def __init__(self, steps):
        self.steps, self.known, self.begun = steps, {}, 0

    def begin(self, name):
        if name not in self.known:
            self.begun += 1
            self.known[name] = list(self.steps)
        return self.find(name)

    def find(self, name):
        left = self.known.get(name)
        if left is None:
            return None
        state = left.pop(0) if len(left) > 1 else left[0]
        return Operation(state, state.value, KEPT if state is Progress.SUCCEEDED else None)

    def cancel(self, name):
        if name in self.known and self.known[name][-1] is not Progress.SUCCEEDED:
            self.known[name] = [Progress.CANCELLED]
        return self.find(name)


ENDS = [Progress.SUCCEEDED, Progress.FAILED]
TROUBLES = st.none() | st.sampled_from([Trouble.UNREACHABLE, Trouble.NO_SEAT, Trouble.BUSY])


@given(
    waits=st.lists(st.sampled_from([Progress.PENDING, Progress.RUNNING]), max_size=4),
    end=st.sampled_from(ENDS),
    looks=st.lists(st.tuples(st.integers(0, 3), TROUBLES), max_size=30),
)
def test_whoever_dies_between_two_steps_it_is_done_once_and_ends(waits, end, looks):
    """Each look may die before its act, after it, or before its write; the agent may be away."""
    agent, request, now = Agent([*waits, end]), ASKED, NOW
    for dies, trouble in [*looks, *[(0, None)] * 40]:
        now += 1.0
        status = request.status
        if status.ended_at:
            break
        problem = Problem(trouble, "trouble") if trouble else None
        operation = problem or (agent.find(status.operation) if status.operation else None)
        seen = Observed(request, POD, operation if status.operation else None)
        decision = decide(seen, now)
        if dies == 1:
            continue
        if decision.act is Act.BEGIN:
            seen = replace(seen, operation=agent.begin(status.operation))
            decision = decide(seen, now)
        if decision.act is Act.CANCEL:
            after = agent.cancel(status.operation)
            decision = decide(replace(seen, operation=after, cancelled=True), now)
        assert decision.act is None
        if dies in (2, 3):
            continue
        request = replace(request, status=decision.status)
    assert request.status.ended_at, request
    assert agent.begun <= 1
    if request.status.reason is Reason.SEALED:
        assert agent.known[request.status.operation] == [Progress.SUCCEEDED]
    elif request.status.reason is Reason.FAILED:
        assert agent.known[request.status.operation] == [Progress.FAILED]
    else:
        assert request.status.reason is Reason.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("rival", "again", "trouble"),
    [
        (False, True, Trouble.REFUSED),
        (True, False, Trouble.BUSY),
        # Another one has begun since: it is asked again once that has ended.
        (True, True, Trouble.BUSY),
        # The rival had ended before the list.
        (False, False, Trouble.BUSY),
    ],
)
def test_a_refusal_is_for_good_only_if_the_seat_is_idle(rival, again, trouble):
    assert trouble_of(rival=rival, again=again) is trouble


def test_what_a_lost_pod_has_left_ends_the_request_without_its_agent():
    away = Problem(Trouble.UNREACHABLE, "no")
    seen = Observed(BEGUN, None, away, left=Remnant("node n1 is gone", KEPT))
    found = decide(seen, NOW + 5)
    assert (found.status.reason, found.status.outcome) == (Reason.EVICTED, KEPT)
    assert "node n1 is gone; its newest artifact is shop/a@1" in found.status.message
    assert found.status.ended_at == NOW + 5
    nothing = Remnant("node n1 is gone, and nothing is left", None)
    found = decide(replace(seen, left=nothing), NOW + 5)
    assert found.status.reason is Reason.POD_ENDED
    assert found.status.message == "node n1 is gone, and nothing is left"
    running = Operation(Progress.RUNNING, "it is parked")
    assert decide(replace(seen, operation=running), NOW).status.reason is Reason.RUNNING


def test_a_lost_pod_whose_successor_has_continued_is_evicted():
    away, told = Problem(Trouble.UNREACHABLE, "no"), "pod u2 on node n2 continues with its state"
    left = Remnant("node n1 is gone", replace(KEPT, artifact="", size=0), told)
    found = decide(Observed(BEGUN, None, away, left=left), NOW + 5)
    assert (found.status.reason, found.status.outcome) == (Reason.EVICTED, left.outcome)
    assert found.status.message == f"node n1 is gone; {told}"


def test_what_a_lost_pod_has_left_is_asked_for_until_the_deadline():
    seen = Observed(BEGUN, None, Problem(Trouble.UNREACHABLE, "no"), unsure="the registry is away")
    found = decide(seen, NOW)
    assert (found.status.reason, found.status.ended_at) == (Reason.PENDING, 0.0)
    assert found.again
    assert "the registry is away" in found.status.message
    found = decide(seen, NOW + BEGUN.deadline_s + 1)
    assert found.status.reason is Reason.DEADLINE_EXCEEDED


def test_a_policy_makes_the_pace_stricter_and_never_slower():
    usual = Pace(150.0, 150.0)
    assert usual.within(PutAway()) == usual
    assert usual.within(PutAway(per_gib=30.0, idle=60.0)) == Pace(30.0, 60.0)
    assert usual.within(PutAway(per_gib=900.0, idle=900.0)) == usual
