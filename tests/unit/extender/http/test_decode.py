"""What is decoded of a body is all that is read of the objects in it, and little more."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cluster import fleet
from extender.gangs.members import read_member
from extender.http import decode
from extender.state.objects import Rules
from kybernate import keys
from kybernate.api.nodeseats import read_gpu_node
from kybernate.types import PodUid, Tier
from tests.unit.extender.objects import TWO, gpu_node, pod, read_pod

GANG = {
    **pod("g", limits={TWO: "1"}, notes={keys.GANG: "team", keys.GANG_SIZE: "2", keys.VRAM: "1Gi"}),
    "status": {},
}
GANG["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
GANG["spec"]["schedulingGates"] = [{"name": keys.GANG_GATE}]
ODD = pod("o")
ODD["spec"] |= {"priority": 7, "preemptionPolicy": "Never", "initContainers": None}
ODD["metadata"] |= {"deletionTimestamp": "2026-01-02T03:04:05Z", "labels": {"team": "a"}}
PODS = (fleet.pod(3, node=1), fleet.pod(4), pod(), pod(limits={TWO: "2"}), GANG, ODD)


def bodies(kind: str, item: Any) -> tuple[bytes, bytes]:
    listed = {"kind": "List", "metadata": {"resourceVersion": "9", "continue": "x"}}
    return (
        orjson.dumps({**listed, "items": [item, item]}),
        orjson.dumps({"type": kind, "object": item}),
    )


@pytest.mark.parametrize("item", PODS, ids=range(len(PODS)))
def test_pods_read_the_same_from_lists_and_events(item: Any) -> None:
    listed, event = map(decode.pods, bodies("MODIFIED", item))
    assert listed is not None
    assert event is not None
    assert listed["metadata"] == {"resourceVersion": "9", "continue": "x"}
    assert event["type"] == "MODIFIED"
    for found in (*listed["items"], event["object"]):
        assert read_pod(found) == read_pod(item)
        assert read_member(found, Rules()) == read_member(item, Rules())
        assert found["metadata"].get("resourceVersion") == item["metadata"]["resourceVersion"]
        assert len(orjson.dumps(found)) < len(orjson.dumps(item))
        assert "managedFields" not in found["metadata"]


@pytest.mark.parametrize("item", [fleet.gpu_node(1), gpu_node(), {"metadata": {"name": "n"}}])
def test_nodes_read_the_same_from_lists_and_events(item: Any) -> None:
    listed, event = map(decode.gpu_nodes, bodies("ADDED", item))
    assert listed is not None
    assert event is not None
    for found in (*listed["items"], event["object"]):
        assert read_gpu_node(found, 5) == read_gpu_node(item, 5)


def test_what_a_seats_use_tells_is_kept() -> None:
    item = gpu_node(seats=[{"uid": "u", "state": "active", "activity": {"busy": [1]}}])
    found = decode.gpu_nodes(orjson.dumps({"type": "ADDED", "object": item}))
    assert found is not None
    assert found["object"]["status"]["seats"] == [{"uid": "u", "activity": {"busy": [1]}}]


def test_where_a_seat_rests_is_kept_and_read() -> None:
    seats = [
        {"uid": "u", "state": "parked", "tier": "nvme", "savedBytes": 100, "reason": "r"},
        {"uid": "v", "state": "parked", "tier": "ram"},
        {"uid": "w", "state": "parked", "tier": "tape", "savedBytes": 100},
        {"uid": "x", "state": "parked", "tier": "object", "savedBytes": "much"},
        {"uid": "y", "state": "parked", "tier": ["nvme"], "savedBytes": 0},
        {"uid": "z", "state": "parked", "tier": "nvme", "savedBytes": 1 << 63},
    ]
    item = gpu_node(seats=seats)
    found = decode.gpu_nodes(orjson.dumps({"type": "ADDED", "object": item}))
    assert found is not None
    assert found["object"]["status"]["seats"][0] == {"uid": "u", "tier": "nvme", "savedBytes": 100}
    for one in (found["object"], item):
        read = read_gpu_node(one, 5)
        assert read.not_ready is None
        assert {uid: state.tier for uid, state in read.rests.items()} == {"u": Tier.NVME}
        assert 100 <= read.rests[PodUid("u")].size <= 121


def test_an_error_is_told_as_it_came() -> None:
    said = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    for known in (decode.pods, decode.gpu_nodes):
        found = known(orjson.dumps(said))
        assert found is not None
        assert found["object"]["message"] == "too old"


def test_objects_of_another_form_are_read_as_they_are() -> None:
    """As `read_pod` would read them: one that can't be understood is no reason to lose the rest."""
    strange = {"metadata": {"name": "s", "annotations": ["no object"]}, "spec": "none"}
    found = decode.pods(bodies("ADDED", strange)[0])
    assert found is not None
    assert [read_pod(one) for one in found["items"]] == [read_pod(strange)] * 2
    event = decode.pods(bodies("ADDED", strange)[1])
    assert event is not None
    assert read_pod(event["object"]) == read_pod(strange)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'"text"', b"\xff"])
def test_what_is_no_object_is_none(body: bytes) -> None:
    assert decode.pods(body) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "status", "items", "object", "annotations", "limits"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_decoded(value: Any) -> None:
    found = decode.pods(orjson.dumps(value))
    assert (found is not None) == isinstance(value, dict)
