"""Saved states from which nothing can go on for now: kept and told, however long it takes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from kybernate.adapters.criu.record import FILE, Record
from kybernate.errors import DeadlineError, LockedError, RestoreError, RetryableError
from kybernate.types import SeatState, Tier
from tests.kit.machine import FakeDumper, FakeVault
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    OBJECT,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)

RESTORING = SeatState.RESTORING
KINDS = {"driver": "570.1", "cuda": "12.8", "gpu_product": "NVIDIA A100", "kernel": "7.0"}


def starving(r, times, what="restore-starves"):
    """Memory is short at so many restores; when each of them was tried."""
    tried = []

    def fault(name):
        if name == what:
            tried.append(r.clock.time())
        return name == what and len(tried) <= times

    r.machine.fault = fault
    return tried


def told(r, reason):
    return [sentence for name, sentence in r.seen.events if name == reason]


async def another(r, **fields):
    """The node is no longer what it was; how to make it so again."""
    before, there = r.container, r.container.target
    r.container = replace(before, target=replace(there, **fields))
    return lambda: setattr(r, "container", before)


# --- memory -------------------------------------------------------------------------------------


async def test_a_restore_that_lacks_memory_is_tried_until_there_is_some(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    tried, p = starving(r, 12), proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE, 1000)
    await asyncio.sleep(1)
    assert app_of(r, cold).inner == inner, "it was started again"
    assert (len(tried), p.answered) == (13, {cold: 1})
    assert "SeatFailed" not in reasons(r)
    assert "raise its container's memory limit" in told(r, "RestoreFailed")[0]
    assert "locked memory" not in told(r, "RestoreFailed")[0]
    pauses = [later - at for at, later in pairwise(tried)]
    assert pauses[0] < 5
    assert 55 < max(pauses) < 65
    r.check()


class Full:
    """A node that has no CPU for a seat at so many tries. Implements `node.Resizing`."""

    def __init__(self, times):
        self.left = times

    async def take(self, seat):
        if self.left:
            self.left -= 1
            raise RetryableError(f"the node has no room for {seat.identity.pod}", 5.0)


async def test_a_pod_that_does_not_get_its_cpu_again_waits_and_keeps_its_state(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    full, p = Full(40), proxy(r.loop)
    r.node.world = replace(r.node.world, resizing=full)
    p.request(cold)
    await asyncio.sleep(30)
    assert r.state(cold) in {NVME, RESTORING}
    await r.until(cold, ACTIVE, 1000)
    assert (full.left, app_of(r, cold).inner) == (0, inner)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert "SeatFailed" not in reasons(r)
    assert "has no room for" in told(r, "RestoreFailed")[0]
    r.check()


async def test_what_others_put_in_its_files_place_costs_no_state(rig, proxy):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    tried, p = starving(r, 12, "restore-refused"), proxy(r.loop)
    p.request(cold)
    await r.until(cold, ACTIVE, 1000)
    await asyncio.sleep(1)
    assert app_of(r, cold).inner == inner, "it was started again"
    assert (len(tried), p.answered) == (13, {cold: 1})
    assert "SeatFailed" not in reasons(r)
    assert "put back what was there" in told(r, "RestoreFailed")[0]
    assert 55 < max(later - at for at, later in pairwise(tried)) < 65
    r.check()


async def test_a_lack_for_which_nothing_is_killed_is_believed_for_a_while(rig, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    tried = []

    async def lacks(*what, **how):
        tried.append(r.clock.time())
        # One that the kernel killed says that memory is short indeed.
        raise RestoreError("Cannot allocate memory", starved=True, killed=len(tried) == 10)

    monkeypatch.setattr(FakeDumper, "restore", lacks)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, WAITING, 4000)
    assert len(tried) == 10 + 20 + 3
    assert "a limit on maps or locked memory" in told(r, "RestoreFailed")[0]
    assert "could not be recreated" in told(r, "SeatFailed")[0]
    r.check()


@pytest.mark.parametrize("lacks", ["memory", "driver"])
async def test_a_pod_that_is_deleted_while_it_waits_for_that_goes_at_once(rig, lacks):
    r = rig(tiers=TIERS, keep_left_s=0)
    cold, _ = await two(r)
    await down(r, cold)
    if lacks == "memory":
        starving(r, 1000)
    else:
        await another(r, driver="570.1")
    r.loop.operators.request_wake(cold, "a test")
    await asyncio.sleep(100)
    assert (r.state(cold), len(r.machine.vault)) == (NVME, 1)
    r.loop.doors.on_term(cold, 15)
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await asyncio.sleep(1.5)
    assert cold not in r.node.seats
    await when(lambda: r.machine.vault == {})
    r.check()


async def test_what_criu_refuses_three_times_is_given_up_and_started_anew(rig, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    tried = []

    async def refused(*what, **how):
        tried.append(r.clock.time())
        # Memory that is short now and then neither counts nor starts the count again.
        raise RestoreError("Can't open file dev/shm/x", starved=len(tried) == 2)

    with monkeypatch.context() as patched:
        patched.setattr(FakeDumper, "restore", refused)
        r.loop.operators.request_wake(cold, "a test")
        await r.until(cold, WAITING)
    assert len(tried) == 4
    assert "could not be recreated" in told(r, "SeatFailed")[0]
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (r.machine.vault, r.machine.gates) == ({}, {})
    r.check()


async def test_images_of_a_newer_release_wait_for_it(rig, proxy, tmp_path, monkeypatch):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold)
    tried, sound, p = [], FakeDumper.restore, proxy(r.loop)
    Record(7, 9, ("", "", "")).write(tmp_path)
    written = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps({"format": written["format"] + 1, "new": True}))

    async def reads(self, *what, **how):
        tried.append(r.clock.time())
        Record.read(tmp_path)

    monkeypatch.setattr(FakeDumper, "restore", reads)
    p.request(cold)
    await asyncio.sleep(1000)
    assert len(tried) > 10
    assert len(r.machine.vault) == 1
    assert "run the release that wrote it" in told(r, "RestoreFailed")[0]
    # Its node is upgraded again.
    monkeypatch.setattr(FakeDumper, "restore", sound)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (app_of(r, cold).inner, p.answered) == (inner, {cold: 1})
    assert "SeatFailed" not in reasons(r)
    r.check()


# --- the machine --------------------------------------------------------------------------------


@pytest.mark.parametrize("field", KINDS)
@pytest.mark.parametrize("tier", [NVME, OBJECT])
async def test_a_node_with_another_driver_or_gpu_keeps_the_state(rig, proxy, tier, field):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold, tier)
    await asyncio.sleep(1)
    back, p = await another(r, **{field: KINDS[field]}), proxy(r.loop)
    p.request(cold)
    await asyncio.sleep(500)
    assert r.state(cold) is tier
    (*_, sentence) = told(r, "RestoreFailed" if tier is NVME else "TransferFailed")
    assert KINDS[field] in sentence
    assert "make this node as it was" in sentence
    assert len(r.machine.vault) == 1
    back()
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (app_of(r, cold).inner, p.answered) == (inner, {cold: 1})
    assert "SeatFailed" not in reasons(r)
    r.check()


@pytest.mark.parametrize("tier", [NVME, OBJECT])
async def test_a_state_whose_signers_authority_is_missing_waits_for_it(
    rig, proxy, monkeypatch, tier
):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold, tier)
    await asyncio.sleep(1)
    sound, p = FakeVault.admit, proxy(r.loop)
    monkeypatch.setattr(FakeVault, "admit", locked)
    p.request(cold)
    await asyncio.sleep(1000)
    await when(lambda: r.state(cold) is tier)
    (*_, sentence) = told(r, "RestoreFailed" if tier is NVME else "TransferFailed")
    assert "authority is not known here" in sentence
    assert len(r.machine.vault) == 1
    monkeypatch.setattr(FakeVault, "admit", sound)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert (app_of(r, cold).inner, p.answered) == (inner, {cold: 1})
    assert "SeatFailed" not in reasons(r)
    r.check()


async def test_what_was_fetched_already_is_kept_just_so(rig, proxy):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    await when(lambda: r.node.seats[cold].saved.copies == {Tier.OBJECT})
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, NVME)
    back, p = await another(r, driver="570.1"), proxy(r.loop)
    p.request(cold)
    await asyncio.sleep(100)
    assert r.state(cold) is NVME
    assert told(r, "RestoreFailed")
    back()
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    r.check()


async def locked(self, artifact, into, deadline):
    raise LockedError(f"{artifact}: its authority is not known here")


async def silent(self, artifact, into, deadline):
    await asyncio.sleep(deadline + 5)
    raise DeadlineError("the disk or store of the artifacts doesn't answer")


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "of an older release"])
async def test_a_store_that_is_away_holds_up_nothing_that_was_fetched(rig, monkeypatch, noted):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    seat = r.node.seats[cold]
    await when(lambda: seat.saved.copies == {Tier.OBJECT})
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, NVME)
    if not noted:
        seat.saved.needs = {}
    monkeypatch.setattr(FakeVault, "admit", silent)
    back = await another(r, driver="570.1")
    began = r.clock.time()
    r.loop.operators.request_wake(cold, "a test")
    if noted:
        await when(lambda: told(r, "RestoreFailed"))
        assert "has 570.1" in told(r, "RestoreFailed")[0]
        assert r.clock.time() - began < 1
        back()
        began = r.clock.time() + 31  # it looks again after 30 s
    await r.until(cold, ACTIVE)
    assert r.clock.time() - began < 5
    r.check()


# --- the object store ---------------------------------------------------------------------------


async def test_while_the_object_store_is_away_the_copy_waits_and_the_local_one_stays(rig, proxy):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold)
    artifact = r.node.seats[cold].saved.artifact
    r.machine.fault = lambda name: name == "store-down"
    r.loop.operators.ask_for_tier(cold, Tier.OBJECT)
    await asyncio.sleep(100)
    assert r.state(cold) is NVME
    assert r.machine.vault[artifact].places == {Tier.NVME}
    assert "TransferFailed" in reasons(r)
    r.machine.fault = lambda name: False
    await r.until(cold, OBJECT)
    await when(lambda: r.node.seats[cold].saved.copies == {Tier.OBJECT})
    assert r.machine.vault[artifact].places == {Tier.OBJECT}
    r.machine.fault = lambda name: name == "store-down"
    p = proxy(r.loop)
    p.request(cold)
    await asyncio.sleep(100)
    assert r.state(cold) is OBJECT
    r.machine.fault = lambda name: False
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    r.check()
