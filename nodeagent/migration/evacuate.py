"""Evacuations: the node is gone in some seconds, and what can be saved till then is.

Nothing starts or wakes any more. The seats go one after another into the object store, in the order
of `kybernate.core.migration.evacuation`; while one is sent, the next is written down.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kybernate.core.migration import evacuation
from kybernate.core.migration.evacuation import OVER, Act, Evacuation, Load, Rates, Seen, State
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
        self._operation: Operation | None = None
        self._plan = Evacuation((), ())
        self._at: dict[PodUid, State] = {}
        self._timer: asyncio.TimerHandle | None = None
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
            operation.lasts(operation.due_at + _LAST)
        self._operation, self._verdict, self._plan = operation, None, self._planned(left)
        self._at = {one.load.uid: State.QUEUED for one in self._plan.saved}
        operation.reported(evacuation.sentences(self._plan))
        self._agent.operators.drain_node(words(operation))
        self._timer = asyncio.get_running_loop().call_later(left, self._conclude, operation)
        self._noted(operation)
        self._advance()

    def verdict(self, operation: Operation, seat: SeatFacts | None) -> Verdict:
        """See `Carrier.verdict`."""
        if self._verdict is not None:
            return self._verdict
        if operation is not self._operation:  # an agent that came back too late
            self._at = dict.fromkeys(self._sent_away(), State.WRITING)
        saved = len(self._stored())
        operation.counted(saved, len(self._at))
        return Verdict(Progress.RUNNING, f"{saved} of {len(self._at)} are saved")

    def drop(self, operation: Operation) -> None:
        """See `Carrier.drop`."""
        self.ended(operation)
        self._agent.operators.undrain_node()

    def ended(self, operation: Operation) -> None:
        """See `Carrier.ended`."""
        self._operation = None
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """See `Carrier.look`."""
        self._advance()

    # --- what there is --------------------------------------------------------------------------

    def _sent_away(self) -> list[PodUid]:
        return [seat.uid for seat in self._node.seats.values() if seat.wishes.evacuated]

    def _planned(self, seconds: float) -> Evacuation:
        rates = Rates(metrics.rate_of("dump") or _WRITE, metrics.rate_of("pack") or _SEND)
        moved = self._agent.offload.departures.where
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
            priority=seat.wishes.priority,
            calls=calls,
            why_not=self._why_not(seat),
            earlier=self._earlier(seat.uid),
        )

    def _earlier(self, uid: PodUid) -> str:
        """Its newest snapshot in the object store."""
        holds = (one for one in self._agent.custody.persons() if one.uid == uid)
        there = [one.artifact for one in holds if Tier.OBJECT in one.places]
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

    # --- what is done ---------------------------------------------------------------------------

    def _advance(self) -> None:
        """One step after another, until something has to happen first."""
        operation = self._operation
        if operation is None or self._verdict is not None:
            return
        while (step := evacuation.step(self._at, self._all_seen())) is not None:
            uid, state, acts = step
            for act in acts:
                self._do(act, uid, operation)
            self._at[uid] = state
        if OVER.issuperset(self._at.values()):
            self._conclude(operation)
        else:
            self._agent.operators.kick()

    def _do(self, act: Act, uid: PodUid, operation: Operation) -> None:
        match act:
            case Act.SEND_AWAY:
                self._agent.operators.send_away(uid, words(operation), stays_away=True)
            case Act.ASK_FOR_STORE:
                self._agent.operators.ask_for_tier(uid, Tier.OBJECT)

    def _all_seen(self) -> dict[PodUid, Seen]:
        for uid, state in self._at.items():
            if state is State.WRITING and uid in self._node.seats:
                # What was parked a moment ago moves on at once all the same.
                self._node.seats[uid].saved.may_move()
        return {uid: self._seen(uid) for uid in self._at}

    def _seen(self, uid: PodUid) -> Seen:
        seat = self._node.seats.get(uid)
        if seat is None:
            return Seen(gone=True)
        written = seat.state in WITHOUT_TREE
        stored = written and Tier.OBJECT in seat.saved.copies
        return Seen(written=written, stored=stored, why_not=self._why_not(seat))

    def _stored(self) -> list[PodUid]:
        return [uid for uid in self._at if self._seen(uid).stored]

    def _conclude(self, operation: Operation) -> None:
        if self._verdict is not None:
            return
        stored = self._stored()
        report, left = evacuation.outcome(self._plan, stored)
        operation.reported(report)
        operation.counted(len(stored), len(stored) + len(left))
        if left:
            sentence = f"{len(stored)} saved, not saved: {', '.join(left)}; the node stays drained"
            self._verdict = Verdict(Progress.FAILED, sentence)
        else:
            sentence = f"all {len(stored)} are saved in the object store; the node stays drained"
            self._verdict = Verdict(Progress.SUCCEEDED, sentence)
        self._noted(operation)
