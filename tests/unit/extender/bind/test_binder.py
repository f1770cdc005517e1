"""Binding once, whatever goes wrong around it."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from extender.bind.binder import Binder
from extender.bind.consulted import Consulted
from extender.http.wire import BindArgs
from kybernate import keys
from kybernate.errors import ConflictError, NotFoundError, RefusedError, RetryableError
from kybernate.types import GroupName, NodeName, PodRef, PodUid
from tests.unit.extender.objects import ONE, RESERVED_S, TWO, gpu_node, pod

if TYPE_CHECKING:
    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from tests.unit.extender.conftest import Clock, FakeCluster

TIMEOUT = RetryableError("no answer in time")


def args(name: str = "p1", node: str = "n1", uid: str | None = None) -> BindArgs:
    return BindArgs(PodRef("default", name, PodUid(uid or f"uid-{name}")), NodeName(node))


def taken(snapshot: Snapshot, node: str = "n1") -> dict[str, str]:
    view = snapshot.views([NodeName(node)])[NodeName(node)]
    assert view is not None
    return {claim.pod.name: str(claim.group) for claim in view.claims}


def test_binds_with_group_and_time(binder: Binder, seen: dict[str, Any]) -> None:
    assert binder.bind(args()) == ""
    assert seen["spec"]["nodeName"] == "n1"
    assert seen["metadata"]["annotations"] == {
        "kyb.ai/group": "G0",
        "kyb.ai/assigned-at": "2026-01-02T03:04:05Z",
    }


def test_a_pod_that_the_watch_has_not_seen_is_read(
    binder: Binder, cluster: FakeCluster, snapshot: Snapshot
) -> None:
    cluster.add(pod("p1"))
    assert binder.bind(args()) == ""
    assert taken(snapshot) == {"p1": "G0"}


def test_seats_of_one_node_are_given_once(
    binder: Binder, cluster: FakeCluster, snapshot: Snapshot
) -> None:
    answers = []
    for number in range(5):
        cluster.add(pod(f"p{number}"))
        answers.append(binder.bind(args(f"p{number}")))
    assert answers[:4] == [""] * 4
    assert answers[4] == "pod default/p4 was not bound to n1: all 4 seats of G0, G1 are taken"
    assert sorted(taken(snapshot).values()) == ["G0", "G0", "G1", "G1"]


def test_a_second_call_for_a_pod_does_not_move_the_first_ones_seat(
    binder: Binder, seen: dict[str, Any], snapshot: Snapshot, cluster: FakeCluster
) -> None:
    """Two schedulers bind it at once, to two nodes; the first one's Binding is on its way."""
    snapshot.node_event("ADDED", gpu_node("n2"))
    bind, held, answers = cluster.bind, [], []
    second = Thread(target=lambda: answers.append(binder.bind(args(node="n2"))))

    def slowly(*of: Any) -> None:
        second.start()
        second.join(0.2)
        held.append((taken(snapshot), taken(snapshot, "n2")))
        bind(*of)

    cluster.bind = slowly  # type: ignore[method-assign]
    assert binder.bind(args()) == ""
    second.join(10)
    assert held == [({"p1": "G0"}, {})]
    assert answers == ["pod default/p1 was not bound to n2: it is bound to n1 already"]
    assert (taken(snapshot), taken(snapshot, "n2")) == ({"p1": "G0"}, {})


def test_a_gang_s_pod_that_waits_takes_no_place_of_others(
    cluster: FakeCluster, snapshot: Snapshot
) -> None:
    cluster.add(pod("p1", notes={keys.GANG: "g"}))
    cluster.add(pod("p2"))
    answers = []

    def admit(_pod: SeatPod, _node: NodeName) -> GroupName:
        answers.append(binder.bind(args("p2")))
        return GroupName("G1")

    consulted = Consulted(admit=admit)
    binder = Binder(snapshot, cluster, lambda: "now", RESERVED_S, None, consulted, places=1)
    assert (binder.bind(args()), answers) == ("", [""])
    assert taken(snapshot) == {"p1": "G1", "p2": "G0"}
    assert binder._places.acquire(timeout=0), "the place was given back"


def test_the_seat_is_held_until_the_watch_shows_it(
    binder: Binder, seen: dict[str, Any], snapshot: Snapshot, clock: Clock
) -> None:
    binder.bind(args())
    clock.now += 10 * RESERVED_S
    assert taken(snapshot) == {"p1": "G0"}
    snapshot.pod_event("DELETED", seen)
    assert taken(snapshot) == {}


def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind(
    binder: Binder, seen: dict[str, Any], snapshot: Snapshot, clock: Clock, cluster: FakeCluster
) -> None:
    """Its deletion was reported before the answer to the Binding arrived."""
    snapshot.pod_event("DELETED", seen)
    assert binder.bind(args()) == ""
    clock.now += RESERVED_S
    assert taken(snapshot) == {}


def test_binding_again_is_a_success_and_asks_nobody(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster
) -> None:
    assert [binder.bind(args()), binder.bind(args())] == ["", ""]
    assert seen["metadata"]["annotations"]["kyb.ai/group"] == "G0"
    assert cluster.bindings == 1


def test_binding_again_without_a_memory_keeps_the_group(
    binder: Binder, cluster: FakeCluster, snapshot: Snapshot
) -> None:
    """The extender was restarted in between, and its watch is not there yet."""
    cluster.add(pod("p1", node="n1", notes={"kyb.ai/group": "G1"}))
    snapshot.pod_event("ADDED", pod("p1"))
    assert binder.bind(args()) == ""
    assert taken(snapshot) == {"p1": "G1"}


