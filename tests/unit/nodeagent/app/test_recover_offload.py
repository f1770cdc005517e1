"""States that an agent has sealed and that no record names: only those of the last agent go."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kybernate.core.seat.operations import Kind
from kybernate.errors import RetryableError
from kybernate.types import Tier
from nodeagent.app.recoveroffload import drop_unnoticed
from nodeagent.operations.operations import Operations
from nodeagent.operations.record import Ask
from tests.kit.machine import FakeVault
from tests.unit.nodeagent.offloading import ACTIVE, NVME, PARKED, TIERS, down, two, when

OLD = "default/cold@20260131T110000Z-0000000f"


class Listing:
    """NVMe can't be listed before it is let go."""

    def __init__(self, monkeypatch) -> None:
        self.away = True
        sound = FakeVault.ls

        async def ls(vault, place):
            if self.away:
                raise RetryableError("the disk does not answer")
            return await sound(vault, place)

        monkeypatch.setattr(FakeVault, "ls", ls)


async def unnoticed(r, monkeypatch):
    """A seat of which the last agent has sealed something; it is looked for, without success."""
    cold, hot = await two(r)
    await down(r, cold)
    of = r.machine.vault[r.node.seats[cold].saved.artifact]
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await when(lambda: not r.machine.vault)
    r.loop.operators.request_wake(hot, "a test")
    await r.until(cold, PARKED)
    r.machine.vault[OLD] = replace(of, folder=f"/artifacts/{OLD}", places={Tier.NVME})
    listing = Listing(monkeypatch)
    looking = asyncio.ensure_future(drop_unnoticed(r.loop, r.node.seats[cold]))
    await asyncio.sleep(3)
    assert OLD in r.machine.vault
    return cold, listing, looking


def slow(monkeypatch, seconds):
    """What is sealed can be seen long before its maker hears of it."""
    sound = FakeVault.seal

    async def seal(*what):
        artifact = await sound(*what)
        await asyncio.sleep(seconds)
        return artifact

    monkeypatch.setattr(FakeVault, "seal", seal)


@pytest.mark.parametrize("when_listed", ["noted", "being sealed"])
async def test_what_was_sealed_since_stays(rig, monkeypatch, when_listed):
    r = rig(tiers=TIERS)
    cold, listing, looking = await unnoticed(r, monkeypatch)
    if when_listed == "noted":
        await down(r, cold)
    else:
        slow(monkeypatch, 10)
        r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: len(r.machine.vault) == 2)
    listing.away = False
    await looking
    await r.until(cold, NVME)
    await when(lambda: OLD not in r.machine.vault)
    assert list(r.machine.vault) == [r.node.seats[cold].saved.artifact]
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    r.check()


async def test_a_save_that_is_not_noted_yet_stays(rig, monkeypatch):
    r = rig(tiers=TIERS)
    operations = Operations(r.loop.operators, r.loop.offload, r.loop.life, r.loop.policy)
    r.node.observe(operations)
    cold, listing, looking = await unnoticed(r, monkeypatch)
    slow(monkeypatch, 10)
    listing.away = False
    one = await operations.ask(Ask(Kind.SAVE, "s1", cold, by="ops"))
    await when(lambda: r.machine.vault.keys() - {OLD})
    await drop_unnoticed(r.loop, r.node.seats[cold])
    await when(lambda: one.ended)
    await when(lambda: OLD not in r.machine.vault)
    assert list(r.machine.vault) == [one.artifact]
    looking.cancel()
    r.check()
