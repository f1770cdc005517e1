"""A successor that has claimed a state, before it goes on from it."""

from __future__ import annotations

import asyncio

from kybernate.testing.clock import run_virtual
from tests.unit.nodeagent.below import ACTIVE, TIERS, app_of, reasons, when
from tests.unit.nodeagent.test_adopt import left, of, went


async def deaf(*_):
    raise OSError("TCP can't be held back")


def test_one_whose_container_ends_before_it_goes_on_does_so_in_the_next(rig):
    async def main():
        r = rig(tiers=TIERS)
        cold, _, (inner, _), telling = await left(r)
        shut, r.loop.dumps.shut = r.loop.dumps.shut, deaf
        new = await r.seat("new", restore=of(cold))
        seat = r.node.seats[new]
        await when(lambda: seat.claimed)
        r.loop.life.end(seat)
        await asyncio.sleep(5)
        assert "RestoreRefused" not in reasons(r), "its next container would begin by its command"
        r.machine.end_container(new)
        await when(lambda: seat.init is None)
        r.loop.dumps.shut = shut
        r.machine.restart_container(new)
        await r.until(new, ACTIVE, 200)
        assert (app_of(r, new).inner, went(r, new)) == (inner, [])
        r.check()
        telling.cancel()

    run_virtual(main())


def test_one_that_starts_anew_keeps_its_claim_and_the_state_stays(rig):
    async def main():
        r = rig(tiers=TIERS, restore_wait_s=3.0, keep_left_s=20.0)
        cold, artifact, _, telling = await left(r)
        r.loop.dumps.shut = deaf
        new = await r.seat("new", restore=of(cold))
        await when(lambda: "RestoreRefused" in reasons(r))
        await when(lambda: r.node.seats[new].init is None)
        r.machine.restart_container(new)
        await r.until(new, ACTIVE)
        assert len(went(r, new)) == 1
        other = await r.seat("other", restore=of(cold))
        await when(lambda: reasons(r).count("RestoreRefused") == 2)
        await asyncio.sleep(1000)  # the state would be dropped long since
        line = await r.loop.registry.line("default", cold, 1.0)
        assert (line.successor, artifact in r.machine.vault) == (new, True)
        assert r.node.seats[other].claimed == ""
        r.check()
        telling.cancel()

    run_virtual(main())
