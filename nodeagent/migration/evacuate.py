"""Evacuations: the node is gone in some seconds, and what can be saved till then is.

Nothing starts or wakes any more. The seats go one after another into the object store, in the order
of `kybernate.core.migration.evacuation`; while one is sent, the next is written down.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kybernate.core.migration import evacuation
from kybernate.core.migration.evacuation import Evacuation, Load, Rates
from kybernate.core.seat.operations import Progress, Verdict
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, WITHOUT_TREE
from kybernate.core.tiers.tiering import deeper
from kybernate.types import SeatState, Tier
from nodeagent import metrics
from nodeagent.operations.record import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.seat.operations import SeatFacts
    from kybernate.types import PodUid
    from nodeagent.migration.agent import Agent
    from nodeagent.operations.record import Ask, Operation
    from nodeagent.seat.record import Seat

_WRITE, _SEND = 200e6, 50e6
"""Bytes per second that are counted on while nothing has been measured."""
_LAST = 60.0
"""Seconds after the end in which people may still read what came of it."""


class Evacuations:
    """Implements `carrier.Carrier`. `noted` is told of what has changed about an operation."""

    def __init__(self, agent: Agent, noted: Callable[[Operation], None]) -> None:
        self._agent = agent
        self._node = agent.node
        self._noted = noted
        self._changed = asyncio.Event()
        self._plan = Evacuation((), ())
        self._task: asyncio.Task[None] | None = None
        self._verdict: Verdict | None = None

    def why_refused(self, seat: SeatFacts | None, ask: Ask) -> str:
        """See `Carrier.why_refused`."""
        if Tier.OBJECT not in self._node.tiers():
            return "this node has no object store to save to; give its agent one (object_store)"
        return ""

    def plan(self, seat: SeatFacts | None, ask: Ask) -> tuple[str, ...]:
        """See `Carrier.plan`."""
        first = "From now on nothing starts or wakes on this node, and all seats are parked."
        return (first, *evacuation.sentences(self._planned(ask.limit)))

    def begin(self, operation: Operation, *, again: bool = False) -> None:
        """See `Carrier.begin`."""
        left = max(0.0, operation.due_at - self._node.world.wall() - (_LAST if again else 0.0))
        if not again:
            operation.due_at += _LAST
        self._verdict, self._plan = None, self._planned(left)
        operation.report = evacuation.sentences(self._plan)
        self._agent.operators.drain_node(words(operation))
        self._task = asyncio.create_task(self._run(operation, left))
        self._noted(operation)

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """See `Carrier.verdict`."""
        if self._verdict is not None:
            return self._verdict
        saved = sum(self._is_saved(one.load.uid) for one in self._plan.saved)
        operation.done, operation.total = saved, len(self._plan.saved)
        return Verdict(Progress.RUNNING, f"{saved} of {len(self._plan.saved)} are saved")

    def drop(self, operation: Operation) -> None:
        """See `Carrier.drop`."""
        if self._task is not None:
            self._task.cancel()
        for one in self._plan.saved:
            self._agent.operators.let_stay(one.load.uid)
            self._agent.operators.ask_for_tier(one.load.uid, None)
        self._agent.operators.undrain_node()

    def ended(self, operation: Operation) -> None:
        """See `Carrier.ended`."""
        self._task = None

    def look(self) -> None:
        """See `Carrier.look`."""
        self._changed.set()

    # --- what there is --------------------------------------------------------------------------

    def _planned(self, seconds: float) -> Evacuation:
        rates = Rates(metrics.rate_of("dump") or _WRITE, metrics.rate_of("pack") or _SEND)
        moved = self._agent.dumps.leavers.where
        seats = (one for one in self._node.seats.values() if not moved(one.uid))
        loads = [self._load(one) for one in seats if one.state not in AT_GATE]
        return evacuation.plan(loads, rates, seconds)

    def _load(self, seat: Seat) -> Load:
        written = seat.state in WITHOUT_TREE
        gpu, host = (0, 0) if written else self._node.dump_size(seat)
        known = self._node.activity.get(seat.uid)
        calls = float(known.get("recentCalls", 0.0)) if known else 0.0
        return Load(
            uid=seat.uid,
            name=f"{seat.identity.pod}",
            gpu=gpu,
            host=host,
            send=self._to_send(seat) if written else gpu + host,
            priority=seat.identity.priority,
            calls=calls,
            why_not=self._why_not(seat),
            earlier=self._earlier(seat.uid),
        )

    def _earlier(self, uid: PodUid) -> str:
        """Its newest save game in the object store."""
        kept = (one for one in self._agent.custody.persons() if one.uid == uid)
        there = [one.artifact for one in kept if Tier.OBJECT in one.places]
        return max(there, key=lambda artifact: artifact.rpartition("@")[2], default="")

    def _to_send(self, seat: Seat) -> int:
        return (
            0 if Tier.OBJECT in seat.saved.copies else seat.saved.size or self._node.park_size(seat)
        )

    def _why_not(self, seat: Seat) -> str:
        if seat.ending.asked or seat.state is SeatState.FAILED:
            return "its workload is ending"
        deepest = seat.wishes.park_tier
        if deeper(Tier.OBJECT, Tier(deepest)):
            return f"its pod lets its state go no deeper than {deepest} (kyb.ai/park-tier)"
        return (seat.backoff.unparkable if seat.state in OCCUPYING else "") or seat.saved.undumpable

    def _is_saved(self, uid: PodUid) -> bool:
        seat = self._node.seats.get(uid)
        return seat is not None and Tier.OBJECT in seat.saved.copies and seat.state in WITHOUT_TREE

    # --- what is done ---------------------------------------------------------------------------

    async def _run(self, operation: Operation, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._save_all(operation), seconds)
        self._conclude(operation)

    async def _save_all(self, operation: Operation) -> None:
        for one in self._plan.saved:
            uid = one.load.uid
            self._agent.operators.send_away(uid, words(operation), stays_away=True)
            self._agent.operators.ask_for_tier(uid, Tier.OBJECT)
            await self._until(lambda uid=uid: self._is_written(uid))  # type: ignore[misc]
        await self._until(lambda: all(self._is_out(one.load.uid) for one in self._plan.saved))

    def _is_written(self, uid: PodUid) -> bool:
        """Whether the next one may have the disk: this one is down, or won't be."""
        seat = self._node.seats.get(uid)
        if seat is None:
            return True
        # What was parked a moment ago goes on at once all the same.
        seat.saved.may_move()
        return seat.state in WITHOUT_TREE or bool(self._why_not(seat))

    def _is_out(self, uid: PodUid) -> bool:
        seat = self._node.seats.get(uid)
        return seat is None or self._is_saved(uid) or bool(self._why_not(seat))

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._changed.clear()
            self._agent.operators.kick()
            await self._changed.wait()

    def _conclude(self, operation: Operation) -> None:
        saved = [one.load.name for one in self._plan.saved if self._is_saved(one.load.uid)]
        left = self._left_behind()
        operation.report = (
            *(f"{name} is saved: its state is in the object store." for name in saved),
            *(f"{each} is not saved." for each in left),
        )
        operation.done, operation.total = len(saved), len(saved) + len(left)
        if left:
            sentence = f"{len(saved)} saved, not saved: {', '.join(left)}; the node stays drained"
            self._verdict = Verdict(Progress.FAILED, sentence)
        else:
            sentence = f"all {len(saved)} are saved in the object store; the node stays drained"
            self._verdict = Verdict(Progress.SUCCEEDED, sentence)
        self._noted(operation)

    def _left_behind(self) -> list[str]:
        """Who isn't saved, and why."""
        plan = self._plan
        late = [(one.load, "not in time") for one in plan.saved if not self._is_saved(one.load.uid)]
        lost = [(one.load, one.why) for one in plan.lost]
        return [f"{load.name} ({why}{evacuation.instead(load)})" for load, why in (*late, *lost)]
