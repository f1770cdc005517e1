"""The agent's loop: the single owner of the node's seats.

Everything that happens comes in here as a plain call on the event loop; each asks for one swap
decision (`kick`), whose actions are journalled and then carried out by the lifecycle.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from kybernate.core.seat.seats import SeatEvent
from kybernate.core.swap.swap import ActionKind, decided, next_check
from kybernate.core.swap.swapview import SPARE, SwapPolicy
from kybernate.errors import RefusedError
from kybernate.types import SeatState
from nodeagent import metrics
from nodeagent.api.demand import SLACK, ProxySide
from nodeagent.api.doorside import DoorSide
from nodeagent.app.found import Found
from nodeagent.artifacts.adopt import Adoptions
from nodeagent.artifacts.claims import Claims
from nodeagent.artifacts.holds import Custody
from nodeagent.artifacts.lines import OwnSuccession
from nodeagent.artifacts.newest import Newest
from nodeagent.artifacts.reports import ReportQueue, no_manifest
from nodeagent.artifacts.succession import Inquiry, Succession
from nodeagent.guard.pressure import Pressure
from nodeagent.kube.places import Places
from nodeagent.migration.journal import may_be_elsewhere
from nodeagent.offload.departures import Departures
from nodeagent.offload.ground import Ground
from nodeagent.offload.offload import Offload
from nodeagent.offload.tiers import Tiers
from nodeagent.seat.lifecycle import Lifecycle
from nodeagent.seat.node import SEAT
from nodeagent.seat.operatorside import OperatorSide
from nodeagent.seat.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kybernate.core.swap.swap import Action
    from kybernate.core.swap.swapview import SwapView
    from kybernate.ports import Memory
    from kybernate.settings.agent import AgentSettings
    from kybernate.types import PodUid
    from nodeagent.kube.pods import PodFacts
    from nodeagent.seat.node import Inventory, Node
    from nodeagent.seat.parts.wishes import Declared
    from nodeagent.seat.record import Seat

log = logging.getLogger(__name__)

_RETRY = 1.0
_DRAINS = 0.005
"""Seconds until the loop looks again at a seat that drains, if it isn't drained before: a request
waits for that order to get out, which another decision at once would hold up."""


class Loop:
    """Takes events, decides, acts. `operators`, `proxies` and `doors` are where events come in.
    `reports`: what tells the registry, if there is one. `memory`: what limits what may be parked,
    if anything does; `pinned`: seats that are not to be parked, and why."""

    def __init__(
        self,
        node: Node,
        reports: ReportQueue | None = None,
        memory: Memory | None = None,
        pinned: Callable[[], Mapping[PodUid, str]] = dict,
    ) -> None:
        self.node, self.policy, self._pinned = node, _policy_of(node.settings), pinned
        self.operators = OperatorSide(node, self.kick)
        self.proxies = ProxySide(node, self.kick)
        self.steps = Steps(node)
        self.life = self._lifecycle()
        self.registry = node.world.registry or OwnSuccession(node.world, node.settings.node)
        self.reports = reports or ReportQueue(node.world.journal, self.registry, no_manifest)
        asked = Inquiry(node, self.registry)
        self.custody = Custody(node, self.life.aside, self.reports, asked)
        departures = Departures()
        self.succession = Succession(node, self.custody, self.reports, departures)
        ground = Ground(node, self.steps, self.life, self.kick)
        newest = Newest(node, self.registry, self.custody)
        self.claims = Claims(node, self.registry, self.reports, newest)
        custodians = self.custody, self.succession, departures, self.claims
        self.offload = Offload(ground, self._requested, *custodians)
        node.observe(self.offload.ahead)
        self.tiers = Tiers(node, self.offload, self.policy, self.kick)
        self.pressure = self._pressure(memory) if memory is not None else None
        self.refusals: Callable[[Iterable[Seat]], Mapping[PodUid, str]]
        self.refusals = self.pressure or (lambda _seats: {})
        self.places = Places(node, self.custody)
        gates, transfers = self.offload.gates, self.offload.transfers
        self.adoptions = Adoptions(
            node, self.life, self.kick, gates, transfers, self.claims, newest
        )
        self._kicked = False
        self._settled: SwapView | None = None
        self._settled_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tiers_next: asyncio.Handle | None = None
        self.device_freed = asyncio.Event()
        self.found = Found(node, self.steps, self.life, self.offload, self.kick)
        self.doors = DoorSide(
            node, self.life, self.offload, self.adoptions, self.found.accept_running, self.kick
        )
        node.world.doors.listen(self.doors)

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(
            self.node,
            self.steps,
            self.kick,
            vanished=self._vanished,
            came_back=self._came_back,
            outdated=self._outdated,
        )

    def _pressure(self, memory: Memory) -> Pressure:
        return Pressure(self.node, memory, self.tiers.makes_room, self._judge_parks, self.kick)

    def resume(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """What the last agent noted of artifacts, before anything is dropped or told."""
        self.custody.load(records)
        self.offload.departures.resume(may_be_elsewhere(records))
        if isinstance(self.registry, OwnSuccession):
            self.registry.load(records)
        self.reports.load(records)
        self.succession.load(records)

    # --- deciding -----------------------------------------------------------------------------

    def kick(self) -> None:
        """Decide once this round of events is through."""
        if not self._kicked:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        self._kicked = False
        began = time.perf_counter()
        now = self.node.world.now()
        # Judging reads the memory, too: what has left RAM meanwhile leaves room for others.
        self._judge_parks()
        self.tiers.stand()
        view = self.node.swap_view()
        refused = any(seat.unparkable for seat in view.seats)
        acted = False
        if self._tiers_next is not None:
            self._tiers_next.cancel()
            self._tiers_next = None
        if refused or view != self._settled or now >= self._settled_until:
            acted = self._decide_on(view, now)
        self.proxies.grant_again()
        metrics.LOOP_SECONDS.observe(time.perf_counter() - began)
        if acted:
            # What was decided begins first: a request may wait for it. Where that has another
            # decision follow at once, the tiers are looked at after that one.
            self._tiers_next = asyncio.get_running_loop().call_soon(self.tiers.look)
        else:
            self.tiers.look(view)

    def _judge_parks(self) -> None:
        self.node.judge_parks({**self.refusals(self.node.seats.values()), **self._pinned()})

    async def watch_memory(self) -> None:
        """For ever: have what may be parked follow the host's memory."""
        if self.pressure is not None:
            await self.pressure.run()

    def _decide_on(self, view: SwapView, now: float) -> bool:
        """Whether anything was done."""
        found = decided(view, self.policy, now)
        when = next_check(view, self.policy, now, found)
        # Where nothing was to be done, nothing is until something changes or that time has come.
        self._settled = None if found.actions else view
        self._settled_until = math.inf if when is None else when
        self.node.judge_turns(found.why)
        for action in found.actions:
            if not self._carry_out(action):
                when = now + _RETRY if when is None else min(when, now + _RETRY)
        self._look_again(when)
        return bool(found.actions)

    def _look_again(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer = asyncio.get_running_loop().call_at(when + SLACK, self.kick)

    def _carry_out(self, action: Action) -> bool:
        """Whether it went well: what goes wrong with one seat must not hold up the others."""
        try:
            self._apply(action)
        except Exception:
            log.exception("%s of seat %s failed unexpectedly", action.kind, action.uid)
            return False
        return True

    def _apply(self, action: Action) -> None:
        seat, why = self.node.seats[action.uid], action.reason
        if seat.ending.asked:
            return
        match action.kind:
            case ActionKind.START:
                self._place(seat, action)
                self.node.transition(seat, SeatEvent.GO, why)
                self.life.work(seat, self.life.start(seat))
            case ActionKind.WAKE:
                self._place(seat, action)
                written = self.node.transition(seat, SeatEvent.WAKE, why, late=False)
                self.life.work(seat, self.life.wake(seat, written))
            case ActionKind.DRAIN:
                self.node.leases.drain(seat.uid)
                self.node.transition(seat, SeatEvent.DRAIN, why)
                if self.node.leases.drained(seat.uid):
                    self.kick()
                else:
                    asyncio.get_running_loop().call_later(_DRAINS, self._look_at, seat)
            case ActionKind.UNDRAIN:
                self.node.transition(seat, SeatEvent.UNDRAIN, why)
                self.life.activate(seat)
            case ActionKind.REVOKE:
                self.node.tell(seat, "Warning", "Revoked", why)
                self.node.leases.revoke(seat.uid)
                self.kick()
            case ActionKind.PARK:
                self._park(seat, why)

    def _look_at(self, seat: Seat) -> None:
        if seat.state is SeatState.DRAINING:
            self.kick()

    def _place(self, seat: Seat, action: Action) -> None:
        """The GPU that was chosen is noted with the transition, before anything is done there."""
        gpus = tuple(sorted(action.gpus))
        if gpus and gpus != seat.identity.gpus:
            log.info("%s goes from GPU %s to %s", seat, ", ".join(seat.identity.gpus), gpus[0])
            seat.goes_to(gpus)

    def _park(self, seat: Seat, why: str) -> None:
        # Of several parks decided at once, the earlier may have taken the room.
        if any(one.state is SeatState.PARKING for one in self.node.seats.values()):
            self._judge_parks()
        if seat.backoff.unparkable:
            self.kick()
        elif seat.ending.forfeit:
            seat.ending.starts_on_demand()
            self.life.fail(seat, seat.ending.forfeit)
        else:
            self.node.transition(seat, SeatEvent.PARK, why)
            self.life.work(seat, self.life.park(seat))

    # --- seats and pods -----------------------------------------------------------------------

    def add(self, seat: Seat) -> None:
        """A seat is new."""
        self.node.add(seat)
        self.node.save(seat)
        self.node.changed(seat)
        self.proxies.recount(seat.uid)

    def inventory_reported(self, inventory: Inventory) -> None:
        """The plugin says what the node has.

        Raises RefusedError if it changes the GPUs of a group that is held: of such a report only
        the GPUs' health is taken over.
        """
        problem = self._regrouped(inventory)
        if problem and self.node.inventory is not None:
            self.node.set_inventory(self.node.inventory.with_health_of(inventory))
        else:
            self.node.set_inventory(inventory)
        self.fail_lost()
        self.kick()
        if problem:
            raise RefusedError(problem)

    def _regrouped(self, inventory: Inventory) -> str:
        for seat in self.node.seats.values():
            one = seat.identity
            group = inventory.group(one.group)
            if group is None or (group.gpus != one.gpus and not one.anywhere):
                now = ", ".join(group.gpus) if group else "no GPU"
                return (
                    f"group {one.group} is held by pod {one.pod} with GPUs {', '.join(one.gpus)} "
                    f"and can't be changed to {now}; delete the pods that hold it first"
                )
        return ""

    def fail_lost(self) -> None:
        """End what uses a GPU that is lost."""
        for seat in tuple(self.node.seats.values()):
            self.life.fail_lost(seat)

    def pod_changed(self, facts: PodFacts) -> None:
        """The watch shows a pod again."""
        seat = self.node.seats.get(facts.ref.uid)
        if seat is None:
            self._bound(facts)
            return
        self.declared(seat, facts)
        if facts.ip and facts.ip != seat.contact.pod_ip:
            seat.contact.moved(facts.ip)
            self.node.save(seat)
            # A state of another pod wakes before the watch shows the address, and never starts.
            if seat.history.started_once or seat.state is SeatState.ACTIVE:
                seat.contact.serves(seat.identity.port)
            self.node.changed(seat)
        seat.ending.pod_ends(terminating=facts.deleting)
        if facts.over:
            self.pod_gone(facts.ref.uid)
        elif facts.deleting and not seat.ending.asked:
            self.life.end(seat)

    def _bound(self, facts: PodFacts) -> None:
        """A pod that has no seat yet: what it continues from may come before it has one."""
        wish = facts.restore
        if facts.deleting or facts.over:
            self.offload.ahead.leave(facts.ref.uid)
        elif facts.group is not None and wish is not None and wish.succeeds:
            self.offload.ahead.expect(facts.ref, wish.uid)

    def declared(self, seat: Seat, now: Declared) -> None:
        """What the seat's pod, or the file that has its model, says of it now."""
        if seat.wishes.declared(now):
            self.node.save(seat)
            self.node.changed(seat)
            self.kick()

    def pod_gone(self, uid: PodUid) -> None:
        """The pod no longer exists, or has ended for good."""
        self.offload.ahead.leave(uid)
        seat = self.node.seats.get(uid)
        if seat is None or seat.ending.deleted:
            return
        seat.ending.pod_gone()
        self.life.end(seat)

    def _vanished(self, seat: Seat) -> None:
        # Before its record says so: an agent that is killed in between has nobody else to tell it.
        self.succession.gone(seat)
        self.node.transition(seat, SeatEvent.DELETE, "its pod is gone")
        self.node.remove(seat)
        self.steps.forget(seat)
        self.offload.departures.forget(seat.uid)
        self.node.world.journal.delete(SEAT + seat.uid)
        self.life.aside(self.node.world.doors.close(seat.uid))
        for observer in self.node.observers:
            observer.seat_gone(seat)
        self.device_freed.set()

    def _outdated(self, seat: Seat, why: str) -> None:
        self.offload.forget(seat, why)

    def _requested(self, seat: Seat, what: str) -> None:
        self.operators.request_wake(seat.uid, what)

    def _came_back(self, seat: Seat) -> None:
        self.doors.came_back(seat)


def _policy_of(settings: AgentSettings) -> SwapPolicy:
    return SwapPolicy(
        settings.min_residency_s,
        settings.idle_after_s,
        settings.drain_limit_s,
        settings.max_wait_s,
        SPARE,
        settings.pod_residency_s,
    )
