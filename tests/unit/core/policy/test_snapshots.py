"""Which snapshots are made and which are dropped: one a slot, and the newest stays."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.policy.snapshots import (
    FAILED_KEPT_S,
    Governed,
    Made,
    Order,
    Plan,
    Snapshots,
    plan,
)

HOUR, DAY = 3600.0, 86_400.0
WANTED = Snapshots(900.0)
POD = Governed("u-a", "a", 0.0)
NOW = 20_000 * DAY


def of(order: Order, now: float, *, sealed: bool = True, takes: float = 30.0) -> Made:
    """What became of an order."""
    return Made(f"uid-{order.name}", order.name, order.pod, now, now + takes, sealed)


def test_one_is_made_in_each_slot_and_a_killed_controller_makes_the_same() -> None:
    first = plan(WANTED, "p", [POD], [], NOW)
    (order,) = first.make
    assert (order.pod, order.deadline_s) == ("a", 900)
    assert plan(WANTED, "p", [POD], [], NOW + min(5, first.again / 2)).make == (order,)
    made = [of(order, NOW)]
    assert plan(WANTED, "p", [POD], made, NOW + first.again / 2).make == ()
    later = NOW + first.again
    (second,) = plan(WANTED, "p", [POD], made, later).make
    assert second.name != order.name
    assert plan(WANTED, "p", [POD], [], later + 899).again <= 1.0
    assert plan(WANTED, "another", [POD], made, NOW).make[0].name != order.name


def test_a_pod_that_has_just_begun_waits_for_its_next_slot() -> None:
    new = replace(POD, since=NOW)
    found = plan(WANTED, "p", [new], [], NOW)
    assert found.make == ()
    assert 0 < found.again <= 900
    assert plan(WANTED, "p", [new], [], NOW + found.again).make


def test_of_a_pod_that_does_not_run_none_is_made_and_none_more_is_dropped() -> None:
    waits = replace(POD, since=math.inf)
    found = plan(replace(WANTED, last=2), "p", [waits], series(3), NOW)
    assert (found.make, dropped(found)) == ((), ["a2"])


def test_so_many_at_a_time_and_who_waited_longest_first() -> None:
    wanted = replace(WANTED, parallel=2)
    pods = [Governed(f"u{n}", f"pod{n}", 0.0) for n in range(5)]
    before = [
        Made(f"r{n}", f"old{n}", f"pod{n}", NOW - 2000 - n, NOW - 1900, sealed=True)
        for n in range(4)
    ]
    found = plan(wanted, "p", pods, before, NOW)
    assert [one.pod for one in found.make] == ["pod4", "pod3"]
    busy = [Made("r", "running", "pod9", NOW - 5)]
    assert [one.pod for one in plan(wanted, "p", pods, before + busy, NOW).make] == ["pod4"]
    assert plan(wanted, "p", pods, before + busy * 2, NOW).make == ()


def test_what_can_not_begin_holds_up_no_other_pod() -> None:
    pods = [POD, Governed("u-b", "b", 0.0)]
    first, second = plan(replace(WANTED, parallel=2), "p", pods, [], NOW).make
    stuck = Made("r", first.name, first.pod, NOW - 5, waits=True)
    assert plan(WANTED, "p", pods, [stuck], NOW).make == (second,)
    assert plan(WANTED, "p", pods, [replace(stuck, waits=False)], NOW).make == ()


def test_a_name_that_somebody_took_holds_up_no_other_pod() -> None:
    pods = [POD, Governed("u-b", "b", 0.0)]
    first, second = plan(replace(WANTED, parallel=2), "p", pods, [], NOW).make
    assert plan(WANTED, "p", pods, [], NOW, [first.name]).make == (second,)


def series(count: int, every: float = HOUR, pod: str = "a") -> list[Made]:
    """The newest first."""
    return [
        Made(f"{pod}{n}", f"{pod}{n}", pod, NOW - n * every - 60, NOW - n * every - 30, sealed=True)
        for n in range(count)
    ]


def dropped(found: Plan) -> list[str]:
    return sorted(one.uid for one in found.drop)


def test_the_last_ones_are_kept_and_one_of_each_day() -> None:
    wanted = replace(WANTED, last=3)
    assert dropped(plan(wanted, "p", [POD], series(5), NOW)) == ["a3", "a4"]
    wanted = replace(WANTED, last=1, daily=3)
    made = series(5 * 24)
    kept = {one.uid for one in made} - set(dropped(plan(wanted, "p", [POD], made, NOW + 1)))
    # It is midnight: yesterday's last one is the newest of all.
    assert kept == {"a0", "a24"}
    kept = {one.uid for one in made} - set(dropped(plan(wanted, "p", [POD], made, NOW - 1)))
    assert kept == {"a0", "a24", "a48"}


def test_of_a_pod_that_is_gone_the_newest_stays() -> None:
    wanted, late = replace(WANTED, last=3, daily=7), NOW + HOUR
    assert dropped(plan(wanted, "p", [], series(4), late)) == ["a1", "a2", "a3"]
    assert dropped(plan(wanted, "p", [POD], series(3) + series(2, pod="b"), late)) == ["b1"]


def test_a_pod_that_is_away_for_a_while_keeps_its_snapshots() -> None:
    wanted = replace(WANTED, last=3, daily=7)
    found = plan(wanted, "p", [], series(30), NOW)
    assert dropped(found) == dropped(plan(wanted, "p", [POD], series(30), NOW)) != []
    made = [one for one in series(30) if one not in found.drop]
    assert found.again == FAILED_KEPT_S - 30
    assert len(plan(wanted, "p", [], made, NOW + found.again).drop) == len(made) - 1
    weekly = replace(wanted, every=7 * DAY)
    assert plan(weekly, "p", [], series(3), NOW + 13 * DAY).drop == ()


def test_what_failed_or_is_under_way_takes_no_place_of_what_is_kept() -> None:
    failed = [
        replace(one, uid=f"f{n}", name=f"f{n}", sealed=False, ended_at=NOW - n)
        for n, one in enumerate(series(4))
    ]
    found = plan(WANTED, "p", [POD], [*failed, *series(1)], NOW)
    assert found.drop == ()
    assert found.remove == ()
    late = plan(WANTED, "p", [POD], [*failed, *series(1)], NOW + FAILED_KEPT_S)
    assert {one.uid for one in late.remove} == {"f0", "f1", "f2", "f3"}
    assert late.drop == ()


PODS = st.lists(
    st.builds(Governed, st.sampled_from("uvw"), st.sampled_from("abc"), st.floats(0, NOW)),
    max_size=3,
    unique_by=(lambda one: one.uid, lambda one: one.name),
)
MADE = st.lists(
    st.builds(
        lambda number, pod, age, sealed, ended: Made(
            f"r{number}",
            f"n{number}",
            pod,
            NOW - age - 60,
            NOW - age if ended else 0.0,
            sealed and ended,
        ),
        st.integers(0, 10_000),
        st.sampled_from("abcd"),
        st.floats(0, 10 * DAY),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
    unique_by=lambda one: one.uid,
)
WANTS = st.builds(
    Snapshots,
    st.sampled_from([60.0, 900.0, DAY]),
    st.none(),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(1, 3),
)


@given(WANTS, PODS, MADE)
def test_the_newest_of_each_pod_is_never_dropped(wanted, pods, made) -> None:
    found = plan(wanted, "p", pods, made, NOW)
    sealed = [one for one in made if one.sealed]
    for pod in {one.pod for one in sealed}:
        newest = max(
            (one for one in sealed if one.pod == pod), key=lambda one: (one.ended_at, one.name)
        )
        assert newest not in found.drop
    assert all(one.sealed and one in made for one in found.drop)
    assert all(one.ended_at and not one.sealed for one in found.remove)
    left = [one for one in sealed if one not in found.drop]
    assert plan(wanted, "p", pods, [one for one in made if one not in found.drop], NOW).drop == ()
    assert len(left) <= sum(max(1, wanted.last) + wanted.daily for _ in {one.pod for one in sealed})


@given(WANTS, PODS, st.floats(0, DAY))
def test_within_an_interval_of_its_start_and_then_each_a_pod_has_one(wanted, pods, at) -> None:
    now, made = NOW + at, []
    for _ in range(4):
        found = plan(replace(wanted, parallel=9), "p", pods, made, now)
        made += [of(order, now, takes=0.0) for order in found.make]
        assert found.again > 0
        assert not pods or found.again <= wanted.every
        for pod in pods:
            times = [one.created_at for one in made if one.pod == pod.name]
            assert times or now - pod.since < wanted.every
            assert not times or now - times[-1] <= wanted.every
        now += min(found.again, DAY)
    assert len({one.name for one in made}) == len(made)
