"""What a controller reads of GPUNodes, which nodes write: of any shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.base.known import Nodes
from kybernate.api.watched.nodefacts import (
    NO_FACTS,
    Rest,
    SeatFacts,
    agent_address,
    read_facts,
    read_seat,
    slim_node,
)
from kybernate.core.requests.asked import Copied

GOOD = {
    "agent": {"address": "10.0.0.1:9443"},
    "gpus": [{"product": "H200", "index": 0}],
    "driver": {"version": "580.1"},
    "tiers": [{"name": "ram"}, {"name": "nvme", "budgetBytes": 7}],
    "seats": [
        {
            "uid": "u1",
            "namespace": "team",
            "pod": "a",
            "state": "parked",
            "tier": "object",
            "since": "1970-01-01T00:01:00Z",
        },
        {"uid": "u2", "state": "active", "copiedBytes": 3, "savedBytes": 9, "reason": "it serves"},
    ],
    "usage": [{"namespace": "team", "used": {"gpuSeconds": 5, "wakes": 2}}],
}

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ROWS = (
    *("uid", "state", "tier", "since", "namespace", "group", "heldBytes", "activity", "name"),
    *("budgetBytes", "used", "product", "gpus", "seats", "resource", "wakes", "copiedBytes"),
)
ROW = st.dictionaries(st.sampled_from(ROWS), ANY, max_size=6)
STATUS = st.dictionaries(
    st.sampled_from(("agent", "gpus", "driver", "tiers", "seats", "usage", "groups")),
    ANY | ROW | st.lists(ROW | ANY, max_size=3),
)


def node(status, name="n1"):
    return {"metadata": {"name": name, "uid": "u", "labels": {"long": "x"}}, "status": status}


def test_all_is_read_of_a_good_one():
    for item in (node(GOOD), slim_node(node(GOOD))):
        facts = read_facts(item)
        assert facts.address == agent_address(item) == "10.0.0.1:9443"
        assert facts.gpus == ("H200", "580.1")
        assert facts.nvme == 7
        assert facts.resting == {"u1": Rest("team", 60.0)}
        assert facts.used["team"].gpu_seconds == 5
    assert read_seat(node(GOOD), "u2") == SeatFacts(True, "it serves", Copied(3, 9))
    assert read_seat(node(GOOD), "u3") == SeatFacts()


def test_what_can_not_be_read_is_missing_and_nothing_else_is():
    facts = read_facts(node({**GOOD, "seats": [{"uid": []}, 5], "tiers": "none", "usage": {}}))
    assert (facts.address, facts.gpus) == ("10.0.0.1:9443", ("H200", "580.1"))
    assert (facts.nvme, dict(facts.resting), dict(facts.used)) == (0, {}, {})
    assert read_facts(node({**GOOD, "agent": "10.0.0.1", "newer": [1]})).address == ""


def test_one_without_a_status_has_no_facts():
    assert read_facts(node(None)) == NO_FACTS
    assert read_facts({"metadata": {"name": "n1"}}) == NO_FACTS


@pytest.mark.parametrize("since", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_time_that_utc_can_not_write_is_none(since):
    bad = node({"seats": [{**GOOD["seats"][0], "since": since}]})
    assert read_facts(slim_node(bad)).resting == {}


@given(ANY | STATUS)
def test_no_status_breaks_what_others_have_told(status):
    nodes = Nodes()
    nodes.on_event("ADDED", slim_node(node(GOOD)))
    bad = node(status, "n2")
    for item in (bad, slim_node(bad)):
        nodes.on_event("MODIFIED", item)
        nodes.load("n2")
        read_seat(item, "u1")
        assert nodes.address("n1") == "10.0.0.1:9443"
        assert ("n1", "u1") in nodes.resting()
        assert nodes.used("team")["n1"].wakes == 2
        assert nodes.gpus()["n1"] == ("H200", "580.1")
