"""Pods whose saved states are damaged wherever they lie."""

from __future__ import annotations

import asyncio

import pytest

from kybernate.core.artifacts.restores import RestoreAs, RestoreWish
from kybernate.errors import CorruptError
from kybernate.types import SeatState
from tests.kit.machine import FakeVault
from tests.unit.nodeagent.offloading import ACTIVE, NVME, TIERS, app_of, reasons
from tests.unit.nodeagent.succession import left, went

KINDS = pytest.mark.parametrize("kind", [RestoreAs.SUCCESSOR, RestoreAs.TEMPLATE])


def damaged(monkeypatch, method):
    """From now on what this method of the vault reads is damaged; how to take that back."""
    sound = getattr(FakeVault, method)

    async def read(self, artifact, *rest):
        raise CorruptError(f"the manifest of {artifact} is not what was written")

    monkeypatch.setattr(FakeVault, method, read)
    return lambda: monkeypatch.setattr(FakeVault, method, sound)


async def wanting(r, kind, **more):
    _, artifact, ran, telling = await left(r, NVME)
    wish = RestoreWish(artifact=artifact, kind=kind, **more)
    return await r.seat("new", restore=wish), ran, telling


@KINDS
async def test_it_is_told_and_started_anew_in_the_end(rig, monkeypatch, kind):
    damaged(monkeypatch, "admit")
    r = rig(tiers=TIERS)
    new, _, telling = await wanting(r, kind)
    await r.until(new, ACTIVE, limit=r.node.settings.restore_wait_s + 60)
    assert len(went(r, new)) == 1
    assert {"RestoreWaits", "RestoreRefused"} <= {*reasons(r)}
    assert any("not what was written" in text for _, text in r.seen.events)
    telling.cancel()


@KINDS
async def test_it_goes_on_from_a_sound_copy_that_comes_meanwhile(rig, monkeypatch, kind):
    mended = damaged(monkeypatch, "admit")
    r = rig(tiers=TIERS)
    new, (inner, _), telling = await wanting(r, kind)
    await asyncio.sleep(5)
    assert r.state(new) is SeatState.WAITING
    mended()
    r.loop.operators.request_wake(new, "a test")
    await r.until(new, ACTIVE)
    assert app_of(r, new).inner == inner
    assert went(r, new) == []
    telling.cancel()


async def test_a_copy_whose_images_are_damaged_that_must_not_start_anew_is_kept_waiting(
    rig, monkeypatch
):
    damaged(monkeypatch, "fetch")
    r = rig(tiers=TIERS)
    new, _, telling = await wanting(r, RestoreAs.TEMPLATE, waits=True)
    await asyncio.sleep(r.node.settings.restore_wait_s + 300)
    assert (r.state(new), went(r, new)) == (SeatState.ADOPTING, [])
    assert any("is kept waiting" in text for _, text in r.seen.events)
    telling.cancel()
