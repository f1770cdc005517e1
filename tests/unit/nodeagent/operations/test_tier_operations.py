"""Parking into a tier, as people ask for it and as it is shown to them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import pytest

from kybernate.core.seat.operations import Kind, Progress
from kybernate.core.seat.seats import TIER_OF
from kybernate.core.tiers.tiers import Artifact, wake_seconds
from kybernate.errors import ConfigError, ConflictError, RefusedError
from kybernate.local import link
from kybernate.types import NodeName, PodUid, SeatState, Tier
from nodeagent.api.service import _tier
from nodeagent.api.streams import as_told
from nodeagent.kube.attendance import Attendance
from nodeagent.kube.nodestatus import _seat_row
from nodeagent.kube.publish import Publisher
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask, Operation, from_record
from nodeagent.operations.wire import operation_message, seat_message, status_message
from nodeagent.seat.record import from_record as recorded
from tests.unit.nodeagent.offloading import ended

GIB = 1 << 30
TIERS = {Tier.NVME: 1000 * GIB, Tier.OBJECT: 1 << 62}


async def begun(rig, **more):
    r = rig(**more)
    r.node.park_budget = 100 * GIB
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    r.begin()
    uid = await r.seat("a", delay=0.0)
    await r.until(uid, SeatState.ACTIVE)
    return r, operations, uid


def park(uid, tier, name="p1"):
    return Ask(Kind.PARK, name, uid, by="ops", tier=tier)


async def test_a_park_into_nvme_ends_when_it_is_there_and_a_wake_takes_it_back(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    done = await ended(await operations.ask(park(uid, Tier.NVME)))
    assert (done.state, r.state(uid)) == (Progress.SUCCEEDED, SeatState.PARKED_NVME)
    told = as_told(r.node.seats[uid])
    assert (told.state, told.tier, told.saved_bytes) == (
        "parked",
        "nvme",
        r.node.seats[uid].saved.size,
    )
    seconds = wake_seconds(Artifact(Tier.NVME, told.saved_bytes), NodeName("n1"), 1)
    assert (told.wake_seconds, told.wake_measured) == (pytest.approx(seconds), False)
    assert seconds > 0.2
    assert "40.0 GiB of GPU memory are kept on the node's NVMe" in done.sentence
    parts = {"intent", "check", "gate", "dump", "seal", "note", "end", "all"}
    assert parts <= done.phases.keys()
    assert operation_message(done).tier == "nvme"
    done = await ended(await operations.ask(Ask(Kind.WAKE, "w1", uid)))
    assert (done.state, r.state(uid)) == (Progress.SUCCEEDED, SeatState.ACTIVE)
    done = await ended(await operations.ask(Ask(Kind.PARK, "p2", uid)))
    told, took = as_told(r.node.seats[uid]), r.node.seats[uid].history.last_wake_ms / 1000
    assert (told.wake_seconds, told.wake_measured) == (pytest.approx(took), True)
    assert r.state(uid) is SeatState.PARKED, "the tier was asked for until the next wake only"


@pytest.mark.parametrize("tier", [Tier.NVME, Tier.OBJECT])
async def test_a_way_back_that_a_seat_has_gone_is_what_the_next_one_is_expected_to_take(rig, tier):
    """Whatever the table of tiers says of it; also over a restart, and for a box's front."""
    r, operations, uid = await begun(rig, tiers=TIERS)
    for number in (1, 2):
        await ended(await operations.ask(park(uid, tier, f"p{number}")))
        seat = r.node.seats[uid]
        told = as_told(seat)
        assert (told.tier, told.wake_measured) == (tier, number == 2)
        assert link.seat_info(seat).measured is told.wake_measured
        if number == 1:
            began = r.clock.time()
            await ended(await operations.ask(Ask(Kind.WAKE, "w1", uid)))
            took = r.clock.time() - began
    assert took / 2 < told.wake_seconds <= took, "an operation has its own steps around it"
    record = json.loads(json.dumps(seat.record()))
    assert as_told(recorded(record)).wake_seconds == told.wake_seconds
    del record["took"]
    assert not as_told(recorded(record)).wake_measured, "an older release's"


