"""A seat whose pod continues from an artifact: it never executes its command.

Each step is journalled before the next one relies on it, and each can be done again:

    WAITING                  kyb-init is at the gate; the state is looked for, and waited for
    ADOPTING                 it may be had, and if the pod succeeds another one, it holds the claim
    (kyb-init is PARKED)     it starts nothing any more, and waits for a tree
    PARKED_NVME or _OBJECT   from here on it is a seat like any other that is parked there

What may never be had, or could not be had in time, is told, and the pod is started again; one with
`kyb.ai/restore-else: fail` is kept waiting instead.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kybernate import keys
from kybernate.core.artifacts.restores import RestoreAs
from kybernate.core.migration.plan import see_own
from kybernate.core.seat.seats import AT_GATE, SeatEvent
from kybernate.errors import (
    ConflictError,
    CorruptError,
    DeadlineError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.deadline import CALL_S
from kybernate.lib.keyedlock import KeyedLocks
from kybernate.lib.retry import Pauses, retry, steadily
from kybernate.ports import DumpState
from kybernate.types import ArtifactId, GpuUuid, PodUid, SeatState, Tier
from nodeagent import metrics
from nodeagent.artifacts.clones import cut_off
from nodeagent.artifacts.succession import droppable, is_copy
from nodeagent.seat.parts.saved import Begins

if TYPE_CHECKING:
    from collections.abc import Callable

    from kybernate.core.artifacts.into import Into
    from kybernate.core.artifacts.manifest import Manifest
    from kybernate.core.artifacts.restores import RestoreWish
    from kybernate.types import PodRef
    from nodeagent.artifacts.claims import Claims
    from nodeagent.artifacts.newest import Newest
    from nodeagent.seat.lifecycle import Lifecycle
    from nodeagent.seat.node import Node
    from nodeagent.seat.offloading import Offloading
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_AGAIN = Pauses(0.1, 1.0)
"""Between two looks for a state: it may be there as soon as the pod that left it has ended."""
_KEPT_WAITING, _ONCE = steadily(60.0), Pauses(1.0, 1.0, tries=1)
_POLL = 0.01
_LATER = (RetryableError, DeadlineError, NotFoundError, ConflictError, CorruptError, OSError)
_NOT_HAD = (RefusedError, *_LATER)


class Gates(Protocol):
    """Who holds TCP back."""

    async def shut(self, seat: Seat, port: int = 0) -> None:
        """Hold TCP back and hear of it. Raises NotFoundError, OSError, DeadlineError."""
        ...


class Images(Protocol):
    """Who brings images here."""

    async def bring(self, seat: Seat, into: Into) -> None:
        """Into a folder of the seat's own. Raises like `Vault.begin` and `Vault.fetch`."""
        ...


