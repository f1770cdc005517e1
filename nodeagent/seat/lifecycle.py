"""What happens to one seat over time: start, park, wake, fail, end.

Each seat has at most one piece of `work` (an action being carried out) and one `watch` (waiting
for its processes to be gone). Both are tasks on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from kybernate.core.seat.ending import Ends, EndView, Watched, watched
from kybernate.core.seat.seats import AT_GATE, OCCUPYING, TIER_OF, SeatEvent
from kybernate.errors import (
    DeadlineError,
    DriverError,
    KybernateError,
    NotFoundError,
    RefusedError,
    RetryableError,
)
from kybernate.lib.retry import Pauses, retry
from kybernate.ports import CooperationPhase
from kybernate.types import SeatState, Tier
from nodeagent import metrics
from nodeagent.seat.steps import Broken, Reverted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from nodeagent.seat.node import Node
    from nodeagent.seat.record import Seat
    from nodeagent.seat.steps import Steps

log = logging.getLogger(__name__)

_STARTED_POLL = 0.05
_END_POLL = Pauses(0.02, 0.5, growth=1.5, jitter=0.0)
_RETRY = 1.0
_NETWORK_DEADLINE = 2.0
_TERM_PATIENCE = 1.0
_KILLED_BY_NOW = 5.0
_DELETED_PATIENCE = 10.0


class Lifecycle:
    """Carries out actions on seats and follows them to their end.

    `kick` asks the loop for a new swap decision. `vanished` is told of a seat whose pod is gone
    and of whose processes nothing is left; `outdated` of one whose artifact is worth nothing any
    more, since it runs on or has ended, and why.
    """

    def __init__(
        self,
        node: Node,
        steps: Steps,
        kick: Callable[[], None],
        vanished: Callable[[Seat], None],
        came_back: Callable[[Seat], None],
        outdated: Callable[[Seat, str], None],
    ) -> None:
        self._node = node
        self._world = node.world
        self._steps = steps
        self._kick = kick
        self._vanished = vanished
        self._came_back = came_back
        self._outdated = outdated
        self._aside: set[asyncio.Task[None]] = set()

    # --- work ---------------------------------------------------------------------------------

    def work(self, seat: Seat, what: Coroutine[object, object, None]) -> None:
        """Begin a piece of work on a seat; what was under way is dropped."""
        if seat.tasks.work is not None and seat.tasks.work is not asyncio.current_task():
            seat.tasks.work.cancel()
        task = asyncio.create_task(self._guarded(seat, what))
        # One that is cancelled before its first step would leave it unawaited.
        task.add_done_callback(lambda _: what.close())
        seat.tasks.begun(task)

    async def _guarded(self, seat: Seat, what: Coroutine[object, object, None]) -> None:
        try:
            await what
        except Broken as error:
            self.fail(seat, str(error))
        except Exception as error:
            log.exception("%s: unexpected failure", seat)
            await asyncio.sleep(_RETRY)
            self.fail(seat, f"the agent failed unexpectedly: {error}")

    def aside(self, what: Coroutine[object, object, None]) -> None:
        """Run something that no seat waits for; failures are logged."""
        task = asyncio.create_task(what)
        self._aside.add(task)
        task.add_done_callback(self._aside_done)

    def _aside_done(self, task: asyncio.Task[None]) -> None:
        self._aside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s", error)

    # --- start --------------------------------------------------------------------------------

    async def start(self, seat: Seat) -> None:
        """From STARTING: check the GPUs' memory, journal, let it go, wait till it serves."""
        if (lack := await self._lack(seat)) is not None:
            await self._wait_again(seat, lack)
            return
        seat.history.started()
        await self.release_gate(seat)

    async def release_gate(self, seat: Seat) -> None:
        """Send `go` with the seat's present generation, then wait till it serves."""
        try:
            prefix = await self._steps.argv_prefix(seat)
        except RetryableError as error:
            await self._wait_again(seat, str(error))
            return
        except (NotFoundError, RefusedError) as error:
            self._node.tell(seat, "Warning", "NoCommand", str(error))
            self._world.doors.refuse(seat.uid, str(error))
            await self._wait_again(seat, str(error))
            return
        await self.make_network_plain(seat)
        unwritten = await self._journalled(self._node.save(seat))
        if unwritten is not None:
            await self._wait_again(seat, unwritten)
            return
        try:
            await self._steps.open_devices(seat)
        except (KybernateError, OSError) as error:
            why = f"its container can't be let to its GPUs: {error}"
            await self._wait_again(seat, why)
            return
        if not self._node.has_gpus(seat):
            # Who stands at the gate isn't failed for it.
            await self._wait_again(seat, "one of its GPUs was lost, or became unhealthy")
            return
        seat.contact.let_go()
        self._world.doors.go(seat.uid, seat.history.generation, prefix)
        await self.await_started(seat)

    async def make_network_plain(self, seat: Seat) -> None:
        """MPTCP, which keeps a seat in RAM, is off before its program can ask for it. It starts in
        any case; a pod in the node's network has the node's."""
        offloading = self._world.offloading
        if offloading is None or seat.tree.init is None:
            return
        try:
            with contextlib.suppress(RefusedError, NotFoundError):
                await offloading.gatekeeper.plain(seat.tree.init.pid, _NETWORK_DEADLINE)
        except (KybernateError, OSError) as error:
            self._node.complain(
                seat, "MptcpStays", f"MPTCP can't be switched off in its pod: {error}"
            )

    async def _lack(self, seat: Seat) -> str | None:
        try:
            return await self._steps.lack_of_room(seat)
        except (DriverError, DeadlineError) as error:
            return f"NVML does not say how much memory is free: {error}"

    async def _journalled(self, written: Awaitable[None]) -> str | None:
        """Have the intent written; why it isn't, or None. Without it nothing is begun.

        On the disk it need not be: what takes it from there ends the seat, too (ADR 154).
        """
        try:
            await written
        except OSError as error:
            return f"the agent's journal can't be written: {error}"
        return None

    async def _wait_again(self, seat: Seat, why: str) -> None:
        """At the gate. An agent that was killed may have let it to its GPUs, which are for others
        now."""
        with contextlib.suppress(KybernateError, OSError):
            await self._steps.shut_devices(seat)
        self._put_off(seat, SeatEvent.ENDED, why)

    def _put_off(self, seat: Seat, event: SeatEvent, why: str) -> None:
        seat.backoff.hold(self._world.now() + _RETRY)
        self._node.complain(seat, "PutOff", why)
        self._node.transition(seat, event, why)
        self._kick()

    async def await_started(self, seat: Seat) -> None:
        """Poll until the workload serves; it is killed if it doesn't within the limit."""
        while not await self._serves(seat):
            if late := self._node.start_overdue(seat):
                raise Broken(late)
            await asyncio.sleep(_STARTED_POLL)
        seat.history.served()
        self._node.transition(seat, SeatEvent.STARTED, "it serves")
        self.activate(seat)

    async def _serves(self, seat: Seat) -> bool:
        try:
            return await self._steps.started(seat)
        except (NotFoundError, DriverError, DeadlineError) as error:
            log.debug("%s: can't tell whether it serves: %s", seat, error)
            return False

    def activate(self, seat: Seat) -> None:
        """It is ACTIVE: grant it to the proxies, and have a helper ready for its park."""
        seat.tree.woke()
        seat.demand.awake(self._world.now())
        self._outdated(seat, "its workload has continued since")
        seat.history.judged(untimely=not self._node.wakes_in_time(seat, Tier.RAM))
        if seat.contact.serves(seat.identity.port):
            self._node.changed(seat)
        if seat.ending.asked:
            return
        seat.history.granted()
        self._node.save(seat)
        self._node.leases.grant(seat.uid, seat.history.lease)
        self._kick()
        self.aside(self.warm(seat))

    async def warm(self, seat: Seat) -> None:
        """Have the seat's helper running before it is needed."""
        with contextlib.suppress(DriverError, DeadlineError):
            await self._steps.helper(seat)

    # --- park and wake ------------------------------------------------------------------------

    async def park(self, seat: Seat) -> None:
        """From PARKING: note its processes, then lock, checkpoint, freeze, confirm."""
        began = self._world.now()
        await self._cooperate(seat, CooperationPhase.PARK)
        try:
            seat.tree.uses(*await self._steps.holders(seat))
            await self._node.save(seat)
        except (DriverError, DeadlineError, OSError) as error:
            await self._cooperate(seat, CooperationPhase.WAKE)
            self.park_reverted(seat, str(error))
            return
        try:
            phases = await self._steps.park(seat)
        except Reverted as error:
            await self._cooperate(seat, CooperationPhase.WAKE)
            self.park_reverted(seat, str(error))
            return
        took = self._world.now() - began
        seat.history.parked(took)
        seat.history.timed({**phases, "all": took})
        metrics.observe("park", seat.history.phases, sum(seat.tree.held.values()))
        self.parked(seat, "parked in RAM")

    async def _cooperate(self, seat: Seat, phase: CooperationPhase) -> None:
        """Have the workload do its part, if it has one; without it the driver does all."""
        limit = self._node.settings.cooperate_limit_s
        why = await self._world.doors.cooperate(seat.uid, phase, limit)
        if why:
            sentence = f"the workload did not do its part of the {phase}: {why}; continuing without"
            self._node.tell(seat, "Warning", "NotCooperating", sentence)

    def parked(self, seat: Seat, why: str) -> None:
        """Its park is done: from now on a wake may be requested again."""
        seat.wishes.has_left()
        self._node.transition(seat, SeatEvent.PARKED, why)
        self._kick()
        if seat.ending.asked:
            self.let_go(seat)

    def park_reverted(self, seat: Seat, why: str) -> None:
        """The park was undone: it is active again."""
        metrics.failed("park")
        seat.backoff.stay(self._world.now() + _RETRY)
        self._node.tell(seat, "Warning", "ParkReverted", f"{why}; it runs on")
        self._node.transition(seat, SeatEvent.PARK_REVERTED, why)
        self.activate(seat)

    async def wake(self, seat: Seat, written: Awaitable[None]) -> None:
        """From WAKING, as `written` says: check the memory, thaw, restore, unlock, check, grant."""
        began, paging = self._world.now(), bool(seat.saved.paging)
        lack = await self._lack(seat)
        lack = await self._journalled(written) or lack
        if lack is not None:
            self._put_off(seat, SeatEvent.WAKE_REVERTED, lack)
            return
        try:
            phases = await self._steps.wake(seat)
        except Reverted as error:
            await self._stay_on(seat, str(error))
            return
        await self._cooperate(seat, CooperationPhase.WAKE)
        took = self._world.now() - began
        seat.history.woke(took)
        if not paging:  # what still comes in is no wake from RAM
            seat.history.came(Tier.RAM, took)
        seat.history.timed({**phases, "all": took})
        moved = sum(seat.tree.held.values())
        if seat.demand.waiting_since is not None:
            metrics.WAIT_SECONDS.observe(max(0.0, self._world.now() - seat.demand.waiting_since))
        self._node.transition(seat, SeatEvent.AWAKE, "awake")
        self.activate(seat)
        metrics.SWAPS.labels(seat.identity.group).inc()
        metrics.observe("wake", seat.history.phases, moved)

    async def _stay_on(self, seat: Seat, why: str) -> None:
        """The driver refuses the GPU that was chosen: it wakes only where it was, from now on."""
        metrics.failed("wake", "RemapRefused")
        sentence = f"{why}; from now on it wakes only on the GPU where it is"
        self._node.tell(seat, "Warning", "RemapRefused", sentence)
        # Others may be on that GPU by now, and until it is frozen it has only the one it can't use.
        await self._steps.settle(seat, may_wake=False)
        seat.stays(why)
        self._node.transition(seat, SeatEvent.WAKE_REVERTED, why)
        self._kick()

    # --- failure and end ----------------------------------------------------------------------

    def fail(self, seat: Seat, why: str, event: str = "SeatFailed") -> None:
        """Its state is lost: kill the tree; the kubelet starts the container again."""
        if seat.state in {SeatState.GONE, *AT_GATE}:
            return
        metrics.failed(seat.state.value, event)
        self._node.tell(seat, "Warning", event, f"{why}; the workload is started again")
        if seat.state in TIER_OF or seat.state is SeatState.UNVERIFIED:
            seat.history.explained(why)
            self._begin_end(seat, Ends.KILLED)
        elif seat.state is not SeatState.FAILED:
            self._node.transition(seat, SeatEvent.FAIL, why)
        self._node.leases.revoke(seat.uid)
        self.work(seat, self.kill(seat))

    def fail_lost(self, seat: Seat) -> None:
        """End it if it uses a GPU that is lost: no call to that comes back with a good answer. At
        the gate it uses none, and after a restart of the agent not before its kyb-init says so."""
        inventory = self._node.inventory
        using = seat.state in OCCUPYING and seat.state is not SeatState.FAILED
        if seat.state is SeatState.STARTING:
            using = seat.contact.begun
        if inventory is None or not using or self._node.has_gpus(seat):
            return
        lost = ", ".join(gpu for gpu in seat.identity.gpus if gpu not in inventory.memory())
        self.fail(seat, f"GPU {lost} is lost or unhealthy", "GpuLost")

    async def kill(self, seat: Seat) -> None:
        """Kill the tree until nothing is left, and see the seat to its end."""

        def say(error: Exception) -> None:
            self._node.complain(seat, "KillIncomplete", f"{error}; trying again")

        await retry(lambda: self._steps.kill(seat), say, on=KybernateError)
        self.watch_end(seat)

    def watch_end(self, seat: Seat) -> None:
        """Follow the seat's processes until they are gone, or kyb-init is back."""
        if seat.state is not SeatState.GONE and (
            seat.tasks.watch is None or seat.tasks.watch.done()
        ):
            seat.tasks.watched(asyncio.create_task(self._watch_end(seat)))

    async def _watch_end(self, seat: Seat) -> None:
        pausing, began = iter(_END_POLL), self._world.now()
        while not await self._is_gone(seat):
            found = watched(self._end_view(seat), self._world.now())
            if found is Watched.SURVIVED:
                self._carry_on(seat)
            if found is not Watched.ENDS:
                return
            self._unblock(seat, began)
            await asyncio.sleep(next(pausing))
        self.ended(seat)

    async def _is_gone(self, seat: Seat) -> bool:
        try:
            return await self._steps.gone(seat)
        except (DriverError, DeadlineError) as error:
            log.warning("%s: can't tell whether its GPUs are free: %s", seat, error)
            return False

    def _end_view(self, seat: Seat) -> EndView:
        return EndView(
            state=seat.state,
            ends=seat.ending.ends,
            until=seat.ending.since + seat.identity.grace + _KILLED_BY_NOW,
            connected=seat.contact.connected,
            replaced=seat.contact.next_hello is not None,
            pod_ends=seat.ending.terminating,
            pod_gone=seat.ending.deleted,
        )

    def _carry_on(self, seat: Seat) -> None:
        seat.ending.carry_on()
        self._node.save(seat)
        why = "it was asked to end and runs on"
        self._node.tell(seat, "Warning", "TermIgnored", f"{why}: it gets requests again")
        if seat.state is SeatState.DRAINING:
            self._node.transition(seat, SeatEvent.UNDRAIN, why)
        if seat.state is SeatState.ACTIVE:
            self.activate(seat)
        self._kick()

    def _unblock(self, seat: Seat, began: float) -> None:
        """A frozen process can't die of SIGKILL on cgroup v1: thaw it."""
        procs, freezer = self._world.procs, self._world.freezer
        # Without a tree that is known there may be half of one, which was being recreated.
        tree = seat.tree
        known = [tree.root.pid] if tree.root else freezer.pids(tree.handle) if tree.handle else ()
        if any(procs.ending(pid) for pid in known):
            freezer.thaw(seat.tree.handle)
        if seat.ending.deleted and self._world.now() >= began + _DELETED_PATIENCE:
            self.aside(self._steps.kill(seat))

    def ended(self, seat: Seat) -> None:
        """Nothing of it is left: it may start again, or is forgotten with its pod."""
        if seat.tasks.work is not None and seat.tasks.work is not asyncio.current_task():
            seat.tasks.work.cancel()
        self._steps.drop_helper(seat)
        self._node.leases.revoke(seat.uid)
        if seat.state is SeatState.DUMPING:
            seat.saved.cut_short()
        self._outdated(seat, "its container has ended")
        seat.tree.ended()
        seat.contact.ended()
        seat.ending.ended()
        seat.wishes.has_left()
        seat.history.ended(self._world.now())
        if seat.state is SeatState.WAITING:
            self._node.save(seat)
        else:
            # One record: an agent that was killed in between would read of half an end.
            self._node.transition(seat, SeatEvent.ENDED, seat.history.reason)
        if seat.ending.deleted:
            self._vanished(seat)
        elif seat.contact.next_hello is not None:
            self._came_back(seat)
        self._kick()

    def end(self, seat: Seat) -> None:
        """The container is asked to end: no new requests, and nothing of it may stay frozen."""
        self._begin_end(seat, Ends.ASKED)
        if seat.state is SeatState.ACTIVE:
            self._node.transition(seat, SeatEvent.DRAIN, "its pod is ending")
            self._node.leases.drain(seat.uid)
        if seat.state in TIER_OF:
            self.let_go(seat)
        self.watch_end(seat)
        self._kick()

    def _begin_end(self, seat: Seat, ends: Ends) -> None:
        if seat.ending.begin(self._world.now(), ends):
            self._node.save(seat)

    def let_go(self, seat: Seat) -> None:
        """A parked seat was told to end: thaw it, let the signal through, then kill the rest."""
        if seat.tasks.work is not None and seat.tasks.work is not asyncio.current_task():
            seat.tasks.work.cancel()  # whatever brings it to another tier
        self._world.doors.ok(seat.uid)
        sealed = seat.state is SeatState.DUMPING and bool(seat.saved.artifact)
        if sealed or seat.state is SeatState.RESTORING:
            # Whoever succeeds it continues from its artifact: what there is of its tree must not.
            self.aside(self.kill(seat))
            return
        self._world.freezer.thaw(seat.tree.handle)
        self.aside(self._finish_off(seat))

    async def _finish_off(self, seat: Seat) -> None:
        # Its CUDA calls block while checkpointed, so an orderly exit may never come.
        handle = seat.tree.handle
        await asyncio.sleep(_TERM_PATIENCE)
        if seat.tree.handle == handle and seat.ending.asked and seat.state in TIER_OF:
            await self.kill(seat)