async def test_what_is_in_nvme_comes_back_to_ram_when_that_is_asked(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    await ended(await operations.ask(park(uid, Tier.NVME)))
    done = await ended(await operations.ask(park(uid, Tier.RAM, "p2")))
    assert (done.state, r.state(uid)) == (Progress.SUCCEEDED, SeatState.PARKED)
    assert "in the host's RAM" in done.sentence


async def test_what_can_not_be_dumped_fails_with_the_reason_and_stays_parked_in_ram(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    r.machine.faults.add("undumpable")
    done = await ended(await operations.ask(park(uid, Tier.NVME)))
    assert (done.state, r.state(uid)) == (Progress.FAILED, SeatState.PARKED)
    assert "io_uring" in done.sentence
    assert seat_message(r.node.seats[uid]).undumpable == "process 7 uses io_uring"


@pytest.mark.parametrize("tier", [Tier.NVME, Tier.OBJECT])
async def test_an_eviction_into_a_tier_ends_there_and_nothing_wakes_the_seat(rig, proxy, tier):
    r, operations, uid = await begun(rig, tiers=TIERS, keep_left_s=100.0)
    done = await ended(await operations.ask(Ask(Kind.EVICT, "e1", uid, tier=tier)))
    assert (done.state, TIER_OF[r.state(uid)]) == (Progress.SUCCEEDED, tier)
    saved = operation_message(done).saved
    assert (saved.tier, saved.outlives_pod) == (tier.value, True)
    proxy(r.loop).request(uid)
    await asyncio.sleep(5.0)
    assert TIER_OF[r.state(uid)] is tier


async def test_an_eviction_that_can_not_be_written_down_lets_its_seat_serve(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    r.machine.faults.add("undumpable")
    done = await ended(await operations.ask(Ask(Kind.EVICT, "e1", uid, tier=Tier.OBJECT)))
    assert (done.state, "io_uring" in done.sentence) == (Progress.FAILED, True)
    wishes = r.node.seats[uid].wishes
    assert (wishes.leave, wishes.stays_away, wishes.tier_asked) == ("", False, "")
    await ended(await operations.ask(Ask(Kind.WAKE, "w1", uid)))
    assert r.state(uid) is SeatState.ACTIVE


@pytest.mark.parametrize(
    ("tiers", "pin", "tier", "words"),
    [
        (None, Tier.OBJECT, Tier.NVME, r"no tier nvme, only ram; give its agent one \(criu\)"),
        ({Tier.NVME: 1}, Tier.OBJECT, Tier.OBJECT, r"no tier object.*\(object_store\)"),
        (TIERS, Tier.RAM, Tier.NVME, r"no deeper than ram \(kyb.ai/park-tier\)"),
    ],
)
async def test_a_tier_that_can_not_be_is_refused_at_once(rig, tiers, pin, tier, words):
    r, operations, uid = await begun(rig, tiers=tiers)
    r.node.seats[uid].wishes.park_tier = pin.value
    with pytest.raises(RefusedError, match=words):
        await operations.ask(park(uid, tier))
    with pytest.raises(RefusedError, match=words):
        operations.plan(park(uid, tier))


async def test_the_same_name_for_another_tier_is_a_conflict(rig):
    _, operations, uid = await begun(rig, tiers=TIERS)
    await operations.ask(park(uid, Tier.NVME))
    with pytest.raises(ConflictError):
        await operations.ask(park(uid, Tier.OBJECT))


async def test_a_dry_run_says_what_would_happen(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    steps = operations.plan(park(uid, Tier.OBJECT))
    assert any("once that is sealed they are ended" in step for step in steps)
    assert any("copied to the object store" in step for step in steps)
    assert operations.plan(park(uid, None)) == tuple(
        step for step in steps if "artifact" not in step and "written" not in step
    )
    await ended(await operations.ask(park(uid, Tier.NVME)))
    steps = operations.plan(park(uid, Tier.NVME))
    assert "nothing is moved" in steps[0]
    assert any("comes back into ram" in s for s in operations.plan(park(uid, Tier.RAM)))
    assert r.state(uid) is SeatState.PARKED_NVME


async def test_a_cancelled_park_leaves_its_state_where_the_agent_wants_it(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    await operations.ask(park(uid, Tier.NVME))
    operations.cancel("p1")
    assert r.node.seats[uid].wishes.tier_asked == ""


def test_an_unknown_tier_is_named():
    with pytest.raises(ConfigError, match=r"^tier: 'disk' is no tier; write one of ram, nvme"):
        _tier("disk")
    assert _tier("") is None


async def test_tiers_are_shown_with_what_is_in_them(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    shown = Publisher(r.node, None, "here", Attendance())
    await ended(await operations.ask(park(uid, None)))
    (seat,) = shown.status.now()["seats"]
    assert (seat["state"], seat["tier"]) == ("parked", "ram")
    await ended(await operations.ask(park(uid, Tier.NVME, "p2")))
    status = shown.status.now()
    (seat,) = status["seats"]
    assert (seat["state"], seat["tier"]) == ("parked", "nvme")
    assert status["budget"]["parkedBytes"] == 0
    rows = {tier["name"]: tier for tier in status["tiers"]}
    assert rows["nvme"] == {
        "name": "nvme",
        "seats": 1,
        "usedBytes": 40 * GIB,
        "budgetBytes": 1000 * GIB,
    }
    assert rows["ram"]["usedBytes"] == 0
    message = status_message(r.node, {})
    assert [(one.name, one.seats) for one in message.tiers] == [
        ("ram", 0),
        ("nvme", 1),
        ("object", 0),
    ]
    assert (message.seats[0].tier, message.seats[0].saved_bytes) == ("nvme", 40 * GIB)


async def test_a_pod_that_is_ready_while_active_is_not_while_its_seat_is_parked(rig, proxy):
    r, operations, uid = await begun(rig, tiers=TIERS)
    shown = Publisher(r.node, None, "here", Attendance())
    r.node.observe(shown)
    r.node.seats[uid].wishes.ready_active = True
    proxy(r.loop, service=1.0).request(uid)
    asked = await operations.ask(park(uid, Tier.RAM))
    await r.until(uid, SeatState.DRAINING)
    assert shown._wakeable[uid] is False, "a candidate until its request is answered"
    await ended(asked)
    assert shown._wakeable[uid] is False
    await ended(await operations.ask(Ask(Kind.WAKE, "w1", uid)))
    assert shown._wakeable[uid] is True


@pytest.mark.parametrize(("within", "wakeable"), [(None, True), (600.0, True), (1.0, False)])
async def test_a_seat_that_wakes_too_late_from_its_tier_is_not_wakeable(rig, within, wakeable):
    r, operations, uid = await begun(rig, tiers=TIERS)
    shown = Publisher(r.node, None, "here", Attendance())
    r.node.observe(shown)
    r.node.seats[uid].wishes.ready_within = within
    await ended(await operations.ask(park(uid, Tier.NVME)))
    assert shown._wakeable[uid] is wakeable
    await ended(await operations.ask(Ask(Kind.WAKE, "w1", uid)))
    assert shown._wakeable[uid] is True


@pytest.mark.parametrize("keeps", [100.0, 0.0])
@pytest.mark.parametrize("tier", [Tier.RAM, Tier.NVME, Tier.OBJECT])
async def test_an_eviction_says_whether_the_state_outlives_the_pod_and_so_it_is(rig, tier, keeps):
    times = {"keep_left_s": keeps, "keep_scaled_s": keeps}
    r, operations, uid = await begun(rig, tiers=TIERS, **times)
    await ended(await operations.ask(park(uid, tier)))
    plan = operations.plan(Ask(Kind.EVICT, uid=uid))[-1]
    done = await ended(await operations.ask(Ask(Kind.EVICT, "e1", uid)))
    saved, stays = operation_message(done).saved, tier is not Tier.RAM and keeps > 0
    assert (saved.tier, saved.outlives_pod) == (tier.value, stays)
    assert ("which outlive the pod by 100 s" in done.sentence) is stays
    assert ("which do not outlive the pod" in done.sentence) is not stays
    assert ("keep_left_s of its node is 0" in done.sentence) is (tier is not Tier.RAM and not keeps)
    assert ("Its state outlives the pod for 100 s" in plan) is stays
    before = set(r.machine.vault)
    assert bool(before) is (tier is not Tier.RAM)
    telling = asyncio.ensure_future(r.loop.reports.run())
    r.node.seats[uid].ending.terminating = True
    r.machine.end_container(uid)
    r.loop.pod_gone(uid)
    await asyncio.sleep(50)
    assert set(r.machine.vault) == (before if stays else set())
    await asyncio.sleep(60)
    assert set(r.machine.vault) == set()
    telling.cancel()


@pytest.mark.parametrize(("tier", "kept"), [(Tier.NVME, 100), (Tier.OBJECT, 500)])
async def test_what_is_evicted_into_the_object_store_waits_until_there_is_a_seat(rig, tier, kept):
    r, operations, uid = await begun(rig, tiers=TIERS, keep_left_s=100.0, keep_scaled_s=500.0)
    await ended(await operations.ask(park(uid, tier)))
    assert r.node.keeps_orphaned(r.node.seats[uid]) == 100, "parked by somebody, it is not evicted"
    done = await ended(await operations.ask(Ask(Kind.EVICT, "e1", uid)))
    assert f"which outlive the pod by {kept} s" in done.sentence


def test_an_eviction_of_before_says_of_a_state_below_ram_nothing_that_it_does_not_know():
    record = asdict(Operation("e1", Kind.EVICT, PodUid("u"), "d", "p", "", "ops", 1.0, 2.0))
    del record["left_s"]
    record |= {"saved": 1, "saved_in": "nvme", "state": "succeeded"}
    assert not operation_message(from_record(record)).saved.outlives_pod


async def test_what_is_under_way_for_a_seat_is_shown_on_its_node_until_it_ends(rig):
    r, operations, uid = await begun(rig, tiers=TIERS)
    shown = Publisher(r.node, None, "here", Attendance(), under_way=operations.under_way)
    operation = await operations.ask(park(uid, Tier.NVME))
    assert [seat["operation"] for seat in shown.status.now()["seats"]] == ["park"]
    await ended(operation)
    assert [seat.get("operation", "") for seat in shown.status.now()["seats"]] == [""]


async def test_a_park_into_the_object_store_and_a_fetch_tell_of_their_bytes(rig):
    r, operations, uid = await begun(rig, tiers=TIERS, status_interval_s=0.5)
    operation, saved, seen = await operations.ask(park(uid, Tier.OBJECT)), None, set()
    while not operation.ended:
        saved = r.node.seats[uid].saved
        seen.add((saved.copied, operation.bytes_total))
        await asyncio.sleep(0.005)
    size = saved.size
    assert {(0, size), (size // 2, size)} <= seen
    assert (operation.bytes_done, operation.bytes_total, saved.copied) == (size, size, None)
    assert operation_message(operation).bytes_total == size
    operation, rows = await operations.ask(Ask(Kind.WAKE, "w1", uid)), set()
    while not operation.ended:
        rows.add(_seat_row(r.node, r.node.seats[uid], "").copied_bytes)
        await asyncio.sleep(0.005)
    assert {0, size // 2} <= rows
    assert _seat_row(r.node, r.node.seats[uid], "").copied_bytes is None