class Adoptions:
    """All seats of the node that continue from artifacts of other pods."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is made once
        self,
        node: Node,
        life: Lifecycle,
        kick: Callable[[], None],
        gates: Gates,
        images: Images,
        claims: Claims,
        newest: Newest,
    ) -> None:
        self._node = node
        self._life = life
        self._kick = kick
        self._gates = gates
        self._images = images
        self._claims = claims
        self._newest = newest
        self._locks: KeyedLocks[PodUid, asyncio.Lock] = KeyedLocks(asyncio.Lock)

    # --- the seat's container is there ----------------------------------------------------------

    def at_gate(self, seat: Seat) -> None:
        """Its kyb-init waits, for its turn or for a tree: look for its state, if it wants one."""
        if (
            seat.wishes.restore
            and seat.wishes.restore.kind is not RestoreAs.SUCCESSOR
            and _used(seat)
        ):
            # Its container has started again: a copy begins where it began.
            seat.saved.settled(Begins.OPEN)
        if seat.awaits_state:
            self._life.work(seat, self._continue(seat))

    async def _continue(self, seat: Seat) -> None:
        last = self._node.world.now() + self._node.settings.restore_wait_s + _AGAIN.longest

        def later(error: Exception) -> None:
            self._node.complain(seat, "RestoreWaits", f"{error}; trying again")

        def refused(error: Exception) -> None:
            _count(error)
            sentence = f"{error} It is kept waiting ({keys.RESTORE_ELSE}: fail)."
            self._node.complain(seat, "RestoreRefused", sentence)

        async def patiently() -> None:
            take = partial(self._adopt_waiting, seat)
            await retry(take, later, _LATER, but=RefusedError, pauses=_AGAIN, until=last)

        waits = seat.wishes.restore is not None and seat.wishes.restore.waits
        try:
            await retry(patiently, refused, _NOT_HAD, pauses=_KEPT_WAITING if waits else _ONCE)
        except _NOT_HAD as error:
            _count(error)
            await self._give_up(seat, str(error))
        self._kick()

    async def _adopt_waiting(self, seat: Seat) -> None:
        """Its state, unless it was handed one meanwhile."""
        if not (seat.awaits_state and seat.state in AT_GATE):
            return
        try:
            artifact, tier = await self._find(seat)
            await self.adopt(seat, artifact, tier)
        except _NOT_HAD:
            if seat.awaits_state:
                raise

    async def _give_up(self, seat: Seat, why: str) -> None:
        # Who is handing it a state may be past the claim: that is seen through first.
        async with self._locks[seat.uid]:
            if self._is_here(seat) and seat.awaits_state and seat.state in AT_GATE:
                await self._start_cold(seat, why)

    def _is_here(self, seat: Seat) -> bool:
        return self._node.seats.get(seat.uid) is seat

    async def _start_cold(self, seat: Seat, why: str) -> None:
        seat.saved.follows_none()
        seat.tree.follows_none()
        self._node.tell(
            seat,
            "Warning",
            "RestoreRefused",
            f"its artifact can't be had: {why} The workload is started again, without it.",
        )
        if seat.state is SeatState.ADOPTING:
            self._node.transition(seat, SeatEvent.ADOPT_REVERTED, why)
        else:
            self._node.save(seat)
            self._node.changed(seat)
        if await self._is_parked(seat):
            # Behind its gate nothing can be started any more: the kubelet begins it again.
            self._end_container(seat)
        self._kick()

    def _end_container(self, seat: Seat) -> None:
        offloading, init = self._node.world.offloading, seat.tree.init
        if offloading is not None and init is not None:
            offloading.culprits.kill(init.pid, init.start)
            self._life.watch_end(seat)

    async def _is_parked(self, seat: Seat) -> bool:
        offloading = self._node.world.offloading
        try:
            state = (
                offloading.dumper.state(seat.tree.init.pid)
                if offloading and seat.tree.init
                else None
            )
        except NotFoundError:
            return False
        return state is DumpState.PARKED

    # --- which state ----------------------------------------------------------------------------

    async def _find(self, seat: Seat) -> tuple[ArtifactId, Tier]:
        """What its pod names, and where it is reached from here."""
        offloading = self._offloading()
        wish = seat.wishes.restore
        if wish is None:
            raise RefusedError(f"pod {seat.identity.pod} names no artifact")
        if seat.state is SeatState.ADOPTING:
            artifact = ArtifactId(seat.saved.artifact)
        else:
            pod = seat.identity.pod
            if wish.template:
                artifact = self._of_template(pod.namespace, wish)
            elif wish.succeeds:
                artifact = await self._claims.claimable(pod, wish.uid)
            else:
                artifact = wish.artifact or await self._newest.find(
                    offloading, pod.namespace, wish.uid
                )
            self._newest.see_kept(artifact)
        raw = {one.id for one in await offloading.vault.ls(Tier.NVME)}
        if artifact not in raw:
            return artifact, Tier.OBJECT
        # For a copy each piece is looked at before anything of it is used.
        if is_copy(seat) or await offloading.whole(artifact):
            return artifact, Tier.NVME
        packed = await offloading.vault.ls(Tier.OBJECT) if Tier.OBJECT in offloading.limits else ()
        if artifact not in {one.id for one in packed}:
            raise RetryableError(f"what NVMe has of {artifact} is damaged, and there is no other")
        return artifact, Tier.OBJECT

    def _of_template(self, namespace: str, wish: RestoreWish) -> ArtifactId:
        """What the template has now; a pod that may start cold waits for none to be made."""
        try:
            return self._node.world.templates(namespace, wish.template)
        except NotFoundError as error:
            if wish.waits:
                raise
            raise RefusedError(f"{error}.") from error

    # --- adoption -------------------------------------------------------------------------------

    def awaits(self, seat: Seat, uid: PodUid) -> str:
        """Why the seat doesn't wait for the state of this pod, as a sentence; empty if it does."""
        wish = seat.wishes.restore
        if wish is None or wish.uid != uid:
            return (
                f"pod {seat.identity.pod} does not wait for pod {uid}; annotate it with "
                f"{keys.RESTORE_FROM}: pod/{uid}"
            )
        if wish.kind is not RestoreAs.SUCCESSOR:
            return (
                f"pod {seat.identity.pod} continues as a {wish.kind}, and the pod would end for "
                "it; "
                f"leave out its {keys.RESTORE_AS}"
            )
        if not seat.awaits_state:
            return f"pod {seat.identity.pod} has begun already ({seat.saved.begins})"
        return ""

    async def adopt(
        self, seat: Seat, artifact: ArtifactId, tier: Tier, *, of: PodRef | None = None
    ) -> None:
        """The seat continues from this state, which lies in this tier, and is parked there when
        this returns. `of`: whose own state it has to be.

        Raises RefusedError with the sentence if it never may; RetryableError, NotFoundError,
        CorruptError, DeadlineError, OSError if it can't now.
        """
        async with self._locks[seat.uid]:
            if seat.saved.begins is Begins.ADOPTED and seat.saved.artifact == artifact:
                return
            self._see_waiting(seat)
            await cut_off(self._offloading(), seat)
            into = await self._offloading().into(seat)
            manifest = await self._offloading().vault.admit(artifact, into, CALL_S)
            if of is not None:
                see_own(manifest, of)
            copied = is_copy(seat)
            home = (
                await self._claims.claim(seat, manifest, self._offloading(), found=of is None)
                if not copied
                else False
            )
            if not self._is_here(seat):
                # Nobody would delete a record of it any more.
                raise RefusedError(f"pod {seat.identity.pod} is gone")
            may_drop = tuple(t.value for t in droppable(tier, copied=copied, home=home))
            of_whom = ("", "") if copied else (manifest.facts.pod_uid, manifest.id)
            seat.saved.succeeds(*of_whom, may_drop)
            _take(seat, manifest, tier)
            await self._note(seat)
            await self._expect(seat, manifest.facts.root_pid)
            if copied and tier is Tier.NVME:
                await self._copy(seat)
            await self._gates.shut(seat, seat.identity.port or 0)
            await self._begin(seat, tier)

    def _see_waiting(self, seat: Seat) -> None:
        if not seat.awaits_state or seat.state not in AT_GATE:
            raise RefusedError(f"pod {seat.identity.pod} has begun already ({seat.state})")
        if seat.ending.deleted or seat.ending.terminating:
            raise RefusedError(f"pod {seat.identity.pod} is ending")
        if seat.ending.asked:
            raise RetryableError(
                f"the container of pod {seat.identity.pod} is ending; the next one is waited for"
            )
        if seat.tree.init is None or not seat.contact.connected:
            raise RetryableError(f"the container of pod {seat.identity.pod} isn't there yet")

    async def _note(self, seat: Seat) -> None:
        """On the disk when this returns: kyb-init can't be told otherwise afterwards."""
        if seat.state is SeatState.ADOPTING:
            await self._node.save(seat, synced=True)
            return
        why = f"is to continue from {seat.saved.artifact}"
        await self._node.transition(seat, SeatEvent.ADOPT, why, synced=True)

    async def _expect(self, seat: Seat, root: int) -> None:
        """kyb-init starts nothing any more. Raises DeadlineError, RefusedError, NotFoundError."""
        await self._life.make_network_plain(seat)
        until = self._node.world.now() + CALL_S
        while not await self._is_parked(seat):
            if (
                seat.tree.init is None
                or not seat.contact.connected
                or self._node.world.now() >= until
            ):
                raise DeadlineError("its kyb-init does not answer")
            self._node.world.doors.expect(seat.uid, root)
            await asyncio.sleep(_POLL)
        seat.tree.ran_out()

    async def _copy(self, seat: Seat) -> None:
        """Images of its own: what others have on NVMe may go without its knowing."""
        await self._images.bring(seat, await self._offloading().into(seat))

    async def _begin(self, seat: Seat, tier: Tier) -> None:
        if seat.state is not SeatState.ADOPTING:
            raise RetryableError(
                f"the container of pod {seat.identity.pod} has ended; the next one is waited for"
            )
        seat.saved.adopted(self._node.world.now())
        # In the same record: nobody else may call for it, and a pod that starts has its turn.
        seat.demand.ask(self._node.world.now())
        event = SeatEvent.RECEIVED if tier is Tier.NVME else SeatEvent.ADOPTED
        why = f"continues from {seat.saved.artifact}"
        written = self._node.transition(seat, event, why, synced=True)
        self._node.tell(seat, "Normal", "Adopted", f"it {why}, without starting its command")
        self._kick()
        await written

    def _offloading(self) -> Offloading:
        offloading = self._node.world.offloading
        if offloading is None:
            raise RefusedError("this node's agent has no CRIU (criu), so it can restore nothing")
        return offloading


def _count(error: Exception) -> None:
    for reason in getattr(error, "reasons", ()) or ("other",):
        metrics.RESTORES_REFUSED.labels(reason).inc()


def _used(seat: Seat) -> bool:
    return seat.state is SeatState.WAITING and seat.saved.begins is Begins.ADOPTED


def _take(seat: Seat, manifest: Manifest, tier: Tier) -> None:
    """What the seat is from now on, as the manifest says."""
    facts, gpus = manifest.facts, seat.identity.gpus
    seat.saved.follows(ArtifactId(manifest.id), manifest.total, facts.first, tier)
    held = dict(zip(gpus, facts.held, strict=False))
    pairs = zip(facts.gpus, gpus, strict=False)
    seat.tree.follows(facts.gpu_pids, held, {GpuUuid(old): new for old, new in pairs})
