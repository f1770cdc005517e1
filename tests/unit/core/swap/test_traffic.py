"""When a request is outstanding on a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.swap.traffic import Connection, Traffic, outstanding

IDLE = Connection(
    inbound=True,
    unread=0,
    unsent=0,
    received=10,
    sent=10,
    since_received=3.0,
    since_sent=2.0,
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"unread": 1}, True),
        ({"unsent": 1}, True),
        ({"since_received": 1.0}, True),
        ({"since_received": 1.0, "sent": 0}, True),
        ({"sent": 0, "since_sent": 3.0}, True),
        ({"received": 0, "sent": 0, "since_received": 1.0}, False),
        ({"received": 0, "since_received": 1.0}, False),
    ],
)
def test_inbound(change, expected):
    assert outstanding(replace(IDLE, **change), 0.0) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"since_received": 1.0}, False),
        ({"since_received": 1.0, "unread": 1}, True),
        ({}, True),
        ({"received": 0}, True),
        ({"received": 0, "sent": 0}, False),
    ],
)
def test_outbound_it_is_the_tree_that_waits(change, expected):
    assert outstanding(replace(IDLE, inbound=False, **change), 0.0) is expected


@pytest.mark.parametrize("inbound", [True, False])
def test_a_tie_counts_while_it_is_young(inbound):
    tie = replace(IDLE, inbound=inbound, since_received=2.0, since_sent=2.0)
    assert outstanding(tie, 2.1)
    assert not outstanding(tie, 2.0)
    assert not outstanding(tie, 0.0)


CONNECTIONS = st.builds(
    Connection,
    inbound=st.booleans(),
    unread=st.integers(0, 2),
    unsent=st.integers(0, 2),
    received=st.integers(0, 3),
    sent=st.integers(0, 3),
    since_received=st.sampled_from([0.0, 1.0, 2.0]),
    since_sent=st.sampled_from([0.0, 1.0, 2.0]),
)


@given(CONNECTIONS)
def test_somebody_waits_at_one_end_or_at_the_other(connection):
    """Without bytes on the way, at most one of the two can be waiting for the other."""
    quiet = replace(connection, unread=0, unsent=0)
    turned = replace(quiet, inbound=not quiet.inbound)
    assert not (outstanding(quiet, 0.0) and outstanding(turned, 0.0))


@given(CONNECTIONS, st.floats(0, 5))
def test_more_doubt_never_makes_it_idle(connection, doubt):
    if outstanding(connection, 0.0):
        assert outstanding(connection, doubt)


def test_traffic_adds_up():
    busy = replace(IDLE, unread=5, since_received=0.5)
    found = Traffic(queued=2, datagrams=100, connections=(IDLE, busy))
    assert found.outstanding(0.0) == 4
    assert found.quiet() == 0.5
    assert Traffic().outstanding(9.0) == 0
    assert Traffic().quiet() == float("inf")
