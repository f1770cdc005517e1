"""Operations: what people and controllers ask of the node's seats, named and journalled.

The record is on the disk before the wish is put into the seat, so that an operation that was
answered survives the agent. After a restart wishes are put again, and the judgement continues.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from kybernate.core.seat.operations import (
    AWAY,
    ENDED,
    OF_NODE,
    WITHOUT_SEAT,
    Kind,
    Progress,
    Verdict,
    judge_away,
    judge_drain,
    judge_wake,
    plan_away,
    plan_drain,
    plan_wake,
)
from kybernate.core.seat.saves import is_precopied, why_refused
from kybernate.core.seat.seats import OCCUPYING, TIER_OF
from kybernate.core.swap.swap import obstacle, wants
from kybernate.errors import NotFoundError, RefusedError, RetryableError
from kybernate.types import Tier
from nodeagent import metrics
from nodeagent.operations import precopy
from nodeagent.operations.record import (
    OPERATION,
    Operation,
    event_of,
    facts_of,
    from_record,
    the_same,
    words,
)
from nodeagent.operations.saves import Saves
from nodeagent.operations.wire import movable
from nodeagent.seat.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kybernate.core.seat.operations import SeatFacts
    from kybernate.core.swap.swapview import SwapPolicy
    from kybernate.types import PodUid
    from nodeagent.offload.offload import Offload
    from nodeagent.operations.carrier import Carrier
    from nodeagent.operations.record import Ask
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.operatorside import OperatorSide
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_ANNOUNCED = {Kind.DRAIN: "Drain", Kind.EVACUATE: "Evacuation"}
"""What events of the node tell the end of."""
_DRAINS = frozenset(_ANNOUNCED)
"""What `undrain` takes back."""
_LONGEST_EVENT = 1000
_LOOK_AGAIN = 1.0
_KEPT_S = 60.0
"""Seconds for which one that has ended can be asked for however many there are: a controller looks
again every 10 s."""


class Operations:
    """All operations of this agent. Implements `node.Observer`. `tell_node` writes an event about
    the node, of a kind, a reason and a sentence."""

    def __init__(
        self,
        operators: OperatorSide,
        offload: Offload,
        life: Lifecycle,
        policy: SwapPolicy,
        tell_node: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:
        self._operators = operators
        self._node = operators.node
        self._departures, self._custody = offload.departures, offload.custody
        self._policy = policy
        self._all: dict[str, Operation] = {}
        self._one = asyncio.Lock()
        self._review_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tell_node = tell_node
        self._told_of_ends: list[Callable[[], None]] = []
        self.changes = Changes()
        self._carriers: dict[Kind, Carrier] = {
            Kind.SAVE: Saves(operators, offload, life, self._facts, self.advanced)
        }

    def on_end(self, call: Callable[[], None]) -> None:
        """`call` is told of each end; on the loop, quick."""
        self._told_of_ends.append(call)

    def carry(self, kind: Kind, by: Carrier) -> None:
        """Who carries out operations of a kind; before `resume`."""
        self._carriers[kind] = by

    # --- asking -------------------------------------------------------------------------------

    async def ask(self, ask: Ask) -> Operation:
        """Begin an operation, or find the one of this name. Its record is on the disk then.

        Raises NotFoundError (no such seat), ConflictError (the name is another operation's),
        RefusedError (it can't be, or another is under way for the seat) and RetryableError.
        """
        async with self._one:
            known = self._all.get(ask.name)
            if known is not None:
                return the_same(known, ask)
            operation = self._new(ask)
            rivals = self._rivals(operation)
            try:
                await self._write(operation, synced=True)
            except OSError as error:
                # It may have been written all the same; a restart must not carry it out.
                self._node.world.journal.delete(OPERATION + operation.name)
                raise RetryableError(
                    f"the agent's journal can't be written: {error}; free space on its disk"
                ) from error
            self._replace(rivals, operation)
            self._all[operation.name] = operation
        log.info("operation %s begins", operation)
        self._begin(operation)
        self._review()
        return operation

    def _replace(self, rivals: list[Operation], new: Operation) -> None:
        try:
            for rival in rivals:
                # One may have come to its end while the new one was written.
                if not rival.ended:
                    self._cancel(rival, f"{new} takes its place")
        except RefusedError:
            # Nor may a restart carry out what was refused.
            self._node.world.journal.delete(OPERATION + new.name)
            raise

    def forget(self, name: str, why: str) -> str:
        """Keep the snapshot no longer that the operation of this name has made: the artifact, empty
        for none."""
        return self._custody.forget(name, why)

    def plan(self, ask: Ask) -> tuple[str, ...]:
        """What `ask` would do, as sentences in order. Raises as `ask` does; does nothing."""
        operation = self._new(ask)
        rivals = self._rivals(operation)
        steps = tuple(f"Operation {rival} is cancelled." for rival in rivals)
        if ask.kind is Kind.DRAIN:
            return steps + plan_drain([self._facts(seat) for seat in self._node.seats.values()])
        if ask.kind is Kind.UNDRAIN:
            return (*steps, "Seats start and wake on this node again.")
        if carrier := self._carriers.get(ask.kind):
            seen = self._node.seats.get(ask.uid)
            return steps + carrier.plan(self._facts(seen) if seen else None, ask)
        seat = self._seat(ask.uid)
        if ask.kind in AWAY:
            return steps + plan_away(self._facts(seat), ask.kind, ask.tier)
        mine = set(seat.identity.gpus)
        beside = [
            self._facts(other)
            for other in self._node.seats.values()
            if other is not seat and other.state in OCCUPYING and mine & {*other.identity.gpus}
        ]
        return steps + plan_wake(self._facts(seat), beside)

    def get(self, name: str) -> Operation:
        """The operation of this name. Raises NotFoundError."""
        if name not in self._all:
            raise NotFoundError(
                f"no operation is named {name!r} here; the agent keeps the last "
                f"{self._node.settings.operations_kept} that have ended"
            )
        return self._all[name]

    def known(self, *, ended_too: bool) -> list[Operation]:
        """Operations, oldest first."""
        every = sorted(self._all.values(), key=lambda one: (one.created_at, one.name))
        return [one for one in every if ended_too or not one.ended]

    def under_way(self) -> dict[PodUid, str]:
        """What is being done for seats, by the UIDs of their pods."""
        return {one.uid: one.kind.value for one in self._live() if one.uid}

    def cancel(self, name: str) -> Operation:
        """Take the wish back; one that has ended stays as it is. Raises NotFoundError."""
        operation = self.get(name)
        if not operation.ended:
            self._cancel(operation, "it was cancelled")
        return operation

    def _new(self, ask: Ask) -> Operation:
        seat = None if ask.kind in WITHOUT_SEAT else self._seat(ask.uid)
        pod = seat.identity.pod if seat else None
        if why_not := self._why_refused(seat, ask):
            raise RefusedError(why_not)
        now = self._node.world.wall()
        limit = ask.limit or self._node.settings.operation_limit_s
        return Operation(
            name=ask.name or f"{ask.kind}-{secrets.token_hex(5)}",
            kind=ask.kind,
            uid=ask.uid,
            namespace=pod.namespace if pod else "",
            pod=pod.name if pod else "",
            why=ask.why,
            by=ask.by,
            created_at=now,
            due_at=now + limit,
            total=len(self._node.seats) if ask.kind is Kind.DRAIN else 0,
            tier=ask.tier,
            successor=ask.successor,
            artifact=ask.artifact,
            precopy=ask.precopy,
        )

    def _why_refused(self, seat: Seat | None, ask: Ask) -> str:
        departures, facts = self._departures, self._facts(seat) if seat else None
        again = ask.kind is Kind.MOVE and departures.went_to(ask.uid, ask.successor)
        moved = "" if again else departures.where(ask.uid)
        if carrier := self._carriers.get(ask.kind):
            return moved or carrier.why_refused(facts, ask)
        if ask.kind in (Kind.MOVE, Kind.EVACUATE, Kind.PLACE):
            return "this agent has no CRIU to save states with; give it one (criu)"
        return moved or (why_refused(facts, ask.kind, ask.tier) if facts else "")

    def _seat(self, uid: PodUid) -> Seat:
        seat = self._node.seats.get(uid)
        if seat is None:
            raise NotFoundError(
                f"no seat of a pod with UID {uid!r} is on node {self._node.settings.node}; "
                "GetStatus lists those that are"
            )
        return seat

    def _rivals(self, new: Operation) -> list[Operation]:
        """Who gives way to it. Raises RefusedError if it would have to give way itself."""
        live = self._live()
        if new.kind in OF_NODE:
            same = next((one for one in live if one.kind is new.kind), None)
            if same is not None:
                raise RefusedError(f"{same} is under way already; watch it or cancel it")
            gives_way = _DRAINS if new.kind is Kind.UNDRAIN else {Kind.WAKE}
            return [one for one in live if one.kind in gives_way]
        for one in live:
            if new.kind is Kind.PLACE:
                if (one.kind, one.artifact, one.tier) == (new.kind, new.artifact, new.tier):
                    raise RefusedError(f"{one} is under way already; watch it or cancel it")
            elif one.uid == new.uid:
                if new.kind is Kind.EVICT and one.kind is not Kind.EVICT:
                    return [one]
                raise RefusedError(f"{one} is under way for this seat; watch it or cancel it")
        return []

    def _live(self) -> list[Operation]:
        """What has not ended. A pre-copy is its eviction's, and counts with that."""
        every = self._all.values()
        return [one for one in every if not (one.ended or precopy.eviction_of(one.name))]

    # --- wishes -------------------------------------------------------------------------------

    def _begin(self, operation: Operation, *, again: bool = False) -> None:
        wishes, why = self._operators, words(operation)
        match operation.kind:
            case Kind.PARK | Kind.EVICT:
                if not self._copied_before(operation, again=again):
                    self._send_away(operation)
            case Kind.SAVE | Kind.MOVE | Kind.EVACUATE | Kind.PLACE:
                self._carriers[operation.kind].begin(operation, again=again)
            case Kind.WAKE:
                wishes.let_stay(operation.uid)
                wishes.request_wake(operation.uid, why)
            case Kind.DRAIN:
                wishes.drain_node(why)
                self._announce("Draining", f"{why}: seats are parked, nothing starts or wakes")
            case Kind.UNDRAIN:
                wishes.undrain_node()
                self._announce("Undrained", f"{why}: seats start and wake again")

    def _send_away(self, operation: Operation) -> None:
        if operation.tier is not None:
            self._operators.ask_for_tier(operation.uid, operation.tier)
        stays = operation.kind is Kind.EVICT
        if stays or self._node.seats[operation.uid].state in OCCUPYING:
            self._operators.send_away(operation.uid, words(operation), stays_away=stays)

    def _copied_before(self, operation: Operation, *, again: bool) -> bool:
        """Whether it waits for its pre-copy, which begins if it is worth it. After a restart only
        one that has begun: the pause comes sooner than by another."""
        if self._precopy(operation) is not None:
            return True
        seat = self._node.seats.get(operation.uid)
        if again or seat is None or not self._is_precopied(operation, seat):
            return False
        try:
            copy = self._new(precopy.asked_by(operation, self._node.world.wall()))
        except RefusedError as error:
            log.info("%s is evicted without a pre-copy: %s", seat, error)
            return False
        self._all[copy.name] = copy
        self._save(copy)
        log.info("operation %s begins", copy)
        self._carriers[Kind.SAVE].begin(copy)
        return True

    def _is_precopied(self, operation: Operation, seat: Seat) -> bool:
        if not operation.precopy or operation.tier is not Tier.OBJECT or self._node.draining:
            return False
        others = any(
            wants(other.view(drained=False)) and {*seat.identity.gpus} & {*other.identity.gpus}
            for other in self._node.seats.values()
            if other is not seat and other.state not in OCCUPYING
        )
        left, size = operation.due_at - self._node.world.wall(), sum(self._node.dump_size(seat))
        return is_precopied(self._facts(seat), size, left, others=others)

    def _precopy(self, operation: Operation) -> Operation | None:
        """The pre-copy that it waits for."""
        found = self._all.get(precopy.name_of(operation.name))
        return None if found is None or found.ended else found

    def _follow(self, ended: Operation) -> None:
        """An eviction begins when its pre-copy has ended, and a pre-copy goes with its eviction."""
        eviction = self._all.get(precopy.eviction_of(ended.name))
        if eviction is not None and not eviction.ended:
            self._send_away(eviction)
        elif ended.kind is Kind.EVICT:
            self._drop_precopy(ended)

    def _drop_precopy(self, operation: Operation) -> None:
        """Its eviction has ended: nobody needs it any more. One that is still copied is dropped by
        `advanced`, once nothing reads it."""
        why = f"{operation.name} has ended"
        if (copy := self._precopy(operation)) is not None:
            self._cancel(copy, why)
        else:
            self.forget(precopy.name_of(operation.name), why)

    def _is_spare(self, name: str) -> bool:
        """Whether the operation of this name is the pre-copy of an eviction that is over."""
        eviction = self._all.get(of) if (of := precopy.eviction_of(name)) else None
        return bool(of) and (eviction is None or eviction.ended)

    def _announce(self, reason: str, sentence: str, kind: str = "Normal") -> None:
        self._tell_node(kind, reason, sentence)

    def _take_back(self, operation: Operation) -> None:
        match operation.kind:
            case Kind.PARK | Kind.EVICT:
                self._operators.let_stay(operation.uid)
                if operation.tier is not None:
                    self._operators.ask_for_tier(operation.uid, None)
            case Kind.SAVE | Kind.MOVE | Kind.EVACUATE | Kind.PLACE:
                self._carriers[operation.kind].drop(operation)
            case Kind.WAKE:
                self._operators.call_off(operation.uid)
            case Kind.DRAIN if not any(one.kind is Kind.EVACUATE for one in self._live()):
                self._operators.undrain_node()
            case _:
                pass

    def _cancel(self, operation: Operation, why: str) -> None:
        self._take_back(operation)
        rest = "; a park that has begun ends, and the seat wakes on its next request"
        self._end(
            operation,
            Verdict(Progress.CANCELLED, why + (rest if operation.kind in AWAY else "")),
        )

    # --- judging ------------------------------------------------------------------------------

    def resume(self, records: Mapping[str, Mapping[str, object]]) -> None:
        """After a restart: put the wishes of what has not ended again, and judge it."""
        for key, record in records.items():
            if key.startswith(OPERATION):
                operation = from_record(record)
                self._all[operation.name] = operation
        for undrain in [one for one in self._live() if one.kind is Kind.UNDRAIN]:
            # It is over at once, and the last agent may have done no more than write it down.
            for drain in [one for one in self._live() if one.kind in _DRAINS]:
                self._cancel(drain, f"{undrain} takes its place")
            self._begin(undrain, again=True)
        for operation in self.known(ended_too=False):
            if self._is_spare(operation.name):
                self._cancel(operation, "its eviction has ended")
            elif not self._judge(operation):
                log.info("operation %s continues", operation)
                self._begin(operation, again=True)
        for hold in self._custody.persons():
            if self._is_spare(hold.operation):
                self.forget(hold.operation, "its eviction has ended")
        self._arm()

    def _review(self) -> None:
        self._review_due = False
        for carrier in self._carriers.values():
            carrier.look()
        for operation in self.known(ended_too=False):
            self._judge(operation)
        self._arm()

    def _judge(self, operation: Operation) -> bool:
        """Bring it up to date; whether it has ended."""
        verdict = self._verdict(operation)
        if verdict.progress not in ENDED and self._node.world.wall() >= operation.due_at:
            self._overdue(operation, verdict)
        elif verdict.progress in ENDED:
            self._end(operation, verdict)
        elif (verdict.progress, verdict.sentence) != (operation.state, operation.sentence):
            if verdict.progress is Progress.RUNNING and not operation.started_at:
                operation.started_at = self._node.world.wall()
            operation.state, operation.sentence = verdict.progress, verdict.sentence
            self._save(operation)
        return operation.ended

    def _verdict(self, operation: Operation) -> Verdict:
        seat = self._node.seats.get(operation.uid)
        facts = self._facts(seat) if seat else None
        match operation.kind:
            case Kind.WAKE:
                stranded = movable(self._node, seat) if seat else ""
                return judge_wake(facts, self._node.draining, stranded, self._in_its_way(seat))
            case Kind.DRAIN:
                every = [self._facts(seat) for seat in self._node.seats.values()]
                verdict, operation.done = judge_drain(every)
                operation.total = len(every)
                return verdict
            case Kind.UNDRAIN:
                return Verdict(Progress.SUCCEEDED, "seats start and wake on this node again")
            case Kind.SAVE | Kind.MOVE | Kind.EVACUATE | Kind.PLACE:
                return self._carriers[operation.kind].verdict(operation, facts)
            case kind:
                if seat is not None and (copy := self._precopy(operation)) is not None:
                    # Its bytes are not the eviction's: the dump that follows copies none for a
                    # while, and would be taken for a copy that stands still.
                    told = f"a copy is made while it serves: {self._verdict(copy).sentence}"
                    return Verdict(Progress.RUNNING, told)
                if seat is not None:
                    operation.copies(seat.saved.copied, seat.saved.size)
                return judge_away(facts, kind, operation.state, operation.tier)

    def _in_its_way(self, seat: Seat | None) -> str:
        if seat is None or not wants(seat.view(drained=False)):
            return ""
        now = self._node.world.now()
        return obstacle(self._node.swap_view(), self._policy, seat.uid, now)

    def _overdue(self, operation: Operation, verdict: Verdict) -> None:
        took = operation.due_at - operation.created_at
        rest = "the node stays drained: undrain it to take that back"
        if operation.kind not in _DRAINS:
            self._take_back(operation)
            rest = "the seat continues as if it had not been asked for"
        if operation.kind is Kind.PLACE:
            rest = "what has come is used by the next try"
        self._end(
            operation,
            Verdict(Progress.FAILED, f"not within {took:g} s: {verdict.sentence}; {rest}"),
        )

    def _end(self, operation: Operation, verdict: Verdict) -> None:
        operation.state, operation.sentence = verdict.progress, verdict.sentence
        operation.ended_at = self._node.world.wall()
        seat = self._node.seats.get(operation.uid)
        if operation.kind is Kind.EVICT and verdict.progress is Progress.FAILED:
            # Its pod stays, and is to serve.
            self._take_back(operation)
        if verdict.progress is Progress.SUCCEEDED:
            operation.copies(operation.bytes_total, operation.bytes_total)
        if seat is not None and verdict.progress is Progress.SUCCEEDED:
            if operation.kind not in self._carriers:
                operation.phases = dict(seat.history.phases) if operation.started_at else {}
            if operation.kind is Kind.EVICT:
                operation.saved = sum(seat.tree.held.values())
                operation.saved_in = TIER_OF.get(seat.state)
                # Of one that never continued it is its predecessor's.
                operation.artifact = seat.saved.artifact
                operation.left_s = self._facts(seat).outlives_pod()
        if carrier := self._carriers.get(operation.kind):
            carrier.ended(operation)
        metrics.OPERATIONS.labels(operation.kind.value, operation.state.value).inc()
        log.info("operation %s: %s: %s", operation, operation.state, operation.sentence)
        self._save(operation)
        for call in self._told_of_ends:
            call()
        self._forget_the_oldest()
        self._follow(operation)
        if seat is not None and operation.kind is not Kind.WAKE:
            self._tell(seat, operation)
        if name := _ANNOUNCED.get(operation.kind):
            kind = "Warning" if operation.state is Progress.FAILED else "Normal"
            told = "; ".join((operation.sentence, *operation.report))[:_LONGEST_EVENT]
            self._announce(f"{name}{operation.state.capitalize()}", told, kind)

    def _tell(self, seat: Seat, operation: Operation) -> None:
        name, text = event_of(operation.kind), f"{words(operation)}: {operation.sentence}"
        if operation.state is Progress.SUCCEEDED and not precopy.eviction_of(operation.name):
            self._node.tell(seat, "Normal", name, text)
        elif operation.state is Progress.FAILED:
            self._node.tell(seat, "Warning", f"Not{name}", text)

    def _forget_the_oldest(self) -> None:
        ended = [one for one in self.known(ended_too=True) if one.ended]
        long_ago = self._node.world.wall() - _KEPT_S
        for one in ended[: max(0, len(ended) - self._node.settings.operations_kept)]:
            if one.ended_at > long_ago:
                continue
            del self._all[one.name]
            self._node.world.journal.delete(OPERATION + one.name)

    def _facts(self, seat: Seat) -> SeatFacts:
        return facts_of(seat, frozenset(self._node.tiers()), self._node.keeps_orphaned(seat))

    # --- records and time ---------------------------------------------------------------------

    async def _write(self, operation: Operation, *, synced: bool) -> None:
        record = asdict(operation)
        await self._node.world.journal.put(OPERATION + operation.name, record, synced=synced)

    def _save(self, operation: Operation) -> None:
        self._node.world.journal.put(OPERATION + operation.name, asdict(operation), synced=False)
        self.changes.ring()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [one.due_at for one in self._all.values() if not one.ended]
        if due:
            # What holds a seat up, such as the host's memory, changes without a word.
            after = min(_LOOK_AGAIN, max(0.0, min(due) - self._node.world.wall()))
            self._timer = asyncio.get_running_loop().call_later(after, self._review)

    def _look_soon(self) -> None:
        if not self._review_due and any(not one.ended for one in self._all.values()):
            self._review_due = True
            asyncio.get_running_loop().call_soon(self._review)

    def advanced(self, operation: Operation) -> None:
        """Its carrier has something new to tell of it."""
        if operation.ended and self._is_spare(operation.name):
            self.forget(operation.name, "its eviction has ended")
        self._save(operation)
        self._look_soon()

    def seat_changed(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._look_soon()

    def seat_gone(self, seat: Seat) -> None:
        """See `node.Observer`."""
        self._look_soon()

    def told(self, seat: Seat, kind: str, reason: str, sentence: str) -> None:
        """Operations are judged by states, not by events."""
