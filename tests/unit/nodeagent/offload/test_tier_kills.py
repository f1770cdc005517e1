"""The agent is killed while a seat is on its way below RAM or back: the next one goes on."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from kybernate.core.artifacts.holds import PersonHold
from kybernate.ports import DumpState
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.app.recoveroffload import clear_of_the_gone
from nodeagent.seat.record import Seat
from tests.kit.clock import run_virtual
from tests.kit.machine import Crash, FakeVault, Machine, Snapshot
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    GIB,
    MEMORY,
    NVME,
    OBJECT,
    PARKED,
    TIERS,
    WAITING,
    app_of,
    down,
    quiet,
    reasons,
    two,
    when,
)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", range(1, 16))
@pytest.mark.parametrize("kind", ["dump", "object", "fetch", "restore", "again"])
def test_killed_at_any_write_of_a_move_it_goes_on(rig, proxy, kind, write, after):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS, tier_residency_s=0.0)
        cold, _ = await two(r)
        if kind != "dump":
            await down(r, cold)
        if kind in ("fetch", "again"):
            await down(r, cold, OBJECT)
            await when(lambda: r.node.seats[cold].saved.copies == {Tier.OBJECT})
        if kind == "again":
            r.loop.operators.ask_for_tier(cold, Tier.RAM)
            await r.until(cold, PARKED)
        machine.crash_at, machine.crash_after = machine.journal_writes + write, after
        if kind in ("dump", "object", "again"):
            r.loop.operators.ask_for_tier(cold, Tier.OBJECT if kind == "object" else Tier.NVME)
            await asyncio.sleep(3)
        r.loop.operators.request_wake(cold, "a test")
        await asyncio.sleep(20)

    with contextlib.suppress(Crash, RuntimeError):
        run_virtual(first())
    machine.crash_at = None

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        p = proxy(r.loop)
        await asyncio.sleep(2)
        for uid in ("uid-cold", "uid-hot", "uid-cold"):
            p.request(uid)
            await r.until(uid, ACTIVE)
            await asyncio.sleep(2)
        assert p.answered == {"uid-cold": 2, "uid-hot": 1}
        assert "SeatFailed" not in reasons(r)
        assert all(seat.history.generation == 1 for seat in r.node.seats.values())
        assert (machine.vault, machine.gates, machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(second(), 2000.0)


@pytest.mark.parametrize("state", [SeatState.DUMPING, SeatState.RESTORING])
@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_moment_of_a_move_it_goes_on(rig, proxy, state, moment):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        if state is SeatState.RESTORING:
            await down(r, cold)
            r.loop.operators.request_wake(cold, "a test")
        else:
            r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: r.state(cold) is state)
        await asyncio.sleep(moment * 0.002)
        machine.listener = None

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        p = proxy(r.loop)
        p.request("uid-cold")
        await r.until("uid-cold", ACTIVE)
        await asyncio.sleep(2)
        assert p.answered == {"uid-cold": 1}
        assert "SeatFailed" not in reasons(r)
        assert (machine.vault, machine.gates, machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(second(), 2000.0)


class Striker:
    """Kills (-9) all helpers in the middle of what follows the n-th record from now on. `met`: how
    many there were, None if it never comes to that."""

    def __init__(self, r, write, after):
        self.left, self.after, self.met = write, after, None
        self._helpers, journal = r.node.world.helpers, r.node.world.journal
        self._put, journal.put = journal.put, self._strike

    def _strike(self, *record, **how):
        self.left -= 1
        if not self.left:
            asyncio.get_running_loop().call_later(self.after, self._kill)
        return self._put(*record, **how)

    def _kill(self):
        self.met = self._helpers.kill_all()


async def down_and_up(r, proxy, write, after):
    """A seat parks, goes to NVMe, comes back and answers; how many helpers were killed then."""
    r.node.park_budget = 1000 * GIB
    r.begin()
    p, cold = proxy(r.loop), await r.seat("cold")
    await r.until(cold, ACTIVE)
    inner, striker = app_of(r, cold).inner, Striker(r, write, after)
    await r.until(await r.seat("hot"), ACTIVE)
    await down(r, cold)
    await asyncio.sleep(2)
    p.request(cold)
    await r.until(cold, ACTIVE)
    await asyncio.sleep(2)
    assert (p.answered, app_of(r, cold).inner) == ({cold: 1}, inner)
    assert "SeatFailed" not in reasons(r)
    assert r.node.seats[cold].history.generation == 1
    assert (r.machine.vault, r.machine.gates, r.machine.dumps) == ({}, {}, {})
    r.check()
    return striker.met


@pytest.mark.parametrize("after", [0.0, 0.001, 0.005])
def test_helpers_that_are_killed_at_any_write_of_a_way_down_and_up_change_nothing(
    rig, proxy, after
):
    async def main(write):
        return await down_and_up(rig(tiers=TIERS), proxy, write, after)

    met = []
    while not met or met[-1] is not None:
        met.append(run_virtual(main(len(met) + 1)))
    assert len(met) > 25
    assert sum(map(bool, met)) > 15


def test_killed_in_the_middle_of_an_end_it_is_ended(rig, proxy):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        machine.faults.add("end-hangs")
        r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: "end-hangs" not in machine.faults)
        seat = r.node.seats[cold]
        assert (seat.state, bool(seat.saved.artifact)) == (SeatState.DUMPING, True)
        assert machine.dumps[machine.inits[cold]] is DumpState.HOLDING
        machine.listener = None

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        await r.until("uid-cold", NVME)
        p = proxy(r.loop)
        p.request("uid-cold")
        await r.until("uid-cold", ACTIVE)
        await asyncio.sleep(2)
        assert p.answered == {"uid-cold": 1}
        assert (machine.vault, machine.gates, machine.dumps) == ({}, {}, {})
        r.check()

    run_virtual(second(), 2000.0)


@pytest.mark.parametrize("ended", [False, True])
def test_a_state_whose_manifest_can_not_be_read_then_is_neither_relied_on_nor_given_up(
    rig, proxy, monkeypatch, ended
):
    """The agent dies before the tree is ended, or before that is noted."""
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        machine.faults.add("end-hangs")
        r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: "end-hangs" not in machine.faults)
        if ended:
            machine.drop_tree(app_of(r, cold).handle)
            machine.dumps[machine.inits[cold]] = DumpState.PARKED
        machine.listener = None

    run_virtual(first())
    sound, away = FakeVault.ls, [True]

    async def ls(vault, place):
        listed = await sound(vault, place)
        return tuple(replace(one, uid="", unread=True) if away else one for one in listed)

    monkeypatch.setattr(FakeVault, "ls", ls)

    async def second():
        r = rig(machine, tiers=TIERS)
        r.node.park_budget = 1000 * GIB
        await r.recover()
        r.begin()
        await r.until("uid-cold", NVME if ended else PARKED)
        assert bool(r.node.seats["uid-cold"].saved.artifact) is ended
        away.clear()
        p = proxy(r.loop)
        p.request("uid-cold")
        await r.until("uid-cold", ACTIVE)
        r.check()

    run_virtual(second(), 2000.0)


def test_a_save_game_outlives_an_agent_that_is_killed_in_a_later_dump(rig):
    machine, kept = Machine(MEMORY), []

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, hot = await two(r)
        await down(r, cold)
        kept.append(ArtifactId(r.node.seats[cold].saved.artifact))
        await r.loop.custody.keep(PersonHold(kept[0], "save-1", cold, {Tier.NVME: 1}))
        r.loop.operators.request_wake(cold, "a test")
        await r.until(cold, ACTIVE)
        r.loop.operators.request_wake(hot, "a test")
        await r.until(hot, ACTIVE)
        r.loop.operators.ask_for_tier(cold, Tier.NVME)
        await when(lambda: len(machine.vault) == 2)
        machine.listener = None

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        r.begin()
        await r.until("uid-cold", PARKED)
        await asyncio.sleep(2)
        assert [*machine.vault] == kept
        r.check()

    run_virtual(second(), 2000.0)


def test_an_agent_without_criu_says_that_it_can_not_wake_what_is_below_ram(rig):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        await down(r, (await two(r))[0])

    run_virtual(first())

    async def second():
        r = rig(machine)
        await r.recover()
        r.begin()
        r.loop.operators.request_wake("uid-cold", "a test")
        await asyncio.sleep(3)
        assert r.state("uid-cold") is NVME
        assert "CannotWake" in reasons(r)
        assert len(machine.vault) == 1

    run_virtual(second(), 2000.0)


async def test_with_the_journal_lost_a_seat_below_ram_starts_anew(rig):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    await down(r, cold)
    artifact = r.node.seats[cold].saved.artifact
    identity = r.node.seats.pop(cold).identity
    r.loop.add(Seat(identity, 0.0, 0.0))
    r.machine.hello(cold)
    await asyncio.sleep(2)
    assert r.state(cold) is WAITING
    assert any("without a record" in sentence for _, sentence in r.seen.events)
    r.machine.restart_container(cold)
    r.loop.operators.request_wake(cold, "a test")
    await r.until(cold, ACTIVE)
    await asyncio.sleep(100)
    assert [*r.machine.vault] == [artifact]


def test_what_the_last_agent_had_no_time_to_remove_is_removed(rig):
    machine = Machine(MEMORY)

    async def first():
        quiet()
        r = rig(machine, tiers=TIERS)
        cold, _ = await two(r)
        for whose in (cold, f"{cold}-save", "uid-gone", "uid-gone-save"):
            machine.folders[f"/dumps/{whose}"] = Snapshot(cold, r.node.seats[cold].tree.handle, 0)

    run_virtual(first())

    async def second():
        r = rig(machine, tiers=TIERS)
        await r.recover()
        # What no record names may be of a pod whose record is lost, until all pods are known.
        saves = "/dumps/uid-cold-save"
        assert sorted(machine.folders) == [saves, "/dumps/uid-gone", "/dumps/uid-gone-save"]
        await clear_of_the_gone(r.loop)
        await asyncio.sleep(0)
        # Of the save of a seat that is there its operation says what becomes of it.
        assert list(machine.folders) == [saves]
        r.begin()
        await down(r, PodUid("uid-cold"))
        assert len(machine.vault) == 1

    run_virtual(second(), 2000.0)
