"""Which state of a pod a claim may be on: whatever is asked for, no older one in its place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.artifacts.succession import Asked, PodRecord, may_speak, see_newest
from kybernate.errors import ConflictError

NAMES = st.sampled_from(["ns/a@1", "ns/a@2", "ns/a@3"])
NODES = st.sampled_from(["", "n1", "n2", "n3"])
POD = PodRecord("ns", "u1")


@given(
    artifact=NAMES,
    newest=st.one_of(st.just(""), NAMES),
    successor=st.sampled_from(["u1", "u2"]),
    again=st.booleans(),
    older=st.booleans(),
)
def test_an_older_one_is_claimed_only_where_that_is_said(
    artifact: str, newest: str, successor: str, *, again: bool, older: bool
) -> None:
    asked = Asked(artifact, successor, "n2", again=again, older=older)
    expected = contextlib.nullcontext()
    said = older or again or successor == POD.uid
    if newest and artifact != newest and not said:
        expected = pytest.raises(ConflictError, match="not the newest")
    with expected:
        see_newest(POD, asked, newest)


@given(runs=NODES, writes=NODES, succeeds=NODES, node=st.sampled_from(["n1", "n2", "n3"]))
def test_a_node_speaks_for_a_pod_that_it_has_to_do_with(
    runs: str, writes: str, succeeds: str, node: str
) -> None:
    pod = PodRecord("ns", "u1", node=runs, holder=writes, successor_node=succeeds)
    unknown = not (runs or writes or succeeds)
    assert may_speak(pod, node) == (unknown or node in (runs, writes, succeeds))
