"""After a restart: from the journal's intents to what the processes really are.

Seats whose state needs no question (parked, active) serve at once. Seats caught half-way keep
their transient state, which keeps their GPUs from others, until the driver has been asked.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.ending import Resume, resumed
from kybernate.core.seat.seats import SeatEvent
from kybernate.errors import DeadlineError, DriverError, NotFoundError
from kybernate.ports import ProcessState
from kybernate.types import SeatState
from nodeagent.app.doubt import doubt
from nodeagent.app.recoveroffload import clear_away, drop_unnoticed, resume_offloaded
from nodeagent.offload.gates import OFFLOADED
from nodeagent.seat.node import PROXIES, SEAT
from nodeagent.seat.record import from_record
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from kybernate.types import PodUid
    from nodeagent.app.loop import Loop
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_FIRST_WAKES = 1.0
_KEEP_FROZEN = frozenset({SeatState.PARKED, SeatState.PARKING, SeatState.WAKING}) | OFFLOADED
"""Of an offloaded seat half a tree may be there that must never run: the line of the journal that
told of its restore may be lost."""


async def recover(loop: Loop) -> Mapping[str, Mapping[str, object]]:
    """Load the journal, take every seat up where it was, open the seats' sockets.

    Returns the journal's records, for those who keep others there.
    """
    world = loop.node.world
    records = world.journal.load()
    loop.resume(records)
    loop.node.resume(records)
    for key, record in records.items():
        if key.startswith(SEAT):
            seat = from_record(record)
            if seat.state is SeatState.GONE:
                world.journal.delete(key)
            else:
                loop.node.add(seat)
    doubt(loop.node)
    # Before anything is thawed: a signal that was taken is pending no more.
    dying = frozenset(seat.uid for seat in loop.node.seats.values() if _is_dying(loop, seat))
    frozen = world.freezer.frozen()
    _thaw_the_forgotten(loop, frozen, dying)
    _remember_proxies(loop, records.get(PROXIES, {}))
    loop.offload.lazies.resume()
    await clear_away(loop)
    for seat in tuple(loop.node.seats.values()):
        if seat.ending.asked or (seat.uid in dying and seat.state in _KEEP_FROZEN):
            loop.life.end(seat)
        _resume(loop, seat, frozen)
        if seat.contact.unheard:
            # If it ends before it is heard, nobody else would see that.
            loop.life.watch_end(seat)
    await asyncio.gather(*(world.doors.open(uid) for uid in loop.node.seats))
    loop.custody.begin()
    if world.offloading is not None:
        loop.life.aside(_open_gates(loop))
    loop.claims.tell_again()
    loop.fail_lost()
    loop.proxies.watch_leases()
    loop.kick()
    return records


async def _open_gates(loop: Loop) -> None:
    """The last agent may have died while it was about to let TCP pass again."""
    await asyncio.sleep(_FIRST_WAKES)
    for seat in tuple(loop.node.seats.values()):
        loop.life.aside(loop.offload.gates.reopen(seat))


def _thaw_the_forgotten(loop: Loop, frozen: frozenset[str], dying: frozenset[PodUid]) -> None:
    """Frozen trees that no seat keeps frozen, or whose container is ending, must be able to die."""
    world = loop.node.world
    seats = (seat for seat in loop.node.seats.values() if seat.uid not in dying)
    stay = {seat.tree.handle for seat in seats if seat.state in _KEEP_FROZEN}
    for handle in frozen - stay:
        log.warning("thawing %s: no seat keeps it frozen", handle)
        world.freezer.thaw(handle)


def _is_dying(loop: Loop, seat: Seat) -> bool:
    tree, procs = seat.tree.root, loop.node.world.procs
    if seat.state in OFFLOADED and (tree is None or not procs.alive(tree.pid, tree.start)):
        return False  # its tree was ended by us, or is being recreated
    return tree is None or procs.ending(tree.pid)


def _remember_proxies(loop: Loop, record: Mapping[str, object]) -> None:
    names = record.get("names")
    serving = (SeatState.ACTIVE, SeatState.DRAINING)
    held = {s.uid: s.history.lease for s in loop.node.seats.values() if s.state in serving}
    for name in names if isinstance(names, list) else ():
        loop.node.leases.remember(str(name), dict(held), loop.node.world.now())


def _resume(loop: Loop, seat: Seat, frozen: frozenset[str]) -> None:
    init = seat.tree.init
    there = init is not None and loop.node.world.procs.alive(init.pid, init.start)
    if not seat.saved.artifact and _may_have_been_sealed(seat, there=there):
        loop.life.aside(drop_unnoticed(loop, seat))
    _take_up(loop, seat, frozen, resumed(seat.state, ending=seat.ending.asked, there=there))


def _may_have_been_sealed(seat: Seat, *, there: bool) -> bool:
    """Whether a state of it may lie here that no record names, and that nobody will look for."""
    return seat.saved.unsealed or (
        seat.state is SeatState.DUMPING and (seat.ending.asked or not there)
    )


def _take_up(loop: Loop, seat: Seat, frozen: frozenset[str], what: Resume) -> None:
    life = loop.life
    match what:
        case Resume.NOTHING:
            pass
        case Resume.WATCH_END:
            life.watch_end(seat)
        case Resume.ACTIVATE:
            life.activate(seat)
        case Resume.UNDRAIN:
            loop.node.transition(seat, SeatEvent.UNDRAIN, "the agent was restarted")
            life.activate(seat)
        case Resume.KEEP_PARKED if loop.node.world.journal.damage:
            # It may have woken since: its GPUs go to nobody until the driver has said where it is.
            loop.node.transition(
                seat, SeatEvent.FOUND, "its record may be an older one; it is asked"
            )
            life.work(seat, _find(loop, seat, frozen))
        case Resume.KEEP_PARKED:
            life.work(seat, _keep_parked(loop, seat, frozen))
        case _:
            life.work(seat, _work(loop, seat, what))


def _work(loop: Loop, seat: Seat, what: Resume) -> Coroutine[object, object, None]:
    return {
        Resume.AWAIT_START: lambda: loop.life.await_started(seat),
        Resume.FINISH_PARK: lambda: _finish_park(loop, seat),
        Resume.FINISH_WAKE: lambda: _finish_wake(loop, seat),
        Resume.KEEP_OFFLOADED: lambda: resume_offloaded(loop, seat),
        Resume.KILL: lambda: loop.life.kill(seat),
    }[what]()


async def _be_sure(loop: Loop, seat: Seat) -> None:
    """Which processes use the GPUs is the driver's word, where the line that told may be lost."""
    if loop.node.world.journal.damage:
        try:
            seat.tree.uses(await loop.steps.find_cuda(seat))
        except (DriverError, DeadlineError) as error:
            raise Broken(f"its record may be lost, and the driver says: {error}") from error
        await loop.found.locate(seat)


