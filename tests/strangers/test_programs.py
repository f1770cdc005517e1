"""Each program in each tier, twice in a row, with a connection that is kept; or refused, truly."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import pytest

from kybernate.adapters.kernel import smallfile
from kybernate.types import SeatState, Tier
from tests.kit.node.cable import THERE
from tests.strangers import layers, seen
from tests.strangers.programs import STRANGERS
from tests.strangers.rig import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.strangers.programs import Stranger
    from tests.strangers.rig import Stand
    from tests.strangers.talks import Talk

HANGS = 1800
"""Seconds: more than the limits of all steps together, each of which has its own. On a busy machine
those that make progress get to their end."""
pytestmark = [pytest.mark.strangers, pytest.mark.timeout(HANGS)]
TIMES = 2
LIMIT = 40.0
QUIET = 5.5
"""Seconds until a request that was answered is no longer taken for one that waits."""

WHOLE = [one for one in STRANGERS if not one.refused]
REFUSED = [one for one in STRANGERS if one.refused]


class Visitor:
    """Somebody with a connection that is kept, who now and then makes another."""

    def __init__(self, stand: Stand, kept: Talk) -> None:
        self._stand, self._kept = stand, kept
        self._number, self._token = 0, ""

    async def see(self) -> float:
        """It goes on where it was: the next number, from the same server, on both. Returns the
        seconds until the first answer."""
        began = time.monotonic()
        await self._see(self._kept)
        answered = time.monotonic() - began
        other = await asyncio.to_thread(self._stand.stranger.talk, THERE)
        await self._see(other)
        other.close()
        return answered

    async def _see(self, link: Talk) -> None:
        number, token = await asyncio.to_thread(link.next)
        self._number += 1
        self._token = self._token or token
        assert (number, token) == (self._number, self._token)


async def parked(stand: Stand, state: SeatState) -> None:
    """It is in the tier, and no process of it is left below RAM."""
    await asyncio.sleep(QUIET)
    stand.park(TIERS[state])
    await stand.until(state)
    seat = stand.seat()
    assert seat.tree.handle
    left = smallfile.read(f"{seat.tree.handle}/cgroup.procs").split()
    assert bool(left) is (state is SeatState.PARKED)


@pytest.mark.real_time
@pytest.mark.parametrize("stranger", WHOLE, ids=lambda one: one.name)
async def test_it_comes_back_whole_from_every_tier(
    stand: Callable[[Stranger], Stand], fetched: Callable[[Stranger], None], stranger: Stranger
) -> None:
    fetched(stranger)
    one = stand(stranger)

    await one.begin(SeatState.ACTIVE)
    kept = await one.serving()
    visitor = Visitor(one, kept)
    await visitor.see()
    shown = seen.Seen(stranger.name, layers.version(stranger, print))
    for state in [state for state in TIERS for _ in range(TIMES)]:
        await parked(one, state)
        answered = await visitor.see()
        await one.until(SeatState.ACTIVE)
        slowest = max(answered, shown.answered_s.get(TIERS[state], 0.0))
        shown.answered_s[TIERS[state]] = round(slowest, 2)
    kept.close()
    await one.end()
    seen.record(shown)


@pytest.mark.real_time
@pytest.mark.parametrize("stranger", REFUSED, ids=lambda one: one.name)
async def test_it_is_refused_with_a_true_sentence_and_runs_on(
    stand: Callable[[Stranger], Stand], fetched: Callable[[Stranger], None], stranger: Stranger
) -> None:
    fetched(stranger)
    one = stand(stranger)

    await one.begin(SeatState.ACTIVE)
    kept = await one.serving()
    visitor = Visitor(one, kept)
    await visitor.see()
    await asyncio.sleep(QUIET)
    one.park(Tier.NVME)
    await asyncio.wait_for(one.events.heard.wait(), LIMIT)
    assert all(stranger.refused in sentence for sentence in one.events.kept_in_ram)
    assert one.seat().state is SeatState.PARKED
    answered = await visitor.see()
    kept.close()
    await one.end()
    said = re.sub(r"Process \d+", "Process N", one.events.kept_in_ram[0])
    version = layers.version(stranger, print)
    seen.record(seen.Seen(stranger.name, version, {Tier.RAM: round(answered, 2)}, said))
