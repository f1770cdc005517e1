"""When a Deployment is scaled to zero and back: each step, and crashes between any two."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate import keys
from kybernate.core.requests.checkpoint import Mode, Outcome, Request, Status
from kybernate.core.requests.evictions import predecessor
from kybernate.core.requests.reasons import Reason
from kybernate.core.requests.zero import KEPT_S, Act, Replica, back, is_last_step, plan
from kybernate.types import Tier

NOW = 100_000.0
A = Replica("u1", "web-1-a", "rs", "web-1", "m", since=NOW - 60, idle=50.0)
B = A._replace(uid="u2", name="web-1-b")
ASKED = Request(
    *("r1", "shop", "zero-u1", "web-1-a", Mode.EVICT, Tier.OBJECT, keys.CONTROLLER_USER),
    *(NOW - 20, 300.0, None, Status()),
    deployment="web",
)


def put(pod=A, reason=Reason.EVICTED, ago=10.0, up=0.0, **more):
    outcome = Outcome("", "object", 7) if reason is Reason.EVICTED else None
    status = Status(
        *(pod.uid, "n1", f"ckpt-{pod.uid}", NOW - 15, NOW - ago, reason, "", outcome),
        owner="rs",
        scaled_up_at=up,
    )
    name = f"zero-{pod.uid}"
    return replace(ASKED, uid=f"r-{pod.uid}", name=name, pod=pod.name, status=status, **more)


def acts(found):
    return [
        (
            one.act.value,
            [r.uid for r in one.replicas] if one.act is Act.ASK else [r.name for r in one.requests],
        )
        for one in found.steps
    ]


def test_pods_that_have_rested_long_enough_are_asked_for_all_together():
    assert acts(plan([A, B], [], NOW)) == [("ask", ["u1", "u2"])]
    later = B._replace(since=NOW - 20)
    found = plan([A, later], [], NOW)
    assert (acts(found), found.again) == ([], 30.0)


@pytest.mark.parametrize("awake", [{"since": math.inf}, {"idle": math.inf}])
def test_one_that_does_not_rest_or_has_no_such_policy_keeps_all(awake):
    found = plan([A, B._replace(**awake)], [], NOW)
    assert (acts(found), found.again) == ([], math.inf)


def test_it_is_scaled_down_once_all_requests_are_done_and_not_before():
    assert acts(plan([A, B], [put(A), ASKED], NOW)) == [("ask", ["u2"])]
    one = replace(put(B), status=replace(put(B).status, reason=Reason.RUNNING, ended_at=0.0))
    assert acts(plan([A, B], [put(A), one], NOW)) == []
    assert acts(plan([A, B], [put(A), put(B)], NOW)) == [("down", ["zero-u1", "zero-u2"])]


def test_one_that_is_awake_again_takes_all_back():
    awake = B._replace(since=math.inf)
    assert acts(plan([A, awake], [put(A), put(B)], NOW)) == [("back", ["zero-u1", "zero-u2"])]
    new = B._replace(uid="u3", since=math.inf)
    assert acts(plan([A, new], [put(A)], NOW)) == [("back", ["zero-u1"])]


def test_one_that_is_asked_for_again_within_the_hour_is_taken_back_again():
    again = replace(put(A), uid="r-again")
    assert again.name == put(A).name
    assert (back(put(A)), back(again)) == ("zero-back-r-u1", "zero-back-r-again")


def test_one_that_failed_takes_the_others_back_and_is_tried_again_after_an_hour():
    failed = put(B, Reason.NOT_LET_GO)
    found = plan([A, B], [put(A), failed], NOW)
    assert acts(found) == [("back", ["zero-u1"])]
    again = plan([A, B], [failed], NOW)
    assert acts(again) == []
    assert again.again == KEPT_S - 10
    old = put(B, Reason.NOT_LET_GO, ago=KEPT_S)
    assert acts(plan([A, B], [old], NOW)) == [("remove", ["zero-u2"])]


def test_it_sleeps_until_somebody_wants_it_and_comes_as_it_was():
    assert acts(plan([], [put(A), put(B)], NOW + 9e6)) == []
    wanted = put(A, wanted=True)
    assert acts(plan([], [wanted, put(B)], NOW)) == [("up", ["zero-u2", "zero-u1"])]
    leaving = A._replace(leaving=True, since=math.inf)
    assert acts(plan([leaving], [wanted, put(B)], NOW)) == [("up", ["zero-u2", "zero-u1"])]


def test_somebody_who_waits_while_it_goes_down_waits_until_it_is_down():
    assert acts(plan([A], [put(A, wanted=True)], NOW)) == [("down", ["zero-u1"])]


def test_scaled_up_once_it_is_not_again_though_its_pods_are_away():
    up = put(A, wanted=True, up=NOW - 5)
    found = plan([], [up], NOW)
    assert (acts(found), found.again) == ([], KEPT_S - 5)
    assert acts(plan([], [up], NOW + KEPT_S)) == [("remove", ["zero-u1"])]


def test_a_new_pod_is_not_scaled_down_for_requests_of_the_one_before():
    fresh = A._replace(uid="u9", since=math.inf)
    assert acts(plan([fresh], [put(A, wanted=True, up=NOW - 5)], NOW)) == []
    rests = A._replace(uid="u9")
    assert acts(plan([rests], [put(A, wanted=True, up=NOW - 5)], NOW)) == [("ask", ["u9"])]


def test_another_replica_set_is_no_concern():
    other = B._replace(owner="rs2", since=math.inf)
    assert acts(plan([A, other], [put(A)], NOW)) == [("down", ["zero-u1"])]


def test_what_others_name_so_is_none():
    assert not is_last_step(replace(ASKED, deployment=""))
    assert not is_last_step(replace(ASKED, name="evict-u1-1"))
    assert plan([], [replace(put(A, wanted=True), deployment="")], NOW).steps == ()


class _AllFree:
    @staticmethod
    def stays(_uid, _node):
        return False

    @staticmethod
    def untaken(_uid, _successor):
        return False


def test_its_state_is_continued_from_however_late():
    late = NOW + 30 * 86_400
    assert predecessor("new", [put(A)], _AllFree(), late).name == "zero-u1"
    assert predecessor("new", [replace(put(A), deployment="")], _AllFree(), late) is None


REASONS = [None, Reason.RUNNING, Reason.EVICTED, Reason.NOT_LET_GO, Reason.FAILED]


@st.composite
def worlds(draw):
    """Pods of one ReplicaSet and requests for them, whatever happened before."""
    pods = [
        A._replace(
            uid=f"u{n}",
            since=draw(st.sampled_from([NOW - 60, NOW - 10, math.inf])),
            leaving=draw(st.booleans()),
        )
        for n in range(draw(st.integers(0, 3)))
    ]
    asked = []
    for n in range(draw(st.integers(0, 4))):
        reason = draw(st.sampled_from(REASONS))
        open_ = reason in (None, Reason.RUNNING)
        one = put(A._replace(uid=f"u{n}"), reason or Reason.PENDING, wanted=draw(st.booleans()))
        up = draw(st.sampled_from([0.0, NOW - 5]))
        ended = 0.0 if open_ else NOW - 10
        asked.append(replace(one, status=replace(one.status, ended_at=ended, scaled_up_at=up)))
    return pods, asked


def test_whoever_follows_a_killed_controller_has_all_of_them_scaled_up():
    both = [put(A, wanted=True), put(B)]
    (step,) = plan([], both, NOW).steps
    (first, last) = step.requests
    done = replace(first, status=replace(first.status, scaled_up_at=NOW))
    assert acts(plan([], [done, last], NOW)) == [("up", [last.name])]


def test_pods_that_come_before_it_is_written_that_they_were_scaled_up_have_it_written():
    """The controller was killed in between; else they would be scaled up for once more."""
    taken = replace(put(B), successor="u8")
    both = [put(A, wanted=True), taken]
    fresh = A._replace(uid="u9", since=math.inf)
    found = plan([fresh], both, NOW + KEPT_S + 1)
    assert acts(found) == [("note", ["zero-u2", "zero-u1"])]
    done = [replace(one, status=replace(one.status, scaled_up_at=NOW)) for one in both]
    assert acts(plan([fresh], done, NOW + 1)) == []
    assert acts(plan([fresh], [put(A), put(B)], NOW)) == [], "somebody else has scaled it up"
    leaves = B._replace(leaving=True)
    still = plan([A, leaves], [put(A), put(B, wanted=True)], NOW)
    assert "note" not in dict(acts(still)), "it still goes down"


@given(worlds())
def test_whatever_there_is_nothing_runs_that_is_taken_away(world):
    pods, asked = world
    there = [one for one in pods if not one.leaving]
    found = plan(pods, asked, NOW)
    done = {one.act for one in found.steps}
    if Act.DOWN in done or Act.ASK in done:
        assert there
        assert all(one.due_at <= NOW for one in there)
    if Act.DOWN in done:
        put_away = {one.name for one in asked if one.status.reason is Reason.EVICTED}
        assert {f"zero-{one.uid}" for one in there} <= put_away
    if Act.UP in done:
        assert not there
        assert any(one.wanted for one in asked)
    assert not {Act.UP, Act.DOWN} <= done
    noted = {one.name for step in found.steps if step.act is Act.NOTE for one in step.requests}
    assert not noted or there
    assert not noted & {f"zero-{one.uid}" for one in there}
    assert not {Act.BACK, Act.DOWN} <= done
