"""What a RestoreRequest needs next, from its creation to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.reasons import Standing
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.restore import (
    MAKE,
    MadePod,
    Missing,
    RestoreReason,
    RestoreRequest,
    RestoreStatus,
    Restoring,
    Source,
    decide,
)

SOURCE = Source("shop/a@20260131T120000Z-00c0ffee", "u1")
POD = MadePod("u2", "", ours=True, ended=False)


def request(kind: str = "clone", **more: object) -> RestoreRequest:
    made = RestoreRequest(
        uid="r1",
        namespace="shop",
        name="once",
        artifact="",
        source_pod="a",
        source_namespace="shop",
        kind=RestoreAs(kind),
        stopped=False,
        pod_name="copy",
        by="admin",
        created_at=1000.0,
        deadline_s=600.0,
        keep_s=None,
        status=RestoreStatus(),
    )
    return replace(made, **more)


CHOSEN = RestoreStatus(SOURCE.artifact, SOURCE.pod_uid, "copy")
MADE = replace(CHOSEN, pod_uid="u2", began_at=1001.0)


def test_it_names_the_artifact_and_the_pod_before_it_makes_one() -> None:
    step = decide(Restoring(request(), SOURCE), 1001.0)
    assert (step.act, step.again) == (None, 0.0)
    assert (step.status.artifact, step.status.source_uid) == (SOURCE.artifact, "u1")
    assert (step.status.pod, step.status.reason) == ("copy", RestoreReason.PENDING)
    step = decide(Restoring(request(status=step.status)), 1001.0)
    assert step.act == MAKE
    step = decide(Restoring(request(status=step.status), pod=POD), 1002.0)
    assert (step.status.pod_uid, step.status.began_at) == ("u2", 1002.0)
    assert step.status.reason is RestoreReason.POD_NOT_BOUND


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (None, RestoreReason.POD_GONE),
        (replace(POD, uid="u3"), RestoreReason.POD_GONE),
        (replace(POD, ended=True), RestoreReason.POD_ENDED),
        (POD, RestoreReason.POD_NOT_BOUND),
        (replace(POD, node="n1"), RestoreReason.RESTORING),
        (replace(POD, node="n1", restored=True), RestoreReason.RESTORED),
        # It was restored, whatever became of it since.
        (replace(POD, node="n1", restored=True, ended=True), RestoreReason.RESTORED),
    ],
)
def test_it_follows_the_pod(pod: MadePod | None, reason: RestoreReason) -> None:
    step = decide(Restoring(request(status=MADE), pod=pod), 1002.0)
    assert step.status.reason is reason
    assert bool(step.status.ended_at) is (reason.standing is not Standing.RETRYABLE)


def test_another_pod_of_the_name_is_left_alone() -> None:
    step = decide(Restoring(request(status=CHOSEN), pod=replace(POD, ours=False)), 1002.0)
    assert step.status.reason is RestoreReason.NAME_TAKEN
    assert not step.status.pod_uid


def test_a_pod_that_went_is_not_made_again() -> None:
    assert decide(Restoring(request(status=MADE)), 1002.0).act is None


@pytest.mark.parametrize("reason", list(RestoreReason))
def test_what_is_lacking_ends_it_or_is_waited_for(reason: RestoreReason) -> None:
    if reason.standing is Standing.SUCCESS:
        return
    lack = Missing(reason, "it lacks something")
    for seen in (Restoring(request(), lack), Restoring(request(status=CHOSEN), pod=lack)):
        step = decide(seen, 1002.0)
        assert step.status.reason is reason
        assert bool(step.status.ended_at) is (reason.standing is Standing.TERMINAL)
        late = decide(seen, 1600.0)
        if reason.standing is Standing.RETRYABLE:
            assert late.status.reason is RestoreReason.DEADLINE_EXCEEDED
            assert "it lacks something" in late.status.message


def test_no_pod_is_made_after_the_deadline() -> None:
    step = decide(Restoring(request(status=CHOSEN)), 1600.0)
    assert (step.act, step.status.reason) == (None, RestoreReason.DEADLINE_EXCEEDED)


def test_what_waits_on_is_told_of() -> None:
    for kind, told in (("clone", False), ("template", True)):
        step = decide(Restoring(request(kind, status=MADE), pod=POD), 1600.0)
        assert ("still waits: delete it" in step.status.message) is told


def test_it_goes_after_its_time() -> None:
    ended = replace(MADE, ended_at=1100.0, reason=RestoreReason.RESTORED)
    assert decide(Restoring(request(status=ended)), 9000.0).again is None
    kept = request(status=ended, keep_s=50.0)
    assert decide(Restoring(kept), 1120.0).again == 30.0
    assert decide(Restoring(kept), 1150.0).over


def test_a_successor_continues_from_the_newest_unless_one_is_named() -> None:
    assert request("successor", status=CHOSEN).restores == "pod/u1"
    assert request("successor", status=CHOSEN, artifact="x").restores == SOURCE.artifact
    assert request("template", status=CHOSEN).restores == SOURCE.artifact


def test_every_reason_means_something() -> None:
    assert all(one.value.isalpha() and one.told for one in RestoreReason)


PODS = st.one_of(
    st.none(),
    st.builds(Missing, st.sampled_from([RestoreReason.QUOTA, RestoreReason.REFUSED]), st.just("x")),
    st.builds(
        MadePod,
        st.sampled_from(["u2", "u3"]),
        st.sampled_from(["", "n1"]),
        ours=st.booleans(),
        ended=st.booleans(),
        restored=st.booleans(),
    ),
)


@given(st.lists(st.tuples(PODS, st.floats(0, 400)), min_size=1, max_size=12))
def test_however_the_world_goes_it_ends_and_names_one_pod(
    seen: list[tuple[MadePod | Missing | None, float]],
) -> None:
    asked, now, uids = request(status=CHOSEN), 1000.0, set()
    for pod, after in [*seen, (None, 700.0), (None, 1.0)]:
        now += after
        step = decide(Restoring(asked, pod=pod), now)
        if step.act == MAKE:
            assert not asked.status.pod_uid
            assert now < 1600.0
        asked = replace(asked, status=step.status)
        uids |= {asked.status.pod_uid} - {""}
    assert asked.ended
    assert len(uids) <= 1


def test_how_much_of_the_artifact_has_come_and_when_the_rest_is_expected() -> None:
    pod = replace(POD, node="n1", copied=Copied(0, 100))
    told = decide(Restoring(request(status=MADE), pod=pod), 1010.0).status
    assert told.copied == Copied(0, 100, 0.0, 1010.0)
    later = Restoring(request(status=told), pod=replace(pod, copied=Copied(25, 100)))
    told = decide(later, 1015.0).status
    assert told.copied == Copied(25, 100, 1030.0, 1015.0), "without the time before its first byte"
    silent = Restoring(request(status=told), pod=replace(pod, copied=None))
    assert decide(silent, 1020.0).status.copied == replace(told.copied, ready_at=0.0)
    woken = replace(silent.pod, restored=True)
    done = decide(Restoring(request(status=told), pod=woken), 1040.0).status
    assert done.reason is RestoreReason.RESTORED
    assert done.copied == Copied(100, 100, 0.0, 1015.0)
