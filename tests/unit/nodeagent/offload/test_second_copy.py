"""A seat whose state lies on NVMe and in the object store, and is damaged on NVMe."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.errors import CorruptError, RetryableError
from kybernate.types import Tier
from tests.kit.machine import FakeVault
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    NVME,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)


async def twice(rig):
    """A seat that is parked on NVMe and whose state is in the object store, too."""
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold, NVME)
    seat = r.node.seats[cold]
    r.loop.offload.transfers.begin_pack(seat, "a test")
    await when(lambda: seat.saved.copies == {Tier.NVME, Tier.OBJECT})
    assert r.state(cold) is NVME
    r.machine.faults.add("corrupt")
    return r, cold, inner


async def test_it_goes_on_from_the_other_one(rig, proxy):
    r, cold, inner = await twice(rig)
    proxy(r.loop).request(cold)
    await r.until(cold, ACTIVE)
    assert app_of(r, cold).inner == inner
    assert "SeatFailed" not in reasons(r)
    await when(lambda: not r.machine.vault)
    await when(lambda: f"/dumps/{cold}" not in r.machine.folders)
    r.check()


@pytest.mark.parametrize("downs", [1, 3])
async def test_a_store_that_is_away_is_waited_for(rig, proxy, downs):
    r, cold, inner = await twice(rig)
    r.machine.faults.add("store-down")
    proxy(r.loop).request(cold)
    for _ in range(downs - 1):
        await when(lambda: "store-down" not in r.machine.faults)
        r.machine.faults |= {"store-down", "corrupt"}
    await when(lambda: "store-down" not in r.machine.faults)
    r.machine.faults.add("corrupt")
    await r.until(cold, ACTIVE)
    assert app_of(r, cold).inner == inner
    await asyncio.sleep(1)
    r.check()


@pytest.mark.parametrize("away", [False, True], ids=["damaged", "away"])
async def test_only_one_that_is_damaged_too_is_given_up(rig, proxy, monkeypatch, away):
    r, cold, inner = await twice(rig)
    sound, listed, answers = FakeVault.fetch, FakeVault.ls, asyncio.Event()

    async def fetch(self, artifact, *rest):
        if away and answers.is_set():
            return await sound(self, artifact, *rest)
        r.machine.faults.add("corrupt")
        raise CorruptError(f"what is left of {artifact} is not what was written")

    async def ls(self, place):
        if away and not answers.is_set() and place is Tier.OBJECT:
            answers.set()
            r.machine.faults.add("corrupt")
            raise RetryableError("the object store does not answer")
        return await listed(self, place)

    monkeypatch.setattr(FakeVault, "fetch", fetch)
    monkeypatch.setattr(FakeVault, "ls", ls)
    proxy(r.loop).request(cold)
    if away:
        await r.until(cold, ACTIVE)
        assert app_of(r, cold).inner == inner
    else:
        await r.until(cold, WAITING)
        assert "SeatFailed" in reasons(r)
    assert answers.is_set() == away
