"""Leases: two leaders at once are ruled out, whatever is late, lost or paused."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from extender.lead.schedulerlease import SchedulerLease
from kybernate.errors import ConflictError, RefusedError, RetryableError
from kybernate.runtime.lead import DRIFT, Leader, Terms

if TYPE_CHECKING:
    from collections.abc import Callable

LASTS = 15
CALL = 4.0


class Ledger:
    """What must be listed anew; `done` says whether the last list is taken in."""

    def __init__(self) -> None:
        self.refreshes = 0
        self.done = True

    def refresh(self) -> Callable[[], bool]:
        self.refreshes += 1
        return lambda: self.done


class Store:
    """Leases as the API server keeps them. `after` holds errors to raise once a write is stored."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.reads = 0
        self._version = 0

    def read(self, name: str) -> dict[str, Any] | None:
        self.reads += 1
        if self.before:
            raise self.before.pop()
        return self.leases.get(name)

    def write(self, lease: dict[str, Any]) -> dict[str, Any]:
        if self.before:
            raise self.before.pop()
        name, version = lease["metadata"]["name"], lease["metadata"].get("resourceVersion")
        stored = self.leases.get(name)
        if (stored["metadata"]["resourceVersion"] if stored else None) != version:
            raise ConflictError("the object has been modified")
        self._version += 1
        meta = {"name": name, "resourceVersion": str(self._version)}
        self.leases[name] = {**lease, "metadata": meta}
        if self.after:
            raise self.after.pop()
        return self.leases[name]

    def spec(self, name: str = "l") -> dict[str, Any]:
        found: dict[str, Any] = self.leases[name]["spec"]
        return found


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def candidate(
    store: Any, name: str, ledger: Ledger, clock: Callable[[], float], **more: Any
) -> Leader:
    return Leader(store, "l", name, Terms(LASTS, CALL), ledger, clock, **more)


