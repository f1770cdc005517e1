"""Who waits, and when there is something to try again for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from extender.bind.requeue import ANSWERED_WITHIN, FORGET_AFTER, UNSEEN_FOR, Requeue, Waiting
from kybernate.core.ledger.ledger import Claim
from kybernate.core.placement import candidates
from kybernate.errors import RetryableError
from kybernate.types import GroupName, NodeName
from tests.unit.extender.objects import ONE, RESERVED_S, TWO, pod, read_pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from extender.state.objects import SeatPod
    from extender.state.snapshot import Snapshot
    from kybernate.core.placement import Demand
    from kybernate.types import PodUid
    from tests.unit.extender.conftest import Clock

N1, N2, N3 = (NodeName(name) for name in ("n1", "n2", "n3"))


class World:
    """Nodes with room for a resource, and the pods that the watch shows."""

    def __init__(self) -> None:
        self.room: dict[str, set[NodeName]] = {ONE: set(), TWO: set()}
        self.pods: dict[PodUid, SeatPod] = {}
        self.changed: set[NodeName] = set()
        self.asked = 0
        self.waiting = Waiting(self.changed, self._fitting, self.pods.get)

    def _fitting(self, demand: Demand, names: set[NodeName]) -> set[NodeName]:
        self.asked += len(names)
        return self.room[demand.resource] & names

    def reject(self, name: str, resource: str = ONE, nodes: tuple[NodeName, ...] = (N1,)) -> None:
        seen = read_pod(pod(name, limits={resource: "1"}))
        self.pods[seen.ref.uid] = seen
        self.waiting.rejected(seen, nodes)

    def free(self, node: NodeName, resource: str = ONE) -> None:
        self.room[resource].add(node)
        self.changed.add(node)

    def take(self, node: NodeName, resource: str = ONE) -> None:
        self.room[resource].discard(node)
        self.changed.add(node)

    def look(self, now: float = 0.0) -> bool:
        return self.waiting.look(now)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_told_while_nobody_waits(world: World) -> None:
    world.free(N1)
    assert not world.look()
    assert not world.changed
    assert world.asked == 0


def test_a_seat_that_frees_is_told_once(world: World) -> None:
    world.reject("p")
    assert not world.look()
    world.free(N1)
    assert [world.look(), world.look(), world.look()] == [True, False, False]


def test_a_seat_that_is_taken_and_freed_again_is_told_again(world: World) -> None:
    world.reject("p")
    for _ in range(2):
        world.free(N1)
        assert world.look()
        world.take(N1)
        assert not world.look()


def test_a_seat_of_another_kind_is_not_told(world: World) -> None:
    world.reject("p", TWO)
    world.free(N1, ONE)
    assert not world.look()


def test_a_seat_that_freed_before_the_rejection_arrived_is_told(world: World) -> None:
    """The call was answered before the deletion was seen, and is noted only after it: on a busy
    machine many looks later."""
    world.look()
    world.free(N1)
    for tenth in range(100):
        assert not world.look(tenth / 10)
    world.reject("p")
    assert [world.look(10.0), world.look(10.1)] == [True, False]


def test_a_change_that_is_older_than_any_call_is_no_news(world: World) -> None:
    world.free(N1)
    world.look()
    world.look(ANSWERED_WITHIN + 1)
    world.reject("p")
    assert not world.look(ANSWERED_WITHIN + 1)


def test_a_rejection_makes_the_same_node_news_again(world: World) -> None:
    """Nobody tells why a node was ruled out: what it is asked about counts."""
    world.reject("p")
    world.free(N1)
    assert world.look()
    world.take(N1)
    world.reject("p")
    world.free(N1)
    assert world.look()


def test_what_the_scheduler_rules_out_itself_is_told_once_only(world: World) -> None:
    """A node with a seat but no CPU is never asked about, however often the pod is tried."""
    world.reject("p", nodes=(N1,))
    world.free(N2)
    assert world.look()
    for _ in range(5):
        world.reject("p", nodes=(N1,))
        world.changed.add(N2)
        assert not world.look()


def test_only_nodes_that_changed_are_looked_at(world: World) -> None:
    world.reject("p")
    world.look()
    world.free(N3)
    world.look()
    world.look()
    assert world.asked == 1


@pytest.mark.parametrize("end", ["bound", "gone", "forgotten"])
def test_a_pod_that_waits_no_longer_is_dropped(world: World, end: str) -> None:
    world.reject("p")
    world.look()
    (uid,) = world.pods
    now = 1.0
    if end == "bound":
        world.pods[uid] = read_pod(pod("p", node="n9"))
    elif end == "gone":
        del world.pods[uid]
        now = UNSEEN_FOR
    else:
        now = FORGET_AFTER
    world.free(N1)
    assert not world.look(now)


def test_a_pod_that_the_watch_is_late_to_show_waits(world: World) -> None:
    world.reject("p")
    world.pods.clear()
    world.look()
    world.free(N1)
    assert world.look(UNSEEN_FOR - 1)


class Calls:
    """A nudge that fails so often at first."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.made = 0

    def __call__(self) -> None:
        self.made += 1
        if self.made <= self.failures:
            raise RetryableError("no answer")


def run(world: World, calls: Calls, closed: Callable[[], str | None], rounds: int) -> None:
    requeue = Requeue(world.waiting, calls, closed)
    left, stopping = iter(range(rounds)), threading.Event()
    stopping.wait = lambda _=None: next(left, None) is None  # type: ignore[method-assign]
    requeue.run(stopping)


def test_a_nudge_that_failed_is_made_again(world: World) -> None:
    world.reject("p")
    world.free(N1)
    calls = Calls(failures=2)
    run(world, calls, lambda: None, 12)
    assert calls.made == 3


def test_a_standby_tells_nobody_and_does_so_once_it_leads(world: World) -> None:
    world.reject("p")
    world.free(N1)
    calls, reasons = Calls(0), iter(["standby"] * 3)
    run(world, calls, lambda: next(reasons, None), 10)
    assert calls.made == 1


def test_a_reservation_that_ends_by_time_alone_is_noticed(snapshot: Snapshot, clock: Clock) -> None:
    def fitting(demand: Demand, names: set[NodeName]) -> set[NodeName]:
        views = snapshot.views(names)
        return {name for name, view in views.items() if view and candidates(view, demand).groups}

    waiting = Waiting(snapshot.follow(), fitting, snapshot.pod)
    held = Claim(read_pod(pod("x")).ref, N1, GroupName("G01"), TWO)
    snapshot.reserve(held, ttl=RESERVED_S)
    late = pod("p", limits={TWO: "1"})
    snapshot.pod_event("ADDED", late)
    waiting.rejected(read_pod(late), (N1,))
    looks = []
    for _ in range(int(RESERVED_S) + 3):
        looks.append(waiting.look(clock.now))
        clock.now += 1
    assert looks.count(True) == 1
    assert looks.index(True) in (RESERVED_S, RESERVED_S + 1)
