"""The judgement on GPU processes: pure, over every state and rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kybernate.core.seat.seats import OCCUPYING
from kybernate.core.swap.enforce import (
    Cause,
    IntruderRule,
    Remedy,
    Sighting,
    Standing,
    confirmed,
    excesses,
    foreign_bytes,
    judge,
)
from kybernate.types import GpuUuid, PodUid, SeatState

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")
POD = PodUid("pod")
GIB = 1 << 30


def seen(pod=POD, in_tree=True, gpu=GPU, size=GIB, pid=7):
    return Sighting(pid, 10 * pid, "app", {gpu: size}, pod, in_tree)


def seat(state, **more):
    return Standing(POD, "G0-seat-1", frozenset({GPU}), state, "1/0", **more)


def verdict(sighting, state, rule, **more):
    found = judge([sighting], {POD: seat(state, **more)}, IntruderRule(rule), pods_known=True)
    return found[0] if found else None


@pytest.mark.parametrize("state", sorted(OCCUPYING))
@pytest.mark.parametrize("rule", list(IntruderRule))
@pytest.mark.parametrize("in_tree", [True, False])
def test_whoever_has_the_turn_is_left_alone(state, rule, in_tree):
    assert verdict(seen(in_tree=in_tree), state, rule) is None


@pytest.mark.parametrize(
    ("rule", "in_tree", "remedy", "cause"),
    [
        ("park", True, Remedy.PARK, Cause.NOT_ACTIVE),
        ("kill", True, Remedy.KILL_SEAT, Cause.NOT_ACTIVE),
        ("report", True, Remedy.REPORT, Cause.NOT_ACTIVE),
        ("park", False, Remedy.KILL_PROCESS, Cause.OUTSIDE_TREE),
        ("kill", False, Remedy.KILL_PROCESS, Cause.OUTSIDE_TREE),
        ("report", False, Remedy.REPORT, Cause.OUTSIDE_TREE),
    ],
)
def test_a_parked_seat_has_no_process_on_a_gpu(rule, in_tree, remedy, cause):
    found = verdict(seen(in_tree=in_tree), SeatState.PARKED, rule)
    assert (found.remedy, found.cause) == (remedy, cause)
    assert "process 7 (app)" in found.sentence
    assert "1.0 GiB of GPU-0" in found.sentence


@pytest.mark.parametrize("rule", list(IntruderRule))
def test_outside_of_kubernetes_nothing_is_ever_killed(rule):
    found = verdict(seen(pod=None, in_tree=False), SeatState.ACTIVE, rule)
    assert (found.remedy, found.cause) == (Remedy.REPORT, Cause.OUTSIDE)


@pytest.mark.parametrize("rule", list(IntruderRule))
def test_a_gpu_of_another_group_is_nobodys_right(rule):
    found = verdict(seen(gpu=OTHER), SeatState.ACTIVE, rule)
    assert found.cause is Cause.OTHER_GPU
    assert found.remedy is (Remedy.REPORT if rule is IntruderRule.REPORT else Remedy.KILL_SEAT)


def test_pods_that_are_not_known_yet_are_left_alone():
    stranger = seen(pod=PodUid("new"), in_tree=False)
    assert judge([stranger], {}, IntruderRule.KILL, pods_known=False) == ()
    (found,) = judge([stranger], {}, IntruderRule.KILL, pods_known=True)
    assert (found.remedy, found.cause) == (Remedy.KILL_PROCESS, Cause.NO_SEAT)


def test_what_is_under_way_or_holds_nothing_is_left_alone():
    assert verdict(seen(), SeatState.PARKED, "kill", settled=False) is None
    assert verdict(seen(size=0), SeatState.PARKED, "kill") is None
    assert verdict(seen(size=None), SeatState.PARKED, "kill") is not None


def test_one_look_is_none():
    first = judge([seen()], {POD: seat(SeatState.PARKED)}, IntruderRule.PARK, pods_known=True)
    assert confirmed((), first) == ()
    assert confirmed(first, first) == first
    other = judge([seen(pid=8)], {POD: seat(SeatState.PARKED)}, IntruderRule.PARK, pods_known=True)
    assert confirmed(first, other) == other, "it is the pod that is judged"
    woken = Standing(POD, "G0-seat-1", frozenset({GPU}), SeatState.PARKED, "1/1")
    again = judge([seen()], {POD: woken}, IntruderRule.PARK, pods_known=True)
    assert confirmed(first, again) == ()


def over(sightings, *others, rule="park", tolerance=GIB, **more):
    mine = seat(more.pop("state", SeatState.ACTIVE), **{"vram": 4 * GIB, **more})
    seats = {POD: mine} | {other.uid: other for other in others}
    return excesses(sightings, seats, IntruderRule(rule), tolerance)


def test_of_a_boxs_model_it_says_what_to_write_into_its_file():
    (found,) = over([seen(size=5 * GIB + 1)], of_file=True)
    told = "it holds 5.0 GiB of GPU-0 and is known to take 4.0; write vram: 6GiB for it into "
    assert found.sentence == f"{told}models.yaml"


def neighbour(state=SeatState.ACTIVE, gpu=GPU, **more):
    return Standing(PodUid("other"), "G0-seat-2", frozenset({gpu}), state, "1/0", **more)


@pytest.mark.parametrize(
    ("rule", "remedy"),
    [("park", Remedy.SEND_AWAY), ("kill", Remedy.KILL_SEAT), ("report", Remedy.REPORT)],
)
@pytest.mark.parametrize(
    "other",
    [neighbour(), neighbour(SeatState.STARTING), neighbour(SeatState.PARKED, wants=True)],
    ids=["active", "starting", "parked and called for"],
)
def test_a_seat_over_what_it_declares_makes_way_for_others(rule, remedy, other):
    (found,) = over([seen(size=5 * GIB + 1)], other, rule=rule)
    assert found.remedy is remedy
    assert "5.0 GiB of GPU-0 and declares 4.0" in found.sentence
    assert "kyb.ai/vram: 6Gi" in found.sentence
    assert "seat G0-seat-2 needs that GPU" in found.sentence


@pytest.mark.parametrize("rule", list(IntruderRule))
@pytest.mark.parametrize("others", [(), (neighbour(SeatState.PARKED),), (neighbour(gpu=OTHER),)])
def test_alone_on_its_gpu_it_is_only_told(rule, others):
    (found,) = over([seen(size=6 * GIB)], *others, rule=rule)
    assert found.remedy is Remedy.REPORT
    assert "kyb.ai/vram: 6Gi" in found.sentence


def test_processes_of_a_tree_count_together_by_gpu_and_others_do_not():
    half = seen(size=3 * GIB)
    assert over([half]) == ()
    (found,) = over([half, half, seen(size=9 * GIB, in_tree=False)])
    assert "6.0 GiB" in found.sentence
    assert over([half, seen(gpu=OTHER, size=3 * GIB)]) == ()
    assert over([half, seen(size=None)]) == ()


def test_what_is_tolerated_under_way_or_undeclared_is_no_excess():
    big = seen(size=5 * GIB)
    assert over([big]) == ()
    assert len(over([big], tolerance=GIB - 1)) == 1
    assert over([big], tolerance=0, vram=None) == ()
    assert over([big], tolerance=0, settled=False) == ()
    for state in SeatState:
        using = state in (SeatState.STARTING, SeatState.ACTIVE, SeatState.DRAINING)
        assert len(over([big], tolerance=0, state=state)) == using


def test_an_excess_must_stand_at_two_looks_of_one_epoch():
    alone, crowded = over([seen(size=6 * GIB)]), over([seen(size=7 * GIB)], neighbour())
    assert confirmed((), crowded) == ()
    assert confirmed(alone, crowded) == crowded


@given(
    st.lists(
        st.builds(
            Sighting,
            pid=st.integers(1, 5),
            start=st.integers(1, 2),
            name=st.just("x"),
            memory=st.dictionaries(
                st.sampled_from([GPU, OTHER]), st.none() | st.integers(0, GIB), max_size=2
            ),
            pod=st.sampled_from([None, POD, PodUid("other")]),
            in_tree=st.booleans(),
        )
    ),
    st.sampled_from(list(SeatState)),
    st.sampled_from(list(IntruderRule)),
)
def test_nothing_is_killed_that_the_rule_spares(sightings, state, rule):
    found = judge(sightings, {POD: seat(state)}, rule, pods_known=True)
    for one in found:
        assert one.sighting.gpus
        if rule is IntruderRule.REPORT or one.sighting.pod is None:
            assert one.remedy is Remedy.REPORT
        if one.remedy is Remedy.PARK:
            assert (one.sighting.in_tree, state) == (True, SeatState.PARKED)
    total = sum(foreign_bytes(sightings).values())
    assert total == sum(size or 0 for s in sightings if not s.in_tree for size in s.memory.values())