def test_the_first_one_leads_and_its_ledger_is_renewed_before(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    ledger.done = False
    one = candidate(store, "one", ledger, clock)
    assert "does not lead; nobody holds" in str(one.closed())
    one.tend()
    assert ledger.refreshes == 1
    assert "listing what the last one did" in str(one.closed())
    with pytest.raises(RetryableError, match="listing"):
        one.check()
    ledger.done = True
    one.check()
    assert (store.spec()["holderIdentity"], store.spec()["leaseDurationSeconds"]) == ("one", LASTS)


def test_another_one_waits_until_the_lease_has_ended_since_it_saw_it(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    candidate(store, "one", ledger, clock).tend()
    clock.now += 10
    two = candidate(store, "two", ledger, clock)
    two.tend()
    clock.now += LASTS - 0.1
    two.tend()
    assert two.closed() == "this replica does not lead; one holds the lease"
    clock.now += 0.2
    two.tend()
    assert two.closed() is None
    assert store.spec()["leaseTransitions"] == 2


def test_no_call_begins_that_could_outlast_the_lease(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    one = candidate(store, "one", ledger, clock)
    one.tend()
    clock.now += LASTS * (1 - DRIFT) - CALL - 0.1
    one.check()
    clock.now += 0.2
    with pytest.raises(RetryableError, match="may end before"):
        one.check()
    one.tend()
    one.check()
    assert ledger.refreshes == 1, "it led all the time"


def test_a_leader_that_can_not_renew_stops_and_knows_nothing_when_it_leads_again(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    one = candidate(store, "one", ledger, clock)
    one.tend()
    store.before = [RetryableError("no answer")]
    with pytest.raises(RetryableError):
        one.tend()
    clock.now += LASTS
    assert one.closed() is not None
    one.tend()
    assert one.closed() is None
    assert ledger.refreshes == 2


def test_a_renewal_whose_answer_was_lost_is_made_again(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    one = candidate(store, "one", ledger, clock)
    one.tend()
    store.after = [RetryableError("no answer")]
    clock.now += 5
    with pytest.raises(RetryableError):
        one.tend()
    one.tend()
    clock.now += LASTS * (1 - DRIFT) - 0.1
    assert one.closed() is None


def test_a_lease_that_is_given_back_is_free_at_once(
    store: Store, clock: Clock, ledger: Ledger
) -> None:
    one, two = (candidate(store, name, ledger, clock) for name in ("one", "two"))
    one.start()
    while one.closed():
        pass
    two.tend()
    assert two.closed() is not None
    one.stop()
    assert one.closed() is not None
    two.tend()
    assert two.closed() is None


def test_each_renewal_is_announced(store: Store, clock: Clock, ledger: Ledger) -> None:
    said: list[str] = []
    one, two = (
        candidate(store, name, ledger, clock, announce=partial(said.append, name))
        for name in ("one", "two")
    )
    for leader in (one, two, one):
        leader.tend()
    assert said == ["one", "one"]


class Weather(Store):
    """A store in real time: calls take long, get lost either way, and others act meanwhile."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.now = 0.0
        self._rng = rng
        self.all: list[Leader] = []
        self.busy: list[Leader] = []
        self.led: set[str] = set()

    def read(self, name: str) -> dict[str, Any] | None:
        self._travel()
        found = super().read(name)
        self._travel()
        return found

    def write(self, lease: dict[str, Any]) -> dict[str, Any]:
        self._travel()
        stored = super().write(lease)
        self._travel()
        return stored

    def _travel(self) -> None:
        self.now += self._rng.choice((0.0, 0.01, 0.5, 4.0, 20.0))
        self.check()
        if self._rng.random() < 0.1:
            raise RetryableError("lost")
        if self._rng.random() < 0.4:
            self.act(self._rng.choice(self.all))

    def act(self, leader: Leader) -> None:
        if leader in self.busy:
            return
        self.busy.append(leader)
        with suppress(RetryableError, ConflictError):
            leader.tend()
        self.busy.remove(leader)
        self.check()

    def check(self) -> None:
        leading = [one._identity for one in self.all if one._clock() < one._election.until]
        assert len(leading) <= 1, leading
        self.led.update(leading)


def running(weather: Weather, offset: float, rate: float) -> Callable[[], float]:
    return lambda: offset + rate * weather.now


def test_there_are_never_two(ledger: Ledger) -> None:
    """Clocks that differ and run unlike, calls late by more than a lease, answers lost."""
    led = 0
    for seed in range(150):
        rng = random.Random(seed)
        weather = Weather(rng)
        for number in range(3):
            clock = running(weather, rng.uniform(-1e6, 1e6), rng.uniform(0.95, 1.05))
            weather.all.append(candidate(weather, f"c{number}", ledger, clock))
        idle: set[int] = set()
        for _ in range(60):
            weather.now += rng.choice((0.1, 2.0, 5.0, 16.0))
            weather.check()
            if rng.random() < 0.05:
                idle ^= {rng.randrange(3)}
            chosen = rng.choice([n for n in range(3) if n not in idle] or [0])
            weather.act(weather.all[chosen])
        led += len(weather.led)
    assert led > 300, "most of them led at some time"


def beside(store: Store, ledger: Ledger, clock: Clock) -> SchedulerLease:
    return SchedulerLease(store, "l", "pod-a", ledger, 0.05, clock)


def hold(store: Store, identity: str) -> None:
    store.leases["l"] = {
        "metadata": {"resourceVersion": "1"},
        "spec": {"holderIdentity": identity, "leaseDurationSeconds": 15},
    }


def test_beside_a_scheduler_that_leads_the_ledger_is_renewed_once(
    store: Store, ledger: Ledger, clock: Clock
) -> None:
    hold(store, "pod-a_1")
    fence = beside(store, ledger, clock)
    assert fence.closed() is None
    for _ in range(3):
        fence.check()
        fence.check()
        clock.now += 1
    assert (ledger.refreshes, store.reads) == (1, 3)


def test_beside_a_scheduler_that_was_restarted_it_is_renewed_again(
    store: Store, ledger: Ledger, clock: Clock
) -> None:
    fence = beside(store, ledger, clock)
    for identity in ("pod-a_1", "pod-a_2"):
        hold(store, identity)
        fence.check()
        clock.now += 1
    assert ledger.refreshes == 2


def test_beside_a_scheduler_that_does_not_lead_nothing_is_bound(
    store: Store, ledger: Ledger, clock: Clock
) -> None:
    fence = beside(store, ledger, clock)
    with pytest.raises(RetryableError, match="nobody holds the lease l"):
        fence.check()
    hold(store, "pod-b_1")
    with pytest.raises(RetryableError, match="pod-b_1 holds the lease l"):
        fence.check()
    hold(store, "pod-a_1")
    fence.check()
    clock.now += 1
    hold(store, "pod-b_1")
    with pytest.raises(RetryableError, match="pod-b_1"):
        fence.check()
    hold(store, "pod-a_1")
    fence.check()
    assert ledger.refreshes == 2, "somebody else led in between"


def test_a_list_that_takes_long_is_waited_for_but_not_for_ever(
    store: Store, ledger: Ledger
) -> None:
    hold(store, "pod-a_1")
    ledger.done = False
    fence = SchedulerLease(store, "l", "pod-a", ledger, 0.05)
    with pytest.raises(RetryableError, match="still being listed"):
        fence.check()
    ledger.done = True
    fence.check()


def test_a_scheduler_lease_that_may_not_be_read_is_told(
    store: Store, ledger: Ledger, clock: Clock
) -> None:
    store.before = [RefusedError("leases is forbidden")]
    with pytest.raises(RefusedError, match="forbidden"):
        beside(store, ledger, clock).check()


def test_a_leader_whose_clock_is_slow_stops_before_one_whose_clock_is_fast_begins(
    ledger: Ledger,
) -> None:
    weather = Weather(random.Random(1))
    weather._travel = lambda: None  # type: ignore[method-assign]
    slow = candidate(weather, "slow", ledger, running(weather, 7.0, 0.95))
    fast = candidate(weather, "fast", ledger, running(weather, -7.0, 1.05))
    weather.all = [slow, fast]
    slow.tend()
    while fast.closed():
        fast.tend()
        weather.check()
        weather.now += 0.01
    assert weather.now < LASTS
