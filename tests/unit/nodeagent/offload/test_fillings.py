"""Artifacts that are verified, or fetched, while trees are restored from them."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import CorruptError, DeadlineError, RetryableError
from kybernate.types import SeatState, Tier
from nodeagent.offload.lazies import Lazies
from nodeagent.seat.record import Seat
from tests.kit.clock import run_virtual
from tests.kit.machine import FakeVault
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    OBJECT,
    TIERS,
    WAITING,
    down,
    reasons,
    two,
    when,
)


def _after(failures, call):
    """`call`, once it has failed so."""

    async def asked(vault, *words):
        if failures:
            raise failures.pop()
        return await call(vault, *words)

    return asked


async def parked(rig):
    r = rig(tiers=TIERS)
    r.loop.offload.lazies.pays = lambda _: True
    cold, _ = await two(r)
    await down(r, cold)
    return r, cold


async def test_it_serves_while_it_is_verified_and_what_it_was_lent_goes_then(
    rig, proxy, monkeypatch
):
    go = asyncio.Event()
    fill = FakeVault.fill

    async def late(vault, *words):
        await go.wait()
        await fill(vault, *words)

    monkeypatch.setattr(FakeVault, "fill", late)

    r, cold = await parked(rig)
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(100)
    (artifact,) = r.machine.vault
    assert r.node.seats[cold].saved.paging == artifact
    assert r.machine.unfilled() == {f"/dumps/{cold}"}
    go.set()
    await when(lambda: not r.node.seats[cold].saved.paging)
    assert f"/dumps/{cold}" not in r.machine.folders
    await when(lambda: not r.machine.vault)
    r.check()


@pytest.mark.parametrize(
    "error",
    [
        OSError(24, "Too many open files"),
        RetryableError("the store doesn't answer"),
        DeadlineError("the disk doesn't answer"),
        RuntimeError("a bug"),
    ],
)
async def test_what_failed_to_be_verified_is_tried_again(rig, proxy, monkeypatch, error):
    fill, failed = FakeVault.fill, []

    async def fails(vault, *words):
        if len(failed) < 3:
            failed.append(error)
            raise error
        await fill(vault, *words)

    monkeypatch.setattr(FakeVault, "fill", fails)

    r, cold = await parked(rig)
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    await when(lambda: not r.node.seats[cold].saved.paging)
    assert len(failed) == 3
    assert "MemoryLost" not in reasons(r)
    r.check()


async def test_what_is_wrong_everywhere_is_not_tried_again(rig, proxy, monkeypatch):
    failed = []

    async def lost(vault, *_):
        failed.append(1)
        vault._machine.faults.add("pages-lost")
        vault._machine.lent.clear()
        raise CorruptError("pages-1.img: piece 3 is in no place")

    monkeypatch.setattr(FakeVault, "fill", lost)

    r, cold = await parked(rig)
    proxy(r.loop).request(cold)
    await r.until(cold, WAITING)
    assert "MemoryLost" in reasons(r)
    assert failed == [1]
    r.machine.start_container(cold)
    await r.until(cold, ACTIVE)


@pytest.mark.parametrize("lost", ["", "record", "record, and the disk is slow to answer"])
def test_the_next_agent_verifies_what_the_last_one_did_not_get_to(rig, proxy, monkeypatch, lost):
    """Also if no record of it is left."""
    fill = FakeVault.fill

    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeVault, "fill", never)

    async def first():
        r, cold = await parked(rig)
        proxy(r.loop).request(cold)
        await r.until(cold, ACTIVE)
        return r.machine, r.node.seats[cold].identity

    machine, identity = run_virtual(first())
    cold = identity.pod.uid
    assert machine.unfilled() == {f"/dumps/{cold}"}
    monkeypatch.setattr(FakeVault, "fill", fill)

    async def second():
        r = rig(machine, tiers=TIERS)
        if lost:
            machine.journal.clear()
            away = [OSError(5, "Input/output error")] if "disk" in lost else []
            monkeypatch.setattr(FakeVault, "lent", _after(away, FakeVault.lent))
        await r.recover()
        r.begin()
        if lost:
            r.loop.add(Seat(identity, 0.0, 0.0))
            await r.node.world.doors.open(cold)
            await when(lambda: r.node.seats[cold].saved.paging)
        await when(lambda: not r.node.seats[cold].saved.paging)
        assert machine.unfilled() == set()
        assert f"/dumps/{cold}" not in machine.folders
        r.check()

    run_virtual(second(), start=3000.0)


async def test_a_restore_that_failed_is_begun_with_a_filling_of_its_own(rig, proxy, monkeypatch):
    fill, begun, stopped = FakeVault.fill, [], []

    async def noted(vault, *words):
        begun.append(1)
        if len(begun) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append(1)
                raise
        await fill(vault, *words)

    monkeypatch.setattr(FakeVault, "fill", noted)

    r, cold = await parked(rig)
    r.machine.faults.add("restore-hangs")
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE, limit=300)
    await when(lambda: not r.node.seats[cold].saved.paging)
    assert begun == [1, 1]
    assert stopped == [1]
    r.check()


async def test_of_a_state_whose_small_files_are_wrong_the_other_copy_is_taken(rig, proxy):
    r, cold = await parked(rig)
    seat = r.node.seats[cold]
    await r.loop.node.world.offloading.vault.pack(seat.saved.artifact, Tier.OBJECT, 60)
    seat.saved.copies |= {Tier.OBJECT}
    r.machine.faults.add("corrupt")
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    assert r.machine.unfilled() == set()
    await when(lambda: not seat.saved.paging)
    r.check()


# --- what is fetched while it is restored ----------------------------------------------------


async def stored(rig):
    r = rig(tiers=TIERS, tier_residency_s=0.0)
    cold, _ = await two(r)
    await down(r, cold, OBJECT)
    await asyncio.sleep(1)
    return r, cold


async def test_who_is_wanted_is_recreated_while_its_images_come(rig, proxy):
    r, cold = await stored(rig)
    p = proxy(r.loop)
    p.request(cold)
    await when(lambda: r.machine.coming)
    await r.until(cold, SeatState.RESTORING)
    assert r.machine.coming == {f"/dumps/{cold}": True}
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert (r.machine.coming, r.machine.folders) == ({}, {})
    r.check()


@pytest.mark.parametrize("fault", ["store-down", "corrupt"])
async def test_what_was_made_of_images_that_never_came_does_not_run(rig, proxy, fault):
    r, cold = await stored(rig)
    p = proxy(r.loop)
    p.request(cold)
    await when(lambda: r.machine.coming)
    r.machine.faults.add(fault)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(1)
    assert p.answered == {cold: 1}
    assert "RestoreFailed" in reasons(r)
    seat = r.node.seats[cold]
    assert seat.backoff.failed_restores == 0, "it says nothing against the artifact"
    r.check()


async def test_one_that_would_run_before_its_memory_is_in_is_fetched_first(rig, monkeypatch, proxy):
    monkeypatch.setattr(Lazies, "pays", lambda *_: True)
    r, cold = await stored(rig)
    proxy(r.loop).request(cold)
    await r.until(cold, SeatState.RESTORING)
    assert r.node.seats[cold].saved.images == f"/dumps/{cold}"
    await r.until(cold, ACTIVE)


async def test_one_that_nobody_waits_for_is_fetched_and_stays(rig):
    r, cold = await stored(rig)
    r.loop.operators.ask_for_tier(cold, Tier.NVME)
    await r.until(cold, NVME)
    assert (r.node.seats[cold].saved.images, r.machine.coming) == (f"/dumps/{cold}", {})
    r.check()


async def test_a_pod_that_ends_meanwhile_leaves_nothing(rig, proxy):
    r, cold = await stored(rig)
    proxy(r.loop).request(cold)
    await when(lambda: r.machine.coming)
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await when(lambda: cold not in r.node.seats)
    await asyncio.sleep(5)
    assert (r.machine.coming, r.machine.folders) == ({}, {})
    r.check()
