"""What is tried again and again is told now and then, and each kind of it."""

from __future__ import annotations

import asyncio


async def test_a_complaint_silences_itself_alone(rig):
    r = rig()
    r.begin()
    seat = r.node.seats[await r.seat("a")]
    complain = r.node.complain
    for _ in range(3):
        complain(seat, "RestoreWaits", "not yet")
        complain(seat, "GateStuck", "TCP is still held back")
        await asyncio.sleep(10)
    assert r.seen.events == [
        ("RestoreWaits", "not yet"),
        ("GateStuck", "TCP is still held back"),
    ]
    await asyncio.sleep(60)
    complain(seat, "RestoreWaits", "still not")
    assert r.seen.events[2:] == [("RestoreWaits", "still not")]