async def _find(loop: Loop, seat: Seat, frozen: frozenset[str]) -> None:
    await _be_sure(loop, seat)
    if await _is_checkpointed(loop, seat):
        await _keep_parked(loop, seat, frozen)
        loop.node.transition(seat, SeatEvent.FOUND_PARKED, "parked in RAM, as its record says")
    else:
        await loop.found.accept_running(seat)


async def _keep_parked(loop: Loop, seat: Seat, frozen: frozenset[str]) -> None:
    # Half-way to it also counts as frozen at the first look: it is seen through. What was not
    # frozen may have begun to use a GPU, to which it has no right.
    await (_freeze(loop, seat) if seat.tree.handle in frozen else loop.steps.settle(seat))
    # Nothing of it has changed, but now it stands still: its sockets can be watched again.
    loop.node.changed(seat)
    loop.life.aside(_warm_later(loop, seat))
    loop.kick()  # it may leave RAM now


async def _warm_later(loop: Loop, seat: Seat) -> None:
    """Its helper, once those of the first wakes are started: they have requests waiting."""
    await asyncio.sleep(_FIRST_WAKES)
    if seat.state is SeatState.PARKED:
        await loop.life.warm(seat)


async def _finish_park(loop: Loop, seat: Seat) -> None:
    """Forward if all of it is checkpointed already, else back.

    Its processes are journalled before the first is locked: without them nothing was begun.
    """
    await _be_sure(loop, seat)
    if not seat.tree.cuda or not await _is_checkpointed(loop, seat):
        await loop.steps.finish_wake(seat)
        loop.node.transition(
            seat, SeatEvent.PARK_REVERTED, "the agent was restarted while parking it"
        )
        loop.life.activate(seat)
        return
    try:
        await loop.steps.settle(seat)
    except Reverted as error:
        loop.life.park_reverted(seat, str(error))
        return
    loop.life.parked(seat, "parked in RAM; the agent was restarted meanwhile")


async def _finish_wake(loop: Loop, seat: Seat) -> None:
    """Back if all of it is still checkpointed, else forward."""
    await _be_sure(loop, seat)
    if seat.tree.cuda and await _is_checkpointed(loop, seat):
        # It may have been thawed already: what began meanwhile to use a GPU must not be frozen.
        try:
            await loop.steps.settle(seat)
        except Reverted as error:
            log.info("%s: %s", seat, error)
        else:
            loop.node.transition(
                seat, SeatEvent.WAKE_REVERTED, "the agent was restarted before it woke"
            )
            loop.kick()
            return
    else:
        await loop.steps.finish_wake(seat)
    loop.node.transition(seat, SeatEvent.AWAKE, "awake; the agent was restarted meanwhile")
    loop.life.activate(seat)


async def _is_checkpointed(loop: Loop, seat: Seat) -> bool:
    try:
        states = await loop.steps.states(seat)
    except (DriverError, DeadlineError) as error:
        raise Broken(f"after a restart the driver does not say where it is: {error}") from error
    if states & {ProcessState.FAILED, ProcessState.NO_CUDA}:
        raise Broken("after a restart some of its processes are gone or failed")
    return states <= {ProcessState.CHECKPOINTED}


async def _freeze(loop: Loop, seat: Seat) -> None:
    deadline = loop.node.settings.freeze_deadline_s
    try:
        await loop.node.world.freezer.freeze(seat.tree.handle, deadline)
    except (DeadlineError, NotFoundError) as error:
        raise Broken(f"its tree could not be frozen again: {error}") from error
