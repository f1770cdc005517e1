"""After a restart: seats on their way between RAM and the tiers below.

Where they are is told by three witnesses: the journal's intent, kyb-init's word on its tree, and
the artifacts that are sealed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kybernate.errors import KybernateError, NotFoundError, RefusedError, RestoreError
from kybernate.lib.retry import retry
from kybernate.ports import DumpState
from kybernate.types import ArtifactId, PodUid, SeatState, Tier
from nodeagent.offload.gates import OFFLOADED
from nodeagent.operations.saves import OF_SAVE
from nodeagent.operations.seenthrough import seen_through
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kybernate.ports import Sealed
    from nodeagent.app.loop import Loop
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_AGAIN = 1.0
_DEADLINE = 30.0
_GLANCE = 1.0


async def resume_offloaded(loop: Loop, seat: Seat) -> None:
    """From any state of OFFLOADED to where it is, or should be."""
    if loop.node.world.offloading is None:
        why = "it is offloaded, and this agent has no CRIU to wake it; give it one (criu)"
        seat.backoff.hold(float("inf"))
        loop.node.tell(seat, "Warning", "CannotWake", why)
    elif seat.state is SeatState.DUMPING:
        await _finish_dump(loop, seat)
    elif seat.state is SeatState.RESTORING:
        await _finish_restore(loop, seat)
    else:
        await _keep_offloaded(loop, seat)
    loop.kick()


async def clear_away(loop: Loop) -> None:
    """What was dumped or fetched may be left of the last agent, which had no time to remove it.

    Before anything moves: a dump that begins uses the same folder.
    """
    offloading, seats = loop.node.world.offloading, tuple(loop.node.seats.values())
    if offloading is None:
        return
    for seat in (one for one in seats if one.state not in OFFLOADED and not one.saved.images):
        if seat.saved.paging or not await _may_read(offloading, seat):
            loop.life.aside(loop.offload.lazies.abandon(seat))


async def _may_read(offloading: Offloading, seat: Seat) -> bool:
    """Whether a tree that the last agent found without a record may get its memory from there."""
    if seat.state is not SeatState.WAITING:
        return False
    if seat.tree.init is None:
        return True  # the last agent made it again; its kyb-init says whether it has a tree
    try:
        await offloading.dumper.pages_done(seat.tree.init.pid, _GLANCE)
    except (NotFoundError, RestoreError):
        return False
    except KybernateError:
        return True
    return False


async def clear_of_the_gone(loop: Loop) -> None:
    """What was begun for pods that have gone since: their records went first. Not before all pods
    of the node have a seat: records may be lost, and the trees of those read from there."""
    offloading = loop.node.world.offloading
    if offloading is None:
        return
    try:
        begun = await offloading.vault.begun()
    except (KybernateError, OSError) as error:
        log.warning("what was dumped of pods that are gone can't be listed: %s", error)
        return
    for uid in begun:
        known = partial(_is_known, loop, PodUid(uid.removesuffix(OF_SAVE)))
        loop.life.aside(loop.offload.lazies.remove(uid, known))


def _is_known(loop: Loop, uid: PodUid) -> bool:
    return uid in loop.node.seats or loop.offload.ahead.knows(uid)


async def _finish_dump(loop: Loop, seat: Seat) -> None:
    """Sealed and journalled: forward. Else back, whatever was sealed unnoticed."""
    if _is_sealed(loop, seat, await _listed(loop, seat)):
        await _shut(loop, seat)
        await loop.offload.dumps.finish_end(seat)
        return
    seat.saved.unsealed_yet()
    try:
        parked = _state(loop, seat) is DumpState.PARKED
    except Broken:
        loop.life.aside(drop_unnoticed(loop, seat))
        raise
    if parked:
        # Only what a power cut takes from the journal leads here, and it ends the tree, too.
        raise Broken("its tree was ended, and no record names its artifact")
    # Also if its container ends meanwhile, and with it all that is done for the seat.
    await seen_through(drop_unnoticed(loop, seat))
    await loop.offload.dumps.keep(seat, Reverted("the agent was restarted while dumping it"))


async def _finish_restore(loop: Loop, seat: Seat) -> None:
    """All of it is back: forward. Else back, and what is half-made is ended."""
    if _state(loop, seat) is DumpState.RUNNING:
        await loop.offload.restores.finish(seat)
        return
    await _shut(loop, seat)
    await loop.offload.restores.revert(seat, "the agent was restarted while restoring it")


async def _keep_offloaded(loop: Loop, seat: Seat) -> None:
    """Hear of what arrives again; finish what was begun."""
    if _state(loop, seat) is not DumpState.PARKED:
        raise Broken("its tree runs, and the journal says that it was ended")
    if loop.node.world.journal.damage:
        if not await loop.offload.ground.end(seat):
            return
        await _ask_its_state(loop, seat)
    await _shut(loop, seat)
    if seat.state is SeatState.PARKED_OBJECT and not seat.saved.images:
        # What it was dropped from, if that agent had no time to remove it.
        loop.life.aside(loop.offload.lazies.abandon(seat))
    loop.kick()


async def _ask_its_state(loop: Loop, seat: Seat) -> None:
    """Which of its processes used the GPUs is told by the state itself; its record may be older."""
    offloading = loop.node.world.offloading
    if offloading is None:
        return
    told = partial(offloading.vault.manifest, ArtifactId(seat.saved.artifact), _DEADLINE)
    with suppress(NotFoundError):
        say = _complains(loop, seat, "SavedUnknown", "its artifact does not say what it is of")
        manifest = await retry(told, say, but=NotFoundError)
        seat.tree.named_inside(seat.tree.cuda, manifest.facts.gpu_pids)


def _complains(loop: Loop, seat: Seat, event: str, what: str) -> Callable[[Exception], None]:
    return lambda error: loop.node.complain(seat, event, f"{what}: {error}; trying again")


def _state(loop: Loop, seat: Seat) -> DumpState:
    offloading, init = loop.node.world.offloading, seat.tree.init
    if offloading is None or init is None:
        raise Broken("its container has ended")
    try:
        return offloading.dumper.state(init.pid)
    except NotFoundError as error:
        raise Broken("its container has ended") from error


async def _shut(loop: Loop, seat: Seat) -> None:
    """What arrives is told again. What was held back by the last agent is held back all along."""
    say = _complains(loop, seat, "GateDeaf", "what arrives at its pod is not told")
    try:
        await retry(lambda: loop.offload.gates.shut(seat), say, but=(NotFoundError, RefusedError))
    except NotFoundError:
        loop.life.watch_end(seat)
    except RefusedError as error:
        say(error)  # nor will it be


async def drop_unnoticed(loop: Loop, seat: Seat) -> None:
    """A state may have been sealed a moment before the agent died, and is of no use. Until that is
    known its workload may have been started again, and have states of its own. One that only a lost
    line of the journal named is not unnoticed."""
    if loop.node.world.journal.damage:
        return
    listed, sealer = await _listed(loop, seat), loop.offload.sealer
    while sealer.is_sealing(seat.uid):
        await asyncio.sleep(_AGAIN)
        listed = await _listed(loop, seat)
    for artifact in (one.id for one in listed if one.uid == seat.uid):
        if not sealer.has_sealed(artifact):
            loop.custody.see_held(artifact, "the agent was restarted before it was needed")


def _is_sealed(loop: Loop, seat: Seat, listed: Iterable[Sealed]) -> bool:
    """Whether the artifact that the journal names is there. Of one that the disk doesn't give now
    nobody can tell: it counts where nothing else is left of the seat."""
    named = next((one for one in listed if one.id == seat.saved.artifact), None)
    if named is None or not named.unread:
        return named is not None and named.uid == seat.uid
    with suppress(Broken):
        return _state(loop, seat) is DumpState.PARKED
    return True


async def _listed(loop: Loop, seat: Seat) -> tuple[Sealed, ...]:
    """What is on NVMe. Nothing of the seat is ended or dropped before that is known."""
    offloading = loop.node.world.offloading
    if offloading is None:
        return ()
    say = _complains(loop, seat, "SavedUnknown", "its artifacts can't be listed")
    return await retry(lambda: offloading.vault.ls(Tier.NVME), say)
