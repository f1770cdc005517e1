"""Pods of gangs, from their JSON and back."""

from __future__ import annotations

from typing import Any

import pytest

from extender.gangs.members import hold_patch, is_member, lift_patch, read_member, read_seat
from extender.state.objects import Rules
from kybernate import keys
from kybernate.core.gangs.gang import PlannedSeat
from kybernate.types import GroupName, NodeName

SEAT = PlannedSeat(NodeName("n1"), GroupName("G0"), until=1767225600.0)
TEXT = '{"node":"n1","group":"G0","until":"2026-01-01T00:00:00Z"}'


def pod(**notes: str) -> dict[str, Any]:
    limits = {keys.seat_resource(1): "1"}
    found = {f"kyb.ai/{name.replace('_', '-')}": text for name, text in notes.items()}
    return {
        "metadata": {
            "namespace": "d",
            "name": "a",
            "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": found,
        },
        "spec": {
            "priority": 3,
            "schedulingGates": [{"name": keys.GANG_GATE}, {"name": "other"}],
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
    }


def test_a_member_is_read() -> None:
    whole = pod(gang="g", gang_size="2", gang_plan=TEXT)
    found = read_member(whole, Rules())
    assert found is not None
    assert (found.gang, found.size, found.seat, found.priority) == ("g", "2", SEAT, 3)
    assert found.gates == (keys.GANG_GATE, "other")


def test_a_pod_that_ends_or_is_of_no_gang_is_no_member() -> None:
    ending, done = pod(gang="g"), pod(gang="g")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    done["status"] = {"phase": "Failed"}
    assert [read_member(one, Rules()) for one in (ending, done, pod(), {})] == [None] * 4
    assert is_member(ending)


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", "7", '{"node":"n1"}', TEXT.replace("2026-01-01T", "yesterday ")]
)
def test_a_plan_that_can_not_be_read_is_none(text: str | None) -> None:
    assert read_seat(text) is None


def test_what_is_written_can_be_read() -> None:
    member = read_member(pod(gang="g"), Rules())
    assert member is not None
    patch = hold_patch(member, SEAT)
    assert patch["metadata"]["uid"] == "u"
    assert read_seat(patch["metadata"]["annotations"][keys.GANG_PLAN]) == SEAT
    assert hold_patch(member, None)["metadata"]["annotations"] == {keys.GANG_PLAN: None}
    assert lift_patch(member)["spec"]["schedulingGates"] == [
        {"name": keys.GANG_GATE, "$patch": "delete"}
    ]


@pytest.mark.parametrize("odd", [7, "x", [1], {"a": 1}, None], ids=repr)
def test_odd_shapes_are_no_mistake_of_ours(odd: Any) -> None:
    made = pod(gang="g", gang_size="2", gang_plan=TEXT)
    made["spec"] |= {"priority": odd, "schedulingGates": odd}
    made["metadata"]["annotations"] |= {keys.GANG_SIZE: odd, keys.GANG_PLAN: odd}
    found = read_member(made, Rules())
    assert found is not None
    assert found.seat is None
    assert (
        read_member({"metadata": {"annotations": {keys.GANG: odd}}, "spec": odd}, Rules()) is None
        or odd
    )
    assert not is_member({"metadata": odd})
