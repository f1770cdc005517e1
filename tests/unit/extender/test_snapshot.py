"""What the watches' events make of the ledger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from extender.objects import read_pod
from tests.unit.extender.objects import gpu_node, pod

if TYPE_CHECKING:
    from extender.snapshot import Snapshot
    from kybernate.core.ledger import Claim


def taken(snapshot: Snapshot) -> list[str]:
    view = snapshot.views(["n1"])["n1"]
    assert view is not None
    return [claim.pod.name for claim in view.claims]


def bound(name: str, **changes: str) -> dict[str, object]:
    return pod(name, node="n1", notes={"kyb.ai/group": "G0"}, **changes)


def test_bound_pods_claim_and_deleted_pods_free(snapshot: Snapshot) -> None:
    snapshot.pod_event("ADDED", bound("a"))
    snapshot.pod_event("ADDED", pod("b"))
    assert taken(snapshot) == ["a"]
    snapshot.pod_event("DELETED", bound("a"))
    assert taken(snapshot) == []
    assert snapshot.pod("uid-a") is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_frees_its_seat(snapshot: Snapshot, phase: str) -> None:
    snapshot.pod_event("ADDED", bound("a"))
    snapshot.pod_event("MODIFIED", bound("a", phase=phase))
    assert taken(snapshot) == []


def test_a_late_event_of_a_pending_pod_takes_nothing_back(snapshot: Snapshot) -> None:
    snapshot.pod_event("ADDED", pod("a"))
    snapshot.confirm(claim_of_a())
    snapshot.pod_event("MODIFIED", pod("a"))
    assert taken(snapshot) == ["a"]
    known = snapshot.pod("uid-a")
    assert known is not None
    assert known.group == "G0"


def claim_of_a() -> Claim:
    claim = read_pod(bound("a")).claim()
    assert claim is not None
    return claim


def test_pods_of_others_are_not_kept(snapshot: Snapshot) -> None:
    snapshot.pod_event("ADDED", pod("web", limits={"cpu": "1"}))
    assert snapshot.pod("uid-web") is None


def test_a_pod_without_a_group_is_counted_and_logged_once(
    snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for kind in ("ADDED", "MODIFIED"):
            snapshot.pod_event(kind, pod("a", node="n1"))
    assert snapshot.unplaced() == 1
    assert len(caplog.records) == 1
    assert "default/a" in caplog.text


def test_a_node_that_leaves_is_unknown(snapshot: Snapshot) -> None:
    snapshot.node_event("DELETED", gpu_node("n1"))
    assert snapshot.views(["n1"]) == {"n1": None}
    assert snapshot.nodes() == 0
