"""A pod that has gone and left a state, and what its successors want."""

from __future__ import annotations

import asyncio

from kybernate.core.artifacts.restores import RestoreWish
from tests.unit.nodeagent.offloading import OBJECT, app_of, down, two, when


async def left(r, state=OBJECT, idle=()):
    """A pod that was parked there and is gone; its UID and what it left. `idle`: tiers of its
    policy's idle times."""
    telling = asyncio.ensure_future(r.loop.reports.run())
    cold, _ = await two(r)
    inner, ran = app_of(r, cold).inner, r.machine.ran.get(r.node.seats[cold].tree.handle, 0)
    await down(r, cold, state)
    artifact = r.node.seats[cold].saved.artifact
    r.node.seats[cold].wishes.idle = dict.fromkeys(idle, 1e6)
    r.node.seats[cold].ending.terminating = True
    r.machine.end_container(cold)
    r.loop.pod_gone(cold)
    await when(lambda: cold not in r.node.seats)
    await r.loop.reports.flush(10)
    assert artifact in r.machine.vault
    return cold, artifact, (inner, ran), telling


def of(uid, **more):
    return RestoreWish(uid=uid, **more)


def went(r, uid):
    return [line for line in r.machine.log if line[:2] == ("go", uid)]
