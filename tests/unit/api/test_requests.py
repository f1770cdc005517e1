"""CheckpointRequests: what is read of them, and what is written into them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.api.requests import dump_status, read_request
from kybernate.core.requests.asked import Copied
from kybernate.core.requests.checkpoint import Mode, Outcome, Status
from kybernate.core.requests.reasons import Reason
from kybernate.errors import ConfigError
from kybernate.types import Tier


def item(status=None, **spec):
    meta = {
        "namespace": "shop",
        "name": "once",
        "uid": "r1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": meta, "spec": {"pod": "a", "mode": "Park", **spec}, "status": status}


STATUSES = st.builds(
    Status,
    pod_uid=st.just("u1"),
    node=st.sampled_from(["n1", "n2"]),
    operation=st.just("ckpt-r1"),
    began_at=st.integers(0, 1 << 31).map(float),
    ended_at=st.integers(0, 1 << 31).map(float),
    reason=st.sampled_from(Reason),
    message=st.text(max_size=50),
    copied=st.none()
    | st.builds(
        Copied,
        st.integers(0, 9),
        st.integers(1, 9),
        st.integers(0, 1 << 31).map(float),
        restarts=st.integers(0, 5),
    ),
    outcome=st.none()
    | st.builds(Outcome, st.text(max_size=9), st.sampled_from(Tier), st.integers(0, 9)),
)


def test_what_a_person_writes_is_read_with_its_defaults():
    found = read_request(item())
    assert (found.pod, found.mode, found.tier, found.deadline_s) == ("a", Mode.PARK, None, 600.0)
    assert (found.keep_s, found.status, found.created_at) == (None, Status(), 1767225600.0)
    found = read_request(item(tier="nvme", deadlineSeconds=5, ttlSecondsAfterFinished=0))
    assert (found.tier, found.deadline_s, found.keep_s) == (Tier.NVME, 5.0, 0.0)


@given(STATUSES)
def test_a_status_is_read_as_it_was_written(status):
    told = dump_status(status, None, 1, 1000.0)
    assert read_request(item(told)).status == status


def test_a_status_that_names_an_operation_of_others_is_none():
    """Whoever could write one would have the controller follow, and cancel, a drain."""
    forged = Status("u1", "n2", "drain-n2", began_at=1000.0, reason=Reason.RUNNING)
    assert read_request(item(dump_status(forged, None, 1, 1000.0))).status == Status()


def test_a_time_that_holds_no_more_is_taken_out_of_what_is_merged():
    status = Status("u1", "n1", "ckpt-r1", copied=Copied(1, 4, 2000.0))
    before = dump_status(status, None, 1, 1000.0)
    assert before["estimatedCompletionTime"]
    for copied in (Copied(4, 4), None):
        after = dump_status(Status("u1", "n1", "ckpt-r1", copied=copied), before, 1, 1000.0)
        assert after["estimatedCompletionTime"] is None
    assert "estimatedCompletionTime" not in dump_status(Status(), None, 1, 1000.0)


def test_a_condition_keeps_the_time_of_its_last_change():
    first = dump_status(Status(reason=Reason.PENDING), None, 1, 1000.0)
    then = dump_status(Status(reason=Reason.RUNNING), first, 1, 2000.0)
    done = dump_status(Status(reason=Reason.PARKED, ended_at=3000.0), then, 1, 3000.0)
    times = [one["conditions"][0]["lastTransitionTime"] for one in (first, then, done)]
    assert times[0] == times[1] != times[2]
    assert [one["conditions"][0]["status"] for one in (first, then, done)] == [
        "False",
        "False",
        "True",
    ]


@pytest.mark.parametrize("wrong", [{"mode": "Levitate"}, {"tier": "tape"}])
def test_what_the_definition_lets_in_later_is_told_by_name(wrong):
    with pytest.raises(ConfigError, match="CheckpointRequest shop/once"):
        read_request(item(**wrong))


def test_what_is_told_to_an_agent_has_nothing_that_can_not_be_printed():
    why = read_request(item(requestedBy="ann\n" + "x" * 2000)).why
    assert why.isprintable()
    assert len(why) <= 1024
