"""A store that says for a while that a state isn't there, or isn't whole."""

from __future__ import annotations

import pytest

from kybernate.errors import CorruptError, NotFoundError
from nodeagent.offload.transfers import BELIEVED_AFTER
from tests.kit.machine import FakeVault
from tests.unit.nodeagent.artifacts.test_ahead import NEW, bound, is_there
from tests.unit.nodeagent.offloading import (
    ACTIVE,
    OBJECT,
    TIERS,
    WAITING,
    app_of,
    down,
    reasons,
    two,
    when,
)
from tests.unit.nodeagent.succession import left, of


@pytest.mark.parametrize("error", [NotFoundError, CorruptError])
@pytest.mark.parametrize("lasts", [BELIEVED_AFTER - 2, BELIEVED_AFTER + 8])
async def test_it_is_believed_after_a_while(rig, proxy, monkeypatch, error, lasts):
    r = rig(tiers=TIERS)
    cold, _ = await two(r)
    inner = app_of(r, cold).inner
    await down(r, cold, OBJECT)
    sound, began = FakeVault.fetch, r.clock.time()

    async def fetch(self, artifact, *rest):
        if r.clock.time() < began + lasts:
            raise error(f"{artifact} is in no place of this node that answers")
        return await sound(self, artifact, *rest)

    monkeypatch.setattr(FakeVault, "fetch", fetch)
    proxy(r.loop).request(cold)
    if lasts < BELIEVED_AFTER:
        await r.until(cold, ACTIVE)
        assert app_of(r, cold).inner == inner
        assert "SeatFailed" not in reasons(r)
        r.check()
    else:
        await r.until(cold, WAITING)
        assert "SeatFailed" in reasons(r)
        assert r.clock.time() >= began + BELIEVED_AFTER


@pytest.mark.parametrize("error", [NotFoundError, CorruptError])
async def test_nor_is_it_believed_at_once_of_what_was_fetched_ahead(rig, monkeypatch, error):
    r = rig(tiers=TIERS)
    cold, _, (inner, _), telling = await left(r)
    r.loop.pod_changed(bound(of(cold)))
    await when(lambda: is_there(r))
    sound, asked = FakeVault.admit, []

    async def admit(self, artifact, *rest):
        asked.append(artifact)
        if len(asked) == 2:  # it is adopted by now
            raise error(f"{artifact} is in no place of this node that answers")
        return await sound(self, artifact, *rest)

    monkeypatch.setattr(FakeVault, "admit", admit)
    await r.seat("new", restore=of(cold))
    await r.until(NEW, ACTIVE)
    assert app_of(r, NEW).inner == inner
    assert len(asked) >= 2
    assert "SeatFailed" not in reasons(r)
    r.check()
    telling.cancel()