def test_bound_elsewhere_is_an_error(
    binder: Binder, seen: dict[str, Any], snapshot: Snapshot
) -> None:
    snapshot.node_event("ADDED", gpu_node("n2"))
    binder.bind(args())
    assert "bound to n1 already" in binder.bind(args(node="n2"))
    assert (taken(snapshot), taken(snapshot, "n2")) == ({"p1": "G0"}, {})


def test_a_timeout_that_took_effect_is_a_success(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster
) -> None:
    cluster.after = [TIMEOUT]
    assert binder.bind(args()) == ""


def test_a_seat_of_unknown_outcome_stays_reserved(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster, snapshot: Snapshot, clock: Clock
) -> None:
    cluster.before = [TIMEOUT]
    assert "no answer in time" in binder.bind(args())
    assert taken(snapshot) == {"p1": "G0"}
    clock.now += RESERVED_S
    assert taken(snapshot) == {}


def test_an_unreadable_pod_stays_reserved(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster, snapshot: Snapshot
) -> None:
    cluster.before, cluster.unreadable = [TIMEOUT], [RetryableError("still no answer")]
    assert "no answer in time" in binder.bind(args())
    assert taken(snapshot) == {"p1": "G0"}


def test_a_retry_keeps_the_group_of_the_first_try(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster, snapshot: Snapshot
) -> None:
    """Though another group would be the better choice by then."""
    cluster.before = [TIMEOUT]
    binder.bind(args())
    snapshot.pod_event("ADDED", pod("p2", node="n1", notes={"kyb.ai/group": "G0"}))
    assert binder.bind(args()) == ""
    assert seen["metadata"]["annotations"]["kyb.ai/group"] == "G0"


def test_a_retry_elsewhere_gives_the_first_seat_back(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster, snapshot: Snapshot
) -> None:
    snapshot.node_event("ADDED", gpu_node("n2"))
    cluster.before = [TIMEOUT]
    binder.bind(args())
    assert binder.bind(args(node="n2")) == ""
    assert (taken(snapshot), taken(snapshot, "n2")) == ({}, {"p1": "G0"})


@pytest.mark.parametrize(
    "error",
    [NotFoundError("gone"), RefusedError("forbidden"), ConflictError("is being deleted")],
    ids=["not found", "refused", "conflict"],
)
def test_a_certain_failure_gives_the_seat_back(
    error: Exception,
    binder: Binder,
    seen: dict[str, Any],
    cluster: FakeCluster,
    snapshot: Snapshot,
) -> None:
    cluster.before = [error]
    assert str(error) in binder.bind(args())
    assert taken(snapshot) == {}


def test_a_pod_made_anew_is_another_pod(
    binder: Binder, cluster: FakeCluster, snapshot: Snapshot
) -> None:
    cluster.add(pod("p1", uid="new"))
    assert "deleted and made again" in binder.bind(args("p1", uid="old"))
    snapshot.pod_event("ADDED", pod("p1", uid="old"))
    assert "deleted and made again" in binder.bind(args("p1", uid="old"))
    assert taken(snapshot) == {}


def test_a_pod_that_is_gone_is_an_error(binder: Binder) -> None:
    assert 'pods "p1" not found' in binder.bind(args())


def test_a_pod_that_can_not_be_placed_says_why(binder: Binder, cluster: FakeCluster) -> None:
    cluster.add(pod("p1", limits={ONE: "1", TWO: "1"}))
    cluster.add(pod("p2"))
    assert "one seat, not several" in binder.bind(args("p1"))
    assert "node agent" in binder.bind(args("p2", node="n9"))
    assert cluster.bindings == 0


def test_a_pod_without_a_seat_is_bound_without_a_group(
    binder: Binder, cluster: FakeCluster
) -> None:
    item = cluster.add(pod("p1", limits={}))
    assert [binder.bind(args()), binder.bind(args())] == ["", ""]
    assert (item["spec"]["nodeName"], item["metadata"]["annotations"]) == ("n1", {})


class Gate:
    """A fence that shuts after so many checks."""

    def __init__(self, passes: int) -> None:
        self.passes = passes

    def closed(self) -> None:
        """Calls are answered."""

    def check(self) -> None:
        self.passes -= 1
        if self.passes < 0:
            raise RetryableError("this replica does not lead")


@pytest.mark.parametrize("passes", [0, 1])
def test_a_shut_fence_lets_no_binding_out(
    passes: int, seen: dict[str, Any], cluster: FakeCluster, snapshot: Snapshot
) -> None:
    """Neither at the start of a bind nor when the lease ends in the middle of it."""
    gate = Gate(passes)
    binder = Binder(snapshot, cluster, lambda: "now", RESERVED_S, gate)
    assert "does not lead" in binder.bind(args())
    assert (cluster.bindings, seen["spec"].get("nodeName")) == (0, None)
    gate.passes = 2
    assert binder.bind(args()) == ""


def test_a_successor_is_bound_with_what_it_continues_from(
    binder: Binder, seen: dict[str, Any]
) -> None:
    binder._consulted = Consulted(continues=lambda _pod: "uid-before")
    assert binder.bind(args()) == ""
    assert seen["metadata"]["annotations"][keys.RESTORE_FROM] == "pod/uid-before"


def test_what_is_not_known_of_its_predecessor_binds_nobody(
    binder: Binder, seen: dict[str, Any], cluster: FakeCluster
) -> None:
    def unknown(_pod: SeatPod) -> str:
        raise RetryableError("not told yet")

    binder._consulted = Consulted(continues=unknown)
    assert "not told yet" in binder.bind(args())
    assert cluster.bindings == 0
