"""What the watches' events make of the ledger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from extender.http.verbs import filter_nodes
from extender.http.wire import BindArgs
from extender.state.snapshot import BIND_WINDOW
from kybernate.core.ledger.ledger import Claim
from kybernate.types import GroupName, NodeName, PodRef, PodUid
from tests.unit.extender.objects import ONE, TWO, gpu_node, pod, read_pod

if TYPE_CHECKING:
    from extender.bind.binder import Binder
    from extender.state.snapshot import Snapshot
    from kybernate.core.placement.verdicts import Fits
    from tests.unit.extender.conftest import Clock, FakeCluster

NODE = NodeName("n1")


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


@pytest.mark.parametrize("now", [{}, {"kyb.ai/on-preempt": "pause"}])
def test_who_takes_its_word_back_is_not_deleted_for_others(
    snapshot: Snapshot, now: dict[str, str]
) -> None:
    said = pod("web", limits={"cpu": "1"}, notes={"kyb.ai/on-preempt": "kill"})
    snapshot.pod_event("ADDED", said)
    known = snapshot.pod("uid-web")
    assert known is not None
    assert known.expendable
    snapshot.pod_event("MODIFIED", pod("web", limits={"cpu": "1"}, notes=now))
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


def test_what_was_offered_is_accepted_while_nothing_has_changed_there(snapshot: Snapshot) -> None:
    first, second = read_pod(pod("a")), read_pod(pod("b"))
    assert first.demand is not None
    names = [NodeName("n1")]
    for one in (first, second):
        snapshot.pod_event("ADDED", pod(one.ref.name))
    assert snapshot.offer(first.ref, first.demand, names, 1).passed == ["n1"]
    accepted = snapshot.accept(first.ref.uid, first.demand, names[0], 60)
    assert accepted == snapshot.claim(first.ref.uid)
    assert snapshot.offer(second.ref, first.demand, names, 1).passed == ["n1"]
    snapshot.pod_event("DELETED", pod("a"))
    assert snapshot.accept(second.ref.uid, first.demand, names[0], 60) is None


def under_way(snapshot: Snapshot) -> set[tuple[str, str]]:
    view = snapshot.views(["n1"])["n1"]
    assert view is not None
    return set(view.under_way)


def test_without_cdi_a_bound_pod_is_under_way_until_its_agent_has_seen_it(
    snapshot: Snapshot,
) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))
    assert under_way(snapshot) == {(ONE, "G0")}
    seated = pod("a", node="n1", notes={"kyb.ai/group": "G0", "kyb.ai/seat": "G0-seat-1"})
    snapshot.pod_event("MODIFIED", seated)
    assert under_way(snapshot) == set()


def test_a_pod_that_is_deleted_is_under_way_no_more(snapshot: Snapshot) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))
    snapshot.pod_event("DELETED", bound("a"))
    assert under_way(snapshot) == set()


def test_nobody_is_under_way_for_longer_than_a_minute(snapshot: Snapshot, clock: Clock) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))
    assert under_way(snapshot) == {(ONE, "G0")}
    clock.now += BIND_WINDOW
    assert under_way(snapshot) == set()


def test_a_reserved_seat_is_under_way_and_a_released_one_is_not(snapshot: Snapshot) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", pod("a"))
    snapshot.reserve(claim_of_a(), 10)
    assert under_way(snapshot) == {(ONE, "G0")}
    snapshot.release(PodUid("uid-a"))
    assert under_way(snapshot) == set()


def test_with_cdi_nobody_is_in_anybodys_way(snapshot: Snapshot) -> None:
    snapshot.pod_event("ADDED", bound("a"))
    assert under_way(snapshot) == set()


def test_filter_hides_a_node_from_other_groups_while_a_pod_is_under_way(
    snapshot: Snapshot,
) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))

    def answer(name: str, **changes: dict[str, str]) -> Fits:
        return found(snapshot, pod(name, **changes))

    other = answer("b", notes={"kyb.ai/require-group": "G1"})
    assert other.passed == []
    assert "a pod with a seat of G0 is under way" in other.failed[NodeName("n1")]
    assert answer("b", notes={"kyb.ai/require-group": "G0"}).passed == ["n1"]
    assert answer("c").passed == ["n1"]
    assert answer("d", limits={TWO: "1"}).passed == ["n1"]


def found(snapshot: Snapshot, item: dict[str, Any]) -> Fits:
    return filter_nodes(read_pod(item), [NodeName("n1")], snapshot.offer)


def test_filter_sees_the_window_of_a_bind_end(snapshot: Snapshot, clock: Clock) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))
    other = pod("b", notes={"kyb.ai/require-group": "G1"})
    assert found(snapshot, other).passed == []
    clock.now += BIND_WINDOW
    assert found(snapshot, other).passed == ["n1"]


def test_filter_sees_at_once_that_the_agent_has_seen_a_pod(snapshot: Snapshot) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    snapshot.pod_event("ADDED", bound("a"))
    other = pod("b", notes={"kyb.ai/require-group": "G1"})
    assert found(snapshot, other).passed == []
    notes = {"kyb.ai/group": "G0", "kyb.ai/seat": "G0-seat-1"}
    snapshot.pod_event("MODIFIED", pod("a", node="n1", notes=notes))
    assert found(snapshot, other).passed == ["n1"]


def test_filter_sees_a_reservation_end(snapshot: Snapshot, clock: Clock) -> None:
    pair = pod("b", limits={TWO: "1"})
    snapshot.reserve(Claim(PodRef("d", "x", PodUid("x")), NODE, GroupName("G01"), TWO), 10)
    assert found(snapshot, pair).passed == []
    clock.now += 10
    assert found(snapshot, pair).passed == ["n1"]


def test_a_pod_does_not_stand_in_its_own_way(snapshot: Snapshot) -> None:
    pair = pod("b", limits={TWO: "1"})
    snapshot.reserve(Claim(read_pod(pair).ref, NODE, GroupName("G01"), TWO), 10)
    assert found(snapshot, pair).passed == ["n1"]
    assert found(snapshot, pod("c", limits={TWO: "1"})).passed == []


def test_bind_stays_with_the_group_that_is_under_way(
    snapshot: Snapshot, cluster: FakeCluster, binder: Binder
) -> None:
    snapshot.node_event("MODIFIED", gpu_node(deviceStrategy="nodes"))
    groups = []
    for name in ("a", "b", "c"):
        snapshot.pod_event("ADDED", cluster.add(pod(name)))
        args = BindArgs(PodRef("default", name, PodUid(f"uid-{name}")), NodeName("n1"))
        error = binder.bind(args)
        groups.append(cluster.pod("default", name)["metadata"]["annotations"].get("kyb.ai/group"))
    assert groups == [groups[0], groups[0], None]
    assert "is under way there" in error
